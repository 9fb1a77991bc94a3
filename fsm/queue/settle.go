package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// settle ends deliveries of a consumer, of this session or of another one, which
// may have ended. Ids that it does not hold are ignored; ids that were taken back
// because they were late are removed from its late list, and counted, as are those
// whose lock has ended.
//
// cmd.Ranges are pairs of first id and length. A range may have gaps and may reach
// beyond all ids.
//
// Ensures: no id of the ranges is in c.held or c.late. At most bounds.Tick of the
// messages have ended; the rest is in one returning, which no longer counts in the
// credit of c. A strict settlement that has ended none is answered NotFound;
// otherwise count is how many it has.
func (ds *deliveries) settle(s *session, cmd *logpb.Settle, eff *fsm.Effects) (code fsm.Code, count uint64) {
	if s == nil && cmd.GetHolder() == nil {
		return fsm.NoSession, 0
	}
	ranges, outcome := cmd.GetRanges(), cmd.GetOutcome()
	if len(ranges)%2 != 0 || outcome < logpb.Settle_ACK || outcome > logpb.Settle_DEFER || outcome == logpb.Settle_DEFER && !defersOne(cmd) {
		return fsm.Invalid, 0
	}
	c := ds.holder(s, cmd.GetHolder(), cmd.GetConsumer())
	switch {
	case c == nil:
		return fsm.NotFound, 0
	case outcome == logpb.Settle_DEFER && ds.aside.find(cmd.Deferral) != 0:
		return fsm.InUse, 0
	}
	ds.lease.touch()
	before := c.held.len()
	rest := ds.takeRanges(c, ranges, eff)
	switch n := before - c.held.len(); {
	case cmd.GetStrict() && n == 0:
		code = fsm.NotFound
	case cmd.GetStrict():
		count = uint64(n)
	}
	switch due := ds.dueAt(cmd.GetDueAt(), cmd.GetDelayPlusOne(), 0); {
	case outcome == logpb.Settle_DEFER:
		code, count = ds.deferTaken(c, cmd.Deferral, due, eff)
	case outcome == logpb.Settle_ACK && rest == nil && mayEnd(ds) == len(ds.scratch.taken):
		ds.ack(ds.scratch.taken, eff) // most settlements are no more than this
	default:
		settled := returning{of: c.id, tag: c.tag, outcome: outcome, due: due, remark: remarkOf(cmd)}
		if rest != nil {
			settled.held = *rest
		}
		ds.endDeliveries(&settled, eff)
	}
	ds.scratch.taken = ds.scratch.taken[:0]
	ds.afterTaking(c)
	ds.consumers.removeIfDone(c)
	return code, count
}

// takeRanges takes what c has settled: to scratch.taken, and beyond what one
// command may end to rest; nil: that is nothing. It forgives what c has settled too
// late.
func (ds *deliveries) takeRanges(c *consumer, ranges []uint64, eff *fsm.Effects) (rest *held) {
	ds.scratch.taken = ds.scratch.taken[:0]
	var late []lateness
	for ; len(ranges) > 0; ranges = ranges[2:] {
		first, last, ok := span(ranges)
		if !ok {
			continue
		}
		rest = ds.takeSettled(c, first, last, rest)
		if len(c.late) > 0 {
			late = c.forgive(first, last, late)
			ds.consumers.contest()
		}
		if len(c.lockLost) > 0 {
			n := uint64(c.pardon(first, last))
			c.lateLocks += n
			ds.counters.LateLocks += n
		}
	}
	ds.members.settled(c, rest)
	if len(late) > 0 {
		ds.settledLate(c, late, eff)
	}
	return rest
}

// afterTaking is called when c, which may be detached, has settled or lost
// something. It is the end of c if that is detached and holds nothing any more.
func (ds *deliveries) afterTaking(c *consumer) {
	if ds.locks.len() > 0 {
		ds.startOldest(c)
	}
	if ds.detached.has(c) {
		if c.held.len() == 0 {
			ds.detached.remove(c)
		}
		return
	}
	if c.status() != Up {
		ds.consumers.contest()
	}
	ds.consumers.refresh(c)
}

// remarkOf returns what a receiver says about messages that it discards, cut to
// what a client may say; nil: nothing.
func remarkOf(cmd *logpb.Settle) *fsm.Remark {
	if cmd.GetOutcome() != logpb.Settle_DISCARD || cmd.Reason == "" && cmd.Description == "" {
		return nil
	}
	return restoredRemark(cmd.Reason[:min(len(cmd.Reason), fsm.MaxSettleReason)], cmd.Description[:min(len(cmd.Description), fsm.MaxSettleDescription)])
}

