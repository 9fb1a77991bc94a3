package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// stream performs the command if it is the next of its session, or belongs to
// no stream.
func (q *model) stream(m fsm.Meta, c *logpb.Command) (r fsm.Result, performed bool) {
	if m.Session == (fsm.SessionID{}) {
		if c.Seq != 0 {
			return fsm.Result{Code: fsm.Invalid}, false
		}
		return q.do(m, c, nil), true
	}
	s := q.session(m.Session)
	if q.isDown(m.Session) {
		s = nil
	}
	if s == nil && c.Seq == 0 {
		return q.do(m, c, nil), true
	}
	if s == nil {
		if c.Seq != 1 || q.isDown(m.Session) || q.hasEnded(m.Session) {
			return fsm.Result{Code: fsm.NoSession}, false
		}
		if at := c.OpenedAt; at != 0 && (at < int64(q.clock)-beginWithin || at > int64(q.clock)+beginWithin) {
			return fsm.Result{Code: fsm.Late, Next: uint64(q.clock)}, false
		}
		s = &session{id: m.Session, nextSeq: 1}
		q.sessions = append(q.sessions, s)
	}
	switch {
	case c.Seq == 0:
		return q.do(m, c, s), true
	case c.Seq > s.nextSeq:
		return fsm.Result{Code: fsm.Gap, Next: s.nextSeq}, false
	case c.Seq < s.nextSeq:
		return q.repeat(c, s), false
	}
	s.nextSeq++
	deliveries := len(q.out.Deliveries)
	r = q.do(m, c, s)
	if r.Code == fsm.Rejected || answersItself(c.Kind) && r.Code != fsm.OK {
		s.refused = append(s.refused, c.Seq)
	}
	if synchronous(c.Kind) {
		s.opSeq, s.opAnswer, s.opDelivery = c.Seq, r, 0
		if len(q.out.Deliveries) > deliveries {
			s.opDelivery = q.out.Deliveries[deliveries].ID
		}
	}
	return r, true
}

// synchronous commands are those whose answer the session waits for.
func synchronous(k logpb.Command_Kind) bool {
	return slices.Contains([]logpb.Command_Kind{
		logpb.Command_CONSUME, logpb.Command_CANCEL, logpb.Command_GET,
		logpb.Command_PURGE, logpb.Command_DELETE, logpb.Command_TOUCH, logpb.Command_SCHEDULE,
		logpb.Command_RECEIVE_DEFERRED, logpb.Command_KICK, logpb.Command_UNPARK, logpb.Command_GROUP, logpb.Command_PAUSE, logpb.Command_TAKE, logpb.Command_REDRIVE, logpb.Command_UNIT,
	}, k)
}

// answersItself: many of them may be under way, and be refused, at a time.
func answersItself(k logpb.Command_Kind) bool {
	return slices.Contains([]logpb.Command_Kind{logpb.Command_SCHEDULE, logpb.Command_RECEIVE_DEFERRED, logpb.Command_SETTLE, logpb.Command_RENEW, logpb.Command_GROUP, logpb.Command_CREDIT, logpb.Command_UNIT}, k)
}

// repeat answers a command that was applied before.
func (q *model) repeat(c *logpb.Command, s *session) fsm.Result {
	q.counters.Duplicates++
	if c.Seq != s.opSeq {
		if slices.Contains(s.refused, c.Seq) {
			return fsm.Result{Code: fsm.Rejected}
		}
		return fsm.Result{}
	}
	n := uint64(0)
	switch {
	case c.Kind == logpb.Command_GET && s.opDelivery != 0:
		n = 1
	case c.Kind == logpb.Command_RECEIVE_DEFERRED && c.ReceiveDeferred.GetConsumer() == 0:
		n = s.opAnswer.Count
	}
	if gets := q.consumer(fsm.ConsumerID{Session: s.id}); gets != nil && n > 0 {
		for _, x := range q.held(gets) {
			if x.delivery >= s.opDelivery && x.delivery < s.opDelivery+n {
				d := q.deliveryOf(x)
				d.Ready = s.opAnswer.Count
				q.out.Deliveries = append(q.out.Deliveries, d)
			}
		}
	}
	if c.Kind == logpb.Command_GROUP && s.opAnswer.Code == fsm.OK {
		return q.describeGroup(c.Group, s.opAnswer)
	}
	return s.opAnswer
}

