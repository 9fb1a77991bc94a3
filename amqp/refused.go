package amqp

import (
	"net/netip"

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

// refused reports an error about rights that is sent to the client.
func (c *conn) refused(e *wire.Error) {
	report := c.server.cfg.Refused
	if report == nil {
		return
	}
	peer, host := addrPort(c.socket.RemoteAddr().String()), addrPort(c.socket.LocalAddr().String())
	report(Refusal{
		User: c.user, VHost: c.vhost, Connection: peer.String() + " -> " + host.String(), Peer: peer,
		Method: wire.MethodName(methodOf(e)), Text: wire.ReplyText(e.Code, e.Text),
	})
}

// methodOf is the id of the method that an error is about; 0: none.
func methodOf(e *wire.Error) uint32 { return uint32(e.ClassID)<<16 | uint32(e.MethodID) }

// renew checks what the client may do now, on behalf of the method with this id.
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
