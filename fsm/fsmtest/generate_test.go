package fsmtest

import (
	"math"
	"slices"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// start is the time of the first entry of every history.
const start = fsm.Time(1_700_000_000_000)

// client is a session as its node knows it.
type client struct {
	id        fsm.SessionID
	next      uint64   // sequence number of its next command
	consumers uint64   // the last number it gave to a consumer
	opened    fsm.Time // when its first command is made; 0: it does not say
	sent      []*logpb.Command
}

// generator draws commands that make sense in the state of the model, and
// some that do not. Small draws mean simple commands, so that a shrunk
// history is a simple one.
type generator struct {
	t       *rapid.T
	q       *model
	clients []*client
	boots   uint64
	meta    fsm.Meta
	started bool
	burst   []*logpb.Command // to come, in one entry
	single  bool             // most settings are of a single active consumer
	taste   taste
}

// newGenerator returns a generator of one history; groups: of a queue with groups, in
// any case.
func newGenerator(t *rapid.T, q *model, groups bool) *generator {
	g := &generator{t: t, q: q, boots: 1}
	g.meta = fsm.Meta{Term: 1, Now: start, Version: 1}
	g.single = g.oneIn("single", 4)
	g.taste.draw(g, groups)
	if g.taste.groups {
		g.single = false
	}
	for range 3 {
		g.newClient()
	}
	return g
}

// ranges holds a generator for each small bound, for they are dear to make.
var ranges = func() (r [128]*rapid.Generator[int]) {
	for n := range r {
		r[n] = rapid.IntRange(0, n)
	}
	return r
}()

// n draws one of 0 … bound-1, small ones more often.
func (g *generator) n(label string, bound int) int {
	if bound <= 1 {
		return 0
	}
	if bound <= len(ranges) {
		return ranges[bound-1].Draw(g.t, label)
	}
	return rapid.IntRange(0, bound-1).Draw(g.t, label)
}

// oneIn draws true about once in n times; a draw of zeros is false.
func (g *generator) oneIn(label string, n int) bool { return g.n(label, n) == n/2 }

// of draws one of the given values, the first ones more often.
func of[T any](g *generator, label string, values ...T) T { return values[g.n(label, len(values))] }

// step is one command of a history; more says that it belongs to the entry of
// the step before.
type step struct {
	meta fsm.Meta
	cmd  *logpb.Command
	more bool
}

// next draws a step.
func (g *generator) next() step {
	if !g.started {
		g.started = true
		g.meta.Index++
		return g.step(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: g.config()}}, false)
	}
	if len(g.burst) > 0 {
		c := g.burst[0]
		g.burst = g.burst[1:]
		return g.step(c, true)
	}
	more := g.advance()
	c := g.command()
	return g.step(c, more)
}

func (g *generator) step(c *logpb.Command, more bool) step {
	m := g.meta
	m.Session = fsm.SessionFrom(c.Session)
	g.meta.Offset += payloadOf(c)
	return step{m, c, more}
}

// advance moves to the next entry, and its time, or stays within the entry.
func (g *generator) advance() (more bool) {
	const small = 2000
	kind := g.n("time", 64)
	if kind >= 40 {
		return true
	}
	g.meta.Index++
	g.meta.Offset = 0
	if kind == 11 { // the cluster's version, or what a new leader knows of it
		g.meta.Version = 1 + uint32(g.n("version", newestVersion))
	}
	deadline := g.q.nextDeadline()
	switch {
	case kind == 3: // no time passes
	case kind == 4 || kind == 5:
		g.meta.Now -= fsm.Time(g.n("back", small))
	case kind == 8:
		g.meta.Now += fsm.Time(g.n("days", 31)) * 86_400_000
	case kind == 9 || kind == 10:
		g.meta.Term++
		g.meta.Now += fsm.Time(g.n("step", small))
	case kind == 1 && deadline != 0 && deadline < start<<1:
		g.meta.Now = deadline
	case kind == 6 && deadline != 0 && deadline < start<<1:
		g.meta.Now = deadline - 1
	case kind == 7 && deadline != 0 && deadline < start<<1:
		g.meta.Now = deadline + 1
	default:
		g.meta.Now += fsm.Time(g.n("step", small))
	}
	return false
}

