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
func (m *Machine) enqueueLater(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) fsm.Code {
	var old uint32
	if cmd.ScheduleId != "" {
		old = m.pending(cmd.ScheduleId, 0)
	}
	switch {
	case old != 0 && cmd.Conflict == logpb.Enqueue_REJECT:
		return m.reject(eff)
	case old != 0 && cmd.Conflict == logpb.Enqueue_IGNORE:
		m.entries.refuse(eff)
		return fsm.OK
	case m.full(cmd, old):
		return m.refuse(meta, cmd, eff)
	}
	if old != 0 {
		m.endScheduled(old, logpb.EndState_REPLACED, &m.counters.Replaced, eff)
	}
	if cmd.ScheduleId != "" {
		m.messages.forgetName(cmd.ScheduleId)
	}
	m.storeScheduled(meta, cmd, due, cmd.ScheduleId, eff)
	return fsm.OK
}

// storeScheduled stores a message that becomes ready at due, under a name that is free.
func (m *Machine) storeScheduled(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, id string, eff *fsm.Effects) {
	h := m.store(meta, cmd, due, eff)
	m.messages.setScheduleInfo(h, scheduleInfo{
		scheduledFor: due, id: id, ttl: fsm.OptionalFrom[fsm.Millis](cmd.TtlPlusOne), ceiling: fsm.OptionalFrom[fsm.Millis](cmd.TtlCeilingPlusOne),
	})
	m.messages.schedule(h, due, id)
	m.counters.Enqueued++
	m.counters.Scheduled++
}

// endScheduled ends scheduled message h, which is replaced or cancelled.
func (m *Machine) endScheduled(h uint32, reason EndReason, counter *uint64, eff *fsm.Effects) {
	m.ends.message(h, reason, Dropped, m.outbox.nextLetter(), false)
	m.unschedule(h)
	m.messages.free(h, eff)
	m.counters.Unscheduled++
	*counter++
}

// pending returns the scheduled message with this name or, if that is empty, number; 0: none. One that
// is due counts as ready although catchUp may not have come to it.
func (m *Machine) pending(id string, seq uint64) uint32 {
	h := m.messages.findScheduled(id, seq)
	if h != 0 && m.messages.Get(h).due(m.clock.now()) {
		return 0
	}
	return h
}

// unschedule leaves message h, which is scheduled, in no place. The caller frees it or gives it a new
// place, and counts.
func (m *Machine) unschedule(h uint32) {
	m.messages.remove(h)
	m.lease.touch()
}

// promote makes scheduled message h ready, as if it had just arrived, except
// that its TTL counts from the instant it was scheduled for. A message of a
// delayed exchange departs.
//
// Its new number puts it behind all ready messages of its priority: what counts is
// when it was due, not when it was published. Its name may be used again.
func (m *Machine) promote(h uint32, eff *fsm.Effects) {
	r := *m.messages.scheduleInfo(h)
	due := m.messages.Get(h).expireAt
	m.unschedule(h)
	if m.settings.DelayedStore {
		m.depart(h, due, r, eff)
		return
	}
	m.messages.setScheduleInfo(h, scheduleInfo{scheduledFor: r.scheduledFor})
	ttl := m.settings.leastTTL(r.ttl, r.ceiling)
	m.messages.renew(h)
	m.messages.Mut(h).expireAt = 0
	if ttl.Given {
		m.messages.Mut(h).expireAt = max(due.Add(ttl.Value), 1)
	}
	m.messages.put(h, m.placeOf(h))
	if ttl.Given && ttl.Value == 0 {
		m.offer(h, true, eff)
	}
	if m.messages.Get(h).ready() {
		m.messages.watch(h)
	}
}

// depart makes message h of a delayed exchange, which is in no place and has
// become due, a letter, though not a dead one. It keeps the components of its
// TTL. DeadLetter.TTL and Ceiling are read from there.
func (m *Machine) depart(h uint32, due fsm.Time, r scheduleInfo, eff *fsm.Effects) {
	m.messages.setScheduleInfo(h, scheduleInfo{scheduledFor: due, ttl: r.ttl, ceiling: r.ceiling})
	m.messages.Mut(h).expireAt = 0
	e := m.messages.editExtra(h)
	e.reason, e.diedAt = logpb.Death_NONE, m.clock.now()
	m.outbox.post(h, eff)
}

