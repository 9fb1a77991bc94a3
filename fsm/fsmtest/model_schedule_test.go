package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// dueAt is when a message becomes ready; 0: it does not say.
func (q *modelTime) dueAt(at int64, delayPlusOne, delay uint64) fsm.Time {
	if at > 0 {
		return min(fsm.Time(at), fsm.MaxTime)
	}
	if delayPlusOne > 0 {
		return q.clock.Add(millis(delayPlusOne - 1))
	}
	if delay > 0 {
		return q.clock.Add(millis(delay))
	}
	return 0
}

// enqueueLater takes in a message for later.
func (q *model) enqueueLater(m fsm.Meta, e *logpb.Enqueue, due fsm.Time) fsm.Result {
	old := q.notYetDue(e.ScheduleId, 0)
	switch {
	case old != nil && e.Conflict == logpb.Enqueue_REJECT:
		return q.reject(m)
	case old != nil && e.Conflict == logpb.Enqueue_IGNORE:
		q.unneeded = m.Index
		return fsm.Result{}
	}
	if old != nil {
		old.place = 0 // its place is free
	}
	full := q.full(e)
	if old != nil {
		old.place = scheduled
	}
	if full {
		return q.refuse(m, e)
	}
	if old != nil {
		q.noteEnd(old, logpb.EndState_REPLACED, queue.Dropped, false)
		q.remove(old)
		q.active = q.clock
		q.counters.Unscheduled++
		q.counters.Replaced++
	}
	if due := q.findScheduled(e.ScheduleId, 0); due != nil && e.ScheduleId != "" {
		due.id = ""
	}
	x := q.newMessage(m, e)
	x.seq, x.place, x.dueAt, x.scheduledFor = q.nextMessage, scheduled, due, due
	x.id, x.ttl, x.ceiling = e.ScheduleId, e.TtlPlusOne, e.TtlCeilingPlusOne
	q.nextMessage++
	q.messages = append(q.messages, x)
	q.counters.Enqueued++
	q.counters.Scheduled++
	return fsm.Result{}
}

// findScheduled returns the scheduled message with this name or number.
func (q *modelMessages) findScheduled(id string, seq uint64) *message {
	for _, x := range q.messages {
		if x.place == scheduled && (id != "" && x.id == id || id == "" && x.seq == seq) {
			return x
		}
	}
	return nil
}

// notYetDue is findScheduled for a message that is not due.
func (q *model) notYetDue(id string, seq uint64) *message {
	if x := q.findScheduled(id, seq); x != nil && x.dueAt > q.clock {
		return x
	}
	return nil
}

// nextScheduled is the message that is due first of those that become ready by
// themselves.
func (q *modelMessages) nextScheduled() *message {
	all := slices.DeleteFunc(slices.Clone(q.messages), func(x *message) bool {
		return x.place != scheduled && !x.aside() || x.dueAt == 0
	})
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *message) int { return cmp.Or(cmp.Compare(a.dueAt, b.dueAt), cmp.Compare(a.seq, b.seq)) })
}

// promote makes a scheduled message ready, as a new one. That of a delayed
// exchange becomes a letter.
func (q *model) promote(x *message) {
	if q.config.DelayedStore {
		q.leave(x)
		q.active = q.clock
		x.scheduledFor, x.dueAt, x.id, x.diedAt, x.reason = x.dueAt, 0, "", q.clock, logpb.Death_NONE
		q.post(x)
		return
	}
	q.remove(x)
	q.active = q.clock
	x.seq = q.nextMessage
	q.nextMessage++
	ttl := q.ttlOf(x.ttl, x.ceiling)
	if ttl >= 0 {
		x.expireAt = x.dueAt.Add(ttl)
	}
	x.dueAt, x.id, x.ttl, x.ceiling = 0, "", 0, 0
	q.messages = append(q.messages, x)
	q.arrive(x)
	if ttl == 0 {
		q.offer(x, true)
	}
}

func (q *model) schedule(s *logpb.Schedule) fsm.Result {
	if s == nil || s.Action < 0 || s.Action > logpb.Schedule_FIRE {
		return fsm.Result{Code: fsm.Invalid}
	}
	if s.Action == logpb.Schedule_FIRE && s.Id == "" && s.Message == 0 {
		var r fsm.Result
		for r.Count < min(s.Count, uint64(q.bounds.Tick)) && q.nextScheduled() != nil {
			r.Count++
			x := q.nextScheduled()
			if x.place != scheduled {
				q.active = q.clock
				q.tryAgain(x)
				continue
			}
			if x.dueAt > q.clock {
				q.move(x, q.clock)
			}
			q.promote(x)
		}
		return r
	}
	if len(s.Messages) > 0 {
		return q.unscheduleAll(s)
	}
	x := q.notYetDue(s.Id, s.Message)
	if x == nil {
		return fsm.Result{Code: fsm.NotFound}
	}
	switch s.Action {
	case logpb.Schedule_CANCEL:
		q.unschedule(x)
	case logpb.Schedule_MOVE:
		q.move(x, q.dueAt(s.DueAt, s.DelayPlusOne, 0))
	case logpb.Schedule_FIRE:
		q.move(x, q.clock)
	}
	q.catchUp()
	return fsm.Result{Count: 1}
}

// unscheduleAll cancels messages by number, or none.
func (q *model) unscheduleAll(s *logpb.Schedule) fsm.Result {
	if q.version < 3 || s.Action != logpb.Schedule_CANCEL || s.Id != "" || s.Message != 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	for i, n := range s.Messages {
		if i > 0 && n <= s.Messages[i-1] {
			return fsm.Result{Code: fsm.Invalid}
		}
	}
	var all []*message
	for _, n := range s.Messages {
		x := q.notYetDue("", n)
		if x == nil {
			return fsm.Result{Code: fsm.NotFound}
		}
		all = append(all, x)
	}
	for _, x := range all {
		q.unschedule(x)
	}
	return fsm.Result{Count: uint64(len(all))}
}

// unschedule ends a scheduled message.
func (q *model) unschedule(x *message) {
	q.noteEnd(x, logpb.EndState_CANCELLED, queue.Dropped, false)
	q.remove(x)
	q.active = q.clock
	q.counters.Unscheduled++
	q.counters.Cancelled++
}

func (q *model) move(x *message, due fsm.Time) {
	x.dueAt = max(due, q.clock)
	x.scheduledFor = x.dueAt
	q.active = q.clock
}
