package fsmtest

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// floodAct is something that a flood consists of; weight is how often it is drawn.
type floodAct struct {
	name   string
	weight int
	do     func(f *flood, n int)
}

var floodActs = []floodAct{
	{"publish", 6, (*flood).publish},
	{"consume", 4, (*flood).consume},
	{"settle", 6, (*flood).settle},
	{"pass", 5, func(f *flood, n int) { f.pass(fsm.Millis(f.n(n*3)), true) }},
	{"pass without ticks", 2, func(f *flood, n int) { f.pass(fsm.Millis(f.n(n)), false) }},
	{"elect", 2, (*flood).elect},
	{"get", 2, (*flood).get},
	{"credit", 3, (*flood).credit},
	{"cancel", 1, (*flood).cancel},
	{"end a session", 1, (*flood).endSession},
	{"end a node", 1, (*flood).endNode},
	{"suspect", 2, (*flood).suspect},
	{"letters", 4, (*flood).letters},
	{"configure", 1, (*flood).reconfigure},
	{"repeat", 2, (*flood).repeat},
	{"restore", 2, func(f *flood, _ int) { f.restore() }},
	{"alternate", 1, (*flood).alternate},
	{"deferred", 1, (*flood).receive},
	{"renew", 1, (*flood).renew},
	{"unpark", 1, func(f *flood, n int) {
		f.alone(&logpb.Command{Kind: logpb.Command_UNPARK, Unpark: &logpb.Unpark{Count: uint64(f.n(n))}})
	}},
	{"schedule", 1, (*flood).schedule},
	{"purge", 1, (*flood).purge},
	{"sessions", 1, (*flood).sessions},
}

// floodWeights has each act as often as it is to be drawn.
var floodWeights = func() (all []int) {
	for i, a := range floodActs {
		all = append(all, slices.Repeat([]int{i}, a.weight)...)
	}
	return all
}()

// message draws a publish.
func (f *flood) message() *logpb.Enqueue {
	e := &logpb.Enqueue{Size: uint32(8 + f.n(100)), Routed: f.oneIn(2)}
	k := f.kind
	if k.ttl && !f.oneIn(3) {
		e.TtlPlusOne = 1 + f.millis([]int{1, 50, 2000, 100_000}[f.n(4)])
	}
	if k.priority && f.oneIn(3) {
		e.PriorityPlusOne = uint32(1 + f.n(6))
	}
	if k.later && f.oneIn(4) {
		if e.DelayPlusOne = 1 + f.millis(3000); f.oneIn(2) {
			e.DueAt, e.DelayPlusOne = int64(f.meta.Now)+int64(f.n(3000)), 0
		}
		if f.oneIn(4) {
			e.ScheduleId = fmt.Sprint("s", f.n(8))
			e.Conflict = []logpb.Enqueue_Conflict{logpb.Enqueue_REPLACE, logpb.Enqueue_REJECT}[f.n(2)]
		}
	}
	if k.groups && !f.oneIn(4) {
		e.GroupId = fmt.Sprint("g", f.n(40))
	}
	if k.ids && f.oneIn(2) && e.ScheduleId == "" {
		e.MessageId = fmt.Sprint("m", f.n(3000))
	}
	return e
}

func (f *flood) publish(n int) {
	c := f.any()
	for range n {
		f.send(c)
		if f.oneIn(50) {
			f.end()
		}
	}
}

// send publishes one message.
func (f *flood) send(c *floodClient) fsm.Result {
	cmd := f.of(c, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: f.message()})
	c.sent = append(c.sent, cmd)
	return f.do(cmd)
}

// repeat sends again what a session may send again: its last publishes.
func (f *flood) repeat(n int) {
	c := f.any()
	from := max(0, len(c.sent)-min(n, fsm.MaxUnanswered))
	for _, cmd := range c.sent[from:] {
		f.do(cmd)
	}
}