// commands are what a step may be. Draws favour the front, so that the order
// here, too, is a weight: about one in three is an enqueue.
var commands = []func(g *generator) *logpb.Command{
	(*generator).enqueue, (*generator).settle, (*generator).tick, (*generator).enqueue,
	(*generator).consume, (*generator).giveBack, (*generator).get, (*generator).routeDead,
	(*generator).enqueue, (*generator).settle, (*generator).enqueue, (*generator).enqueue,
	(*generator).confirmTransfers, (*generator).sessionDown, (*generator).malformed, (*generator).giveBack,
	(*generator).resend, (*generator).consume, (*generator).configure, (*generator).discard,
	(*generator).resend, (*generator).settle, (*generator).tick, (*generator).enqueue,
	(*generator).cancel, (*generator).enqueue, (*generator).get, (*generator).nodeDown,
	(*generator).enqueue, (*generator).enqueue, (*generator).touch, (*generator).settle,
	(*generator).enqueue, (*generator).settle, (*generator).tick, (*generator).enqueue,
	(*generator).consume, (*generator).giveBack, (*generator).routeDead, (*generator).confirmTransfers,
	(*generator).enqueue, (*generator).settle, (*generator).enqueue, (*generator).tick,
	(*generator).malformed, (*generator).giveBack, (*generator).enqueue, (*generator).settle,
	(*generator).sessionDown, (*generator).enqueue, (*generator).discard, (*generator).nodeSuspected,
	(*generator).purge, (*generator).enqueue, (*generator).giveBack, (*generator).settle,
	(*generator).configure, (*generator).enqueue, (*generator).consume, (*generator).settle,
	(*generator).delete, (*generator).tick, (*generator).many, (*generator).resend,
	(*generator).schedule, (*generator).enqueue, (*generator).retryDead, (*generator).later,
	(*generator).defers, (*generator).receiveDeferred, (*generator).giveBack, (*generator).retryNow,
	(*generator).renew, (*generator).settle, (*generator).unpark, (*generator).giveBack,
}

func (g *generator) command() *logpb.Command {
	if g.taste.groups && g.oneIn("of groups", 12) {
		return g.group()
	}
	if g.taste.parks && g.oneIn("of parked ones", 10) {
		if len(g.q.parkedOnes) < 4 && !g.oneIn("few", 3) {
			return g.settleWith(logpb.Settle_REQUEUE_FAILED)
		}
		return g.unpark()
	}
	if g.taste.credit && g.oneIn("of credit", 6) {
		if g.oneIn("chosen", 3) {
			return g.choose()
		}
		return g.credit()
	}
	if g.taste.pauses && g.oneIn("of pauses", 14) {
		return g.pauseOrResume()
	}
	if g.taste.takes && g.oneIn("taken", 10) {
		if g.oneIn("redriven", 2) {
			return g.redriveCommand()
		}
		return g.take()
	}
	if g.taste.credit && g.oneIn("of units", 12) {
		return g.unit()
	}
	return commands[g.n("command", len(commands))](g)
}

func (g *generator) newClient() *client {
	g.boots++
	c := &client{id: fsm.SessionID{Node: fsm.NodeID(len(g.clients)%3 + 1), Boot: g.boots, Num: uint64(len(g.clients))}, next: 1}
	if len(g.clients)%5 == 4 {
		c.id = fsm.SessionID{Boot: g.boots} // another queue's dead letters
	}
	if g.oneIn("opened", 3) {
		c.opened = g.meta.Now + fsm.Time(g.n("opened at", 4)-1)*beginWithin
	}
	g.clients = append(g.clients, c)
	return c
}

// client draws a session, among them some that have ended.
func (g *generator) client() *client {
	if g.oneIn("new client", 30) {
		return g.newClient()
	}
	among := g.clients
	if !g.oneIn("an ended one", 16) {
		among = slices.DeleteFunc(slices.Clone(among), g.ended)
	}
	if len(among) == 0 {
		return g.newClient()
	}
	return among[len(among)-1-g.n("client", min(len(among), 5))]
}

