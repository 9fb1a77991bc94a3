package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func compare[T cmp.Ordered](a, b T) int { return cmp.Compare(a, b) }

// catchUp expires messages and makes scheduled and delayed ones ready that are
// due, in the order of their instants, within the budget.
func (m *Machine) catchUp(eff *fsm.Effects) {
	for m.scratch.budget > 0 {
		due, h, ok := m.timers.nextTimed()
		if !ok || due.at > m.clock.now() {
			break
		}
		if e, _, ok := m.timers.expiry(); ok && e.before(due) {
			m.expireNext(eff)
			continue
		}
		m.scratch.budget--
		if m.messages.get(h).place == Delayed {
			m.retry(h)
		} else {
			m.promote(h, eff)
		}
	}
	for m.expireNext(eff) {
	}
}

// expireNext expires the earliest message that is due. It reports false if
// there is none or the budget is spent.
func (m *Machine) expireNext(eff *fsm.Effects) bool {
	if m.scratch.budget == 0 {
		return false
	}
	k, h, ok := m.timers.expiry()
	if !ok || k.at > m.clock.now() {
		return false
	}
	m.scratch.budget--
	m.messages.remove(h)
	m.outbox.die(h, logpb.Death_EXPIRED, eff)
	return true
}

// expireReturned ends the messages of m.overdue, which are in no place.
func (m *Machine) expireReturned(eff *fsm.Effects) {
	slices.SortFunc(m.scratch.overdue, func(a, b uint32) int {
		x, y := m.messages.get(a), m.messages.get(b)
		return cmp.Or(cmp.Compare(x.expireAt, y.expireAt), cmp.Compare(x.seq, y.seq))
	})
	for _, h := range m.scratch.overdue {
		m.outbox.die(h, logpb.Death_EXPIRED, eff)
	}
}