func (f *flood) consume(n int) {
	c := f.any()
	c.consumers++
	t := &logpb.Consume{
		Consumer: c.consumers, Tag: "t", Prefetch: uint32([]int{1, 7, 100, 2000, 0}[f.n(5)]), NoAck: f.oneIn(8), Priority: int32(f.n(3)),
		TimeoutPlusOne: uint64([]int{0, 0, 501, 20_001}[f.n(4)]), Credit: f.oneIn(4),
	}
	if f.oneIn(3) {
		t.Lock, t.LockHead = 1+f.millis(2000), f.oneIn(4)
		t.LockAutoRenew = uint64([]int{0, 0, 3000}[f.n(3)])
		t.LockDetachGrace = uint64([]int{0, 800}[f.n(2)])
	}
	if f.kind.ttl && f.oneIn(6) {
		t.MinTtl = 1 + f.millis(500)
	}
	if f.kind.groups {
		t.MaxGroups = uint32(f.n(20))
	}
	f.do(f.of(c, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: t}))
}

func (f *flood) cancel(int) {
	c := f.any()
	if c.consumers > 0 {
		f.do(f.of(c, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: uint64(1 + f.n(int(c.consumers)))}}))
	}
}

// settle settles up to n deliveries of a few consumers, in pieces.
func (f *flood) settle(n int) {
	for range 1 + f.n(4) {
		c := f.any()
		if len(c.order) == 0 {
			continue
		}
		number := c.order[f.n(len(c.order))]
		outcome := []logpb.Settle_Outcome{
			logpb.Settle_ACK, logpb.Settle_ACK, logpb.Settle_ACK, logpb.Settle_REQUEUE, logpb.Settle_REQUEUE_FAILED, logpb.Settle_DISCARD,
		}[f.n(6)]
		if f.oneIn(3) {
			f.settleAll(c, number, outcome)
			continue
		}
		for range 1 + f.n(n)/10 {
			if held := c.held[number]; len(held) > 0 {
				i := f.n(len(held))
				f.settleSome(c, number, outcome, held[i:min(len(held), i+1+f.n(20))])
			}
		}
	}
}

// settleAll settles everything that a consumer may hold, with one command.
func (f *flood) settleAll(c *floodClient, number uint64, outcome logpb.Settle_Outcome) {
	held := c.held[number]
	if len(held) == 0 {
		return
	}
	c.held[number] = nil
	f.settleRanges(c, number, outcome, held[0], held[len(held)-1]-held[0]+1)
}

func (f *flood) settleSome(c *floodClient, number uint64, outcome logpb.Settle_Outcome, ids []uint64) {
	ids = slices.Clone(ids)
	if f.oneIn(30) {
		f.settleRanges(c, number, logpb.Settle_DEFER, ids[0], 1)
		return
	}
	first, n := ids[0], ids[len(ids)-1]-ids[0]+1
	c.held[number] = slices.DeleteFunc(c.held[number], func(id uint64) bool { return id >= first && id-first < n })
	f.settleRanges(c, number, outcome, first, n)
}

func (f *flood) settleRanges(c *floodClient, number uint64, outcome logpb.Settle_Outcome, first, n uint64) {
	s := &logpb.Settle{Outcome: outcome, Consumer: number, Ranges: []uint64{first, n}}
	if outcome == logpb.Settle_DEFER {
		s.Deferral = fmt.Sprint("d", f.n(500))
	}
	if f.oneIn(8) && outcome != logpb.Settle_ACK {
		s.DelayPlusOne = 1 + f.millis(2000)
	}
	f.do(f.of(c, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: s}))
}

// elect begins a new term after a while.
func (f *flood) elect(n int) {
	f.end()
	f.meta.Term++
	f.meta.Now += fsm.Time(f.n(n))
	if f.oneIn(3) {
		f.meta.Now -= fsm.Time(f.n(n)) // of a leader whose clock is behind
	}
	f.tick()
}

func (f *flood) get(n int) {
	c := f.any()
	noAck := f.oneIn(3)
	for range min(n, 1500) {
		cmd := f.of(c, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: noAck}})
		if r := f.do(cmd); r.Code != fsm.OK {
			return
		}
		if f.oneIn(30) {
			f.do(cmd)
		}
	}
}

func (f *flood) endSession(int) {
	c := f.any()
	cmd := &logpb.Command{Kind: logpb.Command_SESSION_DOWN, Session: c.id.Proto()}
	f.do(cmd)
	f.forget(func(id fsm.SessionID) bool { return id == c.id })
	if len(c.sent) > 0 {
		f.do(c.sent[len(c.sent)-1])
		f.do(c.sent[0])
	}
	f.tick()
}

