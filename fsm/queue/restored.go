package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// restored is the intake of messages that a backup brings back.
type restored struct{ *intake }

// take takes in a message that a backup brings back, with the expiry and the
// counts it had. It is no publish: no limit refuses it, it is no duplicate of
// another message, and no delay of the queue applies to it.
//
// Which way a message goes:
//
//	it was a letter        dies again, for the same reason
//	it was scheduled       Scheduled, or a message of a delayed exchange departs
//	it has expired         dies
//	it failed too often    Parked, if the queue parks
//	it was handed out      Returned, behind what is there
//	of a group             Grouped
//	any other              Ready
//
// Requires: cmd.Size and cmd.Head were validated. Ensures: OK unless the answer is
// Invalid, and then nothing has changed.
func (it restored) take(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Code {
	r := cmd.Restored
	if r.ExpireAt < 0 || r.Failed > r.Acquired || r.Reason < 0 || int(r.Reason) > len(it.counters.Deaths) {
		return fsm.Invalid
	}
	it.lease.touch()
	if r.Reason == logpb.Death_NONE && (r.Scheduled || it.settings.DelayedStore) {
		it.schedule(meta, cmd, eff)
		return fsm.OK
	}
	h := it.store(meta, cmd, 0, eff)
	x := it.messages.mut(h)
	x.expireAt, x.acquired, x.failed = fsm.Time(r.ExpireAt), r.Acquired, r.Failed
	it.counters.Enqueued++
	switch {
	case r.Reason != logpb.Death_NONE:
		it.outbox.die(h, r.Reason, eff)
		return fsm.OK
	case x.due(it.clock.now()):
		it.outbox.die(h, logpb.Death_EXPIRED, eff)
		return fsm.OK
	}
	if it.outbox.parks() && it.settings.exceeds(x) {
		it.messages.park(h)
		return fsm.OK
	}
	if place := it.members.place(h); place == Ready && r.Acquired > 0 {
		it.messages.returnLast(h)
	} else {
		it.messages.put(h, place)
	}
	it.messages.watch(h)
	return fsm.OK
}

// schedule schedules a message again. A name that another message has by now
// stays there. One that is due already is promoted by catchUp; its TTL counts from
// the instant it was scheduled for.
func (it restored) schedule(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) {
	due, id := fsm.Time(max(cmd.DueAt, 1)), cmd.ScheduleId
	if id != "" && it.messages.findScheduled(id, 0) != 0 {
		id = ""
	}
	h := it.store(meta, cmd, due, eff)
	it.messages.setScheduleInfo(h, scheduleInfo{
		scheduledFor: due, id: id, ttl: fsm.OptionalFrom[fsm.Millis](cmd.TtlPlusOne), ceiling: fsm.OptionalFrom[fsm.Millis](cmd.TtlCeilingPlusOne),
	})
	it.messages.schedule(h, due, id)
	it.counters.Enqueued++
	it.counters.Scheduled++
}