func (q *modelSessions) session(id fsm.SessionID) *session {
	for _, s := range q.sessions {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (q *modelSessions) isDown(id fsm.SessionID) bool {
	return slices.ContainsFunc(q.down, func(d nodeDown) bool { return d.node == id.Node && id.Boot <= d.boot })
}

// do performs a command whose turn it is. s is nil if it has no session, or an
// unknown one.
func (q *model) do(m fsm.Meta, c *logpb.Command, s *session) fsm.Result {
	switch c.Kind {
	case logpb.Command_ENQUEUE:
		return q.enqueue(m, c.Enqueue)
	case logpb.Command_UNIT:
		return q.unit(m, c.Unit)
	case logpb.Command_CONSUME:
		return q.consume(s, c.Consume)
	case logpb.Command_CANCEL:
		return q.cancel(s, c.Cancel)
	case logpb.Command_GET:
		return q.get(s, c.Get)
	case logpb.Command_SETTLE:
		return q.settle(s, c.Settle)
	case logpb.Command_RENEW:
		return q.renewHeld(s, c.Renew)
	case logpb.Command_SESSION_DOWN:
		return q.sessionDown(m.Session)
	case logpb.Command_PURGE:
		return q.purge()
	case logpb.Command_CONFIGURE:
		return q.configure(c.Configure.GetConfig())
	case logpb.Command_TICK:
		return q.tick()
	case logpb.Command_DELETE:
		return q.delete(c.Delete)
	case logpb.Command_TOUCH:
		q.active = q.clock
		if !c.Touch.GetIdleOnly() {
			q.lastUsed = q.clock
		}
		return fsm.Result{Count: q.readyCount(), Consumers: q.liveConsumers()}
	case logpb.Command_ROUTE_DEAD:
		return q.routeDead(c.RouteDead)
	case logpb.Command_SETTLE_DEAD:
		return q.confirmTransfers(c.SettleDead)
	case logpb.Command_NODE_DOWN:
		return q.nodeDown(c.NodeDown)
	case logpb.Command_NODE_SUSPECTED:
		return q.nodeSuspected(c.NodeSuspected)
	case logpb.Command_SCHEDULE:
		return q.schedule(c.Schedule)
	case logpb.Command_RECEIVE_DEFERRED:
		return q.receiveDeferred(s, c.ReceiveDeferred)
	case logpb.Command_KICK:
		return q.retryNow(c.Kick)
	case logpb.Command_UNPARK:
		return q.unpark(c.Unpark)
	case logpb.Command_GROUP:
		return q.groupRequest(s, c.Group)
	case logpb.Command_CREDIT:
		return q.giveCredit(s, c.Credit)
	case logpb.Command_CHOOSE:
		return q.choose(c.Choose)
	case logpb.Command_TAKE:
		return q.take(c.Take)
	case logpb.Command_REDRIVE:
		return q.changeRedrive(c.Redrive)
	case logpb.Command_REDRIVE_STEP:
		return q.redriveStep(c.RedriveStep)
	case logpb.Command_PAUSE:
		return q.pauseOrResume(c.Pause)
	}
	return fsm.Result{Code: fsm.Invalid}
}

func (q *model) enqueue(m fsm.Meta, e *logpb.Enqueue) fsm.Result {
	if e.GetSize() == 0 || e.Head > e.Size || e.Head >= 1<<15 || e.SendTo != 0 && q.version >= 3 {
		return fsm.Result{Code: fsm.Invalid}
	}
	if !e.Routed || q.config.IdleCountsRouted {
		q.active = q.clock
	}
	first := q.first(e)
	isSecond := first != nil && first != q.replacedBy(e)
	if isSecond && len(e.Deaths) > 0 {
		return q.reject(m)
	}
	if isSecond || q.isDuplicate(e) {
		q.counters.SameID++
		q.unneeded = m.Index
		return fsm.Result{}
	}
	before := q.counters.Enqueued
	r := q.takeIn(m, e)
	if r.Code == fsm.OK && (q.version < 3 || q.counters.Enqueued > before) {
		q.noteID(e)
	}
	return r
}

// takeIn takes in a message that is no duplicate.
func (q *model) takeIn(m fsm.Meta, e *logpb.Enqueue) fsm.Result {
	if e.GroupId == "" && q.config.GroupRequired && q.hasGroups() {
		return q.reject(m)
	}
	due := q.dueAt(e.DueAt, e.DelayPlusOne, q.config.DeliveryDelay)
	if due > q.clock || q.config.DelayedStore {
		return q.enqueueLater(m, e, max(due, q.clock))
	}
	ttl := q.ttlOf(e.TtlPlusOne, e.TtlCeilingPlusOne)
	late := ttl > 0 && e.TtlFrom > 0 && min(fsm.Time(e.TtlFrom), q.clock).Add(ttl) <= q.clock
	full := ttl != 0 && !late && q.full(e) // with TTL 0 it does not stay
	claimed := slices.ContainsFunc(q.consumers, func(c *consumer) bool { return c.only != "" && !c.cancelled })
	if full && (len(q.service) == 0 && (e.GroupId == "" || !claimed) || q.config.Forward) {
		return q.refuse(m, e)
	}
	x := q.newMessage(m, e)
	x.seq, x.scheduledFor = q.nextMessage, due
	if due == 0 {
		x.scheduledFor = fsm.Time(e.ScheduledFor)
	}
	q.nextMessage++
	if late {
		q.messages = append(q.messages, x)
		q.counters.Enqueued++
		q.die(x, logpb.Death_EXPIRED)
		return fsm.Result{}
	}
	if ttl >= 0 {
		x.expireAt = q.clock.Add(ttl)
		if e.TtlFrom > 0 {
			x.expireAt = min(fsm.Time(e.TtlFrom), q.clock).Add(ttl)
		}
	}
	var empty emptiness
	g := q.group(x.group)
	if g != nil && (q.version >= 3 || !q.busyGroup(x.group)) {
		empty = g.emptiness
	}
	q.messages = append(q.messages, x)
	q.arrive(x)
	if ttl == 0 || full || ttl > 0 && !q.unfinished() {
		q.offer(x, ttl == 0)
	}
	if full && x.waits() {
		q.remove(x)
		if q.full(e) {
			if g != nil && x.group != "" {
				g.emptiness = empty // it never came
			}
			return q.refuse(m, e)
		}
		q.messages = append(q.messages, x)
		q.arrive(x)
	}
	q.counters.Enqueued++
	return fsm.Result{}
}

// newMessage is the message of an enqueue, in no place.
func (q *model) newMessage(m fsm.Meta, e *logpb.Enqueue) *message {
	x := &message{
		ref:      fsm.Ref{Index: m.Index, Offset: m.Offset, Size: e.Size},
		priority: q.priorityOf(e), hasExpiry: e.HasExpiration, deaths: e.Deaths, head: e.Head,
		came: q.clock, hops: min(e.Hops, maxHops+1), added: q.brought(e), key: q.keyOf(e),
	}
	if q.hasGroups() {
		x.group = e.GroupId
	}
	x.tally = q.tallyOf(e)
	if q.endsLimit() > 0 {
		x.label = label{cut(e.MessageId), cut(e.CorrelationId)}
	}
	return x
}

// priorityOf is the priority of an enqueued message.
func (q *model) priorityOf(e *logpb.Enqueue) uint32 {
	p := uint32(defaultPriority)
	if q.config.Classic {
		p = 0
	}
	if e.PriorityPlusOne != 0 {
		p = min(e.PriorityPlusOne-1, maxPriority)
	}
	if most := q.config.MaxPriorityPlusOne; most != 0 {
		p = min(p, most-1)
	}
	return p
}

// ttlOf is the TTL of a message with these TTLs + 1; -1: none.
func (q *model) ttlOf(own, ceiling uint64) fsm.Millis {
	given := []uint64{own, q.config.TtlPlusOne, ceiling}
	if q.config.MessageTtlFirst && own != 0 {
		given = []uint64{own, ceiling}
	}
	ttl := fsm.Millis(-1)
	for _, g := range given {
		if g != 0 && (ttl < 0 || millis(g-1) < ttl) {
			ttl = millis(g - 1)
		}
	}
	return ttl
}

// offer hands x out if somebody takes it. If it is now or never it dies
// otherwise.
func (q *model) offer(x *message, now bool) {
	if now {
		q.fresh = x
	}
	q.forward()
	q.handOut()
	q.fresh = nil
	if now && x.waits() && x.ending == 0 && slices.Contains(q.messages, x) {
		q.expire(x)
	}
}

func (q *model) consume(s *session, c *logpb.Consume) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	id := fsm.ConsumerID{Session: s.id, Number: c.GetConsumer()}
	have := q.consumer(id)
	if c.GetConsumer() == 0 || have != nil && have.cancelled || c.Credit && q.version < 3 || c.Selector != "" && !c.Credit {
		return fsm.Result{Code: fsm.Invalid}
	}
	if c.Exclusive && q.config.SingleActive {
		return fsm.Result{Code: fsm.InUse}
	}
	if have == nil && q.config.Forward {
		return fsm.Result{Code: fsm.Forwards}
	}
	if have == nil && q.crowded() {
		return fsm.Result{Code: fsm.Crowded}
	}
	if q.asksTooMuch(have, c.MinTtl) {
		return fsm.Result{Code: fsm.TooMany}
	}
	holds := c.GroupHold && c.GroupId != "" && q.hasGroups() && q.version >= 3
	if g := q.group(c.GroupId); holds && g != nil && g.holder != nil && g.holder != have {
		return fsm.Result{Code: fsm.Reserved}
	}
	var blocking []*consumer
	for _, other := range q.consumers {
		if other != have && other.id.Number != 0 && !other.cancelled && !q.isDown(other.id.Session) && (c.Exclusive || other.exclusive) {
			if silent := q.suspicionOf(other.id.Session); silent == nil || silent.until != 0 {
				return fsm.Result{Code: fsm.InUse}
			}
			blocking = append(blocking, other)
		}
	}
	for _, other := range blocking {
		other.cancelled, other.revoked = true, true
		q.review(other)
		q.out.Cancelled = append(q.out.Cancelled, other.id)
		q.unserve(other)
		q.forgetConsumer(other)
	}
	prefetch := c.Prefetch
	if prefetch == 0 && !c.Shared || prefetch > prefetchCeiling {
		prefetch = prefetchCeiling
	}
	if have == nil {
		have = q.register(id)
	}
	if have.priority != c.Priority || have.minTTL != c.MinTtl {
		q.unserve(have)
	}
	have.tag, have.requested, have.prefetch, have.priority = c.Tag, c.Prefetch, prefetch, c.Priority
	have.shared, have.noticed, have.minTTL = c.Shared, false, c.MinTtl
	if have.link.mode != c.Credit {
		have.link = link{mode: c.Credit}
	}
	if c.Credit {
		have.requested, have.prefetch, have.shared = 0, prefetchCeiling, false
	}
	if len(q.held(have)) == 0 {
		have.numbered = c.Numbered && q.version >= 3
	}
	have.noAck, have.exclusive, have.timeout = c.NoAck, c.Exclusive, c.TimeoutPlusOne
	have.own, have.max, have.auto, have.grace, have.head = c.Lock, c.MaxLock, c.LockAutoRenew, c.LockDetachGrace, c.LockHead
	if have.turn == 0 && (q.hasGroups() || q.anyGroup() || c.MaxGroups != 0 || c.GroupId != "") {
		have.turn = q.number()
	}
	have.limit, have.only = int(c.MaxGroups), c.GroupId
	have.keeps = c.GroupHold && q.version >= 3 && have.turn != 0
	if have.selector != c.Selector {
		have.chooses = chooses{selector: c.Selector, last: have.last}
	}
	if !q.hasCredit(have) || have.only != "" || have.selector != "" {
		q.unserve(have)
	}
	q.serve(have)
	if holds {
		g := q.group(c.GroupId)
		if g == nil {
			g = &group{id: c.GroupId}
			q.groups = append(q.groups, g)
		}
		if g.emptiness = (emptiness{}); g.holder == nil {
			q.giveGroup(g, have)
		}
	}
	q.consumed = have
	return fsm.Result{}
}

// register adds a consumer.
func (q *modelSessions) register(id fsm.ConsumerID) *consumer {
	q.registered++
	c := &consumer{id: id, next: 1, order: q.registered}
	if s := q.session(id.Session); s != nil && id.Number == 0 && s.nextGet > 0 {
		c.next, s.nextGet = s.nextGet, 0
	}
	q.consumers = append(q.consumers, c)
	return c
}

func (q *modelSessions) consumer(id fsm.ConsumerID) *consumer {
	for _, c := range q.consumers {
		if c.id == id {
			return c
		}
	}
	return nil
}

func (q *modelSessions) unserve(c *consumer) {
	q.service = slices.DeleteFunc(q.service, func(o *consumer) bool { return o == c })
}

func (q *model) cancel(s *session, c *logpb.Cancel) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	have := q.consumer(fsm.ConsumerID{Session: s.id, Number: c.GetConsumer()})
	if have == nil || have.cancelled || have.id.Number == 0 {
		return fsm.Result{Code: fsm.NotFound}
	}
	have.cancelled = true
	q.unserve(have)
	q.review(have)
	q.forgetConsumer(have)
	return fsm.Result{}
}

