package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// enqueue takes in one message, for now or for later. With TTL 0 it is offered
// to consumers with credit, and expires here if none takes it. A message that
// does not fit into the queue is refused, unless a consumer takes it at once.
//
// Which way a message goes:
//
//	due later, or a delayed exchange      enqueueLater: Scheduled
//	TTL passed on its way                 dies, as if it had been ready
//	queue full, nobody has credit         refused, without a record
//	TTL 0                                 offered; dies unless handed out
//	queue full, somebody has credit       offered; refused unless handed out
//	any other                             Ready; it waits for the end of the command
//
// A message with a TTL is offered at once, too, so that most are never watched. But
// not while something is on its way back, since that is older.
//
// Ensures: OK means that the message was taken in, even if it has died already;
// Rejected that it is in no place. cmd.Head < expirationBit, because the
// record has 15 bits for it.
func (it *intake) enqueue(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Result {
	if cmd.GetSize() == 0 || cmd.Head > cmd.Size || cmd.Head >= expirationBit {
		return fsm.Result{Code: fsm.Invalid}
	}
	if !cmd.Routed || it.settings.IdleCountsRouted {
		it.lease.touch()
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
	if full && !it.consumers.anyServed() {
		return it.refuse(meta, cmd, eff)
	}
	h := it.store(meta, cmd, due, eff)
	if ttl.Given {
		it.messages.mut(h).expireAt = it.expiry(cmd.TtlFrom, ttl.Value)
	}
	it.messages.put(h, Ready)
	if now || full || ttl.Given && !it.deliveries.unfinished() { // what is on its way back goes first
		it.offer(h, now, eff)
	}
	if full && !it.stays(h, cmd, eff) {
		return it.refuse(meta, cmd, eff)
	}
	if it.messages.get(h).ready() {
		it.messages.watch(h) // no other message needs it
	}
	it.counters.Enqueued++
	return fsm.Result{}
}

// enqueueExpired takes in a message that has expired on its way.
func (it *intake) enqueueExpired(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) fsm.Result {
	h := it.store(meta, cmd, due, eff)
	it.counters.Enqueued++
	it.outbox.die(h, logpb.Death_EXPIRED, eff)
	return fsm.Result{}
}

// offer assigns ready messages, with message h among them. If now is set, h
// expires unless it is taken.
//
// Requires: h is Ready and not watched. Ensures: if now, h is not ready. Its record
// may be free then, and is zero: its place is 0.
func (it *intake) offer(h uint32, now bool, eff *fsm.Effects) {
	if now {
		it.scratch.fresh = h
	}
	it.deliveries.assign(eff)
	it.scratch.fresh = 0
	if now && it.messages.get(h).ready() {
		it.messages.remove(h)
		it.outbox.die(h, logpb.Death_EXPIRED, eff)
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
	it.messages.put(h, Ready) // it was the last one
	return true
}

// store makes a record of a message, in no place and without an expiry.
//
// Requires: cmd was validated by enqueue. due is when it was to become ready; 0: as
// the command says, which may have been scheduled in another queue. Deaths are
// copied, since a machine keeps nothing of a command.
func (it *intake) store(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) uint32 {
	x := message{
		index: meta.Index, offset: meta.Offset, size: cmd.Size,
		head: uint16(cmd.Head), priority: it.settings.priority(cmd.PriorityPlusOne),
	}
	if cmd.HasExpiration {
		x.head |= expirationBit
	}
	h := it.messages.add(&x, eff)
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
