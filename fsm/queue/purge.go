package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// purge removes all messages that are ready, scheduled, delayed, or letters that have
// nowhere to go. They are not dead-lettered.
func (m *Machine) purge() fsm.Result {
	n := m.readyCount() + uint64(m.timed()) + m.counts[Waiting].Messages
	m.counters.Purged += n
	m.counters.Unscheduled += m.counts[Scheduled].Messages
	m.dropReady()
	m.dropPatient()
	return fsm.Result{Count: n}
}

// dropReady forgets all messages that are ready, scheduled or delayed.
func (m *Machine) dropReady() {
	for no := range returnedList {
		m.discardList(no, Ready)
	}
	m.waiting = 0
	m.discardList(returnedList, Returned)
	m.returns = returns{}
	m.expiries.clear()
	if m.counts[Scheduled].Messages > 0 {
		m.discardList(scheduledList, Scheduled)
		m.named = map[string]uint32{}
		m.active = m.clock.now()
	}
	m.discardList(delayedList, Delayed)
	m.schedules.clear()
	m.numbers.clear()
	m.delays.clear()
}

// dropPatient forgets all letters that wait.
func (m *Machine) dropPatient() {
	m.discardList(waitingList, Waiting)
	m.patient.clear()
}

// discardList makes all messages of a place purged ones, of which it moves one
// list. That takes no longer for many of them: their records are not touched,
// and keep saying where they were.
func (m *Machine) discardList(no int, p Place) {
	m.counts[Purged].add(m.counts[p])
	m.counts[p] = Count{}
	from, to := &m.lists[no], &m.lists[purgedList]
	switch {
	case from.head == 0:
	case to.head == 0:
		*to = *from
	default:
		m.messages.mut(to.tail).next = from.head
		to.tail = from.tail
	}
	*from = list{}
}

// sweep forgets purged messages for good: so many as one command of this kind may.
func (m *Machine) sweep(kind logpb.Command_Kind, eff *fsm.Effects) {
	l := &m.lists[purgedList]
	if l.head == 0 || m.phase != Active {
		return
	}
	n := m.bounds.Before
	if kind == logpb.Command_TICK || kind == logpb.Command_PURGE {
		n = m.bounds.Sweep
	}
	for ; n > 0 && l.head != 0; n-- {
		h := l.head
		x := m.messages.get(h)
		if l.head = x.next; l.head == 0 {
			l.tail = 0
		}
		m.counts[Purged].sub(x.count())
		m.counts[0].add(x.count())
		m.free(h, eff)
	}
}