// ended reports whether the queue refuses the session of cl.
func (g *generator) ended(cl *client) bool {
	return g.q.session(cl.id) == nil && (cl.next > 1 || g.q.isDown(cl.id) || g.q.hasEnded(cl.id))
}

// send makes c the next command of a session's stream.
func (cl *client) send(c *logpb.Command) *logpb.Command {
	c.Session, c.Seq = cl.id.Proto(), cl.next
	if cl.next == 1 {
		c.OpenedAt = int64(cl.opened)
	}
	cl.next++
	cl.sent = append(cl.sent, c)
	return c
}

func (g *generator) enqueue() *logpb.Command {
	e := &logpb.Enqueue{Size: uint32(8 + g.n("size", 100)), Routed: g.oneIn("routed", 3), Kept: g.oneIn("kept", 6)}
	if g.oneIn("with head", 3) {
		e.Head = uint32(g.n("head", int(e.Size)+1))
	}
	if g.oneIn("ttl ceiling", 10) {
		e.TtlCeilingPlusOne = 1 + uint64(g.n("ceiling", 1500))
	}
	if g.oneIn("later", 10) {
		g.scheduled(e)
	}
	if g.oneIn("message ttl", 3) {
		e.HasExpiration = true
		e.TtlPlusOne = 1 + uint64(of(g, "ttl", 0, 1, 10, 100, 1000, 1000, 5000, 100_000, g.n("any ttl", 3000)))
		if g.oneIn("ttl from", 8) {
			e.TtlFrom = int64(g.meta.Now) + int64(of(g, "from", -100, 0, -5000, 1, 100))
		}
	}
	g.taste.message(g, e)
	if g.oneIn("forwarded", 6) {
		e.Hops = uint32(of(g, "hops", 1, 3, 4, 5, 1000))
	}
	g.labelled(e)
	if g.oneIn("with priority", 3) {
		e.PriorityPlusOne = 1 + uint32(g.n("priority", 40))
	}
	for i := range g.n("deaths", 20) - 16 {
		e.Deaths = append(e.Deaths, &logpb.Death{
			Reason: of(g, "reason", logpb.Death_EXPIRED, logpb.Death_REJECTED, logpb.Death_DELIVERY_LIMIT),
			Queue:  of(g, "queue", machineName, "other", "third"), Count: uint64(i + 1), Time: int64(start) - int64(i),
			Exchange: "x", RoutingKeys: []string{"a", "b"}, First: i == 0, LastExchange: "y",
		})
		e.ScheduledFor = int64(g.n("was scheduled", 2))
	}
	if g.oneIn("annotated", 8) {
		e.Annotations = g.annotations()
	}
	return g.client().send(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
}

// many fills the queue with more messages than may expire at once.
func (g *generator) many() *logpb.Command {
	cl := g.client()
	if g.oneIn("a burst", 4) {
		for i := range rules.Before + g.n("burst", 40) {
			e := &logpb.Enqueue{Size: 9, TtlPlusOne: 101 + uint64(i%3), PriorityPlusOne: uint32(i % 5)}
			g.burst = append(g.burst, cl.send(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e}))
		}
	}
	return cl.send(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 10, TtlPlusOne: 51}})
}

func (g *generator) consume() *logpb.Command {
	cl := g.client()
	c := &logpb.Consume{
		Tag: "t", Prefetch: uint32(of(g, "prefetch", 1, 2, 3, 0, 10, 70_000)),
		NoAck: g.oneIn("no ack", 8), Exclusive: g.oneIn("exclusive", 12), Priority: int32(of(g, "consumer priority", 0, 1, -1, 5)),
		TimeoutPlusOne: uint64(of(g, "own timeout", 0, 0, 101, 1, 2001)),
	}
	if g.oneIn("with lock", 3) {
		g.lockTerms(c)
	}
	if c.Shared = g.oneIn("shared", 4); c.Shared {
		c.Prefetch = uint32(g.n("share", 3))
	}
	c.Credit = g.taste.credit != g.oneIn("other mode", 8) && (g.q.version >= 3 || g.oneIn("too early", 8))
	if c.Credit && g.oneIn("with selector", 3) || g.oneIn("selector alone", 60) {
		c.Selector = "x"
	}
	c.Numbered = g.taste.credit && g.oneIn("numbered", 2)
	g.taste.consumer(g, c)
	g.taste.groupTerms(g, c)
	if g.oneIn("again", 6) && cl.consumers > 0 {
		c.Consumer = 1 + uint64(g.n("which", int(cl.consumers)))
	} else {
		cl.consumers++
		c.Consumer = cl.consumers
	}
	return cl.send(&logpb.Command{Kind: logpb.Command_CONSUME, Consume: c})
}

