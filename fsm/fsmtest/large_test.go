package fsmtest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// crowd drives a machine that holds more than a model can follow, and a
// replica of it. It settles what it was given, and nothing else.
type crowd struct {
	t       *testing.T
	random  *rand.Rand
	m       *queue.Machine
	replica *queue.Machine
	meta    fsm.Meta
	seq     map[fsm.SessionID]uint64
	held    map[fsm.ConsumerID][]uint64
	order   []fsm.ConsumerID
}

func newCrowd(t *testing.T, seed uint64) *crowd {
	c := &crowd{
		t: t, random: rand.New(rand.NewPCG(seed, seed)), m: newMachine(), replica: newMachine(),
		meta: fsm.Meta{Term: 1, Now: start}, seq: map[fsm.SessionID]uint64{}, held: map[fsm.ConsumerID][]uint64{},
	}
	c.entry(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{
		DeadLetter: true, DeliveryLimit: 1, ConsumerTimeoutPlusOne: 60_001,
	}}})
	return c
}

func (c *crowd) session(n int) fsm.SessionID {
	return fsm.SessionID{Node: 1, Boot: 1, Num: uint64(n + 1)}
}

// of makes cmd the next command of session n.
func (c *crowd) of(n int, cmd *logpb.Command) *logpb.Command {
	id := c.session(n)
	c.seq[id]++
	cmd.Session, cmd.Seq = id.Proto(), c.seq[id]
	return cmd
}

// entry applies commands as one entry to both machines.
func (c *crowd) entry(cmds ...*logpb.Command) fsm.Effects {
	c.meta.Index++
	c.meta.Offset = 0
	var eff, other fsm.Effects
	for _, cmd := range cmds {
		c.meta.Session = fsm.SessionFrom(cmd.Session)
		r := c.m.Apply(c.meta, cmd, &eff)
		if again := c.replica.Apply(c.meta, cmd, &other); r != again {
			c.t.Fatalf("%v: machine %+v, replica %+v", cmd, r, again)
		}
		c.meta.Offset += cmd.GetEnqueue().GetSize()
	}
	for _, d := range eff.Deliveries {
		if _, ok := c.held[d.To]; !ok {
			c.order = append(c.order, d.To)
		}
		c.held[d.To] = append(c.held[d.To], d.ID)
	}
	return eff
}

func (c *crowd) enqueue(n int, ttl func(i int) uint64) {
	cmds := make([]*logpb.Command, n)
	for i := range cmds {
		e := &logpb.Enqueue{Size: 20, TtlPlusOne: ttl(i)}
		if c.random.IntN(4) == 0 {
			e.PriorityPlusOne = 1 + c.random.Uint32N(32)
		}
		cmds[i] = c.of(0, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
	}
	c.entry(cmds...)
}

// settle ends a random part of what one consumer holds.
func (c *crowd) settle() {
	id := c.order[c.random.IntN(len(c.order))]
	ids := c.held[id]
	if len(ids) == 0 {
		return
	}
	d := &logpb.Settle{Consumer: id.Number, Outcome: logpb.Settle_Outcome(c.random.IntN(4))}
	var kept []uint64
	for _, id := range ids {
		if c.random.IntN(3) == 0 {
			kept = append(kept, id)
		} else {
			d.Ranges = append(d.Ranges, id, 1)
		}
	}
	c.held[id] = kept
	c.entry(c.of(int(id.Session.Num-1), &logpb.Command{Kind: logpb.Command_SETTLE, Settle: d}))
}

// route sends the oldest letters to one or two targets, and settles them.
func (c *crowd) route(n int) {
	letters := c.m.UnroutedLetters(n)
	if len(letters) == 0 {
		return
	}
	r := &logpb.RouteDead{First: letters[0].Number}
	for range letters {
		route := &logpb.DeadRoute{Targets: []uint64{500}}
		if c.random.IntN(2) == 0 {
			route.Targets = append(route.Targets, 501)
		}
		r.Routes = append(r.Routes, route)
	}
	c.entry(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
	for _, t := range c.m.DeadLetterTargets(0, 1<<20) {
		upto := t.Confirmed + c.random.Uint64N(t.Next-t.Confirmed)
		c.entry(&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: uint64(t.ID), Last: upto}})
	}
}

// check looks at the whole of both machines. Nothing gets lost: what has come
// is somewhere, or has an end that was counted.
func (c *crowd) check(step string) {
	c.t.Helper()
	if err := c.m.Check(); err != nil {
		c.t.Fatalf("%s: %v", step, err)
	}
	if c.m.Hash() != c.replica.Hash() {
		c.t.Fatalf("%s: the replicas differ", step)
	}
	s := c.m.Stats()
	in := s.Ready.Messages + s.Unacknowledged.Messages
	ended := s.Counters.Acked + s.Counters.Purged + s.Counters.DeadLettered
	if in+ended != s.Counters.Enqueued {
		c.t.Fatalf("%s: %d are there and %d have ended of %d: %+v", step, in, ended, s.Counters.Enqueued, s)
	}
}