func (f *flood) endNode(int) {
	c := f.any()
	f.do(&logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: uint32(c.id.Node), Boot: c.id.Boot}})
	f.forget(func(id fsm.SessionID) bool { return id.Node == c.id.Node && id.Boot <= c.id.Boot })
	if f.oneIn(2) {
		f.tick()
	}
}

// suspect suspects a node, lets it do something, and is sometimes wrong.
func (f *flood) suspect(n int) {
	c := f.any()
	cmd := func(back bool) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: &logpb.NodeSuspected{Node: uint32(c.id.Node), Boot: c.id.Boot, Back: back}}
	}
	f.do(cmd(false))
	f.publish(min(n, 100))
	f.pass(fsm.Millis(f.n(n)), f.oneIn(2))
	if f.oneIn(2) { // it is heard of now and then, and gets something
		f.pass(f.o.sessionWait(), true)
		for range 3 {
			f.do(f.of(c, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}}))
		}
		f.pass(f.o.sessionWait()+1, true)
		if n := f.m.LockCredit(); n > 0 {
			f.pass(n, true)
		}
		f.o.audit(f.meta.Now)
	}
	if !f.oneIn(3) {
		f.do(cmd(true))
	}
}

// letters routes letters, and has the targets answer.
func (f *flood) letters(n int) {
	f.end()
	if letters := f.m.UnroutedLetters(n); len(letters) > 0 {
		r := &logpb.RouteDead{First: letters[0].Number}
		for range letters {
			route := &logpb.DeadRoute{Targets: []uint64{500}}
			switch f.n(8) {
			case 0:
				route.Targets = nil
			case 1, 2, 3:
				route.Targets = append(route.Targets, 501)
			}
			r.Routes = append(r.Routes, route)
		}
		f.alone(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
	} else if letters := f.m.WaitingLetters(0, n); len(letters) > 0 {
		r := &logpb.RouteDead{Retry: true}
		for _, l := range letters {
			r.Routes = append(r.Routes, &logpb.DeadRoute{Letter: l.Number, Targets: []uint64{500, 501}})
		}
		f.alone(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
	}
	for _, t := range f.m.DeadLetterTargets(0, 1<<20) {
		for _, x := range f.m.PendingTransfers(t.ID, max(f.sent[t.ID], t.Confirmed)+1, 1<<20) {
			f.o.sent(t.ID, x)
			f.sent[t.ID] = x.Number
		}
		f.answer(t)
	}
	if len(f.o.d) > 0 {
		f.fail(f.o.d[0])
	}
}

// answer has a target answer some transfers.
func (f *flood) answer(t queue.DeadLetterTarget) {
	if t.Next == t.Confirmed+1 {
		return
	}
	if f.oneIn(12) {
		f.alone(&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: uint64(t.ID), Gone: true}})
		f.tick()
		if !f.m.HasDeadLetterTarget(t.ID) { // it is counted anew
			f.sent[t.ID] = 0
		}
		return
	}
	s := &logpb.SettleDead{Target: uint64(t.ID), Last: t.Confirmed + uint64(f.n(int(t.Next-t.Confirmed)))}
	for n := t.Confirmed + 1; n <= s.Last; n++ {
		if f.oneIn(6) {
			s.Refused = append(s.Refused, n)
		}
	}
	f.alone(&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: s})
}

// reconfigure changes settings, or proposes older ones.
func (f *flood) reconfigure(n int) {
	f.end()
	before := f.config
	f.config = proto.Clone(before).(*logpb.QueueConfig)
	f.config.Revision++
	switch f.n(6) {
	case 0:
		f.config.TtlPlusOne = uint64([]int{0, 3001, 101}[f.n(3)])
	case 1:
		f.config.DeliveryLimit = int64(f.n(4) - 1)
	case 2:
		f.config.Lock = uint64([]int{0, 700}[f.n(2)])
	case 3:
		f.config.DeliveryLimitSet = !f.config.DeliveryLimitSet
	case 4:
		f.config.DeadLetterStrategy = logpb.QueueConfig_DeadLetterStrategy(f.n(3))
	default: // an earlier leader's view
		f.config = proto.Clone(before).(*logpb.QueueConfig)
		f.config.Revision--
		f.config.TtlPlusOne, f.config.DeliveryLimit, f.config.ConsumerTimeoutPlusOne = 11, 0, 11
		f.alone(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: f.config}})
		f.config = before
		if f.m.Config().Revision < before.Revision {
			f.fail("older settings have replaced newer ones")
		}
		f.publish(min(n, 40))
		return
	}
	f.configure()
}

