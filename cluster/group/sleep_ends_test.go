package group

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// restless lets groups sleep only when a test says so.
func restless(c *HostConfig) {
	sleepy(c)
	c.IdleAfter = time.Hour
}

// A leader that was about to sleep, and does not, goes on: who was refused meanwhile hears that it leads.
func TestLeaderThatStaysAwakeGoesOn(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, restless)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	g := c.mustLead(1)
	o := c.host(g).outside
	tried, told := false, 0
	await(t, "it is about to sleep", func() bool {
		if g.Sleep(func(*Instance) bool {
			o.mu.Lock()
			told = len(o.terms)
			o.mu.Unlock()
			tried = true
			if g.Submit(enqueues(2, -1, "b")) == nil {
				t.Error("a command is taken that sleep may lose")
			}
			return false
		}) {
			t.Fatal("it sleeps although it must not")
		}
		return tried
	})
	o.await(t, "who was refused is told", func() bool { return len(o.terms) > told })
	c.mustTake(1, enqueues(2, -1, "b"), 2)
}

// A leader leads on while it falls asleep and while it wakes: whoever asks finds a leader, and its numbers.
func TestLeaderThatFallsAsleepLeads(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, restless)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	g := c.mustLead(1)
	term := g.Leading()
	var asking sync.WaitGroup
	var in atomic.Uint64
	in.Store(term)
	done := make(chan struct{})
	asking.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if is := g.Leading(); is != term {
					in.Store(is)
				}
				runtime.Gosched() // raft has many hand-offs until it leads again, none of which is to wait for this loop
			}
		}
	})
	for range 20 {
		await(t, "it sleeps", func() bool {
			if g.Term() != term {
				t.Log(c.log)
				t.Skip("the machine is too slow: another term has begun")
			}
			return g.Sleep(func(i *Instance) bool {
				if is := g.Leading(); is != term {
					t.Errorf("about to sleep it leads in term %d, not %d", is, term)
				}
				_, idle := i.Idle(0)
				return idle
			})
		})
		g.Wake()
	}
	close(done)
	asking.Wait()
	if in.Load() != term {
		t.Errorf("once it has led in term %d, not %d", in.Load(), term)
		t.Log(c.log)
	}
}

// What is guarded keeps a leader awake: a panic quarantines who leads, and not an instance that has ended.
func TestGuardedStaysAwake(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, restless)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	g := c.mustLead(1)
	await(t, "it is idle", func() bool {
		_, idle := g.in().Idle(0)
		return idle
	})
	if g.Guard("test", func() {
		if g.Sleep(func(*Instance) bool { return true }) {
			t.Error("it sleeps while something is done for it")
		}
		panic("on purpose")
	}) {
		t.Error("there was no panic")
	}
	if g.Quarantined() == nil {
		t.Error("it is not quarantined")
	}
}

// Who asks for a leader that sleeps may wait for it to wake, but not for long.
func TestWakesSoon(t *testing.T) {
	r, now := &Record{}, time.Now()
	if !r.WakesSoon(now) || !r.WakesSoon(now.Add(time.Second)) {
		t.Error("it has no time to wake")
	}
	if r.WakesSoon(now.Add(time.Minute)) {
		t.Error("it should be awake for long")
	}
}

// What raft takes until it has ended is in the log: a leader that sleeps knows of it.
func TestSleepSeesWhatRaftTakes(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, restless)
	all := c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	for range 20 {
		g := c.mustLead(1)
		log, err := g.node.config.Store.Group(1)
		if err != nil {
			t.Fatal(err)
		}
		g.Sleep(func(i *Instance) bool {
			took := make(chan struct{})
			go func() {
				first := true
				for i.Raft().Barrier(0).Error() == nil {
					if first {
						close(took)
					}
					first = false
				}
				if first {
					close(took)
				}
			}()
			<-took
			return true
		})
		if r := g.asleep.Load(); r != nil && r.level {
			if last, _ := log.LastIndex(); last != r.at.Index {
				t.Fatalf("it sleeps at %d, its log ends at %d", r.at.Index, last)
			}
		}
		g.Wake()
	}
	c.mustServe(1, 2)
	for _, g := range all {
		await(t, "everybody has it", func() bool { return ready(g) == 2 })
	}
	at := uint64(0)
	c.mustLead(1).View(func(m *queue.Machine) { at = m.Index() })
	c.mustAgree(all, at)
}

// A leader that loses its term while it falls asleep does not lead when it wakes, and another one does.
func TestSleepLosesTheTerm(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, restless)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	g := c.mustLead(1)
	await(t, "it has slept once", func() bool { return g.Sleep(func(*Instance) bool { return true }) })
	g.Wake() // and remembers that it has led
	led := uint64(0)
	await(t, "it has slept", func() bool {
		return g.Sleep(func(i *Instance) bool {
			led = i.Term()
			i.node.config.Mesh.Resign(1, led+1, c.other(g).config.Node)
			await(t, "it has lost its term", func() bool { return i.Term() != led })
			return true
		})
	})
	if r := g.asleep.Load(); r != nil && (r.leads || r.leader == g.node.config.Node) {
		t.Errorf("it sleeps as leader of %d, and led in %d", r.at.Raft, led)
	}
	if leader := c.mustServe(1, 2); leader.Term() <= led {
		t.Errorf("%d is led again", led)
	}
}

