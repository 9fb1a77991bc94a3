package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// tick does what time alone does: expiries have run before it, consumer
// timeouts follow here, unless what others have lost is still on its way back.
// What is taken back is in m.taken then, and on its way.
func (m *Machine) tick(eff *fsm.Effects) fsm.Result {
	if m.unfinished() {
		return fsm.Result{}
	}
	due := m.takeOverdue()
	m.scratch.taken = m.scratch.taken[:0]
	var late []*consumer
	for len(due) > 0 {
		n := 1
		for n < len(due) && due[n].c == due[0].c {
			n++
		}
		m.timeOut(due[0].c, due[:n], eff)
		late = append(late, due[0].c)
		due = due[n:]
	}
	m.consumers.dismiss(late...)
	m.endSilences()
	return fsm.Result{}
}

// endUnused ends the queue if its lease is over. inUse is from before the tick.
func (m *Machine) endUnused(inUse bool, eff *fsm.Effects) {
	if inUse && !m.consumers.inUse() {
		m.lastUsed, m.active = m.clock.now(), m.clock.now() // the lease begins here, not before
	}
	if m.isOver() {
		m.end(eff)
	}
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
	for m.scratch.budget > 0 {
		k, h, ok := m.timers.timeout()
		if !ok || m.clock.heldUntil(k.at) > m.clock.now() {
			break
		}
		m.scratch.budget--
		m.scratch.taken = m.scratch.taken[:0]
		m.take(h.c, h.id, h.id)
		m.timers.letGo(k.at, k.seq)
		due = append(due, overdue{h.c, m.scratch.taken[0]})
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
		m.scratch.taken = append(m.scratch.taken, d.held)
	}
	t := fsm.Timeout{To: c.id, Tag: c.tag, First: len(c.late) == 0 && c.lateAcks == 0 && !c.cancelled}
	t.Deliveries, t.Limit, t.Held = describeLate(late, m.clock.now())
	eff.Timeouts = append(eff.Timeouts, t)
	m.counters.TimedOut += uint64(len(late))
	c.late = slices.Concat(c.late, late)
	slices.SortFunc(c.late, func(a, b lateness) int { return cmp.Compare(a.id, b.id) })
	m.consumers.contest()
	m.consumers.refresh(c)
}
