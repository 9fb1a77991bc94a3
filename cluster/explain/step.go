package explain

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// step is one command that was applied.
type step struct {
	t    *Tracer
	meta fsm.Meta
	c    *logpb.Command
	r    fsm.Result
}

// births begins the lives of messages that the command has brought. next is the
// number that was next before it.
func (s *step) births(next uint64) {
	t, e := s.t, s.c.GetEnqueue()
	if s.c.Kind == logpb.Command_UNIT {
		s.unitBirths(next)
		return
	}
	if s.c.Kind == logpb.Command_ENQUEUE && t.wanted.MessageID != "" && fsm.Label([]byte(e.GetMessageId())) == t.wanted.MessageID ||
		t.wanted.MessageID == "" && s.c.Kind == logpb.Command_ENQUEUE && next == t.wanted.Number && queue.NextSeq(t.m) > next {
		s.enqueued(e, next)
		return
	}
	if n := t.wanted.Number; t.wanted.MessageID == "" && next <= n && n < queue.NextSeq(t.m) {
		for x := range t.m.Messages() { // a scheduled message got its number now
			if x.Seq == n && !slices.ContainsFunc(t.lives, func(l *life) bool { return l.ref == x.Ref }) {
				t.found(&x)
				return
			}
		}
	}
}

// unitBirths is births for a unit, which numbers what it brings from next on.
func (s *step) unitBirths(next uint64) {
	one := *s
	for _, c := range s.c.GetUnit().GetCommands() {
		if c.Kind != logpb.Command_ENQUEUE || queue.NextSeq(s.t.m) <= next {
			continue // a settlement, or the unit was refused or is a repetition
		}
		wanted := s.t.wanted.Number == next
		if id := s.t.wanted.MessageID; id != "" {
			wanted = fsm.Label([]byte(c.Enqueue.GetMessageId())) == id
		}
		if wanted {
			one.enqueued(c.Enqueue, next)
		}
		one.meta.Offset += c.Enqueue.GetSize()
		next++
	}
}

// enqueued tells how a message came.
func (s *step) enqueued(e *logpb.Enqueue, number uint64) {
	t := s.t
	ref := fsm.Ref{Index: s.meta.Index, Offset: s.meta.Offset, Size: e.GetSize()}
	if queue.NextSeq(t.m) == number && s.r.Code == fsm.OK {
		return // a repetition, or a duplicate: the queue has it already
	}
	l := t.begin(ref, e.GetMessageId(), e.GetCorrelationId(), number)
	if l == nil {
		return
	}
	x := t.event("enqueued")
	x.Session = t.session(s.meta.Session)
	if s.meta.Session.Node == 0 {
		x.Why, x.Session = "from queue "+QueueName(t.names, fsm.QueueID(s.meta.Session.Boot)), ""
		if e.Restored != nil {
			x.Why = "from a backup"
		}
	}
	if s.r.Code != fsm.OK {
		x.Event, x.Why = "refused", "the queue is full, or another message has its schedule id or its key"
		l.Message = 0
		l.add(x)
		return
	}
	if l.follow, l.lives = queue.FollowRef(t.m, ref); l.lives {
		d, _ := l.follow.Describe(t.m)
		x.ExpiresAt = int64(d.ExpireAt)
		if l.State = d.Place.String(); d.Place == queue.Scheduled {
			x.Event, x.Until = "scheduled", int64(d.DueAt)
		}
	}
	l.add(x)
	s.handedOut(l)
}

// handedOut tells to whom the command has handed a message.
func (s *step) handedOut(l *life) {
	for i := range s.t.eff.Deliveries {
		d := &s.t.eff.Deliveries[i]
		if of, delivery := l.follow.Holder(); d.Ref != l.ref || d.To == of && d.ID == delivery {
			continue // another message, or a repeated answer
		}
		x := s.t.event("delivered")
		if d.To.Number == 0 {
			x.Why = "get"
		}
		s.t.by(&x, d.To, d.ID)
		l.follow.HandedTo(d.To, d.ID)
		if now, ok := l.follow.Describe(s.t.m); ok {
			x.Until, l.State = int64(until(&now)), now.Place.String()
		}
		l.add(x)
	}
}

// compare tells what the command did to a message, which was as described before.
func (s *step) compare(l *life, before *queue.Followed) {
	t := s.t
	after, ok := l.follow.Describe(t.m)
	if s.c.Kind == logpb.Command_PURGE && (before.Place != queue.CheckedOut && before.Place != queue.Outbox) {
		l.lives, ok = false, false
		l.follow, l.State = queue.Follow{}, "ended"
		l.add(t.event("purged"))
		return
	}
	held := before.Place == queue.CheckedOut
	if held && !before.Leaving && (!ok || after.Leaving || after.Place != queue.CheckedOut || s.handsOut(l)) {
		l.why = s.cause(before)
	}
	gone := held && (!ok || after.Place != queue.CheckedOut || s.handsOut(l))
	switch {
	case !ok && t.m.Stats().Phase != queue.Active && before.Place != queue.Outbox && before.Place != queue.Waiting:
		l.State = "ended"
		l.add(t.event("the queue ended"))
		return
	case gone:
		s.settled(l, before, &after, ok)
	case ok && after.Place != before.Place:
		s.moved(l, before, &after)
	case ok && held && !before.Leaving && !after.Leaving && (after.Deadline != before.Deadline || after.LockedUntil != before.LockedUntil):
		x := t.event("renewed")
		if x.Until = int64(until(&after)); s.c.Kind != logpb.Command_RENEW {
			x.Why = "not requested: the leader changed, or the lock renews itself"
		}
		t.by(&x, after.Holder, after.Delivery)
		l.add(x)
	case ok && after.DueAt != before.DueAt && after.DueAt != 0:
		x := t.event("rescheduled")
		x.Until = int64(after.DueAt)
		l.add(x)
	}
	if ok {
		l.State = after.Place.String()
	} else if l.letter == 0 {
		l.State = "ended"
	}
	s.routed(l, before)
	s.handedOut(l)
}

