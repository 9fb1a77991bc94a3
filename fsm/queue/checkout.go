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
// The order is a function of the state: messages by priority, returned ones
// first; consumers by the order of their ring.
func (ds *deliveries) assign(eff *fsm.Effects) {
	for ds.consumers.anyServed() && ds.scratch.handOuts > 0 && !ds.sessions.isEnding() {
		h := ds.first(eff)
		if h == 0 {
			return
		}
		ds.scratch.handOuts--
		c := ds.consumers.nextServed()
		held := ds.checkOut(h, c)
		eff.Deliveries = append(eff.Deliveries, ds.delivery(c, held))
		ds.consumers.handedOut(c)
	}
}

// first returns the message to hand out next; 0: none. It expires due messages
// that are in the way, and gives up when the command may expire no more.
//
// Ensures: the result is still in its list, and not due unless it is
// scratch.fresh. It may expire others although nobody is served in the end, up
// to scratch.budget; what has expired is in eff.
func (ds *deliveries) first(eff *fsm.Effects) uint32 {
	for {
		h := ds.messages.nextReady()
		if h == 0 || h == ds.scratch.fresh || !ds.messages.get(h).due(ds.clock.now()) {
			return h
		}
		if !ds.expireNext(eff) {
			return 0
		}
	}
}

// checkOut hands message h, which is ready, to c.
//
// Requires: h is Ready or Returned, and not due unless it is scratch.fresh; c has
// credit, or is gets.
//
// Ensures: h is CheckedOut, in c.held under the former c.next, and in timers if
// it has a deadline; no list and no expiry knows it any more. The caller adds the
// delivery to the effects and moves c in its ring. x.acquired counts earlier
// deliveries here; it grows when this one ends, not when it begins.
func (ds *deliveries) checkOut(h uint32, c *consumer) checkout {
	ds.messages.remove(h)
	x := ds.messages.mut(h)
	invariants.Assert(!x.due(ds.clock.now()) || h == ds.scratch.fresh, "no message is handed out past its expiry")
	ds.messages.setPlace(x, CheckedOut)
	ds.counters.Delivered++
	if x.acquired > 0 {
		ds.counters.Redelivered++
	}
	held := checkout{id: c.next, grip: grip{handle: h, since: ds.clock.atOnce()}}
	c.next++
	if limit := ds.settings.timeout(c); limit.Given {
		held.limit, held.deadline = limit.Value, ds.clock.heldDeadline(limit.Value)
	}
	c.held.push(held)
	ds.consumers.holds(c, 1)
	ds.timers.hold(held.deadline, x.seq, holding{c, held.id})
	return held
}

// delivery describes what c holds. Deaths are shared with the record, which
// replaces them and never changes them. Ready is left at 0: only gets have it.
func (ds *deliveries) delivery(c *consumer, held checkout) fsm.Delivery {
	x := ds.messages.get(held.handle)
	d := fsm.Delivery{To: c.id, ID: held.id, Ref: x.ref(), Acquired: x.acquired, Failed: x.failed, ExpireAt: x.expireAt}
	if x.info != 0 {
		d.Deaths, d.ScheduledFor = ds.messages.deadLetterInfo(held.handle).deaths, ds.messages.scheduleInfo(held.handle).scheduledFor
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
// no timeout is left. The caller frees each of them, or gives it a place.
func (ds *deliveries) lift(taken []checkout) {
	for i := range taken {
		held := &taken[i]
		x := ds.messages.mut(held.handle)
		held.seq = x.seq
		ds.messages.setPlace(x, 0)
		ds.timers.letGo(held.deadline, held.seq)
	}
}

// mayHave reports whether a queue may still have something to hand out although
// first returns nothing: behind what the command could not expire, make ready,
// or bring back.
func (ds *deliveries) mayHave() bool {
	if next, _, ok := ds.timers.nextTimed(); ok && next.at <= ds.clock.now() {
		return true
	}
	return ds.messages.nextReady() != 0 || ds.unfinished()
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
	if ds.settings.SingleActive {
		return fsm.Result{Code: fsm.Reserved}
	}
	ds.lease.use()
	if ds.sessions.isEnding() {
		return fsm.Result{Code: fsm.NotYet} // something older may be about to come back
	}
	h := ds.first(eff)
	c := s.consumer(0)
	switch {
	case h == 0 && ds.mayHave():
		return fsm.Result{Code: fsm.NotYet}
	case h == 0:
		return fsm.Result{Code: fsm.Empty}
	case c == nil && ds.consumers.crowded():
		return fsm.Result{Code: fsm.Crowded}
	case c == nil:
		c = ds.consumers.register(s, 0)
	}
	ds.sessions.renewSuspicion(s)
	held := ds.checkOut(h, c)
	d := ds.delivery(c, held)
	d.Ready = ds.messages.readyCount()
	eff.Deliveries = append(eff.Deliveries, d)
	ds.scratch.delivered = held.id
	if cmd.GetNoAck() {
		ds.scratch.taken = ds.scratch.taken[:0]
		ds.take(c, held.id, held.id)
		ds.ack(ds.scratch.taken, eff)
		ds.scratch.taken = ds.scratch.taken[:0]
	}
	return fsm.Result{Count: d.Ready}
}

// repeat answers a command that has been performed before. A get whose message
// is still held returns it again.
//
// Requires: 1 ≤ cmd.Seq < s.next. It changes nothing but the count of duplicates.
// A command other than the last synchronous one is answered OK or Rejected, without
// numbers: publishes have no others, and of an earlier synchronous call the
// session has had the answer, or it would not have sent a later one.
func (ds *deliveries) repeat(s *session, cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	ds.counters.Duplicates++
	if cmd.Seq != s.last.seq {
		if s.wasRefused(cmd.Seq) {
			return fsm.Result{Code: fsm.Rejected}
		}
		return fsm.Result{}
	}
	if id := s.last.delivery; id != 0 {
		if c := s.consumer(0); c != nil {
			if held, ok := c.held.find(id); ok {
				d := ds.delivery(c, held)
				d.Ready = s.last.count
				eff.Deliveries = append(eff.Deliveries, d)
			}
		}
	}
	return fsm.Result{Code: s.last.code, Count: s.last.count, Consumers: s.last.consumers}
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
	k, h, ok := ds.timers.expiry()
	if !ok || k.at > ds.clock.now() {
		return false
	}
	ds.scratch.budget--
	ds.messages.remove(h)
	ds.outbox.die(h, logpb.Death_EXPIRED, eff)
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
		d := ds.delivery(c, h)
		if c.isGets() {
			d.Ready = ds.messages.readyCount()
		}
		eff.Deliveries = append(eff.Deliveries, d)
	}
}
