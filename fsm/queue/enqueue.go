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

// kept is what counts in the limits and is never dropped to satisfy them:
// scheduled and deferred messages, states of groups, and letters that are delivered
// at least once. O(1), as all sums here are: counts are kept by place.
func (it *intake) kept() Count {
	return it.messages.count(Scheduled).plus(it.messages.count(Deferred)).plus(it.outbox.counted()).plus(Count{Bytes: it.groups.stateBytes()})
}

// counted is everything that counts in the limits. Checked-out and purged
// messages do not count.
func (it *intake) counted() Count {
	return it.kept().plus(it.messages.count(Ready)).plus(it.messages.count(Returned)).plus(it.messages.count(Grouped)).plus(it.messages.count(Delayed)).plus(it.messages.count(Parked))
}

// left is how many messages are in the queue, letters among them. Before version 3
// purged ones that are not released yet count, too.
func (it *intake) left() uint64 {
	n := uint64(it.messages.live())
	if it.since(3) {
		n -= it.messages.count(Purged).Messages
	}
	return n
}

// full reports whether there is no space for one more message, which replaces
// scheduled message old if that is not 0. A queue that drops is full if the
// message would fit were it not for what cannot be dropped. A message that does
// not fit by itself never makes a queue that drops full: it is taken in and
// dropped by trim.
func (it *intake) full(cmd *logpb.Enqueue, old uint32) bool {
	if !it.settings.limited() {
		return false
	}
	size := Count{1, uint64(cmd.Size - cmd.Head)}
	kept, all := it.kept(), it.counted()
	if old != 0 {
		less := it.messages.get(old).count()
		kept.sub(less)
		all.sub(less)
	}
	if it.settings.Overflow != logpb.QueueConfig_DROP_HEAD {
		return !it.settings.fits(all.plus(size))
	}
	return kept != (Count{}) && it.settings.fits(size) && !it.settings.fits(kept.plus(size))
}

// refuse answers a message that is refused because the queue is full.
//
// A transfer that its source keeps has not been published, and goes nowhere: the source
// offers it again. Versions before 3 dead-letter it each time.
//
// Requires: the message has no record. With reject-publish-dlx it is dead-lettered
// as an effect, by its position in the entry; the entry is released with it, but
// payloads of DeadLetters are read before.
func (it *intake) refuse(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Code {
	if it.settings.Overflow == logpb.QueueConfig_REJECT_PUBLISH_DLX && it.settings.DeadLetter && !(cmd.Kept && it.since(3)) {
		it.counters.Deaths[logpb.Death_MAXLEN-1][SentOnce]++
		it.ends.refused(meta, cmd, it.outbox.nextLetter())
		deaths := it.outbox.addDeath(copyDeaths(cmd.Deaths), logpb.Death_MAXLEN)
		eff.DeadLetters = append(eff.DeadLetters, fsm.DeadLetter{
			Ref:    fsm.Ref{Index: meta.Index, Offset: meta.Offset, Size: cmd.Size},
			Reason: logpb.Death_MAXLEN, DiedAt: it.clock.now(), Priority: it.settings.priority(cmd.PriorityPlusOne),
			ScheduledFor: fsm.Time(cmd.ScheduledFor), HasExpiration: cmd.HasExpiration, Fresh: deaths[0].Count == 1, Deaths: deaths,
		})
	}
	return it.reject(eff)
}

// reject answers a message that is refused. The session records the answer, so
// that a repetition is refused, too.
func (it *intake) reject(eff *fsm.Effects) fsm.Code {
	it.counters.Refused++
	it.entries.refuse(eff)
	return fsm.Rejected
}

// tooLong reports whether the queue has something to drop.
func (it *intake) tooLong() bool {
	return it.settings.dropsHead() &&
		it.messages.readyCount()+it.messages.count(Delayed).Messages+it.messages.count(Parked).Messages > 0 && !it.settings.fits(it.counted())
}

// trim drops parked messages while the queue is too long, those that were parked
// first, since nobody is going to be handed them; then what would be handed out next,
// and when nothing is ready, the longest delayed message. Due messages that are in
// the way expire first. If there is more to do than one command may, the next
// Tick continues.
//
// It runs after assignment: what a consumer takes at once needs no space. Ensures:
// the queue is within its limits, or tooLong makes NextDue be at once.
func (it *intake) trim(eff *fsm.Effects) {
	for n := it.bounds.Drops; n > 0 && it.tooLong(); n-- {
		h, ok := choice{it.deliveries}.oldest(eff)
		switch {
		case !ok:
			return
		case !it.tooLong():
		case it.messages.head(parkedList) != 0:
			it.deliveries.endWaiting(it.messages.head(parkedList), logpb.Death_MAXLEN, eff)
		case h == 0:
			it.deliveries.endWaiting(it.messages.head(delayedList), logpb.Death_MAXLEN, eff)
		default:
			it.messages.remove(h)
			it.outbox.die(h, logpb.Death_MAXLEN, eff)
		}
	}
}

// purge removes all messages that are ready, scheduled, set aside or parked, and letters
// that have no destination. They are not dead-lettered. O(1) for the messages
// themselves, see messages.discardList.
func (it *intake) purge() fsm.Result {
	n := it.messages.readyCount() + it.messages.count(Waiting).Messages
	for _, in := range [...]Place{Scheduled, Delayed, Deferred, Parked} {
		n += it.messages.count(in).Messages
	}
	it.counters.Purged += n
	it.counters.Unscheduled += it.messages.count(Scheduled).Messages
	it.ends.several(n, logpb.EndState_PURGED, it.outbox.nextLetter())
	it.dropReady()
	it.outbox.purge()
	return fsm.Result{Count: n}
}

// dropReady removes all messages that are ready, scheduled, set aside or parked. When the
// last scheduled or delayed message goes, the queue counts as active until now.
func (it *intake) dropReady() {
	if it.lease.expectant() {
		it.lease.touch()
	}
	it.messages.dropReady()
	it.aside.clear()
}

// sweep releases purged messages and forgets ids, as many as one command of this kind may. A
// draining queue is swept by end alone, and one that is gone has given up its
// entries as a whole.
func (it *intake) sweep(kind logpb.Command_Kind, eff *fsm.Effects) {
	n := it.bounds.Before
	if kind == logpb.Command_TICK || kind == logpb.Command_PURGE {
		n = it.bounds.Sweep
	}
	if it.lease.phase() != Active {
		return
	}
	if it.messages.head(purgedList) != 0 {
		it.messages.sweep(n, eff)
	}
	if it.seen.len() > 0 {
		it.seen.forget(n)
	}
}
