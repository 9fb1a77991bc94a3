package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// tryAgain makes a message that was set aside the last one of the returned.
func (q *model) tryAgain(x *message) {
	if x.place == deferred || x.place == parked {
		x.ending = 0
	}
	q.leave(x)
	x.dueAt, x.deferral = 0, ""
	if len(q.rejoin([]*message{x})) > 0 {
		x.place = returned
		q.returns = append(q.returns, x)
	}
}

// retryAt is when a returned message is tried again; 0: at once. asked is when
// it was asked for; 0: it was not.
func (q *model) retryAt(x *message, failed bool, asked fsm.Time) fsm.Time {
	if asked > q.clock {
		return asked
	}
	c := q.config
	if asked != 0 || c.Retry == logpb.QueueConfig_AT_ONCE || c.Retry == logpb.QueueConfig_FAILED && !failed ||
		c.Retry == logpb.QueueConfig_RETURNED && failed {
		return 0
	}
	n := max(x.failed, 1)
	if c.RetryCountsAcquired {
		n = x.acquired
	}
	wait := min(q.backoff(uint64(n)), uint64(fsm.MaxTime))
	if wait == 0 {
		return 0
	}
	if c.RetryJitter > 0 {
		spread := wait * min(uint64(c.RetryJitter), 100) / 100
		chance := uint64(machineID)
		for _, v := range []uint64{0, x.seq, uint64(x.acquired)} {
			chance = splitMix(chance ^ v)
		}
		wait = max(wait-spread+chance%(2*spread+1), 1)
	}
	return max(q.clock.Add(millis(wait)), 1)
}

// backoff is the n-th wait, before jitter.
func (q *model) backoff(n uint64) uint64 {
	c := q.config
	switch c.RetryStrategy {
	case logpb.QueueConfig_STEPS:
		if len(c.RetrySteps) == 0 {
			return 0
		}
		return c.RetrySteps[min(int(n), len(c.RetrySteps))-1]
	case logpb.QueueConfig_EXPONENTIAL:
		most, percent := c.RetryMax, uint64(c.RetryMultiplier)
		if most == 0 {
			most = 1 << 50 // the histories have none that grow so far
		}
		if percent == 0 {
			percent = 200
		}
		micros := c.RetryMin * 1000
		for i := uint64(1); i < n && micros < most*1000; i++ {
			micros = max(micros*percent/100, micros)
		}
		return min(micros/1000, most)
	}
	most := c.RetryMin
	if c.RetryMax != 0 {
		most = c.RetryMax
	}
	wait := uint64(0)
	for i := uint64(0); i < n && wait < most; i++ {
		wait += c.RetryMin
		if c.RetryMin == 0 {
			break
		}
	}
	return min(wait, most)
}

// splitMix is the generator SplitMix64, one step from z.
func splitMix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	for _, by := range []struct {
		shift  int
		factor uint64
	}{{30, 0xbf58476d1ce4e5b9}, {27, 0x94d049bb133111eb}} {
		z ^= z >> by.shift
		z *= by.factor
	}
	return z ^ z>>31
}

// putAside ends a delivery, if there is one, in a deferral.
func (q *model) putAside(held []*message, d *logpb.Settle) fsm.Result {
	if len(held) == 0 {
		return fsm.Result{Code: fsm.NotFound}
	}
	x := held[0]
	x.acquired++
	x.heldBy = x.holderOf()
	x.undeliver()
	if x.expired(q.clock) {
		q.die(x, logpb.Death_EXPIRED)
		return fsm.Result{}
	}
	x.heldBy = lastHolder{}
	x.ending = 0
	x.place, x.deferral = deferred, d.Deferral
	if due := q.dueAt(d.DueAt, d.DelayPlusOne, 0); due != 0 {
		x.dueAt = max(due, q.clock, 1)
	}
	q.deferrals = append(q.deferrals, x)
	q.counters.Deferred++
	return fsm.Result{Count: 1}
}

// undeliver takes x, which nobody holds any more, out of its delivery.
func (x *message) undeliver() {
	x.place, x.holder, x.back, x.tagThen, x.delivery, x.deadline, x.limit, x.since = 0, nil, nil, nil, 0, 0, 0, 0
	x.locked = locked{}
}

// isDeferral reports whether a settlement is one that may defer something.
func isDeferral(d *logpb.Settle) bool {
	return len(d.Ranges) == 2 && d.Ranges[1] == 1 && d.Deferral != "" && len(d.Deferral) < 256
}

// findDeferred returns the message that is deferred under a token.
func (q *modelMessages) findDeferred(token string) *message {
	for _, x := range q.deferrals {
		if x.deferral == token {
			return x
		}
	}
	return nil
}

