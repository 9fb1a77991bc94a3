package amqp

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// source is what frames are read from: the socket, with a deadline for each
// read. Three things end a silent connection: its heartbeat, a frame that does
// not get complete, and a close that the client does not answer.
//
// Time counts only while somebody reads: a reader that is held back by flow
// control does not blame the client.
type source struct {
	conn net.Conn

	received atomic.Uint64 // octets

	// Reader only.
	idle  time.Duration // longest silence; 0: any
	slow  bool          // frames are under frameTime
	frame time.Time     // when the frame under way began to be waited for

	mu      sync.Mutex
	set     time.Time // the socket's deadline
	closing bool      // set is final
}

// Read reads from the socket.
func (s *source) Read(p []byte) (int, error) {
	if err := s.arm(); err != nil {
		return 0, err
	}
	n, err := s.conn.Read(p)
	s.received.Add(uint64(n))
	if n > 0 && s.slow && s.frame.IsZero() {
		s.frame = time.Now()
	}
	return n, err
}

// frameDone says that a frame is complete.
func (s *source) frameDone() { s.frame = time.Time{} }

// frameExpired reports whether the frame under way has taken too long.
func (s *source) frameExpired() bool {
	return !s.frame.IsZero() && time.Since(s.frame) >= frameTime
}

// arm sets the deadline of the next read. A deadline that is only a little
// too early is left as it is.
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
	if s.closing || (!s.set.After(want) && s.set.Add(slack).After(want)) || s.set.Equal(want) {
		return nil
	}
	s.set = want
	return s.conn.SetReadDeadline(want)
}

// endBy makes t the last deadline; a read under way is under it too. A later
// call can only bring it forward.
func (s *source) endBy(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing && s.set.Before(t) {
		return
	}
	s.closing, s.set = true, t
	_ = s.conn.SetReadDeadline(t) // fails on a closed socket, and so does Read
}

// watch starts heartbeats and the frame clock; the handshake has a deadline of
// its own. interval 0: no heartbeats. A client is given up after 2¼ to 2½
// silent intervals.
func (s *source) watch(interval time.Duration) {
	s.idle = interval * 5 / 2
	s.slow = true
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.set = time.Time{}
		_ = s.conn.SetReadDeadline(time.Time{})
	}
}
