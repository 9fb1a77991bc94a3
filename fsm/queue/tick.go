package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// tick performs the work of time: expiries have run before it; ends of locks and
// consumer timeouts follow here, unless something is still on its way back. What
// is taken back is then in scratch.taken, on its way.
//
// The leader proposes a Tick at NextDeadline. One that comes early finds nothing
// due and does no harm; one that is missing only makes things late. Order: expiries
// and what becomes ready (catchUp), locks and consumer timeouts, ends of detached
// consumers, ends of suspicions, what comes back, the end of an unused queue,
// assignment. All but the last two share one budget.
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
		c := due[0].c
		m.takenBack(c, due[:n], eff)
		if len(c.late) > 0 {
			m.giveUpAll(c) // that is no failure
		}
		m.afterTaking(c)
		late = append(late, c)
		due = due[n:]
	}
	m.consumers.removeFinished(late...)
	m.endDetached()
	m.endSuspicions()
	m.endHolds()
	m.groups.expireStates()
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
func (m *Machine) takeOverdue() []overdue {
	var due []overdue
	for m.scratch.budget > 0 {
		of, seq, locked, ok := m.deadlines.over()
		if !ok {
			break
		}
		m.scratch.budget--
		if held, _ := of.c.held.find(of.id); locked && of.c.renewsLocks() && m.deadlines.renewUnasked(&held.grip, seq, of) {
			continue
		}
		m.scratch.taken = m.scratch.taken[:0]
		m.consumers.take(of.c, of.id, of.id)
		held := m.scratch.taken[0]
		if g := m.groupOf(held.handle); g != nil {
			m.groups.forget(g, of.c.id, of.id)
		}
		m.deadlines.release(&held.grip, seq)
		due = append(due, overdue{of.c, held, locked || m.detached.has(of.c)})
	}
	slices.SortFunc(due, func(a, b overdue) int {
		return cmp.Or(cmp.Compare(a.c.registered, b.c.registered), cmp.Compare(a.held.id, b.held.id))
	})
	return due
}

// takenBack adds deliveries that were taken back from c to scratch.taken.
//
// Requires: due is not empty, all of c, ascending by id, and not in c.held.
func (m *Machine) takenBack(c *consumer, due []overdue, eff *fsm.Effects) {
	var late []overdue
	by := m.scratch.holder(c.id, c.tag)
	for _, d := range due {
		if !d.locked {
			late = append(late, d)
			continue
		}
		d.held.by = by
		d.held.failed = m.settings.CountLockExpiry || m.detached.has(c)
		if !m.detached.has(c) {
			c.loses(d.held.id)
			d.held.lapsed = true
		}
		m.counters.LocksLost++
		m.scratch.taken = append(m.scratch.taken, d.held)
	}
	if len(late) > 0 {
		m.consumers.timeOut(c, late, eff)
	}
}

// endDetached takes back what detached consumers hold whose time is over. It
// counts as failed, as what a session has lost.
func (m *Machine) endDetached() {
	for c := m.detached.over(); c != nil && m.scratch.budget > 0; c = m.detached.over() {
		m.scratch.budget--
		m.detached.remove(c)
		m.detach(c, true)
	}
}

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
func (m *Machine) catchUp(eff *fsm.Effects) {
	for m.timers.timed() > 0 && m.scratch.budget > 0 {
		due, h, _ := m.timers.nextTimed()
		if due.At > m.clock.now() {
			break
		}
		if e, _, ok := m.timers.expiry(); ok && e.Before(due) {
			m.expireNext(eff)
			continue
		}
		m.scratch.budget--
		if m.messages.Get(h).place == Scheduled {
			m.promote(h, eff)
		} else {
			m.retry(h)
		}
	}
	for m.expireNext(eff) {
	}
}

// renew lets deliveries of a consumer be held longer: their locks, and their
// consumer timeouts, begin anew.
//
// Refusals: Invalid for an odd number of ranges; NoSession; NotFound if there is
// no such consumer, or if none of the deliveries was renewed. Count is how many
// were. One whose lock has reached its end is not, nor is one that is not held.
// If one command cannot do them all, Next is the delivery to go on with; ranges
// must ascend for that.
//
// Ensures: at most bounds.Tick deliveries are renewed. Until is when the first of
// the renewed locks ends, or consumer timeouts if there are no locks; 0: nothing
// ends. Only a Tick takes a lock away, so one that has ended by the clock is
// renewed as well.
func (m *Machine) renew(s *session, cmd *logpb.Renew) fsm.Result {
	ranges := cmd.GetRanges()
	if len(ranges)%2 != 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	if s == nil && cmd.GetHolder() == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	c := m.holder(s, cmd.GetHolder(), cmd.GetConsumer())
	if c == nil {
		return fsm.Result{Code: fsm.NotFound}
	}
	m.lease.touch()
	if len(ranges) == 0 {
		ranges = []uint64{0, ^uint64(0)}
	}
	r := fsm.Result{}
	m.scratch.taken, r.Next = c.held.within(ranges, m.bounds.Tick, m.scratch.taken[:0])
	for _, held := range m.scratch.taken {
		held, _ = c.held.find(held.id) // ranges that overlap name it twice
		until, ok := m.renewOne(c, held, duration(cmd.GetDuration()))
		if !ok {
			continue
		}
		r.Count++
		if until != 0 && (r.Until == 0 || until < r.Until) {
			r.Until = until
		}
	}
	m.scratch.taken = m.scratch.taken[:0]
	m.counters.LocksRenewed += r.Count
	if r.Count == 0 && r.Next == 0 {
		r.Code = fsm.NotFound
	}
	return r
}

// renewOne renews what bounds the time of one delivery that c holds. It returns
// when that ends; 0: nothing bounds it. ok is false if the lock has reached its
// end: then nothing has changed.
func (m *Machine) renewOne(c *consumer, held checkout, d fsm.Millis) (until fsm.Time, ok bool) {
	m.scratch.steps++
	before := held.deadline
	if until, ok = m.deadlines.renew(&held.grip, m.messages.Get(held.handle).seq, holding{c, held.id}, d); !ok {
		return 0, false
	}
	if held.deadline != before {
		c.held.Edit(key{Seq: held.id}).deadline = held.deadline
	}
	if g := m.groupOf(held.handle); g != nil && g.hold != nil && g.hold.of.c == c {
		lock := m.settings.groupLock(c)
		if lock != 0 {
			lock = cmp.Or(d, lock)
		}
		m.groups.lock(g, lock)
		until = cmp.Or(g.hold.until, until)
	}
	if m.detached.has(c) {
		m.detached.extend(c, until)
	}
	return m.clock.heldUntil(until), true
}

// holder returns a consumer by its session, or one that is detached; nil: there
// is neither. of names the session; nil: it is s.
func (m *Machine) holder(s *session, of *logpb.Session, number uint64) *consumer {
	if of != nil {
		id := fsm.SessionFrom(of)
		if s = m.sessions.get(id); s == nil {
			return m.detached.find(fsm.ConsumerID{Session: id, Number: number})
		}
	}
	return s.consumer(number)
}

// startOldest lets the lock of the oldest delivery of c run. It is called
// whenever c has settled or lost something.
func (m *Machine) startOldest(c *consumer) {
	if c.held.Len() == 0 {
		return
	}
	k, g := c.held.First()
	m.deadlines.start(g, m.messages.Get(g.handle).seq, holding{c, k.Seq})
}
