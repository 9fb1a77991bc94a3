package group

import (
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// in returns the instance of a group, which is woken for that.
func (g *Group) in() *Instance { return g.Wake() }

// sleepy lets groups sleep that are idle for a moment.
func sleepy(c *HostConfig) {
	c.Heartbeat, c.IdleAfter = 0, 20*time.Millisecond
	c.Version, c.Newest = func() uint32 { return 3 }, 3
}

// mustSleep waits until all replicas of a group sleep and one leads, and returns them, the leader first.
func (c *trio) mustSleep(id fsm.GroupID) (all []*Group) {
	c.t.Helper()
	await(c.t, "all replicas sleep", func() bool {
		all = nil
		for _, h := range c.hosts {
			if g := h.Group(id); !h.closed && g != nil {
				all = append(all, g)
			}
		}
		lead := slices.IndexFunc(all, func(g *Group) bool { return g.Leading() != 0 })
		if lead >= 0 {
			all[0], all[lead] = all[lead], all[0]
		}
		return lead >= 0 && !slices.ContainsFunc(all, func(g *Group) bool { return !g.Asleep() })
	})
	return all
}

// mustAgree compares the states of replicas at an entry.
func (c *trio) mustAgree(all []*Group, at uint64) {
	c.t.Helper()
	all[0].View(func(m *queue.Machine) { at = min(at, m.Index()) }) // behind it raft's own entries may be, which no machine gets
	var want string
	for _, g := range all {
		_, hash, err := g.HashAt(at, patience)
		if err != nil {
			c.t.Fatal(err)
		}
		if want == "" {
			want = hash
		}
		if hash != want {
			c.t.Fatalf("the replica at %s has another state", g.node.config.Node)
		}
	}
}

// A group in which nothing happens sleeps at all its members. What is submitted then wakes it in its term: there is no
// vote, nobody is told of a leader, and all replicas have the message.
func TestGroupSleepsAndWakes(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	g := c.mustOpen(1)[0]
	mustSubmit(t, g, enqueues(1, -1, "a"))
	o := c.host(g).outside
	for n := uint64(1); n < 5; n++ {
		o.await(t, "the message is taken", func() bool { return answered(o.outcomes) == n })
		all := c.mustSleep(1)
		term := g.Term()
		if all[0] != g || g.Leader() != c.host(g).config.Node {
			t.Fatal("the leadership has moved")
		}
		for _, r := range all {
			if r.running.Load() != nil || r.Term() != term || r.Leader() != g.Leader() || r.Progress().Applied != g.AppliedIndex() || ready(r) != n {
				t.Fatalf("the record of %s says %+v, %d ready", r.node.config.Node, r.Progress(), ready(r))
			}
		}
		o.mu.Lock()
		announced := len(o.terms)
		o.mu.Unlock()
		mustSubmit(t, g, enqueues(n+1, -1, "b"))
		o.await(t, "the next message is taken", func() bool { return answered(o.outcomes) == n+1 })
		if o.mu.Lock(); len(o.terms) != announced {
			t.Error("somebody was told of a leader")
		}
		o.mu.Unlock()
		for _, r := range all {
			await(t, "everybody has it", func() bool { return ready(r) == n+1 })
			if r.Term() != term {
				t.Errorf("term %d has become %d", term, r.Term())
			}
		}
		c.mustAgree(all, g.AppliedIndex())
	}
}

// What is due while a group sleeps happens in time.
func TestSleeperIsWokenForDeadline(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	g := c.mustOpen(1)[0]
	mustSubmit(t, g, enqueues(1, 1500, "a"))
	sent := time.Now()
	o := c.host(g).outside
	o.await(t, "the message is taken", func() bool { return answered(o.outcomes) == 1 })
	c.mustSleep(1)
	if ready(g) != 1 {
		t.Fatal("it has expired early")
	}
	await(t, "it expires", func() bool { return ready(g) == 0 })
	if took := time.Since(sent); took < 1500*time.Millisecond {
		t.Errorf("it has expired after %v", took)
	}
	g.View(func(m *queue.Machine) {
		if m.Dead() == (queue.Dead{}) {
			t.Error("nothing has died")
		}
	})
}

// A replica that ends before its machine has taken all that raft has handed to it has it when it wakes.
func TestSleeperLacksNothing(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, func(c *HostConfig) {
		sleepy(c)
		c.IdleAfter = time.Hour
	})
	all := c.mustOpen(1)
	g, f := all[0], all[1]
	mustSubmit(t, g, enqueues(1, -1, "a"))
	await(t, "the follower has it", func() bool { return ready(f) == 1 })
	read, release := make(chan struct{}), make(chan struct{})
	go f.View(func(*queue.Machine) { close(read); <-release })
	<-read
	o := c.host(g).outside
	for n := uint64(2); n <= 30; n++ {
		mustSubmit(t, g, enqueues(n, -1, "b"))
		o.await(t, "it is taken", func() bool { return answered(o.outcomes) == n })
	}
	i := f.running.Load()
	await(t, "raft has handed all of them over", func() bool {
		c.host(g).Group(1).running.Load().Remind(f.node.config.Node)
		return i.Raft().AppliedIndex() == g.AppliedIndex()
	})
	slept := make(chan bool)
	go func() { slept <- f.Sleep(func(*Instance) bool { return true }) }()
	await(t, "it ends", i.IsClosed)
	close(release)
	if !<-slept {
		t.Fatal("it does not sleep")
	}
	await(t, "it has everything", func() bool { return ready(f) == 30 })
	c.mustAgree([]*Group{g, f}, g.AppliedIndex())
}
