package queue

import (
	"fmt"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/proto/logpb"
)

// assign hands ready messages to consumers with credit until either runs out,
// or the command may hand out no more: then the next command continues.
//
// It runs once after each command and, for messages that cannot wait, within an
// Enqueue. Ensures: nobody has credit, or first returns 0, or handOuts = 0, or
// sessions are ending. In the last three cases NextDue is at once if something
// that could be handed out is left.
//
// If nobody has credit for a message that is ready, the sessions of consumers
// that share a limit and may have it are told.
//
// The order is a function of the state: messages by priority, returned ones
// first, as far as somebody with credit may have them; consumers by the order of their
// ring.
func (ds *deliveries) assign(eff *fsm.Effects) {
	ds.groups.settle()
	if ds.settings.forwards() {
		return
	}
	for (ds.consumers.anyServed() || ds.groups.servesAny()) && ds.scratch.handOuts > 0 && !ds.sessions.isEnding() {
		h, c := choice{ds}.first(eff)
		switch {
		case h == 0 && ds.groups.servesAny():
			return
		case h == 0:
			choice{ds}.noticeShort(eff)
			return
		}
		ds.scratch.handOuts--
		id, lock := ds.checkOut(h, c)
		ds.deliver(c, id, h, lock, eff)
		ds.consumers.handedOut(c)
	}
	choice{ds}.passOver() // NextDue is exact
	choice{ds}.noticeShort(eff)
}

// noticeShort tells the sessions that are short, if nobody has credit for what is
// ready.
func (ds choice) noticeShort(eff *fsm.Effects) {
	if who := (servable{ds.consumers}); who.anyShort() && !ds.sessions.isEnding() && ds.messages.readyCount() > 0 {
		who.tellShort(eff)
	}
}

// checkOut hands message h, which is ready, to c.
//
// Requires: h is Ready or Returned, and not due unless it is scratch.fresh; c has
// credit, or is gets.
//
// Ensures: h is CheckedOut, in c.held under the former c.next, in timers if it has
// a deadline, and locked if the settings or c say so; no list and no expiry knows it any more. The caller adds the
// delivery, of which it gets the number and the lock, to the effects and moves c in its ring. x.acquired counts earlier
// deliveries here; it grows when this one ends, not when it begins.
func (ds *deliveries) checkOut(h uint32, c *consumer) (id uint64, lock uint32) {
	invariants.Assert(!ds.messages.get(h).due(ds.clock.now()) || ds.members.mayGo(h), "no message is handed out past its expiry")
	ds.messages.remove(h)
	return ds.hand(h, c)
}

// hand is checkOut for a message that is in no place.
func (ds *deliveries) hand(h uint32, c *consumer) (id uint64, lock uint32) {
	g := ds.members.of(h)
	if g != nil {
		ds.members.handOut(h, g, c, ds.settings.groupLock(c))
	}
	x := ds.messages.mut(h)
	ds.messages.setPlace(x, CheckedOut)
	ds.counters.Delivered++
	if x.acquired > 0 {
		ds.counters.Redelivered++
	}
	id = c.next
	c.next++
	var deadline fsm.Time
	limit := ds.settings.timeout(c)
	if limit.Given {
		deadline = ds.clock.heldDeadline(limit.Value)
	}
	if g == nil && ds.settings.locks(c) { // otherwise its group is locked
		lock = ds.locks.grant(ds.settings.lock(c))
	}
	*c.held.add(key{seq: id}) = grip{deadline: deadline, limit: limit.Value, since: ds.clock.atOnce(), handle: h, lock: lock}
	ds.consumers.holds(c, 1)
	ds.timers.hold(deadline, x.seq, holding{c, id})
	if lock != 0 && (!c.lockHead || c.held.len() == 1) {
		ds.locks.start(lock, x.seq, holding{c, id})
	}
	return id, lock
}

