package amqp

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

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
	source    *source
	in        *wire.Reader
	channels  map[uint16]*channel
	last      *channel // the channel of the last frame
	published bool     // since it was last unblocked
	finishing finishing
	relieved  chan struct{} // capacity 1: dropRelieved is to be called
	request   request       // scratch, of kind requestSettle
}

func newReader(c *conn) *reader {
	r := &reader{conn: c, source: &source{conn: c.socket}, channels: map[uint16]*channel{}, relieved: make(chan struct{}, 1)}
	r.source.admit = r.admit
	r.in = wire.NewReader(r.source, r.conn.server.cfg.InitialFrameMax)
	return r
}

// run processes frames until the connection ends, and returns the reason.
func (r *reader) run() error {
	for {
		if err := r.frame(); err != nil {
			return err
		}
		r.source.frameDone()
		if !r.waitUnblocked() || !r.conn.flow.wait(r) || !r.conn.out.requested.wait(r) {
			return errEnding
		}
	}
}

// frame processes one frame.
func (r *reader) frame() error {
	head, err := r.in.ReadFrameHeader()
	if err != nil {
		return err
	}
	if r.conn.end.isDone() {
		return errEnding // the frame is for tellClose
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
		return errClientClosed
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
	session, err := r.conn.broker.OpenSession(ch)
	if err != nil {
		if isInternal(err) {
			r.conn.log.Error("channel.open failed", slog.Any("error", err))
		}
		if errors.As(err, new(*fsm.Refusal)) {
			return protocolError(err, 0) // like any limit, it is not attributed to a method
		}
		return protocolError(err, wire.IDChannelOpen)
	}
	ch.attach(session)
	r.channels[number], r.last = ch, ch
	r.conn.stats.channels.add(ch)
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
	a := r.conn.server.alarm.Load()
	if a == nil || !r.published || r.mayFinish(a) || r.conn.end.isDone() {
		return true
	}
	r.conn.server.blocked.Add(1)
	r.conn.stats.blocked.Store(true)
	defer func() {
		r.conn.server.blocked.Add(-1)
		r.conn.stats.blocked.Store(false)
	}()
	if r.conn.capable.connectionBlocked {
		r.conn.out.push(0, &wire.ConnectionBlocked{Reason: a.reason})
	}
	if !r.await(a.over) {
		return false
	}
	r.published = false
	r.source.resume()
	if r.conn.capable.connectionBlocked {
		r.conn.out.push(0, &wire.ConnectionUnblocked{})
	}
	return true
}

// finishing is the one message that a connection may complete during an alarm.
type finishing struct {
	channel *channel
	alarm   <-chan struct{} // its over
}

// mayFinish reports whether the message in progress may be completed although there is an alarm: one for each
// connection, and no more than lastBody of it.
func (r *reader) mayFinish(a *alarm) bool {
	if r.last == nil || !r.last.content.isPartial() || r.last.content.remaining > lastBody {
		return false
	}
	if r.finishing.alarm != a.over {
		r.finishing = finishing{r.last, a.over}
	}
	return r.finishing.channel == r.last
}

// await waits for a signal. false: the connection has ended. Meanwhile it drops what channels hold that have been
// relieved.
func (r *reader) await(signal <-chan struct{}) bool {
	for {
		select {
		case <-signal:
			return true
		case <-r.relieved:
			r.dropRelieved()
		case <-r.conn.end.done:
			return false
		}
	}
}

// mayGoOn ends a channel whose incomplete message takes more memory than there may be, or may not be published.
// The broker is asked before the body takes memory, and again with the next frame if a method is in progress, which
// may create the exchange. The reader calls it.
func (r *reader) mayGoOn(ch *channel) {
	c := &ch.content
	// A publisher that has much on its way is stopped, not refused.
	over := c.count(r.conn.flow.memory.bytes.Load() >= crowdedBytes)
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
	defer r.conn.contain("relieve a channel")
	defer r.wake()
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

// wake makes the reader call dropRelieved.
func (r *reader) wake() {
	select {
	case r.relieved <- struct{}{}:
	default: // it will
	}
	r.source.interrupt()
}

// dropRelieved drops the incomplete messages of channels whose frames are ignored.
func (r *reader) dropRelieved() {
	if r.conn.end.isDone() {
		return // the teardown does it, perhaps now
	}
	for _, ch := range r.channels {
		if ch.end.ignoring.Load() {
			ch.content.reset()
		}
	}
}

// admit is called before the socket is read.
func (r *reader) admit() bool {
	select {
	case <-r.relieved:
		r.dropRelieved()
	default:
	}
	return r.waitUnblocked()
}

// flow bounds the publishes that a connection has passed to the broker and that
// have no outcome yet. The reader adds and waits; any goroutine releases.
type flow struct {
	maxCount, maxBytes int64
	count              atomic.Int64
	memory             *account // the bytes
	waiting            atomic.Bool
	wake               chan struct{} // capacity 1
}

func newFlow(maxCount, maxBytes int64, memory *account) *flow {
	return &flow{maxCount: maxCount, maxBytes: maxBytes, memory: memory, wake: make(chan struct{}, 1)}
}

func (f *flow) add(count, bytes int64) {
	f.count.Add(count)
	f.memory.add(bytes)
}

func (f *flow) release(count, bytes int64) {
	if count == 0 && bytes == 0 {
		return
	}
	f.count.Add(-count)
	f.memory.add(-bytes)
	if f.waiting.Load() && f.low() {
		f.signal()
	}
}

// full reports whether the reader must stop.
func (f *flow) full() bool {
	n := f.memory.bytes.Load()
	return f.count.Load() >= f.maxCount || n >= f.maxBytes || n >= crowdedBytes && f.memory.isCrowded()
}

// low reports whether a stopped reader may continue: a quarter below the bound,
// so that it does not stop again at the next message.
func (f *flow) low() bool {
	n := f.memory.bytes.Load()
	return f.count.Load() <= f.maxCount/4*3 && n <= f.maxBytes/4*3 && (n <= crowdedBytes/4*3 || !f.memory.isCrowded())
}

// wait blocks the reader while f is full. It returns false if the connection has
// ended meanwhile.
func (f *flow) wait(r *reader) bool {
	if !f.full() {
		return true
	}
	f.waiting.Store(true)
	defer f.waiting.Store(false)
	for !f.low() {
		again := time.AfterFunc(crowdedTime, f.signal) // others may make room
		ok := r.await(f.wake)
		again.Stop()
		if !ok {
			return false
		}
	}
	return true
}

func (f *flow) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// source is what frames are read from: the socket, with a deadline for each
// read. Three things end a connection that sends nothing: its heartbeat, an
// incomplete frame, and a close that the client does not answer.
//
// Time counts only while the reader reads: a wait for flow control is not the
// client's fault.
type source struct {
	conn net.Conn

	received atomic.Uint64 // octets
	reads    atomic.Uint64 // that returned some

	// For the reader only.
	idle  time.Duration // longest time without input; 0: any
	slow  bool          // frameTime applies to frames
	frame time.Time     // when the reader began to wait for the current frame
	// admit is called before each read of an open connection. It may wait, and
	// returns false to stop reading.
	admit func() bool
	// waited makes the next read start with a new deadline.
	waited bool

	mu          sync.Mutex
	set         time.Time // the socket's deadline
	closing     bool      // set is final
	open        bool      // the handshake is over
	interrupted bool      // set is not a deadline, but ends a read
}

// Read reads from the socket.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.read(p)
	if n > 0 {
		s.received.Add(uint64(n))
		s.reads.Add(1)
		if s.slow && s.frame.IsZero() {
			s.frame = time.Now()
		}
	}
	return n, err
}

// read is Read for an open connection that may have to wait. To make it wait,
// first change what admit checks and then call interrupt, so that either admit
// sees the change, or the read ends.
func (s *source) read(p []byte) (int, error) {
	for {
		if err := s.arm(); err != nil {
			return 0, err
		}
		if s.slow && !s.admit() {
			return 0, errEnding
		}
		if s.waited {
			s.waited = false
			continue
		}
		n, err := s.conn.Read(p)
		if n > 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !s.wasInterrupted() {
			return n, err
		}
	}
}

// interrupt ends a read in progress and makes it start again.
func (s *source) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || !s.open {
		return
	}
	s.interrupted, s.set = true, time.Unix(1, 0)
	_ = s.conn.SetReadDeadline(s.set)
}

