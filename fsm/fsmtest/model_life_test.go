package fsmtest

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// tick does what time alone causes, after the expiries.
func (q *model) tick() fsm.Result {
	if q.unfinished() {
		return fsm.Result{}
	}
	for _, x := range q.takeBack() {
		x.back = q.overdue
		if c := x.holder; !q.isDetached(c) {
			q.forgetConsumer(c)
		}
	}
	for _, c := range q.consumers {
		q.serve(c)
	}
	q.startOldest()
	q.endDetached()
	q.endSuspicions()
	q.endHolds()
	q.endStates()
	return fsm.Result{}
}

// endUnused ends a queue that nobody has used for too long.
func (q *model) endUnused(inUse bool) {
	q.afterUse(inUse, 0)
	switch {
	case q.idleEnd() != 0 && q.clock >= q.idleEnd():
		q.endedBy = queue.IdleOver
		q.endLease()
	case q.leaseEnd() != 0 && q.clock >= q.leaseEnd() && q.awaited() == 0:
		q.endedBy = queue.LeaseOver
		q.endLease()
	}
}

// takeBack returns deliveries that were held for too long, or whose lock has
// ended.
func (q *model) takeBack() (back []*message) {
	for q.budget > 0 {
		x, lock := q.nextOverdue()
		if x == nil {
			break
		}
		q.budget--
		if lock && q.renewsItself(x) {
			continue
		}
		x.back, x.failing = q.overdue, false
		if lock || q.isDetached(x.holder) {
			q.loses(x)
			x.limit = -1
		}
		back = append(back, x)
	}
	for _, c := range q.consumers {
		var overdue []late
		for _, x := range back {
			if x.holder != c || x.limit < 0 {
				continue
			}
			q.counters.TimedOut++
			overdue = append(overdue, late{x.delivery, x.since, x.limit})
		}
		slices.SortFunc(overdue, func(a, b late) int { return cmp.Compare(a.id, b.id) })
		if len(overdue) > 0 {
			t := q.timeoutNotice(c, overdue)
			t.First = len(c.timedOut) == 0 && c.lateAcks == 0 && !c.cancelled
			q.out.Timeouts = append(q.out.Timeouts, t)
			c.timedOut = append(c.timedOut, overdue...)
			slices.SortFunc(c.timedOut, func(a, b late) int { return cmp.Compare(a.id, b.id) })
			q.unserve(c)
		}
		if len(c.timedOut) > 0 && slices.ContainsFunc(back, func(x *message) bool { return x.holder == c }) {
			q.giveUpAll(c)
		}
	}
	return back
}

// extend gives all who hold a message more time: nobody led, so that nobody
// could settle.
func (q *model) extend(by fsm.Millis) {
	q.lockCredit += by
	for _, x := range q.messages {
		if x.deadline != 0 {
			x.deadline = x.deadline.Add(by)
		}
		if x.lockBegan != 0 {
			x.lockUntil, x.lockBegan = x.lockUntil.Add(by), x.lockBegan.Add(by)
		}
	}
	for _, g := range q.groups {
		if g.until != 0 {
			g.until = g.until.Add(by)
		}
		if g.linger != 0 {
			g.linger = g.linger.Add(by)
		}
	}
	for i := range q.detachedOnes {
		q.detachedOnes[i].until = q.detachedOnes[i].until.Add(by)
	}
	for i := range q.suspected {
		if q.suspected[i].until != 0 {
			q.suspected[i].until = q.suspected[i].until.Add(by)
		}
	}
}

// inUse reports whether the lease is held: by a consumer, a cancelled one that
// still owes, or a get that is not settled.
func (q *model) inUse() bool {
	return slices.ContainsFunc(q.holders(), func(c *consumer) bool { return len(q.held(c)) > 0 }) || q.liveConsumers() > 0
}

// afterUse notes the end of use. inUse and consumers are from before.
func (q *model) afterUse(inUse bool, consumers uint64) {
	if inUse && !q.inUse() {
		q.lastUsed, q.active = q.clock, q.clock
	}
	if q.phase == live && q.config.AutoDelete && consumers > 0 && q.liveConsumers() == 0 {
		q.endedBy = queue.Abandoned
		q.endLease()
	}
}