// deliver appends delivery id of message h, which c holds, to the effects. lock is
// its lock; 0: it has none. The caller may change the result, which is good until
// the next delivery.
//
// Deaths are shared with the record, which replaces them and never changes them.
// Ready is left at 0: only gets have it.
func (ds *deliveries) deliver(c *consumer, id uint64, h, lock uint32, eff *fsm.Effects) *fsm.Delivery {
	eff.Deliveries = append(eff.Deliveries, fsm.Delivery{})
	d, x := &eff.Deliveries[len(eff.Deliveries)-1], ds.messages.get(h)
	d.To, d.ID, d.Ref, d.Acquired, d.Failed, d.ExpireAt = c.id, id, x.ref(), x.acquired, x.failed, x.expireAt
	d.EnqueuedAt = ds.messages.enqueuedAt(h)
	d.LockedUntil = ds.locks.until(lock)
	if x.info != 0 {
		d.LockedUntil = max(d.LockedUntil, ds.members.lockedUntil(h, c)) // it has only one of them
		d.Deaths, d.ScheduledFor = ds.messages.deadLetterInfo(h).deaths, ds.messages.scheduleInfo(h).scheduledFor
	}
	if d.LockedUntil != 0 {
		d.LockRemaining = fsm.Millis(max(d.LockedUntil-ds.clock.now(), 0))
	}
	return d
}

// take removes the deliveries first … last from what c holds and appends them
// to scratch.taken.
//
// Ensures: the messages are in no held, and still CheckedOut and in timers. The
// caller lifts them, or makes them part of a returning, within the same command.
func (ds *deliveries) take(c *consumer, first, last uint64) {
	before := len(ds.scratch.taken)
	ds.scratch.taken = c.held.take(first, last, ds.scratch.taken)
	ds.consumers.holds(c, before-len(ds.scratch.taken))
}

// lift removes messages that nobody holds any more from the counts of held
// messages. They are then in no place.
//
// Requires: each is CheckedOut and in no held. Ensures: place 0, seq is set, and
// no timeout and no lock is left. The caller frees each of them, or gives it a place.
func (ds *deliveries) lift(taken []checkout) {
	for i := range taken {
		held := &taken[i]
		x := ds.messages.mut(held.handle)
		held.seq = x.seq
		ds.messages.setPlace(x, 0)
		if x.info != 0 {
			ds.members.lift(held.handle)
		}
		ds.timers.letGo(held.deadline, held.seq)
		if held.lock != 0 {
			ds.locks.release(held.lock, held.seq)
		}
	}
}

// mayHave reports whether a queue may still have something to hand out although
// first returns nothing: behind what the command could not expire, make ready,
// or bring back.
func (ds *deliveries) mayHave(c *consumer) bool {
	return overdueTimed(ds.shared, ds.timers) || ds.members.nextForGet(c, ds.returning.len() == 0) != 0 || ds.groups.doomed() != 0 || ds.unfinished()
}

// get takes one message for a session. With no-ack it is settled at once. The
// queue is reported empty only if it has nothing, not if the command reached
// its bounds before it could tell.
//
// Every get counts as a use of the queue, even an empty one, if its session is
// known and gets are allowed. Empty is a promise: at this entry nothing was
// ready, due to become ready, or on its way back.
//
// Ensures: at most one delivery, whose id is in scratch.delivered, so that
// session.record can answer a repetition with the same message.
func (ds *deliveries) get(s *session, cmd *logpb.Get, eff *fsm.Effects) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	if ds.settings.SingleActive && !ds.settings.Classic {
		return fsm.Result{Code: fsm.Reserved}
	}
	if ds.settings.forwards() {
		return fsm.Result{Code: fsm.Forwards}
	}
	ds.lease.use()
	if ds.sessions.isEnding() {
		return fsm.Result{Code: fsm.NotYet} // something older may be about to come back
	}
	c := s.consumer(0)
	h := choice{ds}.firstForGet(c, eff)
	switch {
	case h == 0 && ds.mayHave(c):
		return fsm.Result{Code: fsm.NotYet}
	case h == 0:
		return fsm.Result{Code: fsm.Empty}
	case c == nil && ds.consumers.crowded():
		return fsm.Result{Code: fsm.Crowded}
	case c == nil:
		c = ds.consumers.register(s, 0)
	}
	ds.sessions.renewSuspicion(s)
	id, lock := ds.checkOut(h, c)
	d := ds.deliver(c, id, h, lock, eff)
	d.Ready = ds.messages.readyCount()
	ds.scratch.delivered = id
	if cmd.GetNoAck() {
		d.LockedUntil, d.LockRemaining = 0, 0
		ds.scratch.taken = ds.scratch.taken[:0]
		ds.take(c, id, id)
		ds.members.settled(c, nil)
		ds.ack(ds.scratch.taken, eff)
		ds.scratch.taken = ds.scratch.taken[:0]
	}
	return fsm.Result{Count: d.Ready}
}

