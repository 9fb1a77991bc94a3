package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// tick performs the work of time: expiries have run before it; consumer
// timeouts follow here, unless something is still on its way back. What is
// taken back is then in scratch.taken, on its way.
//
// The leader proposes a Tick at NextDeadline. One that comes early finds nothing
// due and does no harm; one that is missing only makes things late. Order: expiries
// and what becomes ready (catchUp), consumer timeouts, ends of suspicions, what
// comes back, the end of an unused queue, assignment. Expiries, timeouts and what
// comes back share one budget.
func (ds *deliveries) tick(eff *fsm.Effects) fsm.Result {
	if ds.unfinished() {
		return fsm.Result{}
	}
	due := ds.takeOverdue()
	ds.scratch.taken = ds.scratch.taken[:0]
	var late []*consumer
	for len(due) > 0 {
		n := 1
		for n < len(due) && due[n].c == due[0].c {
			n++
		}
		ds.timeOut(due[0].c, due[:n], eff)
		late = append(late, due[0].c)
		due = due[n:]
	}
	ds.consumers.removeFinished(late...)
	ds.endSuspicions()
	return fsm.Result{}
}

// overdue is a delivery that was taken back.
type overdue struct {
	c    *consumer
	held checkout
}

// takeOverdue takes back what was held too long, earliest deadline first within
// the budget, and returns it by consumer and delivery.
//
// The deadline decides which ones are taken if the budget does not suffice; the
// order of the result gives each consumer one notice. It is total, because
// registered is unique. The messages are still CheckedOut, and in no timer.
func (ds *deliveries) takeOverdue() []overdue {
	var due []overdue
	for ds.scratch.budget > 0 {
		k, h, ok := ds.timers.timeout()
		if !ok || ds.clock.heldUntil(k.at) > ds.clock.now() {
			break
		}
		ds.scratch.budget--
		ds.scratch.taken = ds.scratch.taken[:0]
		ds.take(h.c, h.id, h.id)
		ds.timers.letGo(k.at, k.seq)
		due = append(due, overdue{h.c, ds.scratch.taken[0]})
	}
	slices.SortFunc(due, func(a, b overdue) int {
		return cmp.Or(cmp.Compare(a.c.registered, b.c.registered), cmp.Compare(a.held.id, b.held.id))
	})
	return due
}

// timeOut suspends c because of the deliveries that were taken back, and adds
// them to scratch.taken.
//
// Requires: due is not empty, all of c, ascending by id, and not in c.held.
// Ensures: c is in no ring until everything in c.late is settled.
func (ds *deliveries) timeOut(c *consumer, due []overdue, eff *fsm.Effects) {
	late := make([]lateness, len(due))
	for i, d := range due {
		late[i] = lateness{d.held.id, d.held.since, d.held.limit}
		ds.scratch.taken = append(ds.scratch.taken, d.held)
	}
	t := fsm.Timeout{To: c.id, Tag: c.tag, First: len(c.late) == 0 && c.lateAcks == 0 && !c.cancelled}
	t.Deliveries, t.Limit, t.Held = describeLate(late, ds.clock.now())
	eff.Timeouts = append(eff.Timeouts, t)
	ds.counters.TimedOut += uint64(len(late))
	c.late = slices.Concat(c.late, late)
	slices.SortFunc(c.late, func(a, b lateness) int { return cmp.Compare(a.id, b.id) })
	ds.consumers.contest()
	ds.consumers.refresh(c)
}