// credit draws credit for a consumer, mostly for one in credit mode, by a receiver that
// knows of all that it was handed, or of less.
func (g *generator) credit() *logpb.Command {
	all := slices.DeleteFunc(slices.Clone(g.q.consumers), func(c *consumer) bool { return c.link.mode == g.oneIn("any", 30) || g.q.isDown(c.id.Session) })
	if len(all) == 0 {
		return g.consume()
	}
	c := all[g.n("whose", len(all))]
	r := &logpb.Credit{
		Consumer: c.id.Number, Credit: of[uint32](g, "credit", 1, 2, 0, 5, 10, 100_000, math.MaxUint32),
		DeliveryCount: uint32(c.link.count) - of[uint32](g, "not known", 0, 0, 1, 2, 1<<31, math.MaxUint32), Drain: g.oneIn("drain", 3),
	}
	cmd := &logpb.Command{Kind: logpb.Command_CREDIT, Credit: r}
	if g.oneIn("outside of the stream", 16) {
		cmd.Session = c.id.Session.Proto()
		return cmd
	}
	return g.owner(c.id.Session).send(cmd)
}

func (g *generator) cancel() *logpb.Command {
	cl := g.client()
	return cl.send(&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: uint64(g.n("which", int(cl.consumers)) + 1)}})
}

func (g *generator) get() *logpb.Command {
	return g.client().send(&logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: g.oneIn("no ack", 4)}})
}

func (g *generator) settle() *logpb.Command { return g.settleWith(logpb.Settle_ACK) }

func (g *generator) giveBack() *logpb.Command {
	return g.settleWith(of(g, "outcome", logpb.Settle_REQUEUE, logpb.Settle_REQUEUE_FAILED))
}

// settleWith settles something that is held, or was taken back.
func (g *generator) settleWith(o logpb.Settle_Outcome) *logpb.Command {
	c, ids := g.owing()
	if c == nil {
		return g.enqueue()
	}
	first := ids[g.n("first", len(ids))]
	d := &logpb.Settle{Outcome: o, Consumer: c.id.Number, Ranges: []uint64{first, 1 + uint64(g.n("length", 4))}}
	if g.oneIn("second range", 4) {
		d.Ranges = append(d.Ranges, first+d.Ranges[1]+uint64(g.n("between", 3)), 1+uint64(g.n("length", 4)))
	}
	g.parks(d)
	d.Strict = g.oneIn("strict", 6)
	if g.oneIn("annotated", 4) {
		d.Annotations = g.annotations()
	}
	d.Numbers = g.numbers()
	if o == logpb.Settle_DEFER && len(d.Numbers) > 2 && !g.oneIn("several deferred", 8) {
		d.Numbers = d.Numbers[:2]
	}
	return g.forHolder(c, &d.Holder, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: d})
}

func (g *generator) owner(id fsm.SessionID) *client {
	for _, cl := range g.clients {
		if cl.id == id {
			return cl
		}
	}
	panic("the model has a session that no client opened")
}

func (g *generator) tick() *logpb.Command { return &logpb.Command{Kind: logpb.Command_TICK} }

func (g *generator) touch() *logpb.Command {
	c := &logpb.Command{Kind: logpb.Command_TOUCH}
	if g.oneIn("idle only", 3) {
		c.Touch = &logpb.Touch{IdleOnly: true}
	}
	if g.oneIn("in the stream", 2) {
		return g.client().send(c)
	}
	return c
}

func (g *generator) purge() *logpb.Command {
	return g.client().send(&logpb.Command{Kind: logpb.Command_PURGE})
}

