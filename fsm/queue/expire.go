package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func compare[T cmp.Ordered](a, b T) int { return cmp.Compare(a, b) }

// watch makes sure that message h, which is ready, expires.
func (m *Machine) watch(h uint32) {
	x := m.messages.get(h)
	if x.expireAt == 0 {
		return
	}
	m.expiries.push(timed[uint32]{x.expireAt, x.seq, h})
	m.expiries.first(m.notExpiring)
	if !m.expiries.tooLong(m.expiring) {
		return
	}
	entries := make([]timed[uint32], 0, m.expiring)
	for no := range outboxList {
		for h := m.lists[no].head; h != 0; {
			x := m.messages.get(h)
			if x.expireAt != 0 {
				entries = append(entries, timed[uint32]{x.expireAt, x.seq, h})
			}
			h = x.next
		}
	}
	m.expiries.rebuild(entries)
}

// notExpiring reports whether t stands for no ready message.
func (m *Machine) notExpiring(t *timed[uint32]) bool {
	if int(t.v) >= m.messages.top {
		return true
	}
	x := m.messages.get(t.v)
	return x.seq != t.seq || !x.ready()
}

// catchUp expires messages and makes scheduled and delayed ones ready that are
// due, in the order of their instants, within the budget.
func (m *Machine) catchUp(eff *fsm.Effects) {
	for m.timed() > 0 && m.budget > 0 {
		s := m.schedules.first(m.notScheduled)
		if s == nil || s.at > m.clock {
			break
		}
		if e := m.expiries.first(m.notExpiring); e != nil && e.compare(s) < 0 {
			m.expireNext(eff)
			continue
		}
		m.budget--
		if h := s.v; m.messages.get(h).place == Delayed {
			m.retry(h)
		} else {
			m.promote(h, eff)
		}
	}
	if m.expiring == 0 {
		return
	}
	for m.expireNext(eff) {
	}
}

// expireNext expires the earliest message that is due. It reports false if
// there is none or the budget is spent.
func (m *Machine) expireNext(eff *fsm.Effects) bool {
	if m.budget == 0 {
		return false
	}
	t := m.expiries.first(m.notExpiring)
	if t == nil || t.at > m.clock {
		return false
	}
	m.budget--
	h := t.v
	m.remove(h)
	m.die(h, logpb.Death_EXPIRED, eff)
	return true
}

// expireReturned ends the messages of m.overdue, which are in no place.
func (m *Machine) expireReturned(eff *fsm.Effects) {
	slices.SortFunc(m.overdue, func(a, b uint32) int {
		x, y := m.messages.get(a), m.messages.get(b)
		return cmp.Or(cmp.Compare(x.expireAt, y.expireAt), cmp.Compare(x.seq, y.seq))
	})
	for _, h := range m.overdue {
		m.die(h, logpb.Death_EXPIRED, eff)
	}
}