// until is when a message goes back if nobody does anything: when its lock ends, or
// its consumer's time.
func until(x *queue.Followed) fsm.Time {
	if x.LockedUntil != 0 && (x.Deadline == 0 || x.LockedUntil < x.Deadline) {
		return x.LockedUntil
	}
	return x.Deadline
}

// handsOut reports whether the command has handed a message out.
func (s *step) handsOut(l *life) bool {
	of, delivery := l.follow.Holder()
	return slices.ContainsFunc(s.t.eff.Deliveries, func(d fsm.Delivery) bool {
		return d.Ref == l.ref && (d.To != of || d.ID != delivery)
	})
}

// settled tells that a delivery has ended, and how.
func (s *step) settled(l *life, before, after *queue.Followed, ok bool) {
	x := s.t.event("returned")
	x.Why = l.why
	s.t.by(&x, before.Holder, before.Delivery)
	l.why = ""
	switch {
	case ok && after.Place == queue.Delayed:
		x.Event, x.Until = "returned, to be retried later", int64(after.DueAt)
	case ok && after.Place == queue.Deferred:
		x.Event, x.Until = "deferred", int64(after.DueAt)
	case ok && after.Place == queue.Parked:
		x.Event = "parked"
	case ok && (after.Place == queue.Outbox || after.Place == queue.Waiting):
		x.Event = "delivery ended"
	case !ok && x.Why == "ack":
		x.Event, x.Why = "acknowledged", ""
	case !ok:
		x.Event = "delivery ended"
	}
	l.add(x)
}

// moved tells of a change that no consumer has caused.
func (s *step) moved(l *life, before, after *queue.Followed) {
	x := s.t.event("ready")
	switch {
	case after.Place == queue.CheckedOut || after.Place == queue.Outbox:
		return // told of as a delivery, as a death, or when it is routed
	case after.Place == queue.Waiting && after.Forwarded:
		x.Event, x.Letter = "waits for a route", after.Letter
	case before.Forwarded:
		x.Why = "the queue no longer forwards"
	case after.Place == queue.Waiting:
		x.Event, x.Letter = "dead letter waits for a route", after.Letter
	case before.Place == queue.Scheduled:
		x.Why, x.ExpiresAt = "its scheduled time was reached", int64(after.ExpireAt)
	case before.Place == queue.Delayed:
		x.Why = "its delay before the retry ended"
	case before.Place == queue.Parked:
		x.Why = "it was unparked"
	case before.Place == queue.Deferred:
		x.Why = "its deferral ended"
	default:
		x.Event = after.Place.String()
	}
	l.add(x)
}

// routed tells where a letter goes.
func (s *step) routed(l *life, before *queue.Followed) {
	r := s.c.GetRouteDead()
	if r == nil || before.Letter == 0 {
		return
	}
	for i, route := range r.Routes {
		letter := r.First + uint64(i)
		if r.Retry {
			letter = route.GetLetter()
		}
		if letter != before.Letter || before.Place == queue.Outbox == r.Retry {
			continue
		}
		x := s.t.event("dead letter routed")
		if before.Forwarded {
			x.Event = "routed"
		}
		x.Letter = letter
		for _, id := range route.GetTargets() {
			x.Queues = append(x.Queues, QueueName(s.t.names, fsm.QueueID(id)))
		}
		if len(x.Queues) == 0 && before.Forwarded {
			continue // it waits, or comes back
		}
		if len(x.Queues) == 0 {
			x.Why = "no queue matches"
		}
		l.add(x)
	}
}

// outcomes names how receivers settle.
var outcomes = map[logpb.Settle_Outcome]string{
	logpb.Settle_ACK: "ack", logpb.Settle_REQUEUE: "nack, requeue", logpb.Settle_REQUEUE_FAILED: "reject, requeue",
	logpb.Settle_DISCARD: "reject", logpb.Settle_DEFER: "defer",
}

// cause tells why a message has left its holder.
func (s *step) cause(before *queue.Followed) string {
	switch s.c.Kind {
	case logpb.Command_SETTLE:
		return outcomes[s.c.GetSettle().GetOutcome()]
	case logpb.Command_SESSION_DOWN:
		return "session ended"
	case logpb.Command_NODE_DOWN:
		return "node down"
	case logpb.Command_DELETE:
		return "queue deleted"
	}
	for _, x := range s.t.eff.Timeouts {
		if x.To == before.Holder && slices.Contains(x.Deliveries, before.Delivery) {
			return "consumer timeout"
		}
	}
	node := queue.Boot{Node: before.Holder.Session.Node, Boot: before.Holder.Session.Boot}
	switch {
	case slices.Contains(s.t.m.SuspectedNodes(), node):
		return "node suspected"
	case s.c.Kind == logpb.Command_TICK && before.LockedUntil != 0 && before.LockedUntil <= s.t.m.Clock():
		return "lock lost"
	case !slices.Contains(s.t.m.Sessions(), before.Holder.Session):
		return "session ended"
	}
	return "consumer ended"
}