// forgetConsumer forgets a cancelled consumer that holds nothing, unless something of
// it is late, or it is revoked; of those a session keeps the newest ones.
func (q *model) forgetConsumer(c *consumer) {
	if !c.cancelled || len(q.held(c)) > 0 {
		return
	}
	if len(c.timedOut) == 0 && !c.revoked {
		q.dropGroups(c)
		q.forget(c)
		return
	}
	var kept []*consumer
	for _, o := range q.consumers {
		if o.id.Session == c.id.Session && o.cancelled && len(q.held(o)) == 0 {
			kept = append(kept, o)
		}
	}
	if len(kept) > lateConsumers {
		c = slices.MinFunc(kept, func(a, b *consumer) int { return cmp.Compare(a.id.Number, b.id.Number) })
		q.dropGroups(c)
		q.forget(c)
	}
}

// crowded reports whether there are as many consumers as may be. Gets that hold nothing
// make room.
func (q *model) crowded() bool {
	if len(q.consumers) >= q.bounds.Consumers && q.version >= 3 {
		for _, c := range slices.Clone(q.consumers) {
			s := q.session(c.id.Session)
			if c.id.Number == 0 && s != nil && !q.isDown(s.id) && len(q.held(c))+len(c.timedOut)+len(c.lost) == 0 {
				s.nextGet = c.next
				q.dropGroups(c)
				q.forget(c)
			}
		}
	}
	return len(q.consumers) >= q.bounds.Consumers
}

