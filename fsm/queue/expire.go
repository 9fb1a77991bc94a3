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
func (it *intake) catchUp(eff *fsm.Effects) {
	for it.scratch.budget > 0 {
		due, h, ok := it.timers.nextTimed()
		if !ok || due.at > it.clock.now() {
			break
		}
		if e, _, ok := it.timers.expiry(); ok && e.before(due) {
			it.deliveries.expireNext(eff)
			continue
		}
		it.scratch.budget--
		if it.messages.get(h).place == Delayed {
			it.retry(h)
		} else {
			it.promote(h, eff)
		}
	}
	for it.deliveries.expireNext(eff) {
	}
}

// expireNext expires the earliest message that is due. It reports false if
// there is none or the budget is spent.
func (ds *deliveries) expireNext(eff *fsm.Effects) bool {
	if ds.scratch.budget == 0 {
		return false
	}
	k, h, ok := ds.timers.expiry()
	if !ok || k.at > ds.clock.now() {
		return false
	}
	ds.scratch.budget--
	ds.messages.remove(h)
	ds.outbox.die(h, logpb.Death_EXPIRED, eff)
	return true
}

// expireReturned ends the messages of m.overdue, which are in no place.
func (ds *deliveries) expireReturned(eff *fsm.Effects) {
	slices.SortFunc(ds.scratch.overdue, func(a, b uint32) int {
		x, y := ds.messages.get(a), ds.messages.get(b)
		return cmp.Or(cmp.Compare(x.expireAt, y.expireAt), cmp.Compare(x.seq, y.seq))
	})
	for _, h := range ds.scratch.overdue {
		ds.outbox.die(h, logpb.Death_EXPIRED, eff)
	}
}
