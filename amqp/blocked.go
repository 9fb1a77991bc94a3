package amqp

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
		if !c.end.isDone() {
			c.reader.source.interrupt()
		}
	}
}

// Blocked is how many connections are blocked by an alarm.
func (s *Server) Blocked() int64 { return s.blocked.Load() }
