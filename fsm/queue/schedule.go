package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// enqueueLater takes in a message that becomes ready at due. An earlier message
// of the same name is replaced, or stays and the new one is refused.
//
// Requires: due ≥ 1. The limits count the message that is replaced as gone. Of a
// conflict IGNORE answers OK and REJECT answers Rejected; a repetition gets the
// same. A message that is due by the clock is no earlier one: it has given up its
// name, even if catchUp has not come to it.
func (it *intake) enqueueLater(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) fsm.Code {
	var old uint32
	if cmd.ScheduleId != "" {
		old = it.pending(cmd.ScheduleId, 0)
	}
	switch {
	case old != 0 && cmd.Conflict == logpb.Enqueue_REJECT:
		return it.reject(eff)
	case old != 0 && cmd.Conflict == logpb.Enqueue_IGNORE:
		it.entries.refuse(eff)
		return fsm.OK
	case it.full(cmd, old):
		return it.refuse(meta, cmd, eff)
	}
	if old != 0 {
		it.ends.message(old, logpb.EndState_REPLACED, Dropped, it.outbox.nextLetter(), false)
		it.unschedule(old)
		it.messages.free(old, eff)
		it.counters.Unscheduled++
		it.counters.Replaced++
	}
	if cmd.ScheduleId != "" {
		forgetName(it.messages, cmd.ScheduleId)
	}
	h := it.store(meta, cmd, due, eff)
	it.messages.setScheduleInfo(h, scheduleInfo{scheduledFor: due, id: cmd.ScheduleId, ttl: fsm.OptionalFrom[fsm.Millis](cmd.TtlPlusOne), ceiling: fsm.OptionalFrom[fsm.Millis](cmd.TtlCeilingPlusOne)})
	it.messages.schedule(h, due, cmd.ScheduleId)
	it.counters.Enqueued++
	it.counters.Scheduled++
	return fsm.OK
}

// pending returns the scheduled message with this name or, if that is empty, with
// this number; 0: none. One that is due counts as ready although catchUp may not
// have come to it: its time cannot begin anew.
func (it *intake) pending(id string, seq uint64) uint32 {
	h := it.messages.findScheduled(id, seq)
	if h != 0 && it.messages.get(h).due(it.clock.now()) {
		return 0
	}
	return h
}

// unschedule removes message h from the scheduled ones and leaves it in no
// place. When the last one goes, the queue counts as active until now. The
// caller frees it or gives it a new place, and counts.
func (it *intake) unschedule(h uint32) {
	it.messages.remove(h)
	it.lease.touch()
}

// promote makes scheduled message h ready, as if it had just arrived, except
// that its TTL counts from the instant it was scheduled for. A message of a
// delayed exchange departs.
//
// Its new number puts it behind all ready messages of its priority: what counts is
// when it was due, not when it was published. Its name may be used again.
func (it *intake) promote(h uint32, eff *fsm.Effects) {
	r := *it.messages.scheduleInfo(h)
	due := it.messages.get(h).expireAt
	it.unschedule(h)
	if it.settings.DelayedStore {
		it.depart(h, due, r, eff)
		return
	}
	it.messages.setScheduleInfo(h, scheduleInfo{scheduledFor: r.scheduledFor})
	ttl := it.settings.leastTTL(r.ttl, r.ceiling)
	it.messages.renew(h)
	it.messages.mut(h).expireAt = 0
	if ttl.Given {
		it.messages.mut(h).expireAt = max(due.Add(ttl.Value), 1)
	}
	it.messages.put(h, it.members.place(h))
	if ttl.Given && ttl.Value == 0 {
		it.offer(h, true, eff)
	}
	if it.messages.get(h).ready() {
		it.messages.watch(h)
	}
}

// depart makes message h of a delayed exchange, which is in no place and has
// become due, a letter, though not a dead one. It keeps the components of its
// TTL. DeadLetter.TTL and Ceiling are read from there.
func (it *intake) depart(h uint32, due fsm.Time, r scheduleInfo, eff *fsm.Effects) {
	it.messages.setScheduleInfo(h, scheduleInfo{scheduledFor: due, ttl: r.ttl, ceiling: r.ceiling})
	it.messages.mut(h).expireAt = 0
	e := it.messages.editDeadLetterInfo(h)
	e.reason, e.diedAt = logpb.Death_NONE, it.clock.now()
	it.outbox.post(h, eff)
}

