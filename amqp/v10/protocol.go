package v10

import (
	"fmt"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// Protocol is AMQP 1.0, for the server's list of protocols. The zero value of a
// limit means its default.
type Protocol struct {
	// Ready reports whether all nodes know what AMQP 1.0 needs; until then it is not
	// spoken. nil: they do.
	Ready func() bool
	// SessionMax is how many sessions a connection may have open; by default 64.
	SessionMax int
	// LinkMax is how many links a session may have; by default 256.
	LinkMax int
	// Node is the name of this node, as it is announced to clients; empty: it is not.
	Node string
	// DefaultVHost is opened for a client that names none; by default "/".
	DefaultVHost string
	// Refused is called for each message that is refused without anybody being told, as its client has settled it; nil: nobody
	// counts. It must not block.
	Refused func()
	// Dialect says what logins, addresses, messages and outcomes mean; nil: what they mean to clients of this broker.
	Dialect Dialect
}

// Headers of the protocol: that of the login, and that of what follows.
var (
	saslHeader = amqp.Header(wire.ProtocolHeader(3))
	openHeader = amqp.Header(wire.ProtocolHeader(0))
)

// Name implements amqp.Protocol.
func (Protocol) Name() string { return "amqp10" }

// Speaks implements amqp.Protocol: only what begins with a login is spoken.
func (p Protocol) Speaks(h amqp.Header) bool { return h == saslHeader && (p.Ready == nil || p.Ready()) }

// Header implements amqp.Protocol.
func (Protocol) Header() amqp.Header { return saslHeader }

// Validate implements amqp.Protocol.
func (p Protocol) Validate() error {
	for _, s := range []struct {
		name        string
		value, high int
	}{{"session_max_per_connection", p.SessionMax, 1 << 16}, {"link_max_per_session", p.LinkMax, 1 << 31}} {
		if s.value < 0 || s.value > s.high {
			return fmt.Errorf("%s is %d, must be between 1 and %d", s.name, s.value, s.high)
		}
	}
	return nil
}

// Open implements amqp.Protocol.
func (p Protocol) Open(c *amqp.Conn, _ amqp.Header) amqp.Endpoint {
	if p.SessionMax == 0 {
		p.SessionMax = 64
	}
	if p.LinkMax == 0 {
		p.LinkMax = 256
	}
	if p.DefaultVHost == "" {
		p.DefaultVHost = "/"
	}
	if p.Dialect == nil {
		p.Dialect = plain{}
	}
	return newConn(p, c)
}
