package queue

import "github.com/quorate/quorate/fsm"

// purge removes all ready messages. They are not dead-lettered.
func (m *Machine) purge(eff *fsm.Effects) fsm.Result {
	n := m.readyCount()
	m.counters.Purged += n
	m.dropReady(eff)
	return fsm.Result{Count: n}
}

// dropReady forgets all ready messages.
func (m *Machine) dropReady(eff *fsm.Effects) {
	for no := range outboxList {
		for h := m.lists[no].head; h != 0; h = m.lists[no].head {
			m.remove(h)
			m.free(h, eff)
		}
	}
	m.expiries.clear()
}