// forget removes a consumer that holds nothing.
func (q *modelSessions) forget(c *consumer) {
	q.unserve(c)
	q.consumers = slices.DeleteFunc(q.consumers, func(o *consumer) bool { return o == c })
}

// liveConsumers counts the consumers that were not cancelled.
func (q *modelSessions) liveConsumers() uint64 {
	n := uint64(0)
	for _, c := range q.consumers {
		if c.id.Number != 0 && !c.cancelled {
			n++
		}
	}
	return n
}

func (q *model) get(s *session, g *logpb.Get) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	if q.config.SingleActive && !q.config.Classic {
		return fsm.Result{Code: fsm.Reserved}
	}
	if q.config.Forward {
		return fsm.Result{Code: fsm.Forwards}
	}
	q.lastUsed, q.active = q.clock, q.clock
	if q.ending() != nil {
		return fsm.Result{Code: fsm.NotYet}
	}
	if q.isPaused() {
		return fsm.Result{Code: fsm.Empty}
	}
	x := q.toGive(func() *message { return q.candidateForGet(q.consumer(fsm.ConsumerID{Session: s.id})) })
	if x == nil {
		if y := q.nextScheduled(); q.candidateForGet(q.consumer(fsm.ConsumerID{Session: s.id})) != nil || q.endingOne() != nil || q.unfinished() || y != nil && y.dueAt <= q.clock {
			return fsm.Result{Code: fsm.NotYet}
		}
		return fsm.Result{Code: fsm.Empty}
	}
	id := fsm.ConsumerID{Session: s.id}
	c := q.consumer(id)
	if c == nil && q.crowded() {
		return fsm.Result{Code: fsm.Crowded}
	}
	if c == nil {
		c = q.register(id)
	}
	q.awaitAnew(id.Session)
	q.checkOut(x, c)
	left := q.readyCount()
	if g.GetNoAck() {
		q.counters.Acked++
		if x.expired(q.clock) && q.protected(x) {
			q.counters.AckedExpired++
		}
		q.renewGroups(c, []*message{x})
		q.remove(x)
		d := &q.out.Deliveries[len(q.out.Deliveries)-1]
		d.LockedUntil, d.LockRemaining = 0, 0
	}
	return fsm.Result{Count: left}
}