// repeat answers a command that has been performed before. A get whose message
// is still held returns it again.
//
// Requires: 1 ≤ cmd.Seq < s.next. It changes nothing.
// A command other than the last synchronous one is answered OK or Rejected, without
// numbers: publishes have no others, and of an earlier synchronous call the
// session has had the answer, or it would not have sent a later one.
func (ds *deliveries) repeat(s *session, cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	if cmd.Seq != s.last.seq {
		if s.wasRefused(cmd.Seq) {
			return fsm.Result{Code: fsm.Rejected}
		}
		return fsm.Result{}
	}
	if id := s.last.delivery; id != 0 {
		if c := s.consumer(0); c != nil {
			if held, ok := c.held.find(id); ok {
				ds.deliver(c, id, held.handle, held.lock, eff).Ready = s.last.count
			}
		}
	}
	r := fsm.Result{Code: s.last.code, Count: s.last.count, Consumers: s.last.consumers}
	if cmd.Kind == logpb.Command_GROUP && r.Code == fsm.OK {
		ds.groups.describe(cmd.Group, &r)
	}
	return r
}

// expireNext expires the earliest due message. It returns false if there is
// none or the budget is spent.
//
// Ensures: if it is true, one expiry and one unit of the budget less; otherwise
// nothing has changed. scratch.fresh cannot expire here: it is not in timers yet.
func (ds *deliveries) expireNext(eff *fsm.Effects) bool {
	if ds.scratch.budget == 0 {
		return false
	}
	if h := ds.groups.doomed(); h != 0 {
		ds.scratch.budget--
		leaveWaiting(ds, h)
		ds.outbox.die(h, ds.members.death(h), eff)
		return true
	}
	k, h, ok := ds.timers.expiry()
	if !ok || k.at > ds.clock.now() {
		return false
	}
	ds.scratch.budget--
	ds.expire(h, eff)
	return true
}

// resend implements Machine.Held. Cancelled and late notices come even if limit
// is 0, since effects may be lost. after = 2^64-1 stands for those alone.
func (ds *deliveries) resend(to fsm.ConsumerID, after uint64, limit int, eff *fsm.Effects) {
	s := ds.sessions.get(to.Session)
	if s == nil {
		return
	}
	c := s.consumer(to.Number)
	if c == nil {
		return
	}
	if c.revoked {
		eff.Cancelled = append(eff.Cancelled, to)
	}
	if c.noticed && !c.cancelled {
		eff.Short = append(eff.Short, to)
	}
	if len(c.late) > 0 && !c.cancelled {
		t := fsm.Timeout{To: to, Tag: c.tag, Again: true}
		t.Deliveries, t.Limit, t.Held = describeLate(c.late, ds.clock.now())
		eff.Timeouts = append(eff.Timeouts, t)
	}
	if after+1 == 0 {
		return
	}
	for h := range c.held.from(after + 1) {
		if limit--; limit < 0 {
			return
		}
		d := ds.deliver(c, h.id, h.handle, h.lock, eff)
		if c.isGets() {
			d.Ready = ds.messages.readyCount()
		}
	}
}

// choice is the part of deliveries that chooses what is handed out next, and to
// whom. It has no state of its own.
type choice struct{ *deliveries }

// first returns the message to hand out next, and to whom; 0: none. It expires due
// messages that are in the way, and gives up when the command may expire no more.
//
// Ensures: the result is still in its list, and not due unless it is
// scratch.fresh. It may expire others although nobody is served in the end, up
// to scratch.budget; what has expired is in eff.
func (ds choice) first(eff *fsm.Effects) (uint32, *consumer) {
	for {
		ds.passOver()
		h, c := ds.candidate()
		if h == 0 || ds.mayGive(h) {
			return h, c
		}
		if !ds.expireNext(eff) {
			return 0, nil
		}
	}
}

// mayGive reports whether message h, which is next, may be handed out. While
// anything is due that would end its group, if that is free, nobody gets the group:
// what is due would be covered by the hold.
func (ds choice) mayGive(h uint32) bool {
	if !ds.members.mayGo(h) {
		return false
	}
	g := ds.members.of(h)
	if g == nil || g.hold != nil || !ds.settings.GroupExpiry {
		return true
	}
	first, _, ok := ds.timers.expiry()
	return (!ok || first.at > ds.clock.now()) && !overdueTimed(ds.shared, ds.timers)
}

