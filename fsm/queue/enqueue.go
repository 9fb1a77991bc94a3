package queue

import (
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// enqueue takes in one message, for now or for later, unless it is a duplicate
// of one that was taken in: then the answer is OK and nothing else happens.
//
// A message that replaces a scheduled one is none: that is a request about the
// message that is there. What was not taken in is not remembered, so that it may be
// published again: what is refused and, from version 3 on, what is ignored.
func (it *intake) enqueue(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Code {
	if cmd.GetSize() == 0 || cmd.Head > cmd.Size || cmd.Head > headMask {
		return fsm.Invalid
	}
	if cmd.Restored != nil {
		return restored{it}.take(meta, cmd, eff)
	}
	if !cmd.Routed || it.settings.IdleCountsRouted {
		it.lease.touch()
	}
	asks := it.seen.asks(cmd)
	if asks && it.seen.has(cmd) && !it.replaces(cmd) {
		it.counters.SameID++
		it.entries.refuse(eff)
		return fsm.OK
	}
	enqueued := it.counters.Enqueued
	code := it.takeIn(meta, cmd, eff)
	if asks && code == fsm.OK && (it.counters.Enqueued > enqueued || !it.since(3)) {
		it.seen.note(cmd)
	}
	return code
}

// replaces reports whether a message takes the place of a scheduled one.
func (it *intake) replaces(cmd *logpb.Enqueue) bool {
	return cmd.ScheduleId != "" && cmd.Conflict == logpb.Enqueue_REPLACE && it.pending(cmd.ScheduleId, 0) != 0
}

// takeIn takes in one message, for now or for later. With TTL 0 it is offered
// to consumers with credit, and expires here if none takes it. A message that
// does not fit into the queue is refused, unless a consumer takes it at once.
//
// Which way a message goes:
//
//	no group, but one is required         refused
//	due later, or a delayed exchange      enqueueLater: Scheduled
//	TTL passed on its way                 dies, as if it had been ready
//	queue full, nobody has credit         refused, without a record
//	TTL 0                                 offered; dies unless handed out
//	queue full, somebody has credit       offered; refused unless handed out
//	any other                             Ready or Grouped; it waits for the end of the command
//
// A message with a TTL is offered at once, too, so that most are never watched. But
// not while something is on its way back, since that is older.
//
// Requires: cmd.Head ≤ headMask, because the record has 14 bits for it.
// Ensures: OK means that the message was taken in, even if it has died already;
// Rejected that it is in no place.
func (it *intake) takeIn(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Code {
	if cmd.GroupId == "" && it.settings.GroupRequired && it.settings.grouped() {
		return it.reject(eff)
	}
	due := it.dueAt(cmd.DueAt, cmd.DelayPlusOne, it.settings.DeliveryDelay)
	if due > it.clock.now() || it.settings.DelayedStore {
		return it.enqueueLater(meta, cmd, max(due, it.clock.now(), 1), eff)
	}
	ttl := it.settings.messageTTL(cmd.TtlPlusOne, cmd.TtlCeilingPlusOne)
	if ttl.Given && ttl.Value > 0 && cmd.TtlFrom > 0 && it.expiry(cmd.TtlFrom, ttl.Value) <= it.clock.now() {
		return it.enqueueExpired(meta, cmd, due, eff)
	}
	now := ttl.Given && ttl.Value == 0
	full := !now && it.full(cmd, 0)
	if full && (it.settings.forwards() || !it.consumers.anyServed() && (cmd.GroupId == "" || !it.takers.claimed())) {
		return it.refuse(meta, cmd, eff)
	}
	h := it.store(meta, cmd, due, eff)
	if ttl.Given {
		it.messages.mut(h).expireAt = it.expiry(cmd.TtlFrom, ttl.Value)
	}
	var before emptiness
	if full {
		before = groupEnds{it.groups}.emptiness(cmd.GroupId)
	}
	it.messages.put(h, it.members.place(h))
	early := it.settings.DeadlineOrder && !now // it is found by its expiry
	if early {
		it.messages.watch(h)
	}
	if now || full || ttl.Given && !it.deliveries.unfinished() { // what is on its way back goes first
		it.offer(h, now, eff)
	}
	if full && !it.stays(h, cmd, eff) {
		groupEnds{it.groups}.emptyAgain(cmd.GroupId, before)
		return it.refuse(meta, cmd, eff)
	}
	if !early && it.messages.get(h).ready() {
		it.messages.watch(h) // no other message needs it
	}
	it.counters.Enqueued++
	return fsm.OK
}

// enqueueExpired takes in a message that has expired on its way.
func (it *intake) enqueueExpired(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) fsm.Code {
	h := it.store(meta, cmd, due, eff)
	it.counters.Enqueued++
	it.outbox.die(h, logpb.Death_EXPIRED, eff)
	return fsm.OK
}

// offer assigns ready messages, with message h among them. If now is set, h
// expires unless it is taken.
//
// Requires: h is ready and not watched. Ensures: if now, h is not ready, unless its
// group is held or ends. Its record
// may be free then, and is zero: its place is 0.
func (it *intake) offer(h uint32, now bool, eff *fsm.Effects) {
	if now {
		it.scratch.fresh = h
	}
	it.forward(eff)
	it.deliveries.assign(eff)
	it.scratch.fresh = 0
	if now && it.messages.get(h).ready() {
		it.deliveries.expire(h, eff)
	}
}

// stays reports whether message h, which has come to a full queue, was taken or
// may stay. Otherwise it is removed without a trace. Limits count all but h
// here, since it is in no place while they are checked.
func (it *intake) stays(h uint32, cmd *logpb.Enqueue, eff *fsm.Effects) bool {
	if !it.messages.get(h).ready() {
		return true
	}
	it.messages.remove(h)
	if it.full(cmd, 0) {
		it.messages.free(h, eff)
		return false
	}
	it.messages.put(h, it.members.place(h)) // it was the last one
	if it.settings.DeadlineOrder {
		it.messages.watch(h)
	}
	return true
}

// store makes a record of a message, in no place and without an expiry.
//
// Requires: cmd was validated by enqueue. due is when it was to become ready; 0: as
// the command says, which may have been scheduled in another queue. Deaths are
// copied, since a machine keeps nothing of a command.
func (it *intake) store(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) uint32 {
	head := uint16(cmd.Head)
	if cmd.HasExpiration {
		head |= expirationBit
	}
	h := it.messages.add(fsm.Ref{Index: meta.Index, Offset: meta.Offset, Size: cmd.Size}, head, it.settings.priority(cmd.PriorityPlusOne), eff)
	if it.settings.ends > 0 && (cmd.MessageId != "" || cmd.CorrelationId != "") {
		it.messages.setLabel(h, cmd.MessageId, cmd.CorrelationId)
	}
	if cmd.GroupId != "" && it.settings.grouped() {
		it.members.set(h, it.groups.find(strings.Clone(cmd.GroupId)))
	}
	if cmd.Hops > 0 {
		setHops(it.messages, h, cmd.Hops)
	}
	if len(cmd.Deaths) > 0 {
		it.messages.editDeadLetterInfo(h).deaths = copyDeaths(cmd.Deaths)
	}
	if due == 0 {
		due = fsm.Time(max(cmd.ScheduledFor, 0))
	}
	if due != 0 {
		it.messages.setScheduleInfo(h, scheduleInfo{scheduledFor: due})
	}
	return h
}