// awaitAnew lets the time begin anew after which what a session holds goes back, if its node
// is suspected and that has passed.
func (q *model) awaitAnew(id fsm.SessionID) {
	if w := q.suspicionOf(id); w != nil && w.until == 0 {
		w.until = q.heldUntil(q.disconnectedTimeout())
	}
}

func (q *modelMessages) count(p place) uint64 {
	n := uint64(0)
	for _, x := range q.messages {
		if x.place == p {
			n++
		}
	}
	return n
}

// sessionDown ends a session: what it held fails and goes back.
func (q *model) sessionDown(id fsm.SessionID) fsm.Result {
	if id == (fsm.SessionID{}) {
		return fsm.Result{Code: fsm.Invalid}
	}
	if !q.isDown(id) {
		for c := q.newestConsumer(id); c != nil; c = q.newestConsumer(id) {
			q.leaveSession(c)
		}
		q.sessions = slices.DeleteFunc(q.sessions, func(s *session) bool { return s.id == id })
	}
	if !q.isDown(id) && !q.hasEnded(id) {
		for range 64 {
			if len(q.ended) > 0 && q.ended[0].at+endedFor < q.clock {
				q.ended = q.ended[1:]
			}
		}
		q.ended = append(q.ended, ended{id, q.clock})
	}
	return fsm.Result{}
}

// ended is a session that has ended, and when.
type ended struct {
	id fsm.SessionID
	at fsm.Time
}

// hasEnded reports whether it is remembered that a session has ended.
func (q *modelSessions) hasEnded(id fsm.SessionID) bool {
	return slices.ContainsFunc(q.ended, func(e ended) bool { return e.id == id })
}

func (q *modelSessions) nodeDown(n *logpb.NodeDown) fsm.Result {
	id := fsm.NodeID(n.GetNode())
	if id == 0 || n.Boot == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	i := slices.IndexFunc(q.down, func(d nodeDown) bool { return d.node == id })
	if i < 0 {
		q.down = append(q.down, nodeDown{id, n.Boot})
	} else {
		q.down[i].boot = max(q.down[i].boot, n.Boot)
	}
	q.suspected = slices.DeleteFunc(q.suspected, func(x suspicion) bool { return q.isDown(fsm.SessionID{Node: x.of.Node, Boot: x.of.Boot}) })
	return fsm.Result{}
}