// candidate returns the message to hand out next, due or not, and to whom: the
// older one of those that are of no group and those of groups. 0: there is none, or
// more is to be passed over.
//
// Nothing of a group is handed out while something is on its way back, which may be
// an older message of the group.
func (ds choice) candidate() (h uint32, c *consumer) {
	if least, ok := ds.consumers.leastServed(); ok {
		if h = ds.cursors.first(least, ds.messages); h != 0 {
			c = ds.consumers.nextServed(h)
		}
	}
	if !ds.groups.servesAny() || ds.returning.len() > 0 {
		return h, c
	}
	if g, t := ds.groups.nextServed(); h == 0 || g.listed < ds.messages.get(h).seq {
		return ds.groups.first(g), t.c
	}
	return h, c
}

// passOver finds the next message for the least demanding consumer with credit, as
// far as the command may.
func (ds choice) passOver() {
	if !ds.cursors.any() {
		return
	}
	if least, ok := ds.consumers.leastServed(); ok {
		ds.cursors.passOver(least, ds.messages)
	}
}

// firstForGet is like first for a get of c, which may be nil.
func (ds choice) firstForGet(c *consumer, eff *fsm.Effects) uint32 {
	for {
		h := ds.members.nextForGet(c, ds.returning.len() == 0)
		if h == 0 || ds.mayGive(h) {
			return h
		}
		if !ds.expireNext(eff) {
			return 0
		}
	}
}

// ready returns the message of no group that is next; 0: none. It expires due
// messages that are in the way, and gives up when the command may expire no more.
func (ds choice) ready(eff *fsm.Effects) uint32 {
	for {
		h := ds.messages.nextReady()
		if h == 0 || ds.members.mayGo(h) {
			return h
		}
		if !ds.expireNext(eff) {
			return 0
		}
	}
}

// oldest returns the message that a queue drops that is too long: the one to be
// handed out next of those of no group, or the oldest of groups if that is older,
// whoever holds its group and whatever it waits for; 0: nothing is ready. It expires due messages that are in the way; ok is false if the command may
// expire no more.
func (ds choice) oldest(eff *fsm.Effects) (h uint32, ok bool) {
	for {
		h = ds.messages.nextReady()
		if g := ds.groups.oldest(); g != 0 && (h == 0 || ds.messages.get(g).seq < ds.messages.get(h).seq) {
			h = g
		}
		if h == 0 || ds.members.mayGo(h) && !ds.members.doomed(h) {
			return h, true
		}
		if !ds.expireNext(eff) {
			return 0, false
		}
	}
}

// deliveries covers what leads from a ready message to its end, or back:
// handing out (checkout.go), settling (settle.go), timeouts (tick.go), and
// messages on their way back that one command could not process (returning.go).
// It connects messages and consumers, which are independent of each other.
//
// Invariants:
//
//	a message is CheckedOut ⇔ one consumer, one of the detached, or one entry of
//	returning, holds it
//	every entry of returning holds something, and is at its key
//	no due message is handed out, and nothing but deferred messages is while
//	sessions are ending
//	|scratch.taken| = 0 between two commands, and its messages are in no place
//
// returning is in a snapshot: its heads in that order, its messages after those
// that consumers hold. coming and detaches are nil except while one is restored.
type deliveries struct {
	*shared
	timers    *timers
	locks     *locks
	groups    *groups
	takers    *groupTakers
	messages  *messages
	cursors   *cursors
	aside     *aside
	members   *members
	outbox    *outbox
	sessions  *sessions
	detached  *detached
	consumers *consumers
	lease     *lease

	returning sorted[*returning]
	// In order, while a snapshot is restored: what is on its way back, and the
	// detached consumers.
	coming   []*returning
	detaches []*consumer
}

// clear removes what is on its way back.
func (ds *deliveries) clear() { ds.returning = sorted[*returning]{} }

// lost iterates over what is on its way back, in the order in which it returns.
// Nothing of it may change meanwhile.
func (ds *deliveries) lost() iter.Seq[*returning] {
	return func(yield func(*returning) bool) {
		for _, p := range ds.returning.all() {
			if !yield(*p) {
				return
			}
		}
	}
}

