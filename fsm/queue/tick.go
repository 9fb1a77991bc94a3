package queue

import (
	"cmp"
	"iter"
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
	for c := m.detached.over(); c != nil && m.scratch.budget > 0; c = m.detached.over() {
		m.scratch.budget--
		m.detached.remove(c)
		m.detach(c, true) // it counts as failed, as what a session has lost
	}
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
			m.groups.forget(g, of.c, of.id)
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
			m.scratch.news.tell(c, fsm.LocksLost, d.held.id, "")
			d.held.lapsed = true
		}
		m.counters.LocksLost++
		m.scratch.taken = append(m.scratch.taken, d.held)
	}
	if len(late) > 0 {
		m.consumers.timeOut(c, late, eff)
	}
}

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
	if len(cmd.GetNumbers()) > 0 {
		return m.renewNumbered(cmd)
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
	if g := m.groupOf(held.handle); g != nil && g.heldBy(c) {
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

// timers finds what comes next in time: expiries of ready messages and those set aside,
// and scheduled messages and those set aside that become ready. It has no stale entries.
//
// The key of a message is (instant, seq), so that keys are unique and messages
// with equal instants keep their order of arrival.
//
// Invariants:
//
//	expiries = {(expiry, seq) of m : m is ready, returned, grouped, parked or set aside, expiry
//	≠ 0}, except a message that is being offered while a command is applied, and those
//	that are protected
//	schedules, delays, returns = {(m.expireAt, seq) of m : m is scheduled, delayed,
//	deferred, m.expireAt ≠ 0}
//	order = {(expireAt, or never if that is 0, seq) of m : m is ready or returned} if
//	ordered, except a message that is being offered; otherwise empty
//
// Nothing of this is in a snapshot: Restore fills the tables from the instants of
// messages. A queue that is draining or gone has no timers.
//
// Adding and removing cost O(log n) plus a move within one block; the first entry
// costs O(1).
type timers struct {
	// Values are handles. An entry is removed before its handle is freed, so a handle
	// found here is always valid.
	expiries  sorted[uint32]
	schedules sorted[uint32]
	delays    sorted[uint32]
	returns   sorted[uint32]
	// order is the order of ready messages, if the queue goes by deadlines.
	order   sorted[uint32]
	ordered bool
}

func (t *timers) table(p Place) *sorted[uint32] {
	switch p {
	case Ready, Returned, Grouped, Parked:
		return &t.expiries
	case Scheduled:
		return &t.schedules
	case Delayed:
		return &t.delays
	case Deferred:
		return &t.returns
	}
	return nil
}

// never is after all instants.
const never fsm.Time = 1<<63 - 1

func orderKey(expireAt fsm.Time, seq uint64) key {
	if expireAt == 0 {
		return key{At: never, Seq: seq}
	}
	return key{At: expireAt, Seq: seq}
}

func (t *timers) orderByDeadline(yes bool) { t.ordered = yes }

func (t *timers) hasOrder(x *message) bool {
	return t.ordered && (x.place == Ready || x.place == Returned)
}

// watch adds message h, whose place and instant are set, and which is not there.
func (t *timers) watch(x *message, h uint32) {
	if t.hasOrder(x) {
		t.order.Put(orderKey(x.expireAt, x.seq), h)
	}
	if x.expireAt == 0 {
		return
	}
	if in := t.table(x.place); in != nil {
		in.Put(key{At: x.expireAt, Seq: x.seq}, h)
	}
}

// forget removes a message, if it is there. Its place and instant must be those
// it was added with.
func (t *timers) forget(x *message) {
	if t.hasOrder(x) {
		t.order.Remove(orderKey(x.expireAt, x.seq))
	}
	if x.expireAt == 0 {
		return
	}
	if in := t.table(x.place); in != nil {
		in.Remove(key{At: x.expireAt, Seq: x.seq})
	}
}

func (t *timers) expire(at fsm.Time, seq uint64, h uint32) {
	if at != 0 {
		t.expiries.Put(key{At: at, Seq: seq}, h)
	}
}

func (t *timers) neverExpire(at fsm.Time, seq uint64) {
	if at != 0 {
		t.expiries.Remove(key{At: at, Seq: seq})
	}
}

// expiry returns the message that expires first; false: none ever does. Equal
// instants come in the order of their numbers.
func (t *timers) expiry() (at key, h uint32, ok bool) { return t.expiries.Peek() }

// nextInOrder returns the ready message that expires first, but not before an instant; 0: none. Those
// that never expire come last. Requires: ordered. O(log n).
func (t *timers) nextInOrder(at fsm.Time) (h uint32) {
	for h := range t.order.Values(key{At: at}) {
		return h
	}
	return 0
}

func (t *timers) timed() int { return t.schedules.Len() + t.delays.Len() + t.returns.Len() }

// nextTimed returns the message, scheduled or set aside, that is due first; false:
// there is none. Numbers are unique over all tables, so there is no tie.
func (t *timers) nextTimed() (due key, h uint32, ok bool) {
	due, h, ok = t.schedules.Peek()
	for _, in := range [...]*sorted[uint32]{&t.delays, &t.returns} {
		if k, other, some := in.Peek(); some && (!ok || k.Before(due)) {
			due, h, ok = k, other, true
		}
	}
	return due, h, ok
}

// overdue reports whether a message, scheduled or set aside, is due and has not
// become ready yet: a command could not do all that was due.
func (t *timers) overdue(now fsm.Time) bool {
	next, _, ok := t.nextTimed()
	return ok && next.At <= now
}

func (t *timers) nextDelayed() (h uint32, ok bool) {
	_, h, ok = t.delays.Peek()
	return h, ok
}

func (t *timers) scheduled(from key) iter.Seq2[key, *uint32] { return t.schedules.From(from) }

func (t *timers) scheduledSpan() (first, last fsm.Time) {
	if t.schedules.Len() == 0 {
		return 0, 0
	}
	from, _ := t.schedules.First()
	till, _ := t.schedules.Last()
	return from.At, till.At
}

// clear forgets all messages, in O(1): they keep their instants, and are purged as a whole.
func (t *timers) clear() { *t = timers{ordered: t.ordered} }

func (t *timers) check(k *checker) {
	expire := k.timed[Ready] + k.timed[Returned] + k.timed[Grouped] + k.timed[Parked] + k.timed[0]
	k.that(t.expiries.Len() == expire, "%d messages expire, of %d", t.expiries.Len(), expire)
	k.that(t.order.Len() == k.ordered, "%d messages have an order, of %d", t.order.Len(), k.ordered)
	k.that(t.schedules.Len() == k.timed[Scheduled], "%d messages are scheduled, of %d", t.schedules.Len(), k.timed[Scheduled])
	k.that(t.delays.Len() == k.timed[Delayed], "%d messages are delayed, of %d", t.delays.Len(), k.timed[Delayed])
	k.that(t.returns.Len() == k.timed[Deferred], "%d deferred messages return, of %d", t.returns.Len(), k.timed[Deferred])
}

func (t *timers) checkOne(k *checker, x *message, h uint32) {
	if t.hasOrder(x) {
		k.ordered++
		k.that(t.order.Value(orderKey(x.expireAt, x.seq)) == h, "message %d has no order", x.seq)
	}
	in := t.table(x.place)
	if in == nil || x.expireAt == 0 {
		return
	}
	k.timed[x.place]++
	k.deadline(x.expireAt)
	if in.Value(key{At: x.expireAt, Seq: x.seq}) != h {
		k.fail("message %d is not in its index at %d", x.seq, x.expireAt)
	}
}

// checkExpiry checks that message h, which is set aside, is in the table of expiries, if it
// expires. checker.timed counts it under no place.
func (t *timers) checkExpiry(k *checker, at fsm.Time, seq uint64, h uint32) {
	if at == 0 {
		return
	}
	k.timed[0]++
	k.deadline(at)
	if t.expiries.Value(key{At: at, Seq: seq}) != h {
		k.fail("message %d, set aside, is not in the index at %d", seq, at)
	}
}

func (t *timers) has(p Place, at fsm.Time, seq uint64) bool {
	if t.ordered && (p == Ready || p == Returned) && t.order.Get(orderKey(at, seq)) != nil {
		return true
	}
	in := t.table(p)
	return in != nil && at != 0 && in.Get(key{At: at, Seq: seq}) != nil
}