// A member that was cut off while the others went on, and slept meanwhile, has what they have when it is back, although
// nothing happens in the queue any more.
func TestSleepersWakeForWhoLacks(t *testing.T) {
	t.Parallel()
	c, v, all := mustOpenValved(t)
	g, away := all[0], all[2]
	v.Set(away.node.config.Node, true)
	await(t, "it is down", func() bool { return !g.node.config.Mesh.Alive(away.node.config.Node) })
	c.mustTake(1, enqueues(2, -1, "b"), 2)
	await(t, "the others sleep", func() bool {
		return !slices.ContainsFunc(all, func(r *Group) bool { return r != away && !r.Asleep() })
	})
	v.Set(away.node.config.Node, false)
	await(t, "it has everything", func() bool { return ready(away) == 2 })
}

// A queue does not sleep while a letter waits to be forwarded: nobody would forward it.
func TestLetterKeepsAwake(t *testing.T) {
	t.Parallel()
	n := mustHost(t, t.TempDir(), restless)
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20, DeadLetter: true})
	rests := func() bool {
		i := g.in()
		_, ok := i.Idle(time.Millisecond)
		return ok
	}
	await(t, "it could sleep", rests)
	mustSubmit(t, g, enqueues(1, 1, "a"))
	await(t, "the message is a letter", func() (is bool) {
		g.View(func(m *queue.Machine) { is = m.Stats().Outbox.Messages == 1 })
		return is
	})
	i := g.in()
	await(t, "nothing is under way", func() bool { return !i.proposer.busy() && !i.attendant.Watched() })
	if rests() {
		t.Error("it could sleep with a letter")
	}
}

// A queue does not sleep while a redrive of it goes on: nobody would go on with it.
func TestRedriveKeepsAwake(t *testing.T) {
	t.Parallel()
	n := mustHost(t, t.TempDir(), restless)
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	rests := func() bool {
		_, ok := g.in().Idle(time.Millisecond)
		return ok
	}
	mustSubmit(t, g, enqueues(1, -1, "a"))
	await(t, "it could sleep", rests)
	mustSubmit(t, g, BatchOf(&logpb.Command{Kind: logpb.Command_REDRIVE, Redrive: &logpb.Redrive{Rate: 1}}))
	await(t, "a redrive goes on", func() (does bool) {
		g.View(func(m *queue.Machine) { does = queue.GoesOn(m.Outlook().Redrive) })
		return does
	})
	i := g.in()
	await(t, "nothing is under way", func() bool { return !i.proposer.busy() && !i.attendant.Watched() })
	if rests() {
		t.Error("it could sleep in a redrive")
	}
	mustSubmit(t, g, BatchOf(&logpb.Command{Kind: logpb.Command_REDRIVE, Redrive: &logpb.Redrive{Cancels: true}}))
	await(t, "it could sleep again", rests)
}

// A leader that has slept stamps as if it had not: in the middle of a term it does not follow a step of all clocks that is
// larger than clocks may differ, which would let what waits expire too early.
func TestSleeperDoesNotFollowClocks(t *testing.T) {
	t.Parallel()
	var step atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
	c := mustTrio(t, restless, func(c *HostConfig) {
		began := time.Now()
		c.Clock = clock.New(clock.Config{
			Node: c.Node, Nodes: trioNames, Logger: c.Logger, Wall: now,
			Monotonic: func() time.Duration { return time.Since(began) },
			MaxSkew:   func() fsm.Millis { return 1000 },
		})
	})
	agree := func() {
		for _, h := range c.hosts {
			for _, other := range trioNames {
				h.config.Clock.Read(other, fsm.Time(now().UnixMilli()), h.config.Clock.Monotonic(), 0)
			}
		}
	}
	agree()
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, 600_000, "a"), 1)
	g := c.mustLead(1)
	term := g.Term()
	await(t, "it has slept", func() bool { return g.Sleep(func(*Instance) bool { return true }) })
	step.Store(int64(time.Hour))
	agree()
	if at := g.node.config.Clock.Now() - fsm.Time(time.Now().UnixMilli()); at < 3_000_000 {
		t.Fatalf("the clocks have not moved: %d ms", at)
	}
	mustSubmit(t, g, enqueues(2, 600_000, "b"))
	await(t, "both are there", func() bool { return ready(g) == 2 })
	if g.Term() != term {
		t.Fatalf("the term has changed")
	}
	g.View(func(m *queue.Machine) {
		if ahead := StatsOf(m).Clock - fsm.Time(time.Now().UnixMilli()); ahead > 60_000 {
			t.Errorf("time in the queue has moved ahead by %d ms", ahead)
		}
	})
}
