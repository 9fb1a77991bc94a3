package queue

import (
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