// restoredRemark is a remark of a snapshot; nil: there is none.
func restoredRemark(reason, description string) *fsm.Remark {
	if reason == "" && description == "" {
		return nil
	}
	return &fsm.Remark{Reason: reason, Description: description}
}

// takeSettled takes what c has settled. Beyond what one command may end it
// moves deliveries to rest, which may be nil, and returns that. Large tables are
// severed, in O(log n + blocks), so that a range over a million deliveries does not
// walk over them.
func (ds *deliveries) takeSettled(c *consumer, first, last uint64, rest *held) *held {
	if c.held.len() <= ds.bounds.Tick {
		ds.take(c, first, last)
		return rest
	}
	part := held{c.held.sever(key{seq: first}, key{seq: last})}
	ds.consumers.holds(c, -part.len())
	for part.len() > 0 && len(ds.scratch.taken) < ds.bounds.Tick {
		ds.scratch.taken = part.takeFirst(ds.scratch.taken)
	}
	if part.len() == 0 {
		return rest
	}
	if rest == nil {
		return &part
	}
	rest.join(part.sorted)
	return rest
}

// mayEnd returns how many of the deliveries in scratch.taken this command may end:
// none while earlier settlements are unfinished.
func mayEnd(ds *deliveries) int {
	if ds.returning.len() > 0 {
		if k, _ := ds.returning.first(); k.at == 0 {
			return 0
		}
	}
	return min(len(ds.scratch.taken), ds.bounds.Tick)
}

// endDeliveries ends the deliveries in scratch.taken, which were settled as r
// says, up to the bound of one command. The others follow with what r holds; all
// of them do while earlier settlements are unfinished.
func (ds *deliveries) endDeliveries(r *returning, eff *fsm.Effects) {
	n := mayEnd(ds)
	for _, held := range ds.scratch.taken[n:] {
		r.held.push(held)
	}
	if r.held.len() > 0 {
		rest := *r // r itself stays on the stack of settle
		rest.order = ds.consumers.order()
		ds.addReturning(&rest)
	}
	ds.conclude(r, ds.scratch.taken[:n], eff)
}

// heldBy notes who held deliveries.
func (ds *deliveries) heldBy(taken []checkout, id fsm.ConsumerID, tag string) {
	by := ds.scratch.holder(id, tag)
	for i := range taken {
		taken[i].by = by
	}
}

// conclude ends deliveries that nobody holds any more, as r says. The caller has
// counted them against the bounds of the command. taken is consumed. Requires:
// they are in no held, CheckedOut and in timers.
func (ds *deliveries) conclude(r *returning, taken []checkout, eff *fsm.Effects) {
	if r.outcome != logpb.Settle_ACK && len(taken) > 0 {
		ds.heldBy(taken, r.of, r.tag)
	}
	switch r.outcome {
	case logpb.Settle_ACK:
		ds.ack(taken, eff)
	case logpb.Settle_DISCARD:
		ds.discard(r.remark, taken, eff)
	default:
		for i := range taken {
			taken[i].failed = r.outcome == logpb.Settle_REQUEUE_FAILED
		}
		ds.giveBack(taken, ds.settings.Classic, r.due, eff)
	}
}

// settledLate counts and reports what c has settled although it was taken back.
func (ds *deliveries) settledLate(c *consumer, late []lateness, eff *fsm.Effects) {
	notice := fsm.LateAck{Of: c.id, Tag: c.tag, First: c.lateAcks == 0}
	notice.Deliveries, notice.Limit, notice.Held = describeLate(late, ds.clock.now())
	eff.LateAcks = append(eff.LateAcks, notice)
	c.lateAcks += uint64(len(late))
	ds.counters.LateAcks += uint64(len(late))
}

// ack ends messages that were taken from their holder. An ack after the expiry
// counts as one: expiry has no effect on what is held.
func (ds *deliveries) ack(taken []checkout, eff *fsm.Effects) {
	ds.lift(taken)
	ds.counters.Acked += uint64(len(taken))
	for i := range taken {
		h := taken[i].handle
		if ds.messages.get(h).due(ds.clock.now()) {
			ds.counters.AckedExpired++
		}
		ds.messages.free(h, eff)
	}
}

