package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Parked messages have failed more often than the default delivery limit allows, in
// a queue without dead-letter exchange. Nobody gets them, and only what somebody has
// set ends them: a TTL, a length limit, a purge. They wait for Unpark, or for
// settings that do not park them.

// exceeds reports whether x has failed more often than the delivery limit allows.
func (s *settings) exceeds(x *message) bool {
	return s.DeliveryLimit >= 0 && int64(x.failed) > s.DeliveryLimit
}

// parks reports whether what exceeds the delivery limit is parked: nobody has set
// the limit, and there is nowhere to send a dead letter. Before version 3 it dies.
func (o *outbox) parks() bool {
	return o.since(3) && !o.settings.DeliveryLimitSet && o.strategy() == Dropped
}

// park puts message h, which is in no place, to the parked ones. It keeps its
// group, and its expiry goes on.
func (ms *messages) park(h uint32) {
	ms.put(h, Parked)
	ms.watch(h)
	ms.counters.Parked++
}

// unpark makes up to n of the parked messages ready, those that were parked first,
// and no more than one command may; 0: all. Their failures count anew. Count of the
// answer is how many. The next call continues; nothing is remembered.
func (it *intake) unpark(cmd *logpb.Unpark) fsm.Result {
	if !it.since(3) {
		return fsm.Result{Code: fsm.Invalid}
	}
	n := uint64(it.bounds.Tick)
	if asked := cmd.GetCount(); asked > 0 {
		n = min(n, asked)
	}
	var r fsm.Result
	for h := it.messages.head(parkedList); h != 0 && r.Count < n; h = it.messages.head(parkedList) {
		it.messages.mut(h).failed = 0
		it.unparkOne(h)
		r.Count++
	}
	return r
}

// unparkOne makes parked message h ready, as one that is tried again. If it has
// expired meanwhile it is due at once.
func (it *intake) unparkOne(h uint32) {
	it.messages.remove(h)
	it.counters.Unparked++
	it.lease.touch()
	it.tryAgain(h)
}

// unparks reports whether messages are parked that the settings do not park: dead
// letters have somewhere to go, or there is no limit. With a limit that somebody has
// set they stay, since it would drop them.
func (it *intake) unparks() bool {
	return it.messages.head(parkedList) != 0 && (it.settings.DeliveryLimit < 0 || it.outbox.strategy() != Dropped)
}

// settleParked ends the parking of messages that the settings do not park, those
// that were parked first, as many as a command of this kind may: what exceeds the
// limit dies, the rest becomes ready. What is due expires before.
func (it *intake) settleParked(kind logpb.Command_Kind, eff *fsm.Effects) {
	n := it.bounds.Before
	if kind == logpb.Command_TICK {
		n = it.bounds.Back()
	}
	for ; n > 0 && it.unparks(); n-- {
		if k, _, ok := it.timers.expiry(); ok && k.at <= it.clock.now() {
			return // the next tick goes on
		}
		if h := it.messages.head(parkedList); it.settings.exceeds(it.messages.get(h)) {
			it.deliveries.endWaiting(h, logpb.Death_DELIVERY_LIMIT, eff)
		} else {
			it.unparkOne(h)
		}
	}
}
