package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// tick does what time alone does: expiries have run before it, consumer
// timeouts and the lease follow here.
func (m *Machine) tick(eff *fsm.Effects) fsm.Result {
	due := m.takeOverdue()
	m.taken = m.taken[:0]
	for len(due) > 0 {
		n := 1
		for n < len(due) && due[n].c == due[0].c {
			n++
		}
		m.timeOut(due[0].c, due[:n], eff)
		due = due[n:]
	}
	m.endSilences()
	if len(m.taken) > 0 {
		m.giveBack(m.taken, false, true, eff)
		if !m.inUse() {
			m.lastUsed, m.active = m.clock, m.clock // the lease begins here, not before
		}
	}
	if m.isOver() {
		m.end(eff)
	}
	return fsm.Result{}
}

// overdue is a delivery that was taken back.
type overdue struct {
	c    *consumer
	held checkout
}

// takeOverdue takes back what was held too long, earliest deadline first
// within the budget, and returns it by consumer and delivery.
func (m *Machine) takeOverdue() []overdue {
	var due []overdue
	for m.budget > 0 {
		t := m.timeouts.first(notHeld)
		if t == nil || m.heldUntil(t.at) > m.clock {
			break
		}
		m.budget--
		c := t.v.c
		m.taken = m.taken[:0]
		m.take(c, t.v.id, t.v.id)
		due = append(due, overdue{c, m.taken[0]})
	}
	slices.SortFunc(due, func(a, b overdue) int {
		return cmp.Or(cmp.Compare(a.c.registered, b.c.registered), cmp.Compare(a.held.id, b.held.id))
	})
	return due
}

// timeOut suspends c for the deliveries that were taken back, and adds them to
// m.taken.
func (m *Machine) timeOut(c *consumer, due []overdue, eff *fsm.Effects) {
	late := make([]lateness, len(due))
	for i, d := range due {
		late[i] = lateness{d.held.id, d.held.since, d.held.limit}
		m.taken = append(m.taken, d.held)
	}
	t := fsm.Timeout{To: c.id, Tag: c.tag, First: len(c.late) == 0 && c.lateAcks == 0 && !c.cancelled}
	t.Deliveries, t.Limit, t.Held = describeLate(late, m.clock)
	eff.Timeouts = append(eff.Timeouts, t)
	m.counters.TimedOut += uint64(len(late))
	c.late = slices.Concat(c.late, late)
	slices.SortFunc(c.late, func(a, b lateness) int { return cmp.Compare(a.id, b.id) })
	m.contested = true
	m.refresh(c)
	m.dismissIfDone(c)
}

// notHeld reports whether t stands for no delivery in hand.
func notHeld(t *timed[holding]) bool {
	_, ok := t.v.c.held.find(t.v.id)
	return !ok
}

// trimTimeouts keeps the index of timeouts in proportion to what is held.
func (m *Machine) trimTimeouts() {
	m.timeouts.first(notHeld)
	if m.timeouts.tooLong(m.deadlines) {
		m.rebuildTimeouts()
	}
}

func (m *Machine) rebuildTimeouts() {
	entries := make([]timed[holding], 0, m.deadlines)
	for _, c := range m.consumers {
		for held := range c.held.from(0) {
			if held.deadline != 0 {
				entries = append(entries, timed[holding]{held.deadline, m.messages.get(held.handle).seq, holding{c, held.id}})
			}
		}
	}
	m.timeouts.rebuild(entries)
}
