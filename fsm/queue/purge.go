package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// purge removes all messages that are ready, scheduled, delayed, or letters that have
// nowhere to go. They are not dead-lettered.
func (m *Machine) purge() fsm.Result {
	n := m.messages.readyCount() + uint64(m.timers.timed()) + m.messages.count(Waiting).Messages
	m.counters.Purged += n
	m.counters.Unscheduled += m.messages.count(Scheduled).Messages
	m.dropReady()
	m.outbox.purge()
	return fsm.Result{Count: n}
}

// dropReady forgets all messages that are ready, scheduled or delayed. A queue
// whose last scheduled message goes has been active until now.
func (m *Machine) dropReady() {
	if m.messages.count(Scheduled).Messages > 0 {
		m.active = m.clock.now()
	}
	m.messages.dropReady()
}

// sweep forgets purged messages for good: so many as one command of this kind may.
func (m *Machine) sweep(kind logpb.Command_Kind, eff *fsm.Effects) {
	switch {
	case m.phase != Active:
	case kind == logpb.Command_TICK || kind == logpb.Command_PURGE:
		m.messages.sweep(m.bounds.Sweep, eff)
	default:
		m.messages.sweep(m.bounds.Before, eff)
	}
}
