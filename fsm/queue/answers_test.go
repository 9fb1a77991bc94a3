package queue

import (
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// answer applies a command of a session, and returns what that is told.
func (d *driver) answer(t testing.TB, s fsm.SessionID, cmd *logpb.Command) fsm.Code {
	t.Helper()
	d.meta.Index++
	d.meta.Session = s
	if s != (fsm.SessionID{}) {
		d.seq[s]++
		cmd.Seq = d.seq[s]
	}
	d.eff.Reset()
	r := d.m.Apply(d.meta, cmd, &d.eff)
	mustCheck(t, d.m)
	return r.Code
}

func (d *driver) mustAnswer(t testing.TB, want fsm.Code, s fsm.SessionID, cmd *logpb.Command) {
	t.Helper()
	if got := d.answer(t, s, cmd); got != want {
		t.Errorf("%v of %v is answered %v, want %v", cmd.Kind, s, got, want)
	}
}

func get() *logpb.Command { return &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}} }

func consumeUpTo(prefetch uint32) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: prefetch}}
}

// A queue has as many consumers as it may have and no more: those who get count,
// and cancelled ones for as long as they hold something. Who is there already
// goes on.
func TestCrowded(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	d.m.bounds.Consumers = 2
	for range 5 {
		d.enqueue(t, 0)
	}
	second, third := holder(2), holder(3)
	d.mustAnswer(t, fsm.OK, taker, consumeUpTo(1))
	d.mustAnswer(t, fsm.OK, second, get())
	for range 2 {
		d.mustAnswer(t, fsm.Crowded, third, consumeUpTo(1))
		d.mustAnswer(t, fsm.Crowded, third, get())
	}
	if len(d.eff.Deliveries) != 0 || d.stats().Ready.Messages != 3 {
		t.Errorf("%d deliveries, %d ready", len(d.eff.Deliveries), d.stats().Ready.Messages)
	}
	d.mustAnswer(t, fsm.OK, taker, consumeUpTo(2))
	d.mustAnswer(t, fsm.OK, second, get())
	d.mustAnswer(t, fsm.OK, taker, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}})
	d.mustAnswer(t, fsm.Crowded, third, consumeUpTo(1))
	d.mustAnswer(t, fsm.OK, taker, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: 1, Ranges: []uint64{1, 9}}})
	d.mustAnswer(t, fsm.OK, third, consumeUpTo(1))
}

// Who gets is not told that a queue is empty while something is on its way back
// that the bounds have left for later.
func TestGetAnswersNotYet(t *testing.T) {
	for name, c := range map[string]struct {
		enqueue *logpb.Enqueue
		then    func(t *testing.T, d *driver)
		first   uint64 // what is handed out first after that
	}{
		"a node is down": {&logpb.Enqueue{Size: 100}, func(t *testing.T, d *driver) {
			d.consume(t, 0)
			d.m.bounds.Before, d.m.bounds.Tick = 0, 1
			for i := range uint64(5) { // sessions that end one by one
				d.mustAnswer(t, fsm.OK, fsm.SessionID{Node: taker.Node, Boot: taker.Boot, Num: 2 + i}, consumeUpTo(1))
			}
			d.mustAnswer(t, fsm.OK, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: uint32(taker.Node), Boot: taker.Boot}})
		}, 1},
		"a session has ended": {&logpb.Enqueue{Size: 100}, func(t *testing.T, d *driver) {
			d.consume(t, 0)
			d.m.bounds.Before, d.m.bounds.Tick = 0, 1
			d.mustAnswer(t, fsm.OK, taker, &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
			d.mustAnswer(t, fsm.OK, publisher, get())
		}, 2},
		"messages are due": {&logpb.Enqueue{Size: 100, DueAt: 1_001_000}, func(t *testing.T, d *driver) {
			d.m.bounds.Before, d.m.bounds.Tick = 0, 1
			d.mustAnswer(t, fsm.Empty, publisher, get())
			d.meta.Now = 1_001_000
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
			for range 5 {
				d.cmd = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: c.enqueue}
				d.do(t, publisher)
			}
			c.then(t, d)
			d.mustAnswer(t, fsm.NotYet, publisher, get())
			d.finish(t)
			d.mustAnswer(t, fsm.OK, publisher, get())
			if len(d.eff.Deliveries) != 1 || d.eff.Deliveries[0].Ref.Index != c.first {
				t.Errorf("handed out: %v", d.eff.Deliveries)
			}
		})
	}
}

// What a target says that is known to be gone changes nothing: the letters that
// have not ended yet have not arrived.
func TestLateConfirmOfGoneDeadLetterTarget(t *testing.T) {
	const letters = 3
	d := newDriver(&logpb.QueueConfig{DeadLetter: true, DeadLetterStrategy: logpb.QueueConfig_TRANSACTIONAL})
	for range letters {
		d.enqueue(t, 1)
	}
	routes := make([]*logpb.DeadRoute, letters)
	for i := range routes {
		routes[i] = &logpb.DeadRoute{Targets: []uint64{5}}
	}
	d.m.bounds.Before, d.m.bounds.Tick = 0, 1
	internal := fsm.SessionID{}
	d.mustAnswer(t, fsm.OK, internal, &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{First: 1, Routes: routes}})
	d.mustAnswer(t, fsm.OK, internal, &logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: 5, Gone: true}})
	if n := d.stats().Outbox.Messages; n != letters-1 {
		t.Fatalf("%d letters are left", n)
	}
	d.mustAnswer(t, fsm.OK, internal, &logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: 5, Last: letters}})
	d.finish(t)
	if c := d.stats().Counters; c.DeadConfirmed != 0 || c.DeadDropped != letters || d.stats().Outbox.Messages != 0 {
		t.Errorf("%d have arrived, %d dropped, %d left", c.DeadConfirmed, c.DeadDropped, d.stats().Outbox.Messages)
	}
}