// reschedule cancels scheduled messages or moves them to another time. Count of
// the answer is the number of messages found. One that is due by the clock is not,
// even if catchUp has not come to it.
//
// The id names the message, or its number if the id is empty. catchUp runs at the
// end, so that what was moved to now is ready when the command is answered, within
// the budget.
func (m *Machine) reschedule(cmd *logpb.Schedule, eff *fsm.Effects) fsm.Result {
	if cmd == nil || cmd.Action < logpb.Schedule_CANCEL || cmd.Action > logpb.Schedule_FIRE {
		return fsm.Result{Code: fsm.Invalid}
	}
	if len(cmd.Messages) > 0 {
		return m.unscheduleAll(cmd, eff)
	}
	if cmd.Action == logpb.Schedule_FIRE && cmd.Id == "" && cmd.Message == 0 {
		return m.fireNext(cmd.Count, eff)
	}
	h := m.pending(cmd.Id, cmd.Message)
	if h == 0 {
		return fsm.Result{Code: fsm.NotFound}
	}
	switch cmd.Action {
	case logpb.Schedule_CANCEL:
		m.endScheduled(h, logpb.EndState_CANCELLED, &m.counters.Cancelled, eff)
	case logpb.Schedule_MOVE:
		m.move(h, m.dueAt(cmd.DueAt, cmd.DelayPlusOne, 0))
	case logpb.Schedule_FIRE:
		m.move(h, m.clock.now())
	}
	m.catchUp(eff)
	return fsm.Result{Count: 1}
}

// unscheduleAll cancels messages by number, or none of them if one is not scheduled.
func (m *Machine) unscheduleAll(cmd *logpb.Schedule, eff *fsm.Effects) fsm.Result {
	numbers := cmd.GetMessages()
	if !m.since(3) || cmd.Action != logpb.Schedule_CANCEL || cmd.Id != "" || cmd.Message != 0 || len(numbers) > namedAtOnce || !ascends(numbers) {
		return fsm.Result{Code: fsm.Invalid}
	}
	for _, n := range numbers {
		if m.pending("", n) == 0 {
			return fsm.Result{Code: fsm.NotFound}
		}
	}
	for _, n := range numbers {
		m.endScheduled(m.pending("", n), logpb.EndState_CANCELLED, &m.counters.Cancelled, eff)
	}
	return fsm.Result{Count: uint64(len(numbers))}
}

// ascends reports whether each number is above the one before.
func ascends(numbers []uint64) bool {
	for i := 1; i < len(numbers); i++ {
		if numbers[i] <= numbers[i-1] {
			return false
		}
	}
	return true
}

// move changes the due time of scheduled message h; the past means now. It is
// not promoted here: the caller or catchUp does that.
func (m *Machine) move(h uint32, due fsm.Time) {
	m.messages.move(h, max(due, m.clock.atOnce()))
	m.lease.touch()
}

// fireNext makes the next due messages ready, scheduled or set aside, in order, as far as one command
// may. Count is how many; the next call continues. What is due already keeps its time.
func (m *Machine) fireNext(n uint64, eff *fsm.Effects) fsm.Result {
	var r fsm.Result
	for n = min(n, uint64(m.bounds.Tick)); r.Count < n; r.Count++ {
		due, h, ok := m.timers.nextTimed()
		if !ok {
			break
		}
		if m.messages.Get(h).place != Scheduled {
			m.lease.touch()
			m.retry(h)
			continue
		}
		if due.At > m.clock.now() {
			m.move(h, m.clock.now())
		}
		m.promote(h, eff)
	}
	return r
}

// retry makes message h, which is set aside, the last one of the returned, or puts it back into its
// group. If it has expired meanwhile it is due at once.
func (m *Machine) retry(h uint32) {
	if m.messages.Get(h).place == Delayed {
		m.lease.touch()
		if m.doomed(h) {
			m.aside.take(h)
			m.messages.putAfter(0, h, Grouped)
			m.messages.watch(h)
			return // m dies with its group
		}
	}
	m.aside.take(h)
	m.tryAgain(h)
}

// tryAgain is retry for a message in no place.
func (m *Machine) tryAgain(h uint32) {
	if len(m.regroup([]checkout{{grip: grip{handle: h}}})) == 0 {
		return // to its group
	}
	m.messages.returnLast(h)
	m.messages.watch(h)
}

// retryNow makes delayed messages ready, those that are due next first: up to n, or 0 for all, as far as
// one command may. Count is how many; the next call continues.
func (m *Machine) retryNow(cmd *logpb.Kick) fsm.Result {
	var r fsm.Result
	for n := m.bounds.upTo(cmd.GetCount()); r.Count < n; r.Count++ {
		h, ok := m.timers.nextDelayed()
		if !ok {
			break
		}
		m.retry(h)
	}
	m.counters.Kicked += r.Count
	return r
}
