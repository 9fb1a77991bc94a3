package queue

import (
	"cmp"

	"github.com/quorate/quorate/fsm"
)

// compare is cmp.Compare, for sorting by one value.
func compare[T cmp.Ordered](a, b T) int { return cmp.Compare(a, b) }

// catchUp expires messages and makes scheduled ones and those set aside ready that are
// due, in the order of their instants, within the budget.
//
// It runs before every command of an active queue, so that a command sees no
// message that was due before it. Ensures: no message in timers has an instant at
// or before the clock, or the budget is spent. In that case first checks what it
// hands out, and NextDue is at once.
//
// The order over all of these is (instant, number), however late
// the command comes. A promoted message may be due to expire itself; it then takes
// its place in that order.
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
		if it.messages.get(h).place == Scheduled {
			it.promote(h, eff)
		} else {
			it.retry(h)
		}
	}
	for it.deliveries.expireNext(eff) {
	}
}