// walk yields what a consumer holds or held. It reports false if yield did.
func (ds *deliveries) walk(of fsm.ConsumerID, all *held, yield func(Message) bool) bool {
	for held := range all.from(0) {
		if !yield(ds.describe(of, &held)) {
			return false
		}
	}
	return true
}

// findDetached returns a consumer whose session is over and that still holds
// something; nil: there is none.
func (ds *deliveries) findDetached(id fsm.ConsumerID) *consumer { return ds.detached.find(id) }

// describe describes a message that is held, for listings.
func (ds *deliveries) describe(of fsm.ConsumerID, held *checkout) Message {
	d := ds.messages.describe(held.handle)
	d.Holder, d.Delivery, d.Deadline = of, held.id, ds.clock.heldUntil(held.deadline)
	if ds.lease.phase() == Active {
		d.LockedUntil = ds.locks.until(held.lock)
	}
	return d
}

// save writes the section about what is on its way back in a snapshot's head.
// The messages follow those that consumers hold, see view.
func (ds *deliveries) save(h *logpb.QueueSnapshot) {
	for _, p := range ds.returning.all() {
		r := *p
		st := &logpb.ReturningState{
			Session: r.of.Session.Proto(), Consumer: r.of.Number, Tag: r.tag, Order: r.order, Outcome: uint32(r.outcome), Failed: r.failed,
			DueAt: int64(r.due), Group: r.group,
		}
		if r.remark != nil {
			st.Reason, st.Description = r.remark.Reason, r.remark.Description
		}
		h.Returning = append(h.Returning, st)
	}
}

// view appends what is on its way back, valid until the next change.
func (ds *deliveries) view(all []sorted[grip]) []sorted[grip] {
	for _, r := range ds.returning.all() {
		all = append(all, (*r).held.sorted)
	}
	return all
}

// freeze is like view, but what it appends never changes.
func (ds *deliveries) freeze(all []sorted[grip]) []sorted[grip] {
	for _, r := range ds.returning.all() {
		all = append(all, (*r).held.freeze())
	}
	return all
}

// restoreHead is the inverse of save, and restores the detached consumers. The
// messages themselves follow.
func (ds *deliveries) restoreHead(h *logpb.QueueSnapshot) (err error) {
	for _, st := range h.Returning {
		ds.coming = append(ds.coming, &returning{
			of: fsm.ConsumerID{Session: fsm.SessionFrom(st.Session), Number: st.Consumer}, tag: st.Tag,
			order: st.Order, outcome: logpb.Settle_Outcome(st.Outcome), failed: st.Failed, due: fsm.Time(st.DueAt), group: st.Group,
			remark: restoredRemark(st.Reason, st.Description),
		})
	}
	ds.detaches, err = ds.detached.restore(h)
	return err
}

// restore gives message h, which is checked out, to its holder: a consumer, an
// entry of what is on its way back, or a detached consumer, numbered in this
// order.
//
// Requires: consumers and restoreHead have been restored, and messages of one
// holder come by ascending delivery. A queue that has ended has no timers.
func (ds *deliveries) restore(st *logpb.MessageState, h uint32) error {
	into, c := ds.restoredHolder(uint64(st.Consumer))
	if into == nil {
		return fmt.Errorf("%w: message %d has no holder", ErrSnapshot, st.Seq)
	}
	if into.len() > 0 {
		if last, _ := into.last(); last.seq >= st.Delivery {
			return fmt.Errorf("%w: deliveries are out of order", ErrSnapshot)
		}
	}
	held := grip{deadline: fsm.Time(st.Deadline), limit: fsm.Millis(st.Limit), since: fsm.Time(st.Since), handle: h}
	var err error
	if ds.lease.phase() == Active {
		held.lock, err = ds.locks.restore(st, holding{c, st.Delivery})
	}
	into.push(checkout{id: st.Delivery, grip: held})
	if c != nil {
		ds.consumers.holds(c, 1)
	}
	if ds.lease.phase() != Active || err != nil {
		return err
	}
	if g := ds.members.of(h); g != nil {
		ds.members.set(h, ds.groups.restoreOut(g, c, st.Delivery))
	}
	if _, twice := ds.timers.held(fsm.Time(st.Deadline), st.Seq); twice {
		return fmt.Errorf("%w: message %d is held twice", ErrSnapshot, st.Seq)
	}
	ds.timers.hold(fsm.Time(st.Deadline), st.Seq, holding{c, st.Delivery})
	return nil
}