func (g *generator) delete() *logpb.Command {
	d := &logpb.Delete{IfUnused: true, IfEmpty: true}
	if q := g.q; q.liveConsumers() == 0 && q.readyCount() == 0 && !g.oneIn("really", 8) {
		return g.touch()
	}
	if g.oneIn("in any case", 12) {
		d = &logpb.Delete{IfUnused: g.oneIn("unused", 2), IfEmpty: g.oneIn("empty", 2)}
	}
	return &logpb.Command{Kind: logpb.Command_DELETE, Delete: d}
}

func (g *generator) configure() *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: g.config()}}
}

func (g *generator) config() *logpb.QueueConfig {
	c := &logpb.QueueConfig{
		TtlPlusOne:                 uint64(of(g, "queue ttl", 0, 0, 0, 1, 101, 5001, g.n("any ttl", 3000))),
		ConsumerTimeoutPlusOne:     uint64(of(g, "consumer timeout", 0, 1001, 1, 1_800_001, 301)),
		DisconnectedTimeoutPlusOne: uint64(of(g, "disconnected timeout", 0, 501, 1, 60_001)),
		DeadLetter:                 g.n("dead letters", 3) != 2,
		DeliveryLimit:              int64(of(g, "delivery limit", 20, -1, 0, 1, 2)),
		AutoDelete:                 g.oneIn("auto-delete", 16),
	}
	if g.oneIn("with limits", 3) {
		c.MaxLengthPlusOne = uint64(of(g, "max length", 4, 0, 2, 1, 9))
		c.MaxLengthBytesPlusOne = uint64(of(g, "max bytes", 0, 0, 201, 1, 1001))
		c.Overflow = of(g, "overflow", logpb.QueueConfig_DROP_HEAD, logpb.QueueConfig_REJECT_PUBLISH, logpb.QueueConfig_REJECT_PUBLISH_DLX)
	}
	c.DeadLetterStrategy = of(g, "strategy", logpb.QueueConfig_TRANSACTIONAL, logpb.QueueConfig_AT_LEAST_ONCE,
		logpb.QueueConfig_TRANSACTIONAL, logpb.QueueConfig_AT_MOST_ONCE, logpb.QueueConfig_AT_LEAST_ONCE)
	if g.oneIn("rare settings", 6) {
		c.MaxPriorityPlusOne = uint32(of(g, "highest priority", 0, 6, 1, 256))
		c.Classic = g.oneIn("classic", 2)
		c.MessageTtlFirst, c.IdleCountsRouted = g.oneIn("own ttl first", 2), g.oneIn("routed counts", 2)
		c.ExpiresKeepPending = g.oneIn("keep pending", 2)
		c.DelayedStore = g.oneIn("delayed exchange", 3)
		c.DeliveryDelay = uint64(of(g, "delivery delay", 0, 0, 500))
		c.DeadLetterMaxPlusOne = uint64(of(g, "max pending", 0, 2, 1, 4))
		c.AutoDeleteOnIdle = uint64(of(g, "idle", 0, 5000, 60_000, 1))
	}
	c.DeadLetterOnDelete = g.oneIn("last will", 3)
	c.ReturnInOrder = g.oneIn("return in order", 6)
	c.Revision = g.q.config.Revision
	if g.oneIn("another revision", 8) {
		c.Revision = max(c.Revision+uint64(g.n("revision", 4)), 1) - 1
	}
	c.DeliveryLimitSet, c.Forward = g.oneIn("limit set", 3), g.oneIn("forward", 10) && !g.taste.groups
	g.taste.settings(g, c)
	c.SingleActive = g.single != g.oneIn("other service", 20) && !g.taste.groups
	if g.oneIn("with retry", 4) {
		c.Retry = of(g, "retry", logpb.QueueConfig_ALL, logpb.QueueConfig_FAILED, logpb.QueueConfig_RETURNED)
		c.RetryMin, c.RetryMax = uint64(of(g, "retry min", 100, 0, 1, 2000)), uint64(of(g, "retry max", 250, 0, 5000, 50))
		g.backoff(c)
	}
	if g.oneIn("with locks", 3) {
		c.Lock, c.MaxLock = uint64(of(g, "lock", 500, 0, 1, 2000)), uint64(of(g, "max lock", 0, 0, 700, 3000))
		c.CountLockExpiry = g.oneIn("locks count", 2)
	}
	if g.oneIn("with credit", 2) {
		c.LockCredit = uint64(of(g, "credit", 30_000, 1, 500))
	}
	g.fewEnds(c)
	if g.oneIn("with lease", 8) {
		c.Expires = uint64(of(g, "lease", 60_000, 1, 5000, 86_400_000))
	}
	return c
}

