package amqp

// alarm is a resource alarm, during which nobody may publish. When its reason
// changes, another one takes its place, with the same over.
type alarm struct {
	reason string        // as clients are told
	over   chan struct{} // closed when there is no alarm any more
}

// SetAlarm raises a resource alarm, with the reason that connection.blocked is
// to give, or clears it; empty: clear. During an alarm connections that have
// published are not read any more. It does not block.
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