// alternate fills a queue, and makes space for one of two messages, so that every
// other publish may be refused. Then it repeats them all.
func (f *flood) alternate(n int) {
	c := f.any()
	for range n {
		if f.oneIn(2) {
			get := f.of(f.clients[0], &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: true}})
			f.do(get)
		}
		f.send(c)
	}
	f.repeat(fsm.MaxUnanswered)
	from := max(0, len(c.sent)-fsm.MaxUnanswered)
	for _, cmd := range c.sent[from:] {
		f.do(cmd)
	}
}

func (f *flood) receive(n int) {
	c := f.any()
	if c.consumers == 0 {
		return
	}
	r := &logpb.ReceiveDeferred{Consumer: uint64(1 + f.n(int(c.consumers)))}
	for range min(n, 60) {
		r.Tokens = append(r.Tokens, fmt.Sprint("d", f.n(500)))
	}
	f.do(f.of(c, &logpb.Command{Kind: logpb.Command_RECEIVE_DEFERRED, ReceiveDeferred: r}))
}

// credit gives one consumer credit, and drains some.
func (f *flood) credit(n int) {
	c := f.any()
	if c.consumers == 0 {
		return
	}
	give := &logpb.Credit{Consumer: 1 + uint64(f.n(int(c.consumers))), Credit: uint32(f.n(2 * n)), Drain: f.oneIn(3)}
	h := f.o.holders[fsm.ConsumerID{Session: c.id, Number: give.Consumer}]
	if h == nil {
		return
	}
	give.DeliveryCount = h.count - uint32([]int{0, 0, 1, f.n(n)}[f.n(4)])
	f.do(f.of(c, &logpb.Command{Kind: logpb.Command_CREDIT, Credit: give}))
}

func (f *flood) renew(int) {
	c := f.any()
	if len(c.order) > 0 {
		f.do(f.of(c, &logpb.Command{Kind: logpb.Command_RENEW, Renew: &logpb.Renew{Consumer: c.order[f.n(len(c.order))], Ranges: []uint64{1, 1 << 40}, Duration: f.millis(3000)}}))
	}
}

func (f *flood) schedule(n int) {
	s := &logpb.Schedule{Action: logpb.Schedule_FIRE, Count: uint64(1 + f.n(n))}
	if f.oneIn(2) {
		s = &logpb.Schedule{Action: logpb.Schedule_Action(f.n(2)), Id: fmt.Sprint("s", f.n(8)), DelayPlusOne: 1 + f.millis(1000)}
	}
	f.do(&logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: s})
}

func (f *flood) purge(int) {
	f.do(f.of(f.any(), &logpb.Command{Kind: logpb.Command_PURGE}))
	f.tick()
}

// sessions begins and ends many sessions, and sends late commands of the first ones.
func (f *flood) sessions(n int) {
	var late []*logpb.Command
	for i := range n {
		c := f.open()
		f.send(c)
		if i < 5 {
			late = append(late, c.sent[0])
		}
		f.do(&logpb.Command{Kind: logpb.Command_SESSION_DOWN, Session: c.id.Proto()})
		f.forget(func(id fsm.SessionID) bool { return id == c.id })
	}
	for _, by := range []fsm.Millis{0, 30_000, 31_000, 30_000, 40_000} {
		f.pass(by, true)
		c := f.open()
		f.send(c)
		f.do(&logpb.Command{Kind: logpb.Command_SESSION_DOWN, Session: c.id.Proto()})
		f.forget(func(id fsm.SessionID) bool { return id == c.id })
		for _, cmd := range late {
			f.do(cmd)
		}
	}
}