// restoredHolder returns who holds or held the messages that follow: what to put
// them into, and a consumer if it is one; nil: there is no such holder.
func (ds *deliveries) restoredHolder(no uint64) (into *held, c *consumer) {
	consumers, coming := uint64(ds.consumers.len()), uint64(len(ds.coming))
	switch {
	case no < consumers:
		c = ds.consumers.at(int(no))
	case no < consumers+coming:
		return &ds.coming[no-consumers].held, nil
	case no < consumers+coming+uint64(len(ds.detaches)):
		c = ds.detaches[no-consumers-coming]
	default:
		return nil, nil
	}
	return &c.held, c
}

// restoreReturning orders what is on its way back. It needs the numbers of the
// messages, so it comes after all of them.
func (ds *deliveries) restoreReturning() error {
	for _, r := range ds.coming {
		if r.held.len() == 0 || ds.returning.get(ds.returningKey(r)) != nil {
			return fmt.Errorf("%w: nothing of a consumer is on its way", ErrSnapshot)
		}
		ds.addReturning(r)
	}
	ds.coming, ds.detaches = nil, nil
	return nil
}

// check checks what is on its way back.
func (ds *deliveries) check(k *checker) {
	for at, p := range ds.returning.all() {
		r := *p
		if r.held.len() == 0 {
			k.fail("nothing of %v is on its way", r.of)
			return
		}
		ds.checkHeld(k, r.of, ^uint64(0), &r.held, nil)
		k.that(at == ds.returningKey(r) && ds.consumers.passed(r.order) && (r.order != 0 || r.outcome == 0 && r.due == 0) && r.due >= 0, "what %v held is on its way in the wrong place", r.of)
	}
	for c := range ds.consumers.from(0) {
		ds.checkHeld(k, c.id, c.next, &c.held, c.late)
		ds.checkOldest(k, c)
	}
	for c := range ds.detached.list() {
		ds.checkHeld(k, c.id, c.next, &c.held, nil)
		ds.checkOldest(k, c)
	}
}

// checkOldest checks that the lock of the oldest delivery of c runs.
func (ds *deliveries) checkOldest(k *checker, c *consumer) {
	for held := range c.held.from(0) {
		k.that(held.lock == 0 || ds.lease.phase() != Active || ds.locks.runs(held.lock), "consumer %v: the lock of delivery %d does not run", c.id, held.id)
		break
	}
	for _, id := range c.lockLost {
		_, held := c.held.find(id)
		k.that(!held, "consumer %v: delivery %d is held without lock", c.id, id)
	}
}

// checkHeld checks what a consumer holds or held. Its next delivery has number
// next.
func (ds *deliveries) checkHeld(k *checker, of fsm.ConsumerID, next uint64, all *held, lates []lateness) {
	n, last := 0, uint64(0)
	for held := range all.from(0) {
		if k.err != nil {
			return
		}
		ds.messages.checkOne(k, held.handle, CheckedOut)
		_, late := slices.BinarySearchFunc(lates, held.id, compareLate)
		switch {
		case held.id <= last || held.id >= next:
			k.fail("consumer %v: delivery %d of %d", of, held.id, next)
		case held.deadline < 0 || held.limit < 0 || held.since > ds.clock.atOnce():
			k.fail("consumer %v: delivery %d has a wrong deadline", of, held.id)
		case late:
			k.fail("consumer %v: delivery %d is held and was taken back", of, held.id)
		}
		last = held.id
		n++
		if ds.lease.phase() == Active {
			ds.locks.checkOne(k, held.lock, ds.messages.get(held.handle).seq, held.id)
		}
		if held.deadline != 0 && ds.lease.phase() == Active {
			k.timeouts++
			k.deadline(ds.clock.heldUntil(held.deadline))
			if to, ok := ds.timers.held(held.deadline, ds.messages.get(held.handle).seq); !ok || to.id != held.id {
				k.fail("consumer %v: delivery %d never times out", of, held.id)
			}
		}
	}
	k.that(n == all.len(), "consumer %v holds %d, counted %d", of, n, all.len())
}
