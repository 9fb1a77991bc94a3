package amqp

import "github.com/quorate/quorate/amqp/wire"

// alarm is a shortage because of which nobody may publish. One that changes
// its reason is another one with the same over.
type alarm struct {
	reason string        // as clients are told
	over   chan struct{} // closed when nothing is short any more
}

// SetAlarm says what the cluster is short of, in the words of
// connection.blocked; empty: nothing. While it is short of something,
// connections that have published are not read any more. It does not block.
func (s *Server) SetAlarm(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.alarm.Load()
	switch {
	case reason == "" && old == nil, old != nil && old.reason == reason:
		return
	case reason == "":
		s.alarm.Store(nil)
		close(old.over)
		return
	case old != nil:
		s.alarm.Store(&alarm{reason, old.over})
		return
	}
	s.alarm.Store(&alarm{reason, make(chan struct{})})
	for c := range s.conns {
		if !c.isDone() {
			c.source.interrupt()
		}
	}
}

// Blocked is how many connections are blocked by an alarm.
func (s *Server) Blocked() int64 { return s.blocked.Load() }

// obey blocks the connection while there is an alarm, if it has published
// since it was last unblocked. The message under way is let in: a connection
// is blocked between the messages of a channel. The reader calls it. It
// returns false if the connection has ended meanwhile.
func (c *conn) obey() bool {
	a := c.server.alarm.Load()
	if a == nil || !c.published || c.last != nil && c.last.content.stage != contentNone || c.isDone() {
		return true
	}
	c.server.blocked.Add(1)
	c.blocked.Store(true)
	defer func() {
		c.server.blocked.Add(-1)
		c.blocked.Store(false)
	}()
	if c.capable.connectionBlocked {
		c.out.push(0, &wire.ConnectionBlocked{Reason: a.reason})
	}
	select {
	case <-a.over:
	case <-c.done:
		return false
	}
	c.published = false
	c.source.resume()
	if c.capable.connectionBlocked {
		c.out.push(0, &wire.ConnectionUnblocked{})
	}
	return true
}
