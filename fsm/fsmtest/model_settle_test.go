package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// settle ends deliveries of a consumer, in ascending order.
func (q *model) settle(s *session, d *logpb.Settle) fsm.Result {
	if len(d.GetNumbers()) > 0 {
		return q.settleNumbered(d)
	}
	if s == nil && d.GetHolder() == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	if d == nil {
		d = &logpb.Settle{}
	}
	if len(d.GetRanges())%2 != 0 || d.GetOutcome() < 0 || d.GetOutcome() > logpb.Settle_DEFER || d.Outcome == logpb.Settle_DEFER && !isDeferral(d) {
		return fsm.Result{Code: fsm.Invalid}
	}
	c := q.holder(s, d.Holder, d.Consumer)
	if c == nil {
		return fsm.Result{Code: fsm.NotFound}
	}
	if d.Outcome == logpb.Settle_DEFER && q.findDeferred(d.Deferral) != nil {
		return fsm.Result{Code: fsm.InUse}
	}
	q.active = q.clock
	settled := slices.DeleteFunc(q.held(c), func(x *message) bool { return !inRanges(d.Ranges, x.delivery) })
	due := q.dueAt(d.DueAt, d.DelayPlusOne, 0)
	if q.version < 3 {
		q.renewGroups(c, settled)
	} else {
		q.renewGroups(c, settled[:min(len(settled), q.bounds.Tick)])
	}
	if d.Outcome == logpb.Settle_DEFER {
		q.annotate(settled, q.additionsOf(d))
		r := q.putAside(settled, d)
		q.endSettle(c, d.Ranges)
		return r
	}
	n := min(len(settled), q.bounds.Tick)
	if all := q.coming(); len(all) > 0 && all[0].order != 0 {
		n = 0
	}
	if rest := settled[n:]; len(rest) > 0 {
		q.orders++
		b := &back{order: q.orders, outcome: d.Outcome, due: due, remark: remarkOf(d), added: q.additionsOf(d)}
		for _, x := range rest {
			x.leave(b)
		}
	}
	q.conclude(&back{outcome: d.Outcome, due: due, remark: remarkOf(d), added: q.additionsOf(d)}, settled[:n])
	q.endSettle(c, d.Ranges)
	switch {
	case !d.Strict:
		return fsm.Result{}
	case len(settled) == 0:
		return fsm.Result{Code: fsm.NotFound}
	}
	return fsm.Result{Count: uint64(len(settled))}
}

// remarkOf is what the receiver says about what it discards.
func remarkOf(d *logpb.Settle) fsm.Remark {
	return fsm.Remark{Reason: d.GetReason(), Description: d.GetDescription()}
}

// endSettle is what a settlement does besides ending deliveries.
func (q *model) endSettle(c *consumer, ranges []uint64) {
	q.settleLate(c, ranges)
	q.settleLost(c, ranges)
	q.startOldest()
	if q.isDetached(c) {
		q.dropDetached()
		return
	}
	q.serve(c)
	q.forgetConsumer(c)
}

