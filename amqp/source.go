package amqp

import (
	"errors"
	"net"
	"os"
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
	// obey is called before each read of an open connection. It may wait, and
	// returns false to end the reading.
	obey func() bool
	// waited has the next read begin with a deadline of its own.
	waited bool

	mu      sync.Mutex
	set     time.Time // the socket's deadline
	closing bool      // set is final
	open    bool      // the handshake is over
	nudged  bool      // set is no deadline, but ends a read
}

// Read reads from the socket.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.read(p)
	s.received.Add(uint64(n))
	if n > 0 && s.slow && s.frame.IsZero() {
		s.frame = time.Now()
	}
	return n, err
}

// read is Read for an open connection that may be told to wait. Whoever wants
// that first makes obey wait and then calls interrupt, so that either obey
// sees it, or the read ends.
func (s *source) read(p []byte) (int, error) {
	for {
		if err := s.arm(); err != nil {
			return 0, err
		}
		if s.slow && !s.obey() {
			return 0, errEnding
		}
		if s.waited {
			s.waited = false
			continue
		}
		n, err := s.conn.Read(p)
		if n > 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !s.wasNudged() {
			return n, err
		}
	}
}

// interrupt ends a read under way, and has it begin again.
func (s *source) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || !s.open {
		return
	}
	s.nudged, s.set = true, time.Unix(1, 0)
	_ = s.conn.SetReadDeadline(s.set)
}

func (s *source) wasNudged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nudged && !s.closing
}

// resume begins the client's times anew, after a wait that was not its fault.
// The reader calls it.
func (s *source) resume() {
	s.waited = true
	if !s.frame.IsZero() {
		s.frame = time.Now()
	}
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
	nudged := s.nudged
	s.nudged = false
	if s.closing || !nudged && ((!s.set.After(want) && s.set.Add(slack).After(want)) || s.set.Equal(want)) {
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
	s.open = true
	if !s.closing {
		s.set = time.Time{}
		_ = s.conn.SetReadDeadline(time.Time{})
	}
}
