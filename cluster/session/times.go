package session

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// setTimes has a message wait and expire as its headers say that the queue's settings name. What it says by the broker's
// own headers comes first for when it is due; of two times at which it expires the earlier counts. The lock is held.
func (q *sessionQueue) setTimes(e *logpb.Enqueue, p *fsm.Publish, names *catalog.HeaderTimes) {
	properties, now := q.session.publisher.properties, fsm.Time(q.session.publisher.node.Now())
	if names.Due != "" && p.Schedule == nil {
		if at, ok := properties.Time(p.Payload, names.Due); ok {
			e.DueAt = int64(at)
		}
	}
	if names.Expiry == "" {
		return
	}
	if at, ok := properties.Time(p.Payload, names.Expiry); ok {
		expireAt(e, at, now, names.Delay)
	}
}

// expireAt has a message expire at an instant, however long it is on its way: its TTL counts from now, or from when
// it is due, which is after delay if it does not say so. One that would expire before it is due dies when it comes,
// since it can be delivered at no time.
func expireAt(e *logpb.Enqueue, at, now fsm.Time, delay fsm.Millis) {
	due := now + fsm.Time(delay)
	switch {
	case e.DueAt != 0:
		due = max(fsm.Time(e.DueAt), now)
	case e.DelayPlusOne != 0:
		due = now + fsm.Time(e.DelayPlusOne-1)
	}
	if at <= due {
		e.DueAt, e.DelayPlusOne, e.ScheduleId, e.Conflict = 0, 1, "", 0
		e.TtlFrom, e.TtlPlusOne = 1, 2 // the first instant and one: it has passed for a leader whose clock is behind as well
		return
	}
	if due == now {
		e.TtlFrom = int64(now)
	}
	if ttl := uint64(at-due) + 1; e.TtlPlusOne == 0 || ttl < e.TtlPlusOne {
		e.TtlPlusOne = ttl
	}
}

// needs caches what a queue must be told about messages. The session's lock guards it.
type needs struct {
	in *catalog.View // where they are from; nil: not asked yet
	as catalog.Needs
}

// ask updates it to a view.
func (n *needs) ask(v *catalog.View, q *catalog.Queue) {
	if n.in != v {
		n.in, n.as = v, v.Needs(q)
	}
}

// describe completes an enqueue of a publish, as publish has it. e is empty. The lock is held.
func (q *sessionQueue) describe(e *logpb.Enqueue, p *fsm.Publish, ceiling uint64, store bool, group string) {
	*e = logpb.Enqueue{
		Size: uint32(len(p.Payload)), Head: uint32(fsm.Payload(p.Payload).HeadSize()), TtlPlusOne: uint64(p.TTL + 1),
		PriorityPlusOne: uint32(p.Priority + 1), HasExpiration: p.HasExpiration,
		Routed: p.Exchange != "", TtlCeilingPlusOne: ceiling, GroupId: group,
	}
	if q.needs.as.Label {
		e.MessageId, e.CorrelationId = p.MessageID, p.CorrelationID
	}
	if store {
		e.DelayPlusOne = uint64(p.Delay.For) + 1
		e.ScheduleId, e.Conflict = p.Delay.ID, p.Delay.Conflict
	} else if s := p.Schedule; s != nil {
		e.DueAt, e.DelayPlusOne = int64(s.At), uint64(s.Delay+1)
		e.ScheduleId, e.Conflict = s.ID, s.Conflict
	}
	if q.needs.as.Times != nil && !store {
		q.setTimes(e, p, q.needs.as.Times)
	}
	if by := q.needs.as.Tally; by != "" {
		e.Tally = fsm.Label(q.session.publisher.properties.Property(p.Payload, by))
	}
	if q.needs.as.MessageID { // mostly it is not needed, and the properties are not read
		e.MessageId = string(q.session.publisher.properties.Property(p.Payload, catalog.PropertyMessageID))
	}
	if by := q.needs.as.Unique; by != "" && !store {
		properties := q.session.publisher.properties
		e.UniqueKey = catalog.UniqueKey(by, func(name string) []byte { return properties.Property(p.Payload, name) })
	}
}
