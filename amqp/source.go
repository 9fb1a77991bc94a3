package amqp

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Await waits for a signal. false: the connection is ending. Meanwhile it drops
// what channels hold that have been relieved. The reader calls it.
func (c *Conn) Await(signal <-chan struct{}) bool {
	for {
		select {
		case <-signal:
			return true
		case <-c.relieved:
			c.endpoint.DropRelieved()
		case <-c.end.done:
			return false
		}
	}
}

// AwaitFlow blocks the reader while too much is on its way to the broker, or too
// many answers wait for the client. false: the connection is ending.
func (c *Conn) AwaitFlow() bool { return c.Flow.wait(c) && c.Out.requested.wait(c) }

// Relieved is signalled when the reader is to drop what channels hold that have been
// relieved, see Endpoint.DropRelieved. Await does it.
func (c *Conn) Relieved() <-chan struct{} { return c.relieved }

// WakeReader makes the reader call DropRelieved, wherever it waits.
func (c *Conn) WakeReader() {
	select {
	case c.relieved <- struct{}{}:
	default: // it will
	}
	c.Source.interrupt()
}

// admit is called before the socket is read.
func (c *Conn) admit() bool {
	select {
	case <-c.relieved:
		c.endpoint.DropRelieved()
	default:
	}
	return c.endpoint.Admit()
}

// Flow bounds the publishes that a connection has passed to the broker and that
// have no outcome yet. The reader adds and waits; any goroutine releases.
type Flow struct {
	maxCount, maxBytes int64
	// Slack is how many times the bounds the reader goes on: more than once if the client is told at the bounds to send
	// nothing more. It is set before the connection is open.
	Slack   int64
	count   atomic.Int64
	memory  *Account // the bytes
	waiting atomic.Bool
	wake    chan struct{} // capacity 1
}

// NewFlow returns a flow whose bytes count in memory.
func NewFlow(maxCount, maxBytes int64, memory *Account) *Flow {
	return &Flow{maxCount: maxCount, maxBytes: maxBytes, Slack: 1, memory: memory, wake: make(chan struct{}, 1)}
}

// Add counts publishes that the broker has got.
func (f *Flow) Add(count, bytes int64) {
	f.count.Add(count)
	f.memory.Add(bytes)
}

// Release counts publishes that have an outcome.
func (f *Flow) Release(count, bytes int64) {
	if count == 0 && bytes == 0 {
		return
	}
	f.count.Add(-count)
	f.memory.Add(-bytes)
	if f.waiting.Load() && f.low(f.Slack) {
		f.signal()
	}
}

// IsFull reports whether the bounds are reached.
func (f *Flow) IsFull() bool { return f.full(1) }

// IsLow reports whether a client that was stopped at the bounds may send again.
func (f *Flow) IsLow() bool { return f.low(1) }

// full reports whether so many times the bounds are reached.
func (f *Flow) full(times int64) bool {
	n := f.memory.bytes.Load()
	return f.count.Load() >= times*f.maxCount || n >= times*f.maxBytes || n >= times*CrowdedBytes && f.memory.isCrowded()
}

// low reports whether whoever has stopped there may continue: a quarter below, so that
// it does not stop again at the next message.
func (f *Flow) low(times int64) bool {
	n := f.memory.bytes.Load()
	return f.count.Load() <= times*f.maxCount/4*3 && n <= times*f.maxBytes/4*3 && (n <= times*CrowdedBytes/4*3 || !f.memory.isCrowded())
}

// IsMuch reports whether so much is on its way that a publisher is stopped rather than
// refused.
func (f *Flow) IsMuch() bool { return f.memory.bytes.Load() >= CrowdedBytes }

// wait blocks the reader while f is full. It returns false if the connection has
// ended meanwhile.
func (f *Flow) wait(c *Conn) bool {
	if !f.full(f.Slack) {
		return true
	}
	f.waiting.Store(true)
	defer f.waiting.Store(false)
	for !f.low(f.Slack) {
		again := time.AfterFunc(crowdedTime, f.signal) // others may make room
		ok := c.Await(f.wake)
		again.Stop()
		if !ok {
			return false
		}
	}
	return true
}

func (f *Flow) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Source is what frames are read from: the socket, with a deadline for each
// read. Three things end a connection that sends nothing: its heartbeat, an
// incomplete frame, and a close that the client does not answer.
//
// Time counts only while the reader reads: a wait for flow control is not the
// client's fault.
type Source struct {
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
func (s *Source) Read(p []byte) (int, error) {
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
func (s *Source) read(p []byte) (int, error) {
	for {
		if err := s.arm(); err != nil {
			return 0, err
		}
		if s.slow && !s.admit() {
			return 0, ErrEnding
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
func (s *Source) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || !s.open {
		return
	}
	s.interrupted, s.set = true, time.Unix(1, 0)
	_ = s.conn.SetReadDeadline(s.set)
}

func (s *Source) wasInterrupted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.interrupted && !s.closing
}

// Resume restarts the client's timeouts after a wait that was not its fault.
// The reader calls it.
func (s *Source) Resume() {
	s.waited = true
	if !s.frame.IsZero() {
		s.frame = time.Now()
	}
}

// FrameDone marks the current frame as complete.
func (s *Source) FrameDone() { s.frame = time.Time{} }

// FrameExpired reports whether the current frame has taken too long.
func (s *Source) FrameExpired() bool {
	return !s.frame.IsZero() && time.Since(s.frame) >= frameTime
}

// arm sets the deadline of the next read. It leaves a deadline that is only
// slightly too early.
func (s *Source) arm() error {
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
func (s *Source) endBy(t time.Time) {
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
func (s *Source) watch(interval time.Duration) {
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
