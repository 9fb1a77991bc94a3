package v091

import (
	"errors"
	"time"

	"github.com/quorate/quorate/amqp"
	messages "github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v091/wire"
)

// conn is one client connection: the amqp.Endpoint of its protocol.
type conn struct {
	*amqp.Conn
	protocol Protocol
	out      outbox
	reader   *reader
	channels channelList

	terms // set by the handshake
}

// terms are what the handshake has negotiated, besides amqp.Terms.
type terms struct {
	clientProperties wire.Table
	capable          capabilities
	frameMax         uint32
	channelMax       uint16
}

func newConn(p Protocol, shared *amqp.Conn) *conn {
	c := &conn{Conn: shared, protocol: p, out: outbox{shared.Out}}
	c.reader = newReader(c)
	return c
}

// Describe implements amqp.Endpoint.
func (c *conn) Describe(i *amqp.ConnectionInfo) {
	i.Protocol, i.FrameMax, i.ChannelMax, i.Properties = "AMQP 0-9-1", c.frameMax, c.channelMax, messages.Table(c.clientProperties)
	i.Given = c.given()
}

// given is what the client calls the connection; empty: nothing.
func (c *conn) given() string {
	if given, ok := c.clientProperties.Get("connection_name"); ok && isText(given) {
		return given.Str
	}
	return ""
}

// Encoder implements amqp.Endpoint.
func (c *conn) Encoder(w *amqp.Writer) amqp.Encoder {
	return &writer{Writer: w, frameMax: c.frameMax}
}

// Run implements amqp.Endpoint.
func (c *conn) Run() error {
	// A Renew before the connection was running has missed it.
	if e := c.renew(wire.IDConnectionOpen); e != nil {
		c.fail(e)
		return amqp.ErrEnding
	}
	err := c.reader.run()
	if e := new(wire.Error); errors.As(err, &e) {
		c.fail(e)
		return amqp.ErrEnding
	}
	return err
}

// Admit implements amqp.Endpoint.
func (c *conn) Admit() bool { return c.reader.waitUnblocked() }

// DropRelieved implements amqp.Endpoint.
func (c *conn) DropRelieved() { c.reader.dropRelieved() }

// Refuse implements amqp.Endpoint.
func (c *conn) Refuse(err error) (told bool) {
	e := new(wire.Error)
	if !errors.As(err, &e) {
		return false
	}
	if methodOf(e) == wire.IDConnectionOpen {
		c.refused(e)
	}
	_, err = c.Socket.Write(wire.AppendMethod(nil, 0, closeMethod(e)))
	return err == nil
}

// Fail implements amqp.Endpoint.
func (c *conn) Fail(reason error) { c.fail(protocolError(reason, 0)) }

// fail ends the connection with connection.close, unless it is ending already.
// It does not block.
func (c *conn) fail(e *wire.Error) {
	if c.Conn.Fail(e) {
		c.out.pushEnd(closeMethod(e))
	}
}

// AwaitClose implements amqp.Endpoint.
func (c *conn) AwaitClose() {
	for {
		f, err := c.reader.in.ReadFrame()
		if err != nil {
			return
		}
		c.Source.FrameDone()
		if f.Channel != 0 || f.Type != wire.FrameMethod {
			continue
		}
		switch wire.PeekID(f.Payload) {
		case wire.IDConnectionClose:
			c.out.push(0, &wire.ConnectionCloseOK{})
		case wire.IDConnectionCloseOK:
			return
		}
	}
}

// FinishClose implements amqp.Endpoint.
func (c *conn) FinishClose() { c.out.pushEnd(&wire.ConnectionCloseOK{}) }

// Shut implements amqp.Endpoint.
func (c *conn) Shut() {
	for _, ch := range c.reader.channels {
		ch.shut()
	}
}

// Leave implements amqp.Endpoint.
func (c *conn) Leave() (sessions []amqp.Session) {
	for _, ch := range c.reader.channels {
		if ch.beginClose() {
			sessions = append(sessions, ch.session)
		}
	}
	return sessions
}

// Vacate implements amqp.Endpoint.
func (c *conn) Vacate(clean bool) {
	for _, ch := range c.reader.channels {
		ch.content.reset()
		ch.gate.Lock()
		ch.queue.clear()
		ch.tx.end()
		ch.gate.Unlock()
		ch.memory.Close(clean)
	}
}

// Parts implements amqp.Endpoint.
func (c *conn) Parts() (parts []*amqp.Account) {
	for _, ch := range c.channels.all() {
		parts = append(parts, ch.memory)
	}
	return parts
}

// refused reports an error about rights that is sent to the client.
func (c *conn) refused(e *wire.Error) {
	c.Refused(wire.MethodName(methodOf(e)), wire.ReplyText(e.Code, e.Text))
}

// methodOf is the id of the method that an error is about; 0: none.
func methodOf(e *wire.Error) uint32 { return uint32(e.ClassID)<<16 | uint32(e.MethodID) }

// Renew implements amqp.Endpoint.
func (c *conn) Renew() {
	if e := c.renew(0); e != nil {
		c.fail(e)
	}
}

// renew checks what the client may do now, on behalf of the method with this id.
// An error is what the connection is to end with.
func (c *conn) renew(id uint32) *wire.Error {
	err := c.Broker.Renew()
	if err == nil {
		return nil
	}
	e := protocolError(err, id)
	c.refused(e)
	return e
}

// setHeartbeat sets the interval that the client has chosen; 0: none.
func (c *conn) setHeartbeat(interval time.Duration) { c.Heartbeat, c.Beat = interval, interval/2 }