// conclude ends deliveries, as b says.
func (q *model) conclude(b *back, settled []*message) {
	for _, x := range settled {
		x.failing = b.outcome == logpb.Settle_REQUEUE_FAILED
		x.back = q.overdue
	}
	switch b.outcome {
	case logpb.Settle_ACK:
		for _, x := range settled {
			q.counters.Acked++
			if x.expireAt != 0 && x.expireAt <= q.clock {
				q.counters.AckedExpired++
			}
			q.remove(x)
		}
	case logpb.Settle_REQUEUE, logpb.Settle_REQUEUE_FAILED:
		inOrder := q.config.Classic || q.config.ReturnInOrder
		if inOrder {
			slices.SortFunc(settled, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
		}
		q.annotate(settled, b.added)
		q.giveBack(settled, !inOrder, b.due)
	case logpb.Settle_DISCARD:
		q.annotate(settled, b.added)
		for _, x := range settled {
			x.failed++
			x.acquired++
			x.heldBy = x.holderOf()
			x.remark = b.remark
			q.die(x, logpb.Death_REJECTED)
		}
	}
}

// settleLate forgets deliveries that were taken back, once they are settled.
func (q *model) settleLate(c *consumer, ranges []uint64) {
	settled := slices.DeleteFunc(slices.Clone(c.timedOut), func(l late) bool { return !inRanges(ranges, l.id) })
	if len(settled) == 0 {
		return
	}
	t := q.timeoutNotice(c, settled)
	q.out.LateAcks = append(q.out.LateAcks, fsm.LateAck{
		Of: c.id, Tag: c.tag, Deliveries: t.Deliveries, Limit: t.Limit, Held: t.Held, First: c.lateAcks == 0,
	})
	c.timedOut = slices.DeleteFunc(c.timedOut, func(l late) bool { return inRanges(ranges, l.id) })
	c.lateAcks += uint64(len(settled))
	q.counters.LateAcks += uint64(len(settled))
}

// timeoutNotice says which deliveries were held too long, for how long.
func (q *model) timeoutNotice(c *consumer, all []late) fsm.Timeout {
	t := fsm.Timeout{To: c.id, Tag: c.tag, Limit: all[0].limit}
	for _, l := range all {
		t.Deliveries = append(t.Deliveries, l.id)
		t.Limit, t.Held = min(t.Limit, l.limit), max(t.Held, fsm.Millis(q.clock-l.since))
	}
	return t
}

func inRanges(ranges []uint64, id uint64) bool {
	for i := 0; i+1 < len(ranges); i += 2 {
		if id >= ranges[i] && id-ranges[i] < ranges[i+1] {
			return true
		}
	}
	return false
}

// giveBack ends deliveries. Messages that have failed too often die first, in
// order, if they are not parked; then those that are too old, oldest expiry first; the others go on
// waiting: behind all returned ones, or behind the last one that is older.
func (q *model) giveBack(back []*message, tail bool, asked fsm.Time) {
	for _, x := range back {
		x.acquired++
		if x.failing {
			x.failed++
		}
		x.heldBy = x.holderOf()
		x.undeliver()
	}
	for _, x := range back {
		if x.group != "" && x.ending == 0 && q.config.GroupExpiry && x.expired(q.clock) && q.holderOfGroup(x) == nil {
			q.endGroup(x.group)
		}
	}
	var rest []*message
	for _, x := range back {
		if x.failing && q.exceeds(x) && !q.parks() {
			q.die(x, logpb.Death_DELIVERY_LIMIT)
		} else if x.ending != 0 {
			q.die(x, q.deathOf(x))
		} else {
			rest = append(rest, x)
		}
	}
	old := slices.Clone(rest)
	slices.SortStableFunc(old, func(a, b *message) int { return cmp.Or(cmp.Compare(a.expireAt, b.expireAt), cmp.Compare(a.seq, b.seq)) })
	for _, x := range old {
		if x.expireAt != 0 && x.expireAt <= q.clock && !q.protected(x) {
			q.die(x, logpb.Death_EXPIRED)
		}
	}
	var kept []*message
	for _, x := range rest {
		x.heldBy = lastHolder{}
		if x.place != 0 || !slices.Contains(q.messages, x) {
			continue
		}
		if x.failing && q.exceeds(x) {
			x.place, x.ending, x.deferral = parked, 0, ""
			q.parkedOnes = append(q.parkedOnes, x)
			q.counters.Parked++
			continue
		}
		if token := x.deferral; token != "" {
			if x.deferral = ""; q.findDeferred(token) == nil {
				x.place, x.deferral = deferred, token
				q.deferrals = append(q.deferrals, x)
				q.counters.Deferred++
				continue
			}
		}
		q.counters.Requeued++
		if due := q.retryAt(x, x.failing && !x.lapsed, asked); due != 0 {
			x.place, x.dueAt = delayed, due
			q.delayedOnes = append(q.delayedOnes, x)
			continue
		}
		kept = append(kept, x)
	}
	for _, x := range q.rejoin(kept) {
		x.place = returned
		at := len(q.returns)
		for !tail && at > 0 && q.returns[at-1].seq > x.seq {
			at--
		}
		q.returns = slices.Insert(q.returns, at, x)
	}
}

// die ends x: it becomes a dead letter if the queue has somewhere to send it.
func (q *model) die(x *message, reason logpb.Death_Reason) {
	if reason == logpb.Death_EXPIRED {
		q.counters.Expired++
	}
	if x.place == delayed {
		q.active = q.clock
	}
	fate := queue.Transactional
	switch {
	case q.config.DelayedStore:
		fate = queue.AtLeastOnce
	case !q.config.DeadLetter:
		fate = queue.Dropped
	case reason == logpb.Death_MAXLEN || q.config.DeadLetterStrategy == logpb.QueueConfig_AT_MOST_ONCE:
		fate = queue.SentOnce
	case q.config.DeadLetterMaxPlusOne != 0 && q.total(outbox, waiting).Messages-q.underWay().Messages >= q.config.DeadLetterMaxPlusOne-1:
		fate = queue.SentOnce
	case q.atLeastOnce():
		fate = queue.AtLeastOnce
	}
	q.counters.Deaths[reason-1][fate]++
	q.noteEnd(x, queue.EndReason(logpb.EndState_Reason_value[reason.String()]), fate, fate > queue.SentOnce)
	if fate == queue.Dropped {
		q.remove(x)
		return
	}
	q.leave(x)
	x.undeliver()
	x.place, x.dueAt, x.deferral = outbox, 0, ""
	x.member = member{}
	x.reason, x.diedAt, x.failures = reason, q.clock, q.failuresOf(x, reason)
	q.counters.DeadLettered++
	if fate == queue.SentOnce {
		q.out.DeadLetters = append(q.out.DeadLetters, q.letterOf(x).DeadLetter)
		q.remove(x)
		return
	}
	q.post(x)
}

// failuresOf is what the record of a death says of failures before it.
func (q *model) failuresOf(x *message, reason logpb.Death_Reason) uint32 {
	switch {
	case q.version < 3:
		return 0
	case reason == logpb.Death_REJECTED:
		return x.failed - 1
	}
	return x.failed
}

// post puts x at the end of the outbox.
func (q *model) post(x *message) {
	x.place, x.letter, x.member, x.key = outbox, q.nextLetter, member{}, ""
	q.nextLetter++
	q.letters = append(q.letters, x)
	q.touched = true
}

// routeDead says where the oldest unrouted letters go.
func (q *model) routeDead(r *logpb.RouteDead) fsm.Result {
	if r.GetRetry() {
		return q.routeWaiting(r)
	}
	letters := slices.DeleteFunc(slices.Clone(q.letters), func(x *message) bool { return x.routed })
	if len(letters) == 0 || letters[0].letter != r.GetFirst() {
		return fsm.Result{}
	}
	n := min(len(letters), len(r.Routes))
	for i := range n {
		q.route(letters[i], r.Routes[i])
	}
	return fsm.Result{Count: uint64(n)}
}

// routeWaiting says where letters go that wait, up to the first that does not.
func (q *model) routeWaiting(r *logpb.RouteDead) fsm.Result {
	n := 0
	for _, route := range r.Routes {
		i := slices.IndexFunc(q.waitingOnes, func(x *message) bool { return x.letter == route.GetLetter() })
		if i < 0 {
			break
		}
		x := q.waitingOnes[i]
		q.leave(x)
		x.place = outbox
		at := slices.IndexFunc(q.letters, func(y *message) bool { return !y.routed })
		if at < 0 {
			at = len(q.letters)
		}
		q.letters = slices.Insert(q.letters, at, x)
		q.route(x, route)
		n++
	}
	return fsm.Result{Count: uint64(n)}
}

func (q *model) route(x *message, r *logpb.DeadRoute) {
	x.routed = true
	if q.config.DelayedStore && !x.forwarded && x.reason == logpb.Death_NONE && len(x.done) == 0 && (r.GetUnroutable() || len(r.GetTargets()) == 0) {
		q.counters.Unroutable++
		q.noteEnd(x, logpb.EndState_UNROUTABLE, queue.AtLeastOnce, false)
		if r.GetUnroutable() {
			x.reason, x.diedAt, x.failures = logpb.Death_UNROUTABLE, q.clock, q.failuresOf(x, logpb.Death_UNROUTABLE)
		}
	}
	for i, id := range r.GetTargets() {
		if id == 0 || slices.Contains(x.done, id) || slices.ContainsFunc(x.transfers, func(f transfer) bool { return f.target == id }) {
			continue
		}
		t := q.target(id)
		if t == nil {
			t = &target{id: id, next: 1}
			q.targets = append(q.targets, t)
		}
		if t.gone {
			continue
		}
		f := transfer{target: id, number: t.next}
		if len(r.TtlCeilingsPlusOne) > i {
			f.ceiling = r.TtlCeilingsPlusOne[i]
		}
		x.transfers = append(x.transfers, f)
		t.next++
		q.touched = true
	}
	if x.takenAs == logpb.Take_COPY && len(x.transfers) == 0 && len(x.done) == 0 {
		q.remove(x)
		return
	}
	if x.forwarded && (!q.config.Forward || x.takenTo != 0) && q.phase == live && len(x.transfers) == 0 && len(x.done) == 0 {
		q.comeBack(x)
		return
	}
	if q.config.DelayedStore && !x.forwarded && len(x.transfers) == 0 && len(x.done) == 0 {
		q.counters.DeadDropped++
		q.letterEnded(x)
		q.remove(x)
		return
	}
	q.endLetter(x)
}

// endLetter is the end of a letter that is not on its way anywhere: it has
// arrived, it goes on waiting, or it is lost.
func (q *model) endLetter(x *message) {
	switch {
	case len(x.transfers) > 0:
	case (x.forwarded || q.atLeastOnce()) && (x.refused || len(x.done) == 0):
		q.leave(x)
		x.place, x.refused = waiting, false
		q.waitingOnes = append(q.waitingOnes, x)
	case len(x.done) > 0 && x.forwarded:
		q.hasGone(x)
	case len(x.done) > 0:
		q.counters.DeadConfirmed++
		q.letterEnded(x)
		q.remove(x)
	default:
		q.counters.DeadDropped++
		q.letterEnded(x)
		q.remove(x)
	}
}

func (q *modelMessages) target(id uint64) *target {
	for _, t := range q.targets {
		if t.id == id {
			return t
		}
	}
	return nil
}

// confirmTransfers says that a target has everything up to a number, or is no more.
func (q *model) confirmTransfers(s *logpb.SettleDead) fsm.Result {
	t := q.target(s.GetTarget())
	if t == nil {
		return fsm.Result{}
	}
	if s.Gone || t.gone {
		t.gone = true
		q.endGone(q.bounds.Back())
		return fsm.Result{}
	}
	for n := q.bounds.Tick; n > 0 && t.settled < min(s.Last, t.next-1); n-- {
		t.settled++
		refused := slices.Contains(s.Refused, t.settled)
		q.resolveTransfer(t, t.settled, !refused, refused)
	}
	q.endGone(0)
	return fsm.Result{}
}
