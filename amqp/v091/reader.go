package v091

import (
	"errors"
	"log/slog"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// reader passes the frames of a connection to its channels. It belongs to the
// goroutine that serves the connection, from the handshake on.
//
// Invariants: last is nil or in channels; a channel is in channels from
// channel.open until its number is reused, or its slot is needed for another
// one.
type reader struct {
	conn      *conn
	in        *wire.Reader
	channels  map[uint16]*channel
	last      *channel // the channel of the last frame
	published bool     // since it was last unblocked
	finishing finishing
	over      <-chan struct{} // closed when the connection is ending
	relieved  <-chan struct{} // dropRelieved is to be called
	request   request         // scratch, of kind requestSettle
}

func newReader(c *conn) *reader {
	return &reader{
		conn: c, in: wire.NewReader(c.Source, c.Config().InitialFrameMax), channels: map[uint16]*channel{},
		over: c.Done(), relieved: c.Relieved(),
	}
}

// run processes frames until the connection ends, and returns the reason.
func (r *reader) run() error {
	for {
		if err := r.frame(); err != nil {
			return err
		}
		r.conn.Source.FrameDone()
		if !r.waitUnblocked() || !r.conn.AwaitFlow() {
			return amqp.ErrEnding
		}
	}
}

// frame processes one frame.
func (r *reader) frame() error {
	head, err := r.in.ReadFrameHeader()
	if err != nil {
		return err
	}
	if r.conn.IsEnding() {
		return amqp.ErrEnding // the frame is for AwaitClose
	}
	if head.Type == wire.FrameHeartbeat {
		return r.in.SkipPayload()
	}
	if head.Channel == 0 {
		payload, err := r.in.ReadPayload()
		if err != nil {
			return err
		}
		return r.method(wire.Frame{Type: head.Type, Payload: payload})
	}
	ch := r.channel(head.Channel)
	if ch != nil && ch.end.seen != seenNothing {
		free, err := ch.end.wait(r)
		if err != nil {
			return err
		}
		if free && ch.end.seen == seenCloseOK {
			return r.strayFrame(ch, head)
		}
		if free {
			r.forget(ch)
			ch = nil
		}
	}
	if ch != nil {
		return ch.frame(head)
	}
	payload, err := r.in.ReadPayload()
	if err != nil {
		return err
	}
	return r.firstFrame(head, payload)
}

// channel returns an open channel.
func (r *reader) channel(number uint16) *channel {
	if r.last == nil || r.last.number != number {
		r.last = r.channels[number]
	}
	return r.last
}

// method processes a frame on channel 0.
func (r *reader) method(f wire.Frame) error {
	if f.Type != wire.FrameMethod {
		return wire.UnexpectedFrame(f)
	}
	m, err := wire.DecodeMethod(f.Payload)
	if err != nil {
		return err
	}
	switch m.(type) {
	case *wire.ConnectionClose:
		return amqp.ErrClientClosed
	case *wire.ConnectionCloseOK:
	case *wire.ConnectionUpdateSecret:
		if e := r.conn.renew(wire.IDConnectionUpdateSecret); e != nil {
			return e
		}
		r.conn.out.push(0, &wire.ConnectionUpdateSecretOK{})
	default:
		return errUnexpectedMethod(wire.ID(m), "running")
	}
	return nil
}

// firstFrame processes a frame on a channel that is not open.
func (r *reader) firstFrame(head wire.FrameHead, payload []byte) error {
	if head.Type != wire.FrameMethod {
		return wire.ExpectedMethod()
	}
	m, err := decodeOnChannel(payload)
	if err != nil {
		return err
	}
	switch id := wire.ID(m); {
	case id == wire.IDChannelCloseOK, id == wire.IDBasicCancelOK:
		return nil // it crossed the client's own channel.close
	case m.ClassID() == wire.ClassConnection:
		return errUnimplementedMethod(id)
	case id != wire.IDChannelOpen:
		return errExpectedOpen(id)
	}
	return r.openChannel(head.Channel)
}

// strayFrame processes a frame on a channel that has ended with an error, until
// the next channel.open. Clients that use a channel from several threads may
// send something after their channel.close-ok; that is no reason to end the
// connection.
func (r *reader) strayFrame(ch *channel, head wire.FrameHead) error {
	if head.Type != wire.FrameMethod {
		return r.in.SkipPayload()
	}
	payload, err := r.in.ReadPayload()
	if err != nil {
		return err
	}
	switch wire.PeekID(payload) {
	case wire.IDChannelOpen:
		r.forget(ch)
		return r.firstFrame(head, payload)
	case wire.IDChannelClose:
		r.conn.out.push(ch.number, &wire.ChannelCloseOK{})
	}
	return nil
}

// forget drops a finished channel.
func (r *reader) forget(ch *channel) {
	delete(r.channels, ch.number)
	r.last = nil
}

// decodeOnChannel decodes a method of a channel. Encoding errors are not
// attributed to the method.
func decodeOnChannel(payload []byte) (wire.Method, error) {
	m, err := wire.DecodeMethod(payload)
	if err != nil {
		return nil, unnamed(err)
	}
	return m, nil
}

// unnamed removes the method from a decoding error.
func unnamed(err error) error {
	if e, ok := err.(*wire.Error); ok {
		e.ClassID, e.MethodID = 0, 0
	}
	return err
}

func (r *reader) openChannel(number uint16) error {
	if len(r.channels) >= int(r.conn.channelMax) {
		r.sweep()
	}
	if n := len(r.channels); n >= int(r.conn.channelMax) {
		return errTooManyChannels(n, r.conn.channelMax)
	}
	ch := newChannel(r.conn, number)
	session, err := r.conn.Broker.OpenSession(ch)
	if err != nil {
		if isInternal(err) {
			r.conn.Log.Error("channel.open failed", slog.Any("error", err))
		}
		if errors.As(err, new(*fsm.Refusal)) {
			return protocolError(err, 0) // like any limit, it is not attributed to a method
		}
		return protocolError(err, wire.IDChannelOpen)
	}
	ch.attach(session)
	r.channels[number], r.last = ch, ch
	r.conn.channels.add(ch)
	r.conn.out.push(number, &wire.ChannelOpenOK{})
	return nil
}

// sweep drops finished channels.
func (r *reader) sweep() {
	for number, ch := range r.channels {
		if ch.end.isFinished() {
			delete(r.channels, number)
		}
	}
	r.last = nil
}

// waitUnblocked blocks the connection during an alarm, if it has published since it was last unblocked. It
// returns false if the connection has ended meanwhile.
func (r *reader) waitUnblocked() bool {
	a := r.conn.Alarm()
	if a == nil || !r.published || r.mayFinish(a) || r.conn.IsEnding() {
		return true
	}
	r.conn.SetBlocked(true)
	defer r.conn.SetBlocked(false)
	if r.conn.capable.connectionBlocked {
		r.conn.out.push(0, &wire.ConnectionBlocked{Reason: a.Reason})
	}
	if !r.conn.Await(a.Over) {
		return false
	}
	r.published = false
	r.conn.Source.Resume()
	if r.conn.capable.connectionBlocked {
		r.conn.out.push(0, &wire.ConnectionUnblocked{})
	}
	return true
}

// finishing is the one message that a connection may complete during an alarm.
type finishing struct {
	channel *channel
	alarm   <-chan struct{} // its Over
}

// mayFinish reports whether the message in progress may be completed although there is an alarm: one for each
// connection, and no more than lastBody of it.
func (r *reader) mayFinish(a *amqp.Alarm) bool {
	if r.last == nil || !r.last.content.isPartial() || r.last.content.remaining > lastBody {
		return false
	}
	if r.finishing.alarm != a.Over {
		r.finishing = finishing{r.last, a.Over}
	}
	return r.finishing.channel == r.last
}

// mayGoOn ends a channel whose incomplete message takes more memory than there may be, or may not be published.
// The broker is asked before the body takes memory, and again with the next frame if a method is in progress, which
// may create the exchange. The reader calls it.
func (r *reader) mayGoOn(ch *channel) {
	c := &ch.content
	// A publisher that has much on its way is stopped, not refused.
	over := c.count(r.conn.Flow.IsMuch())
	if over == nil && (c.counted == 0 || c.admitted) {
		return
	}
	ch.gate.Lock()
	defer ch.gate.Unlock()
	err := error(nil)
	switch {
	case over != nil:
		err = errHeld(wire.IDBasicPublish, over)
	case ch.busy || !ch.end.isOpen():
		return
	default:
		err = ch.publisher.admit(&c.request.message)
		c.admitted = err == nil
	}
	if err != nil && !errors.Is(err, fsm.ErrNotFresh) {
		ch.raise(err, wire.IDBasicPublish)
		ch.proceed()
		c.reset()
	}
}

// relieve ends a channel and drops what it holds, except for a commit in progress. The reader is woken, wherever it
// waits, to drop an incomplete message. Any goroutine may call it.
func (r *reader) relieve(ch *channel, why *wire.Error) {
	defer r.conn.Contain("relieve a channel")
	defer r.conn.WakeReader()
	defer ch.relieving.Store(false)
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.tx.committing || !ch.end.isOpen() {
		return
	}
	ch.raise(why, 0)
	ch.queue.clear()
	ch.tx.end()
	ch.proceed()
}

// dropRelieved drops the incomplete messages of channels whose frames are ignored.
func (r *reader) dropRelieved() {
	if r.conn.IsEnding() {
		return // the teardown does it, perhaps now
	}
	for _, ch := range r.channels {
		if ch.end.ignoring.Load() {
			ch.content.reset()
		}
	}
}
