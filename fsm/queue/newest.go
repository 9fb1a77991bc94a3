package queue

import "github.com/quorate/quorate/fsm"

// Index is the index of the last entry that was applied.
func (m *Machine) Index() uint64 { return m.entries.last() }

// Newest is the number of the newest delivery of a consumer; 0: none yet, or
// there is no such consumer.
func (m *Machine) Newest(of fsm.ConsumerID) uint64 {
	s := m.sessions.get(of.Session)
	if s == nil {
		return 0
	}
	c := s.consumer(of.Number)
	if c == nil {
		return 0
	}
	return c.next - 1
}