// leaseEnd is when the lease ends if nothing happens; 0: never.
func (q *model) leaseEnd() fsm.Time {
	if q.config.Expires == 0 || q.inUse() {
		return 0
	}
	return max(q.lastUsed.Add(millis(q.config.Expires)).Add(1), q.awaited())
}

// awaited is the earliest expiry, if that is what the lease is put off for.
func (q *model) awaited() fsm.Time {
	first := fsm.Time(0)
	for _, x := range q.messages {
		if (x.waits() || x.aside()) && x.expireAt != 0 && !x.covered && (first == 0 || x.expireAt < first) {
			first = x.expireAt
		}
	}
	latest := q.lastUsed.Add(millis(q.config.Expires)).Add(millis(q.config.Expires))
	if !q.config.ExpiresKeepPending || !q.config.DeadLetter || first > latest {
		return 0
	}
	return first
}

// idleEnd is when the queue has been idle for too long; 0: never.
func (q *model) idleEnd() fsm.Time {
	if q.config.AutoDeleteOnIdle == 0 || q.inUse() || q.config.DeadLetter || q.config.Forward || q.total(scheduled, delayed).Messages > 0 {
		return 0
	}
	return q.active.Add(millis(q.config.AutoDeleteOnIdle)).Add(1)
}

// endLease drops all but the dead letters, which get some time to leave.
func (q *model) endLease() {
	if q.hasWill() && q.left() > 0 {
		q.beginWill()
		return
	}
	if q.total(outbox, waiting).Messages == 0 {
		q.end()
		return
	}
	q.endedMany(q.left()-q.total(outbox, waiting).Messages, logpb.EndState_QUEUE_DELETED)
	q.cancelAll()
	for _, c := range q.holders() {
		q.detach(c, false)
	}
	q.detachedOnes = nil
	q.dropWaiting()
	for _, x := range q.messages {
		x.stays = false
	}
	q.sweep(logpb.Command_TICK)
	q.phase, q.goneAt = draining, q.clock.Add(drainTime)
	q.sessions, q.consumers, q.service, q.returns, q.suspected = nil, nil, nil, nil, nil
	q.groups = nil
	q.touched = true
}

// left is how many messages there are, and before version 3 those purged that were not
// forgotten yet.
func (q *model) left() uint64 {
	n := len(q.messages)
	if q.version >= 3 {
		n -= len(q.purgedOnes)
	}
	return uint64(n)
}

func (q *model) cancelAll() {
	for _, c := range q.consumers {
		if c.id.Number != 0 && !c.cancelled {
			q.out.Cancelled = append(q.out.Cancelled, c.id)
		}
	}
}

// applyEnded is what a queue does that has ended: its dead letters go on.
func (q *model) applyEnded(c *logpb.Command) fsm.Result {
	r, before := fsm.Result{Code: fsm.Gone}, q.left()
	if q.phase == gone {
		return r
	}
	switch c.Kind {
	case logpb.Command_ROUTE_DEAD:
		r = q.routeDead(c.RouteDead)
	case logpb.Command_SETTLE_DEAD:
		r = q.confirmTransfers(c.SettleDead)
	}
	q.goOn(c.Kind)
	if q.hasWill() {
		q.carryOut(c.Kind)
		if q.left() < before {
			q.goneAt = q.clock.Add(drainTime)
		}
	}
	if q.total(outbox, waiting).Messages+q.unwilled() == 0 || c.Kind == logpb.Command_TICK && q.clock >= q.goneAt {
		q.end()
	}
	return r
}

// end ends the queue at once.
func (q *model) end() {
	q.cancelAll()
	q.counters.DeadDropped += q.total(outbox, waiting).Messages
	if q.phase == draining {
		q.counters.DeadDropped += q.unwilled()
	}
	if q.version >= 3 {
		q.counters.DeadDropped -= q.underWay().Messages
	}
	*q = model{
		modelTime:     modelTime{clock: q.clock, term: q.term, lockCredit: q.lockCredit},
		modelMessages: modelMessages{nextMessage: q.nextMessage, nextLetter: q.nextLetter, unneeded: q.unneeded},
		modelCommand:  modelCommand{out: q.out, overdue: q.overdue, news: q.news},
		modelEnds:     modelEnds{nextEnd: q.nextEnd, index: q.index},
		phase:         gone, endedBy: q.endedBy, counters: q.counters, config: q.config, bounds: q.bounds,
	}
	q.out.Gone = true
}

