package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// settle ends deliveries of a consumer. Ids that it does not hold are ignored;
// ids that were taken back because they were late are removed from its late
// list.
//
// cmd.Ranges are pairs of first id and length. A range may have gaps and may reach
// beyond all ids.
//
// Ensures: no id of the ranges is in c.held or c.late. At most bounds.Tick of the
// messages have ended; the rest is in one returning, which no longer counts in the
// credit of c.
func (ds *deliveries) settle(s *session, cmd *logpb.Settle, eff *fsm.Effects) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	ranges, outcome := cmd.GetRanges(), cmd.GetOutcome()
	if len(ranges)%2 != 0 || outcome < logpb.Settle_ACK || outcome > logpb.Settle_DISCARD {
		return fsm.Result{Code: fsm.Invalid}
	}
	c := s.consumer(cmd.GetConsumer())
	if c == nil {
		return fsm.Result{Code: fsm.NotFound}
	}
	ds.lease.touch()
	ds.scratch.taken = ds.scratch.taken[:0]
	var rest held // what is settled beyond what one command may end
	var late []lateness
	for ; len(ranges) > 0; ranges = ranges[2:] {
		first, length := ranges[0], ranges[1]
		if length == 0 {
			continue
		}
		last := first + length - 1
		if last < first {
			last = ^uint64(0)
		}
		ds.takeSettled(c, first, last, &rest)
		if len(c.late) > 0 {
			late = c.forgive(first, last, late)
			ds.consumers.contest()
		}
	}
	if s.life.suspected {
		ds.consumers.contest()
	}
	if len(late) > 0 {
		ds.settledLate(c, late, eff)
	}
	ds.endDeliveries(c, outcome, rest, eff)
	ds.consumers.refresh(c)
	ds.consumers.removeIfDone(c)
	return fsm.Result{}
}

// takeSettled takes what c has settled. Beyond what one command may end it
// moves deliveries to rest. Large tables are severed, in O(log n + blocks), so
// that a range over a million deliveries does not walk over them.
func (ds *deliveries) takeSettled(c *consumer, first, last uint64, rest *held) {
	if c.held.len() <= ds.bounds.Tick {
		ds.take(c, first, last)
		return
	}
	part := held{c.held.sever(key{seq: first}, key{seq: last})}
	ds.consumers.holds(c, -part.len())
	for part.len() > 0 && len(ds.scratch.taken) < ds.bounds.Tick {
		ds.scratch.taken = part.takeFirst(ds.scratch.taken)
	}
	rest.join(part.sorted)
}

// endDeliveries ends the deliveries in scratch.taken, which c has settled, up
// to the bound of one command. The others follow with rest; all of them do
// while earlier settlements are unfinished.
func (ds *deliveries) endDeliveries(c *consumer, outcome logpb.Settle_Outcome, rest held, eff *fsm.Effects) {
	n := min(len(ds.scratch.taken), ds.bounds.Tick)
	if ds.returning.len() > 0 {
		if k, _ := ds.returning.first(); k.at == 0 {
			n = 0
		}
	}
	for _, held := range ds.scratch.taken[n:] {
		rest.push(held)
	}
	if rest.len() > 0 {
		ds.addReturning(&returning{of: c.id, order: ds.consumers.order(), outcome: outcome, held: rest})
	}
	ds.conclude(outcome, ds.scratch.taken[:n], eff)
	ds.scratch.taken = ds.scratch.taken[:0]
}

// conclude ends deliveries that nobody holds any more. The caller has counted
// them against the bounds of the command. taken is consumed. Requires: they are
// in no held, CheckedOut and in timers.
func (ds *deliveries) conclude(outcome logpb.Settle_Outcome, taken []checkout, eff *fsm.Effects) {
	switch outcome {
	case logpb.Settle_ACK:
		ds.ack(taken, eff)
	case logpb.Settle_DISCARD:
		ds.discard(taken, eff)
	default:
		for i := range taken {
			taken[i].failed = outcome == logpb.Settle_REQUEUE_FAILED
		}
		ds.giveBack(taken, false, eff)
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
	for _, held := range taken {
		if ds.messages.get(held.handle).due(ds.clock.now()) {
			ds.counters.AckedExpired++
		}
		ds.messages.free(held.handle, eff)
	}
}

// discard ends messages that were taken from their holder as dead, in this
// order.
func (ds *deliveries) discard(taken []checkout, eff *fsm.Effects) {
	ds.lift(taken)
	for _, held := range taken {
		x := ds.messages.mut(held.handle)
		bump(&x.acquired)
		bump(&x.failed)
		ds.outbox.die(held.handle, logpb.Death_REJECTED, eff)
	}
}

// giveBack returns messages that were taken from their holders: to the end of
// the returned list in the given order or, with bySeq, each after the last one
// there that is older. Those that have failed too often die first, in order;
// then those that have expired, earliest first. The settings may delay the
// others before they become ready.
//
// Requires: they are in no held and CheckedOut; failed is set. taken is consumed:
// kept is built in it.
//
// Ensures: each of them is a letter, gone, Returned or Delayed, and watched if it
// has an instant. Requeued counts the last two. Expired and failed ones are checked
// here, before they get a place, so no due message is put into a list and found
// again by the next catchUp.
func (ds *deliveries) giveBack(taken []checkout, bySeq bool, eff *fsm.Effects) {
	if len(taken) == 0 {
		return
	}
	ds.lift(taken)
	if bySeq {
		slices.SortFunc(taken, func(a, b checkout) int { return compare(a.seq, b.seq) })
	}
	kept := taken[:0]
	ds.scratch.overdue = ds.scratch.overdue[:0]
	for _, held := range taken {
		x := ds.messages.mut(held.handle)
		bump(&x.acquired)
		if held.failed {
			bump(&x.failed)
		}
		switch limit := ds.settings.DeliveryLimit; {
		case held.failed && limit >= 0 && int64(x.failed) > limit:
			ds.outbox.die(held.handle, logpb.Death_DELIVERY_LIMIT, eff)
		case x.due(ds.clock.now()):
			ds.scratch.overdue = append(ds.scratch.overdue, held.handle)
		default:
			kept = append(kept, held)
		}
	}
	ds.expireReturned(eff)
	ds.counters.Requeued += uint64(len(kept))
	if ds.settings.Retry != logpb.QueueConfig_AT_ONCE {
		kept = slices.DeleteFunc(kept, func(held checkout) bool {
			wait := ds.settings.retryAfter(ds.messages.get(held.handle).failed, held.failed)
			if wait != 0 {
				ds.messages.delay(held.handle, ds.clock.deadline(wait))
			}
			return wait != 0
		})
	}
	if bySeq {
		ds.messages.putBack(kept)
	} else if len(kept) > 0 {
		ds.messages.returnAll(kept)
	}
	for _, held := range kept {
		ds.messages.watch(held.handle)
	}
}

// expireReturned expires the messages of scratch.overdue, which are in no
// place. The order is that of catchUp.
func (ds *deliveries) expireReturned(eff *fsm.Effects) {
	slices.SortFunc(ds.scratch.overdue, func(a, b uint32) int {
		x, y := ds.messages.get(a), ds.messages.get(b)
		return cmp.Or(cmp.Compare(x.expireAt, y.expireAt), cmp.Compare(x.seq, y.seq))
	})
	for _, h := range ds.scratch.overdue {
		ds.outbox.die(h, logpb.Death_EXPIRED, eff)
	}
}
