package queue

import (
	"cmp"

	"github.com/quorate/quorate/fsm"
)

// compare is cmp.Compare, for sorting by one value.
func compare[T cmp.Ordered](a, b T) int { return cmp.Compare(a, b) }

// catchUp expires messages and makes scheduled and delayed ones ready that are
// due, in the order of their instants, within the budget.
func (it *intake) catchUp(eff *fsm.Effects) {
	for it.timers.timed() > 0 && it.scratch.budget > 0 {
		due, h, _ := it.timers.nextTimed()
		if due.at > it.clock.now() {
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
