package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// overtime is the part of deliveries that ends, or extends, the time for which
// they may be held: locks and consumer timeouts. It has no state of its own.
type overtime struct{ *deliveries }

// tick performs the work of time: expiries have run before it; ends of locks and
// consumer timeouts follow here, unless something is still on its way back. What
// is taken back is then in scratch.taken, on its way.
//
// The leader proposes a Tick at NextDeadline. One that comes early finds nothing
// due and does no harm; one that is missing only makes things late. Order: expiries
// and what becomes ready (catchUp), locks and consumer timeouts, ends of detached
// consumers, ends of suspicions, what comes back, the end of an unused queue,
// assignment. All but the last two share one budget.
func (ds overtime) tick(eff *fsm.Effects) fsm.Result {
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
		c := due[0].c
		ds.takenBack(c, due[:n], eff)
		ds.loseGroups(c)
		ds.afterTaking(c)
		late = append(late, c)
		due = due[n:]
	}
	ds.consumers.removeFinished(late...)
	ds.endDetached()
	ds.endSuspicions()
	ds.endHolds()
	groupEnds{ds.groups}.expireStates()
	return fsm.Result{}
}

// overdue is a delivery that was taken back.
type overdue struct {
	c      *consumer
	held   checkout
	locked bool // its lock has ended, or its consumer is detached
}

// takeOverdue takes back what was held too long, earliest deadline first within
// the budget, and returns it by consumer and delivery. Locks that are renewed
// without being asked cost a unit of the budget, too.
//
// The deadline decides which ones are taken if the budget does not suffice; the
// order of the result gives each consumer one notice. It is total, because
// registered is unique. The messages are still CheckedOut, and in no timer.
func (ds overtime) takeOverdue() []overdue {
	var due []overdue
	for ds.scratch.budget > 0 {
		k, of, locked, ok := ds.nextOverdue()
		if !ok {
			break
		}
		ds.scratch.budget--
		if held, _ := of.c.held.find(of.id); locked && of.c.renewsLocks() && ds.locks.renewUnasked(held.lock, k.seq, of) {
			continue
		}
		ds.scratch.taken = ds.scratch.taken[:0]
		ds.take(of.c, of.id, of.id)
		held := ds.scratch.taken[0]
		ds.timers.letGo(held.deadline, k.seq)
		if held.lock != 0 {
			ds.locks.release(held.lock, k.seq)
			held.lock = 0
		}
		due = append(due, overdue{of.c, held, locked || ds.detached.has(of.c)})
	}
	slices.SortFunc(due, func(a, b overdue) int {
		return cmp.Or(cmp.Compare(a.c.registered, b.c.registered), cmp.Compare(a.held.id, b.held.id))
	})
	return due
}

// nextOverdue returns the delivery whose time was over first; false: there is
// none. locked: it is the lock that ends. It comes first if both end at once.
func (ds overtime) nextOverdue() (k key, of holding, locked, ok bool) {
	k, of, ok = ds.timers.timeout()
	if at, other, some := ds.locks.first(); some && (!ok || at.at <= k.at) {
		k, of, locked, ok = at, other, true, true
	}
	return k, of, locked, ok && ds.clock.heldUntil(k.at) <= ds.clock.now()
}

// takenBack adds deliveries that were taken back from c to scratch.taken.
//
// Requires: due is not empty, all of c, ascending by id, and not in c.held.
func (ds overtime) takenBack(c *consumer, due []overdue, eff *fsm.Effects) {
	var late []overdue
	by := ds.scratch.holder(c.id, c.tag)
	for _, d := range due {
		if !d.locked {
			late = append(late, d)
			continue
		}
		d.held.by = by
		d.held.failed = ds.settings.CountLockExpiry || ds.detached.has(c)
		if !ds.detached.has(c) {
			c.loses(d.held.id)
			d.held.lapsed = true
		}
		ds.counters.LocksLost++
		ds.scratch.taken = append(ds.scratch.taken, d.held)
	}
	if len(late) > 0 {
		ds.timeOut(c, late, eff)
	}
}

// loseGroups takes its groups from c if it has timed out. That is no failure of what
// it has not settled of them.
func (ds overtime) loseGroups(c *consumer) {
	if len(c.late) == 0 {
		return
	}
	for _, g := range ds.takers.heldBy(c) {
		ds.giveUp(g, false)
	}
}

// endDetached takes back what detached consumers hold whose time is over. It
// counts as failed, as what a session has lost.
func (ds overtime) endDetached() {
	for c := ds.detached.over(); c != nil && ds.scratch.budget > 0; c = ds.detached.over() {
		ds.scratch.budget--
		ds.detached.remove(c)
		ds.detach(c, true)
	}
}

// timeOut suspends c because of deliveries that it held too long, and adds them to
// scratch.taken.
//
// Requires: due is not empty, all of c, ascending by id, and not in c.held.
// Ensures: once c is refreshed, it is in no ring until everything in c.late is
// settled.
func (ds overtime) timeOut(c *consumer, due []overdue, eff *fsm.Effects) {
	late := make([]lateness, len(due))
	by := ds.scratch.holder(c.id, c.tag)
	for i, d := range due {
		d.held.by = by
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
}