// receiveDeferred hands deferred messages out that are asked for.
func (q *model) receiveDeferred(s *session, r *logpb.ReceiveDeferred) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	n := len(r.GetTokens())
	if n == 0 || n > q.bounds.HandOuts {
		return fsm.Result{Code: fsm.Invalid}
	}
	c := q.consumer(fsm.ConsumerID{Session: s.id, Number: r.Consumer})
	if r.Consumer == 0 && q.version >= 3 {
		return q.takeDeferred(s, c, r)
	}
	if c == nil || c.cancelled || c.id.Number == 0 {
		return fsm.Result{Code: fsm.NotFound}
	}
	if !q.isServed(c) || len(q.held(c))+n > prefetchCeiling || c.link.mode && (int64(c.link.left) < int64(n) || q.maxHeld(c) < len(q.held(c))+n) {
		return fsm.Result{Code: fsm.Reserved}
	}
	q.active = q.clock
	var a fsm.Result
	for _, token := range r.Tokens {
		x := q.firstDeferred(token)
		if x == nil {
			a.Code = fsm.NotFound
			continue
		}
		a.Count++
		x.dueAt, x.deferral = 0, ""
		if !q.hasGroups() {
			x.group = ""
		}
		q.checkOut(x, c)
	}
	if !q.hasCredit(c) {
		q.unserve(c)
	}
	return a
}

// firstDeferred returns the message that is deferred under a token and still is; nil: none.
func (q *model) firstDeferred(token string) *message {
	x := q.findDeferred(token)
	returns := func() bool { return x.dueAt != 0 && x.dueAt <= q.clock }
	for x != nil && !returns() && x.expired(q.clock) && q.expireOne() {
		x = q.findDeferred(token)
	}
	if x == nil || returns() || x.expired(q.clock) {
		return nil
	}
	return x
}

// takeDeferred is receiveDeferred for no consumer: c are the gets of the session, if it has some.
func (q *model) takeDeferred(s *session, c *consumer, r *logpb.ReceiveDeferred) fsm.Result {
	sorted := slices.Sorted(slices.Values(r.Tokens))
	if len(sorted) > 1000 || len(slices.Compact(sorted)) < len(r.Tokens) {
		return fsm.Result{Code: fsm.Invalid}
	}
	var all []*message
	for _, token := range r.Tokens {
		x := q.firstDeferred(token)
		if x == nil {
			return fsm.Result{Code: fsm.NotFound}
		}
		all = append(all, x)
	}
	switch {
	case q.isPaused() || q.config.Forward || c != nil && len(q.held(c)) > 0 && !c.numbered:
		return fsm.Result{Code: fsm.Reserved}
	case c == nil && q.crowded():
		return fsm.Result{Code: fsm.Crowded}
	case c == nil:
		c = q.register(fsm.ConsumerID{Session: s.id})
	}
	q.active = q.clock
	q.awaitAnew(s.id)
	c.numbered, c.own, c.grace = true, r.Lock, r.Lock
	for _, x := range all {
		x.dueAt = 0
		if !q.hasGroups() {
			x.group = ""
		}
		q.handOver(x, c, true)
		if r.NoAck {
			d := &q.out.Deliveries[len(q.out.Deliveries)-1]
			d.LockedUntil, d.LockRemaining = 0, 0
		}
	}
	if r.NoAck {
		q.renewGroups(c, all)
		q.conclude(&back{}, all)
	}
	return fsm.Result{Count: uint64(len(all))}
}

// retryNow makes delayed messages ready, the next ones first.
func (q *model) retryNow(k *logpb.Kick) fsm.Result {
	all := q.in(delayed)
	slices.SortFunc(all, func(a, b *message) int { return cmp.Or(cmp.Compare(a.dueAt, b.dueAt), cmp.Compare(a.seq, b.seq)) })
	n := min(len(all), q.bounds.Tick)
	if k.GetCount() > 0 {
		n = int(min(uint64(n), k.Count))
	}
	for _, x := range all[:n] {
		q.tryAgain(x)
		q.active = q.clock
	}
	q.counters.Kicked += uint64(n)
	return fsm.Result{Count: uint64(n)}
}

// exceeds reports whether x has failed too often.
func (q *model) exceeds(x *message) bool {
	return q.config.DeliveryLimit >= 0 && int64(x.failed) > q.config.DeliveryLimit
}

// parks reports whether what exceeds the delivery limit is parked.
func (q *model) parks() bool {
	return q.version >= 3 && !q.config.DeliveryLimitSet && !q.config.DeadLetter && !q.config.DelayedStore
}

// unpark makes parked messages ready whose failures count anew.
func (q *model) unpark(c *logpb.Unpark) fsm.Result {
	if q.version < 3 {
		return fsm.Result{Code: fsm.Invalid}
	}
	n := min(len(q.parkedOnes), q.bounds.Tick)
	if c.GetCount() > 0 {
		n = int(min(uint64(n), c.Count))
	}
	for range n {
		q.parkedOnes[0].failed = 0
		q.unparkFirst()
	}
	return fsm.Result{Count: uint64(n)}
}

func (q *model) unparkFirst() {
	q.active = q.clock
	q.counters.Unparked++
	q.tryAgain(q.parkedOnes[0])
}

// unparks reports whether something is parked for which there is another way.
func (q *model) unparks() bool {
	return len(q.parkedOnes) > 0 && (q.config.DeliveryLimit < 0 || q.config.DeadLetter || q.config.DelayedStore)
}

// settleParked goes that way, step by step, unless something is due.
func (q *model) settleParked(k logpb.Command_Kind) {
	n := q.bounds.Before
	if k == logpb.Command_TICK {
		n = q.bounds.Back()
	}
	for ; n > 0 && q.unparks() && q.nextExpiring() == nil; n-- {
		if x := q.parkedOnes[0]; q.exceeds(x) {
			q.die(x, logpb.Death_DELIVERY_LIMIT)
		} else {
			q.unparkFirst()
		}
	}
}