func (g *generator) sessionDown() *logpb.Command {
	cl := g.client()
	g.newClient()
	c := &logpb.Command{Kind: logpb.Command_SESSION_DOWN}
	if g.oneIn("in the stream", 3) {
		return cl.send(c)
	}
	c.Session = cl.id.Proto()
	return c
}

// nodeSuspected begins or ends a suspicion.
func (g *generator) nodeSuspected() *logpb.Command {
	id := g.client().id
	n := &logpb.NodeSuspected{Node: max(uint32(id.Node), 1), Boot: id.Boot, Back: g.oneIn("back", 6)}
	if len(g.q.suspected) > 0 && g.n("known", 3) != 2 {
		of := g.q.suspected[g.n("which silence", len(g.q.suspected))].of
		n = &logpb.NodeSuspected{Node: uint32(of.Node), Boot: of.Boot, Back: true}
	}
	return &logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: n}
}

func (g *generator) nodeDown() *logpb.Command {
	id := g.client().id
	g.newClient()
	return &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: max(uint32(id.Node), 1), Boot: id.Boot - uint64(g.n("older", 2))}}
}

func (g *generator) routeDead() *logpb.Command {
	var first uint64
	unrouted := 0
	for _, x := range g.q.letters {
		if !x.routed {
			if unrouted == 0 {
				first = x.letter
			}
			unrouted++
		}
	}
	if unrouted == 0 {
		return g.discard()
	}
	r := &logpb.RouteDead{First: first}
	for range 1 + g.n("routes", unrouted) {
		var route logpb.DeadRoute
		for target := range uint64(3) {
			if g.n("target", 3) == 1 {
				route.Targets = append(route.Targets, 500+target)
			}
		}
		if g.oneIn("ceilings", 4) {
			route.TtlCeilingsPlusOne = []uint64{uint64(g.n("ceiling", 2)), 1000}[:1+g.n("of them", 2)]
		}
		route.Unroutable = len(route.Targets) > 0 && g.oneIn("no way", 8)
		r.Routes = append(r.Routes, &route)
	}
	return &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r}
}

// retryDead draws routes for letters that wait, or more letters.
func (g *generator) retryDead() *logpb.Command {
	all := g.q.in(waiting)
	if len(all) == 0 {
		return g.routeDead()
	}
	r := &logpb.RouteDead{Retry: true}
	for _, x := range all {
		if g.oneIn("not this one", 3) {
			continue
		}
		route := &logpb.DeadRoute{Letter: x.letter}
		for target := range uint64(3) {
			if g.n("target", 3) == 1 {
				route.Targets = append(route.Targets, 500+target)
			}
		}
		r.Routes = append(r.Routes, route)
	}
	if g.oneIn("a stale one", 6) {
		r.Routes = append([]*logpb.DeadRoute{{Letter: g.q.nextLetter}}, r.Routes...)
	}
	return &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r}
}

func (g *generator) confirmTransfers() *logpb.Command {
	if len(g.q.targets) == 0 {
		return g.routeDead()
	}
	t := g.q.targets[g.n("target", len(g.q.targets))]
	s := &logpb.SettleDead{Target: t.id, Last: t.settled + uint64(g.n("upto", int(t.next-t.settled))), Gone: g.oneIn("gone", 12)}
	for n := t.settled + 1; n <= s.Last; n++ {
		if g.oneIn("refused", 4) {
			s.Refused = append(s.Refused, n)
		}
	}
	return &logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: s}
}