// restart replaces the replica by what the machine's snapshot gives.
func (c *crowd) restart() {
	c.replica = mustRestore(c.t, mustSnapshot(c.t, c.m))
}

// TestLarge runs a queue through tens of thousands of messages, with a
// snapshot that is written from another goroutine while it goes on.
func TestLarge(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := newCrowd(t, seed)
			for i := range 4 {
				c.entry(c.of(i, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{
					Consumer: uint64(i + 1), Prefetch: uint32(100 << (2 * i)),
				}}))
			}
			for round := range 8 {
				for range 6 {
					c.enqueue(1000, func(i int) uint64 { return uint64(i % 3 * (1 + c.random.IntN(50_000))) })
				}
				view, text := c.m.Snapshot(), mustSnapshot(t, c.m)
				written := make(chan string)
				go func() {
					var b strings.Builder
					if _, err := view.WriteTo(&b); err != nil {
						b.WriteString(err.Error())
					}
					written <- b.String()
				}()
				for range 20 {
					c.settle()
					c.route(c.random.IntN(700))
				}
				if round%3 == 2 {
					id := c.session(1 + c.random.IntN(3))
					c.entry(&logpb.Command{Kind: logpb.Command_SESSION_DOWN, Session: id.Proto()})
				}
				c.meta.Now += fsm.Time(c.random.IntN(30_000))
				for d := c.m.NextDeadline(); d != 0 && d <= c.meta.Now; d = c.m.NextDeadline() {
					c.entry(&logpb.Command{Kind: logpb.Command_TICK})
				}
				if <-written != text {
					t.Fatalf("round %d: a snapshot has changed while it was written", round)
				}
				c.check(fmt.Sprint("round ", round))
				if round%2 == 1 {
					c.restart()
				}
			}
			c.entry(c.of(0, &logpb.Command{Kind: logpb.Command_PURGE}))
			c.check("purge")
		})
	}
}

// TestWorkPerCommand holds the bounds of TM-10: 64 expiries before a command
// and as many for what stands in the way of a hand-out, 4096 due actions in a
// tick; and nobody is given a message that is due meanwhile.
func TestWorkPerCommand(t *testing.T) {
	c := newCrowd(t, 1)
	readyNow := func() int { return int(c.m.Stats().Ready.Messages) }
	for range 10 {
		c.enqueue(1000, func(int) uint64 { return 101 })
	}
	c.meta.Now += 200
	for _, step := range []struct {
		name string
		cmd  *logpb.Command
		want int
	}{
		{"touch", &logpb.Command{Kind: logpb.Command_TOUCH}, 10_000 - 64},
		{"get", c.of(1, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}}), 10_000 - 64 - 128},
		{"consume", c.of(1, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1}}), 10_000 - 64 - 256},
		{"tick", &logpb.Command{Kind: logpb.Command_TICK}, 10_000 - 64 - 256 - 4096},
	} {
		if eff := c.entry(step.cmd); len(eff.Deliveries) > 0 {
			t.Fatalf("%s: a message that is due was handed out: %+v", step.name, eff.Deliveries[0])
		}
		if readyNow() != step.want {
			t.Fatalf("%s: %d are ready, want %d", step.name, readyNow(), step.want)
		}
		if d := c.m.NextDeadline(); d == 0 || d > c.meta.Now {
			t.Fatalf("%s: more is due, and the next deadline is %d", step.name, d)
		}
		c.check(step.name)
	}
	c.entry(&logpb.Command{Kind: logpb.Command_PURGE})

	c = newCrowd(t, 2)
	c.entry(c.of(1, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, TimeoutPlusOne: 101}}))
	for range 5 {
		c.enqueue(1000, func(int) uint64 { return 0 })
	}
	c.meta.Now += 100
	if eff := c.entry(&logpb.Command{Kind: logpb.Command_TICK}); len(eff.Timeouts) != 1 || len(eff.Timeouts[0].Deliveries) != 4096 {
		t.Fatalf("the first tick takes back %+v", eff.Timeouts)
	}
	c.check("first tick")
	if eff := c.entry(&logpb.Command{Kind: logpb.Command_TICK}); len(eff.Timeouts) != 1 || len(eff.Timeouts[0].Deliveries) != 904 {
		t.Fatalf("the second tick takes back %+v", eff.Timeouts)
	}
	c.check("second tick")
}