func (s *source) wasInterrupted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.interrupted && !s.closing
}

// resume restarts the client's timeouts after a wait that was not its fault.
// The reader calls it.
func (s *source) resume() {
	s.waited = true
	if !s.frame.IsZero() {
		s.frame = time.Now()
	}
}

// frameDone marks the current frame as complete.
func (s *source) frameDone() { s.frame = time.Time{} }

// frameExpired reports whether the current frame has taken too long.
func (s *source) frameExpired() bool {
	return !s.frame.IsZero() && time.Since(s.frame) >= frameTime
}

// arm sets the deadline of the next read. It leaves a deadline that is only
// slightly too early.
func (s *source) arm() error {
	var want time.Time
	var slack time.Duration
	if s.idle > 0 {
		want, slack = time.Now().Add(s.idle), s.idle/8
	}
	if end := s.frame.Add(frameTime); !s.frame.IsZero() && (want.IsZero() || end.Before(want)) {
		want, slack = end, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	interrupted := s.interrupted
	s.interrupted = false
	if s.closing || !interrupted && ((!s.set.After(want) && s.set.Add(slack).After(want)) || s.set.Equal(want)) {
		return nil
	}
	s.set = want
	return s.conn.SetReadDeadline(want)
}

// endBy makes t the final deadline, for a read in progress too. Later calls can
// only move it forward.
func (s *source) endBy(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing && s.set.Before(t) {
		return
	}
	s.closing, s.set = true, t
	_ = s.conn.SetReadDeadline(t) // fails on a closed socket, and so does Read
}

// watch starts heartbeats and the frame timeout; the handshake has a deadline
// of its own. interval 0: no heartbeats. A client is given up after 2¼ to 2½
// intervals without input.
func (s *source) watch(interval time.Duration) {
	s.idle = interval * 5 / 2
	s.slow = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
	if !s.closing {
		s.set = time.Time{}
		_ = s.conn.SetReadDeadline(time.Time{})
	}
}