// resend repeats a command of a stream.
func (g *generator) resend() *logpb.Command {
	cl := g.client()
	if len(cl.sent) == 0 {
		return g.enqueue()
	}
	if s := g.q.session(cl.id); s != nil && s.opSeq != 0 && g.n("synchronous", 3) != 2 {
		return cl.sent[s.opSeq-1]
	}
	return cl.sent[len(cl.sent)-1-g.n("age", len(cl.sent))]
}

// malformed draws commands that are out of order, out of bounds, or ask for
// what is not theirs.
func (g *generator) malformed() *logpb.Command {
	cl := g.client()
	switch g.n("malformed", 20) {
	case 0: // a gap in the stream
		return &logpb.Command{Kind: logpb.Command_ENQUEUE, Session: cl.id.Proto(), Seq: cl.next + 1 + uint64(g.n("gap", 3)), Enqueue: &logpb.Enqueue{Size: 9}}
	case 1: // a session that never began
		return &logpb.Command{Kind: logpb.Command_GET, Session: fsm.SessionID{Node: 2, Boot: 99, Num: 99}.Proto(), Seq: 5, Get: &logpb.Get{}}
	case 2: // deliveries of a consumer that is not there
		return cl.send(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: 1000, Ranges: []uint64{1, 5}}})
	case 3: // deliveries that never were, up to the end of numbers
		return cl.send(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{
			Consumer: uint64(g.n("which", int(cl.consumers+1))), Outcome: logpb.Settle_Outcome(g.n("outcome", 6)),
			Ranges: []uint64{of[uint64](g, "far", 1000, math.MaxUint64-1, 0), of[uint64](g, "many", 1, 0, math.MaxUint64)},
		}})
	case 4:
		return cl.send(&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: cl.consumers + 7}})
	case 5: // a command without a stream
		return &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 9}}
	case 6: // a command of a session, but not of its stream
		return &logpb.Command{Kind: logpb.Command_GET, Session: cl.id.Proto(), Get: &logpb.Get{}}
	case 7: // for ever
		return cl.send(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 9, TtlPlusOne: math.MaxUint64, PriorityPlusOne: math.MaxUint32}})
	case 8: // letters that are not the oldest ones
		return &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{First: g.q.nextLetter - uint64(g.n("before", 3)), Routes: []*logpb.DeadRoute{{Targets: []uint64{500}}, {}}}}
	case 9:
		return &logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: 500 + uint64(g.n("target", 4)), Last: 1 << 40}}
	case 10: // nobody lives there
		return &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 9, Boot: 1 << 40}}
	case 11: // a number used before
		return cl.send(&logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1 + uint64(g.n("which", int(cl.consumers))), Prefetch: 1}})
	case 12: // routes for more letters than there are
		return &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{First: g.firstUnrouted(), Routes: manyRoutes()}}
	case 13: // another gap
		return &logpb.Command{Kind: logpb.Command_SETTLE, Session: cl.id.Proto(), Seq: cl.next + 2, Settle: &logpb.Settle{Ranges: []uint64{1, 1}}}
	case 14:
		return &logpb.Command{Kind: logpb.Command_TOUCH, Session: cl.id.Proto()}
	case 15: // nobody knows the session, and the command has no place in a stream
		return g.stray()
	case 16: // no payload
		return cl.send(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{}})
	case 17: // no body, or no kind that there is
		return cl.send(&logpb.Command{Kind: logpb.Command_Kind(g.n("kind", 20))})
	case 18: // a stream of nobody
		return &logpb.Command{Kind: logpb.Command_ENQUEUE, Seq: 1, Enqueue: &logpb.Enqueue{Size: 9}}
	default:
		return g.resend()
	}
}

// stray draws a command that only a session can give, without one.
func (g *generator) stray() *logpb.Command {
	c := of(g, "stray",
		&logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}},
		&logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1}},
		&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}},
		&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: 1, Ranges: []uint64{1, 2}}},
		&logpb.Command{Kind: logpb.Command_SESSION_DOWN},
	)
	if g.oneIn("unknown session", 2) {
		c.Session = fsm.SessionID{Node: 2, Boot: 98, Num: 98}.Proto()
	}
	return c
}