// discard ends messages that were taken from their holder as dead, in this
// order. Their letters carry what the receiver says, if it says something.
func (ds *deliveries) discard(remark *fsm.Remark, taken []checkout, eff *fsm.Effects) {
	ds.lift(taken)
	for _, held := range taken {
		x := ds.messages.mut(held.handle)
		bump(&x.acquired)
		bump(&x.failed)
		ds.scratch.heldBy(held.by)
		if remark != nil {
			ds.messages.editDeadLetterInfo(held.handle).remark = remark
		}
		ds.outbox.die(held.handle, logpb.Death_REJECTED, eff)
	}
	ds.scratch.heldBy(0)
}

// giveBack returns messages that were taken from their holders: to the end of
// the returned list in the given order or, with bySeq, each after the last one
// there that is older. Those that have failed too often die first, in order, or are
// parked; then those die that have expired, earliest first. The others may be delayed
// before they become ready: until due or, if that is 0, as the settings say.
//
// Requires: they are in no held and CheckedOut; failed is set. taken is consumed:
// kept is built in it.
//
// Ensures: each of them is a letter, gone, Parked, Returned or Delayed, and watched if
// it has an instant. Requeued counts the last two. Expired and failed ones are checked
// here, before they get a place, so no due message is put into a list and found
// again by the next catchUp.
func (ds *deliveries) giveBack(taken []checkout, bySeq bool, due fsm.Time, eff *fsm.Effects) {
	if len(taken) == 0 {
		return
	}
	ds.lift(taken)
	if bySeq {
		slices.SortFunc(taken, func(a, b checkout) int { return compare(a.seq, b.seq) })
	}
	ds.members.endOverdue(taken)
	kept, parks := taken[:0], ds.outbox.parks()
	ds.scratch.overdue = ds.scratch.overdue[:0]
	for _, held := range taken {
		x := ds.messages.mut(held.handle)
		bump(&x.acquired)
		if held.failed {
			bump(&x.failed)
		}
		exceeds := held.failed && ds.settings.exceeds(x)
		switch {
		case exceeds && !parks:
			ds.scratch.heldBy(held.by)
			ds.outbox.die(held.handle, logpb.Death_DELIVERY_LIMIT, eff)
		case ds.members.doomed(held.handle):
			ds.scratch.heldBy(held.by)
			ds.outbox.die(held.handle, ds.members.death(held.handle), eff)
		case x.due(ds.clock.now()) && !ds.members.covered(held.handle):
			ds.scratch.overdue = append(ds.scratch.overdue, held)
		case exceeds:
			ds.messages.park(held.handle)
		default:
			kept = append(kept, held)
		}
	}
	ds.expireReturned(eff)
	ds.counters.Requeued += uint64(len(kept))
	if ds.settings.backoff.kind != logpb.QueueConfig_AT_ONCE || due != 0 {
		kept = slices.DeleteFunc(kept, func(held checkout) bool { return ds.delay(held, due) })
	}
	kept = ds.members.putBack(kept)
	if bySeq {
		ds.messages.putBack(kept)
	} else if len(kept) > 0 {
		ds.messages.returnAll(kept)
	}
	for _, held := range kept {
		ds.messages.watch(held.handle)
	}
}

// delay sets a message aside that goes back, and reports whether it has to wait.
// A due time of its own takes precedence over the settings; one that has passed
// means at once.
func (ds *deliveries) delay(held checkout, due fsm.Time) bool {
	if due == 0 {
		due = ds.clock.now()
		if wait := ds.settings.backoff.after(ds.messages.get(held.handle), held.failed && !held.lapsed, ds.id); wait != 0 {
			due = ds.clock.deadline(wait)
		}
	}
	if due <= ds.clock.now() {
		return false
	}
	ds.aside.delay(held.handle, due)
	return true
}

// expireReturned expires the messages of scratch.overdue, which are in no
// place. The order is that of catchUp.
func (ds *deliveries) expireReturned(eff *fsm.Effects) {
	slices.SortFunc(ds.scratch.overdue, func(a, b checkout) int {
		x, y := ds.messages.get(a.handle), ds.messages.get(b.handle)
		return cmp.Or(cmp.Compare(x.expireAt, y.expireAt), cmp.Compare(x.seq, y.seq))
	})
	for _, held := range ds.scratch.overdue {
		ds.scratch.heldBy(held.by)
		ds.outbox.die(held.handle, logpb.Death_EXPIRED, eff)
	}
	ds.scratch.heldBy(0)
}