func (q *model) purge() fsm.Result {
	n := q.total(ready, returned, grouped, scheduled, delayed, deferred, parked, waiting).Messages
	q.counters.Purged += n
	q.endedMany(n, logpb.EndState_PURGED)
	q.counters.Unscheduled += q.count(scheduled)
	q.dropWaiting()
	q.discardAll(q.in(waiting))
	return fsm.Result{Count: n}
}

func (q *model) configure(c *logpb.QueueConfig) fsm.Result {
	if c == nil {
		return fsm.Result{Code: fsm.Invalid}
	}
	if c.Revision < q.config.Revision {
		return fsm.Result{}
	}
	q.active = q.clock
	if c.Expires != q.config.Expires {
		q.lastUsed = q.clock
	}
	single, paused := q.config.SingleActive, q.config.Paused
	byDeadline := q.config.DeadlineOrder
	q.widenWindow(c.DedupWindow)
	q.config = proto.Clone(c).(*logpb.QueueConfig)
	q.trimEnds()
	if len(q.messages) > 0 {
		q.config.DeadlineOrder = byDeadline
	}
	for _, c := range q.consumers {
		if q.hasGroups() && c.turn == 0 && c.id.Number != 0 && !c.cancelled {
			c.turn = q.number()
		}
	}
	if c.SingleActive != single {
		q.single = nil
	}
	if c.SingleActive != single || c.Paused != paused {
		q.serveAnew()
	}
	q.dropIdle()
	return fsm.Result{}
}

func (q *model) delete(d *logpb.Delete) fsm.Result {
	waiting := q.readyCount()
	switch {
	case d.GetIfUnused() && q.liveConsumers() > 0:
		return fsm.Result{Code: fsm.InUse}
	case d.GetIfEmpty() && q.version >= 3 && q.left() > 0,
		d.GetIfEmpty() && q.version < 3 && (waiting > 0 || q.nextScheduled() != nil && q.nextScheduled().dueAt <= q.clock):
		return fsm.Result{Code: fsm.NotEmpty}
	}
	if !q.hasWill() {
		q.end()
		return fsm.Result{Count: waiting}
	}
	q.endLease()
	return fsm.Result{Count: waiting, Until: q.goneAt}
}

// nextDeadline is when time alone changes something next; 0: never.
func (q *model) nextDeadline() fsm.Time {
	next := fsm.Time(0)
	at := func(t fsm.Time) {
		if t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	switch q.phase {
	case gone:
		return 0
	case draining:
		if slices.ContainsFunc(q.targets, func(t *target) bool { return t.gone }) || q.carriesOn() {
			return max(q.clock, 1)
		}
		return q.goneAt
	}
	for _, x := range q.messages {
		if (x.waits() || x.aside()) && !x.covered {
			at(x.expireAt)
		}
		if x.place == checkedOut {
			at(x.deadline)
			at(x.lockUntil)
		}
		if x.place == scheduled || x.aside() {
			at(x.dueAt)
		}
	}
	for _, x := range q.suspected {
		at(x.until)
	}
	for _, d := range q.detachedOnes {
		at(d.until)
	}
	for _, g := range q.groups {
		at(g.end())
		at(g.stateUntil)
	}
	if q.phase == live {
		at(q.leaseEnd())
		at(q.idleEnd())
		at(q.pause.Until)
		if len(q.ids) > 0 && q.ids[0].out {
			at(q.clock)
		} else if len(q.ids) > 0 {
			at(q.ids[0].at.Add(millis(q.config.DedupWindow)).Add(1000))
		}
		if len(q.purgedOnes) > 0 || q.tooLong() || q.unfinished() || q.unparks() || q.wouldHandOut() || q.endingOne() != nil ||
			slices.ContainsFunc(q.targets, func(t *target) bool { return t.gone }) {
			at(q.clock)
		}
	}
	return next
}
