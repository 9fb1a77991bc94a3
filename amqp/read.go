package amqp

import (
	"errors"
	"log/slog"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// read processes frames until something ends the connection, and returns what.
func (c *conn) read() error {
	for {
		if err := c.frame(); err != nil {
			return err
		}
		c.source.frameDone()
		if !c.obey() || !c.flow.wait(c.done) || !c.out.owed.wait(c.done) {
			return errEnding
		}
	}
}

// frame processes one frame.
func (c *conn) frame() error {
	head, err := c.in.ReadFrameHeader()
	if err != nil {
		return err
	}
	if c.isDone() {
		return errEnding // the frame is for tellClose
	}
	if head.Type == wire.FrameHeartbeat {
		return c.in.SkipPayload()
	}
	if head.Channel == 0 {
		payload, err := c.in.ReadPayload()
		if err != nil {
			return err
		}
		return c.method(wire.Frame{Type: head.Type, Payload: payload})
	}
	ch := c.channel(head.Channel)
	if ch != nil && ch.ending != endingNot {
		free, err := ch.waitFinished()
		if err != nil {
			return err
		}
		if free && ch.ending == endingAnswered {
			return c.strayFrame(ch, head)
		}
		if free {
			c.forget(ch)
			ch = nil
		}
	}
	if ch != nil {
		return ch.frame(head)
	}
	payload, err := c.in.ReadPayload()
	if err != nil {
		return err
	}
	return c.firstFrame(head, payload)
}

// channel finds an open channel.
func (c *conn) channel(number uint16) *channel {
	if c.last == nil || c.last.number != number {
		c.last = c.channels[number]
	}
	return c.last
}

// method processes a frame on channel 0.
func (c *conn) method(f wire.Frame) error {
	if f.Type != wire.FrameMethod {
		return wire.UnexpectedFrame(f)
	}
	m, err := wire.DecodeMethod(f.Payload)
	if err != nil {
		return err
	}
	switch m.(type) {
	case *wire.ConnectionClose:
		return errClientClosed
	case *wire.ConnectionCloseOK:
	case *wire.ConnectionUpdateSecret:
		if e := c.renew(wire.IDConnectionUpdateSecret); e != nil {
			return e
		}
		c.out.push(0, &wire.ConnectionUpdateSecretOK{})
	default:
		return errUnexpectedMethod(wire.ID(m), "running")
	}
	return nil
}

// firstFrame processes a frame on a channel that is not open.
func (c *conn) firstFrame(head wire.FrameHead, payload []byte) error {
	if head.Type != wire.FrameMethod {
		return wire.ExpectedMethod()
	}
	m, err := decodeOnChannel(payload)
	if err != nil {
		return err
	}
	switch id := wire.ID(m); {
	case id == wire.IDChannelCloseOK, id == wire.IDBasicCancelOK:
		return nil // of what crossed the client's own channel.close
	case m.ClassID() == wire.ClassConnection:
		return errUnimplementedMethod(id)
	case id != wire.IDChannelOpen:
		return errExpectedOpen(id)
	}
	return c.openChannel(head.Channel)
}

// strayFrame processes a frame on a channel that has ended with an error, up
// to the next channel.open. Clients that work on a channel from several threads
// may send something behind their channel.close-ok; that is no reason to end
// the connection.
func (c *conn) strayFrame(ch *channel, head wire.FrameHead) error {
	if head.Type != wire.FrameMethod {
		return c.in.SkipPayload()
	}
	payload, err := c.in.ReadPayload()
	if err != nil {
		return err
	}
	switch wire.PeekID(payload) {
	case wire.IDChannelOpen:
		c.forget(ch)
		return c.firstFrame(head, payload)
	case wire.IDChannelClose:
		c.out.push(ch.number, &wire.ChannelCloseOK{})
	}
	return nil
}

// forget drops a finished channel.
func (c *conn) forget(ch *channel) {
	delete(c.channels, ch.number)
	c.last = nil
}

// decodeOnChannel decodes a method of a channel. What is wrong with its
// encoding is not the fault of a method there.
func decodeOnChannel(payload []byte) (wire.Method, error) {
	m, err := wire.DecodeMethod(payload)
	if err != nil {
		return nil, unnamed(err)
	}
	return m, nil
}

// unnamed takes the method out of a decoding error.
func unnamed(err error) error {
	if e, ok := err.(*wire.Error); ok {
		e.ClassID, e.MethodID = 0, 0
	}
	return err
}

func (c *conn) openChannel(number uint16) error {
	if len(c.channels) >= int(c.channelMax) {
		c.sweep()
	}
	if n := len(c.channels); n >= int(c.channelMax) {
		return errTooManyChannels(n, c.channelMax)
	}
	ch := newChannel(c, number)
	session, err := c.broker.OpenSession(ch)
	if err != nil {
		if isInternal(err) {
			c.log.Error("channel.open failed", slog.Any("error", err))
		}
		if errors.As(err, new(*fsm.Refusal)) {
			return protocolError(err, 0) // as with any limit, it is no method's
		}
		return protocolError(err, wire.IDChannelOpen)
	}
	ch.session = session
	c.channels[number], c.last = ch, ch
	c.channelCount.Add(1)
	c.out.push(number, &wire.ChannelOpenOK{})
	return nil
}

// sweep forgets channels that are finished.
func (c *conn) sweep() {
	for number, ch := range c.channels {
		if ch.isFinished() {
			delete(c.channels, number)
		}
	}
	c.last = nil
}