// reschedule cancels scheduled messages or moves them to another time. Count of
// the answer is the number of messages found. One that is due by the clock is not,
// even if catchUp has not come to it.
//
// The id names the message, or its number if the id is empty. catchUp runs at the
// end, so that what was moved to now is ready when the command is answered, within
// the budget.
func (it *intake) reschedule(cmd *logpb.Schedule, eff *fsm.Effects) fsm.Result {
	if cmd == nil || cmd.Action < logpb.Schedule_CANCEL || cmd.Action > logpb.Schedule_FIRE {
		return fsm.Result{Code: fsm.Invalid}
	}
	if cmd.Action == logpb.Schedule_FIRE && cmd.Id == "" && cmd.Message == 0 {
		return it.fireNext(cmd.Count, eff)
	}
	h := it.pending(cmd.Id, cmd.Message)
	if h == 0 {
		return fsm.Result{Code: fsm.NotFound}
	}
	switch cmd.Action {
	case logpb.Schedule_CANCEL:
		it.ends.message(h, logpb.EndState_CANCELLED, Dropped, it.outbox.nextLetter(), false)
		it.unschedule(h)
		it.messages.free(h, eff)
		it.counters.Unscheduled++
		it.counters.Cancelled++
	case logpb.Schedule_MOVE:
		it.move(h, it.dueAt(cmd.DueAt, cmd.DelayPlusOne, 0))
	case logpb.Schedule_FIRE:
		it.move(h, it.clock.now())
	}
	it.catchUp(eff)
	return fsm.Result{Count: 1}
}

// move changes the due time of scheduled message h; the past means now. It is
// not promoted here: the caller or catchUp does that.
func (it *intake) move(h uint32, due fsm.Time) {
	it.messages.move(h, max(due, it.clock.atOnce()))
	it.lease.touch()
}

// fireNext makes up to n of the next due messages ready, scheduled or set aside,
// in order, and no more than one command may. Count of the answer is how many.
// The next call continues; nothing is remembered. What is due already, and was not
// caught up with, is the first of them and keeps its time.
func (it *intake) fireNext(n uint64, eff *fsm.Effects) fsm.Result {
	var r fsm.Result
	for n = min(n, uint64(it.bounds.Tick)); r.Count < n; r.Count++ {
		due, h, ok := it.timers.nextTimed()
		if !ok {
			break
		}
		if it.messages.get(h).place != Scheduled {
			it.lease.touch()
			it.retry(h)
			continue
		}
		if due.at > it.clock.now() {
			it.move(h, it.clock.now())
		}
		it.promote(h, eff)
	}
	return r
}

// retry makes message h, which is set aside, the last one of the returned, or puts it back into
// its group. It keeps its number and its counts of deliveries. If it has expired
// meanwhile it is due at once.
func (it *intake) retry(h uint32) {
	if it.messages.get(h).place == Delayed {
		it.lease.touch()
		if it.members.doomed(h) {
			it.aside.take(h)
			it.messages.putAfter(0, h, Grouped)
			it.messages.watch(h)
			return // it dies with its group
		}
	}
	it.aside.take(h)
	it.tryAgain(h)
}

// tryAgain is retry for a message in no place.
func (it *intake) tryAgain(h uint32) {
	if len(it.members.regroup([]checkout{{grip: grip{handle: h}}})) == 0 {
		return // to its group
	}
	it.messages.returnLast(h)
	it.messages.watch(h)
}

// retryNow makes up to n of the delayed messages ready, those that are due next
// first, and no more than one command may; 0: all. Count of the answer is how
// many. The next call continues; nothing is remembered.
func (it *intake) retryNow(cmd *logpb.Kick) fsm.Result {
	n := uint64(it.bounds.Tick)
	if asked := cmd.GetCount(); asked > 0 {
		n = min(n, asked)
	}
	var r fsm.Result
	for ; r.Count < n; r.Count++ {
		h, ok := it.timers.nextDelayed()
		if !ok {
			break
		}
		it.retry(h)
	}
	it.counters.Kicked += r.Count
	return r
}
