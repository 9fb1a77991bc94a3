package amqp

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/quorate/quorate/amqp/wire"
)

// Refusal is what a client that has logged in was refused, or lost, for want of a
// right.
type Refusal struct {
	User, VHost string
	Connection  string // its name
	Peer        netip.AddrPort
	Method      string // empty: none, the right was taken away
	Text        string
}

// refused reports an error about rights that a client is told of.
func (c *conn) refused(e *wire.Error) {
	tell := c.server.cfg.Refused
	if tell == nil {
		return
	}
	peer, host := addrPort(c.socket.RemoteAddr().String()), addrPort(c.socket.LocalAddr().String())
	tell(Refusal{
		User: c.user, VHost: c.vhost, Connection: peer.String() + " -> " + host.String(), Peer: peer,
		Method: wire.MethodName(methodOf(e)), Text: wire.ReplyText(e.Code, e.Text),
	})
}

// methodOf is the id of the method that an error is about; 0: none.
func methodOf(e *wire.Error) uint32 { return uint32(e.ClassID)<<16 | uint32(e.MethodID) }

// renew looks at what the client may do now, on behalf of the method with this id.
// An error is what the connection is to end with.
func (c *conn) renew(id uint32) *wire.Error {
	err := c.broker.Renew()
	if err == nil {
		return nil
	}
	e := protocolError(err, id)
	c.refused(e)
	return e
}

// noise bounds how often the log speaks of clients that have not logged in: they
// may come as often as they like.
type noise struct {
	mu    sync.Mutex
	since time.Time
	said  int
	left  uint64
}

// noisePerSecond is how many lines there may be in a second.
const noisePerSecond = 20

// log writes a line, or counts it for the next one that is written.
func (n *noise) log(c *conn, level slog.Level, message string, attrs ...any) {
	if !c.log.Enabled(c.ctx, level) {
		return
	}
	n.mu.Lock()
	if now := time.Now(); now.Sub(n.since) >= time.Second {
		n.since, n.said = now, 0
	}
	say := n.said < noisePerSecond
	left := n.left
	if say {
		n.said++
		n.left = 0
	} else {
		n.left++
	}
	n.mu.Unlock()
	if say {
		c.log.Log(c.ctx, level, message, append(attrs, slog.Uint64("unlogged", left))...)
	}
}
