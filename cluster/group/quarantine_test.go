package group

import (
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/logtest"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// trio is three hosts that know each other.
type trio struct {
	t     testing.TB
	hosts []*lone
	log   *logtest.Lines
	nodes map[string]net.Listener
}

var trioNames = []string{"n1", "n2", "n3"}

func mustTrio(t testing.TB, tune ...any) *trio {
	t.Helper()
	c := &trio{t: t, log: &logtest.Lines{}}
	c.nodes = map[string]net.Listener{}
	for _, name := range trioNames {
		c.nodes[name] = mustListen(t)
	}
	dir := t.TempDir()
	for _, name := range trioNames {
		c.hosts = append(c.hosts, mustHostOf(t, filepath.Join(dir, name), name, c.nodes, slog.New(slog.NewTextHandler(c.log, nil)), tune...))
	}
	return c
}

// mustOpen opens a group on all hosts, waits until its leader has begun its term
// and said so, and returns the replicas, the leader first.
func (c *trio) mustOpen(id fsm.GroupID) []*Group {
	c.t.Helper()
	for _, h := range c.hosts {
		c.mustOpenAt(h, id)
	}
	await(c.t, "a leader has begun its term", func() bool {
		g := c.mustLead(id)
		o := c.host(g).outside
		o.mu.Lock()
		defer o.mu.Unlock()
		return slices.Contains(o.terms, g.Leading())
	})
	return c.replicas(id)
}

func specOf(id fsm.GroupID) Spec {
	return Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: "q", Members: trioNames, Config: &QueueConfig{DeliveryLimit: 20}}
}

// mustOpenAt opens one replica of a group.
func (c *trio) mustOpenAt(h *lone, id fsm.GroupID) *Group {
	c.t.Helper()
	g, err := h.Open(specOf(id))
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

// replicas returns a group's replicas, the one that leads first.
func (c *trio) replicas(id fsm.GroupID) (all []*Group) {
	for _, h := range c.hosts {
		g := h.Group(id)
		if all = append(all, g); g.Leading() != 0 {
			all[0], all[len(all)-1] = all[len(all)-1], all[0]
		}
	}
	return all
}

// host finds the host of a replica.
func (c *trio) host(g *Group) *lone {
	for _, h := range c.hosts {
		if h.Group(g.Spec().Group) == g {
			return h
		}
	}
	c.t.Fatal("a replica of no host")
	return nil
}

// await waits for a state.
func await(t testing.TB, what string, f func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// mustLead waits until exactly one replica leads, and returns it.
func (c *trio) mustLead(id fsm.GroupID) (leader *Group) {
	c.t.Helper()
	await(c.t, "a leader", func() bool {
		leader = nil
		for _, h := range c.hosts {
			if g := h.Group(id); g != nil && g.Leading() != 0 {
				leader = g
			}
		}
		return leader != nil
	})
	return leader
}

// mustServe has the group's leader, whoever that is, take a message.
func (c *trio) mustServe(id fsm.GroupID, seq uint64) *Group {
	c.t.Helper()
	var leader *Group
	await(c.t, "the group serves", func() bool {
		if leader = c.mustLead(id); leader.Submit(enqueues(seq, -1, "m")) != nil {
			return false
		}
		return leader.Barrier(patience) == nil && ready(leader) == seq
	})
	return leader
}

// mustTake gives a batch to each leader of a group, as publishers do, until one has taken it: there have been so many
// messages then. What a leader was given is lost if another follows it.
func (c *trio) mustTake(id fsm.GroupID, b Batch, enqueued uint64) {
	c.t.Helper()
	given := uint64(0)
	await(c.t, "the message is taken", func() (taken bool) {
		for _, h := range c.hosts {
			g := h.Group(id)
			if h.closed || g == nil {
				continue
			}
			term := g.Leading()
			if term == 0 {
				continue
			}
			if term > given && g.Submit(b) == nil {
				given = term
			}
			g.View(func(m *queue.Machine) { taken = taken || m.Stats().Counters.Enqueued == enqueued })
		}
		return taken
	})
}

// poison makes work for a group panic on a host from now on, or no longer.
func (n *lone) poison(id fsm.GroupID, yes bool) {
	n.outside.mu.Lock()
	defer n.outside.mu.Unlock()
	n.outside.poisoned = map[fsm.GroupID]bool{id: yes}
}

// A panic in the effects of a group makes another node lead, which serves. On
// the node where it happened the group does not lead again, not even if nobody
// else is left, until that is lifted.
func TestQuarantineMovesLeadership(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	first := c.mustOpen(1)[0]
	c.mustOpen(2)
	at := c.host(first)
	at.poison(1, true)
	if err := first.Submit(enqueues(1, -1, "m")); err != nil {
		t.Fatal(err)
	}
	await(t, "a quarantine", func() bool { return first.Quarantined() != nil })
	second := c.mustServe(1, 2)
	if second == first {
		t.Fatal("the quarantined replica leads")
	}
	q := first.Quarantined()
	if q.Panic != "poison" || q.Doing != "perform effects" || q.Term == 0 || q.Index == 0 || q.Stopped || at.Panics() != 1 || len(at.Quarantined()) != 1 {
		t.Errorf("noted: %+v, %d panics", q, at.Panics())
	}
	for _, want := range []string{"queue=q", "vhost=/", "group=1", "doing=\"perform effects\"", "panic=poison", "(*outside).Perform"} {
		if !strings.Contains(c.log.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, c.log)
		}
	}
	if len(c.host(second).Quarantined()) != 0 {
		t.Error("the other node is told to have a quarantine")
	}
	at.poison(1, false)
	if err := second.Transfer(at.config.Node); err == nil && first.Leading() != 0 {
		t.Error("a quarantined replica is given the lead")
	}
	c.mustServe(1, 3)
	if err := first.LiftQuarantine(); err != nil {
		t.Fatal(err)
	}
	if err := first.LiftQuarantine(); err != ErrNotQuarantined {
		t.Errorf("lifted twice: %v", err)
	}
	await(t, "the replica leads where it had been quarantined", func() bool {
		leader := c.mustLead(1)
		return leader == first || leader.Transfer(at.config.Node) == nil && first.Leading() != 0
	})
	if c.mustServe(1, 4) != first {
		t.Error("the lead has gone again")
	}
}

// A group that panics wherever it is led ends without a leader. All nodes live,
// and other groups go on. Where it is lifted it is led again.
func TestQuarantineEverywhere(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	group := c.mustOpen(1)
	c.mustOpen(2)
	for _, h := range c.hosts {
		h.poison(1, true)
	}
	other := uint64(0)
	await(t, "a quarantine on every node", func() bool {
		for i, g := range group {
			if g.Leading() != 0 {
				_ = g.Submit(enqueues(uint64(i+1), -1, "m"))
			}
		}
		other++
		c.mustServe(2, other)
		for _, g := range group {
			if g.Quarantined() == nil {
				return false
			}
		}
		return true
	})
	for _, g := range group {
		if g.Leading() != 0 || g.Submit(enqueues(9, -1, "m")) != replica.ErrNotLeading {
			t.Error("a quarantined replica takes commands")
		}
	}
	c.mustServe(2, other+1)
	for _, h := range c.hosts {
		h.poison(1, false)
	}
	last := group[2]
	if err := last.LiftQuarantine(); err != nil {
		t.Fatal(err)
	}
	if c.mustLead(1) != last {
		t.Error("a quarantined replica leads")
	}
	for i := uint64(1); i <= 4; i++ { // whichever of them the log has already
		if err := last.Submit(enqueues(i, -1, "m")); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "all messages", func() bool { return ready(last) == 4 })
}

// A machine that fails stops, and only that replica of it: the group goes on
// with the others, and the replica's log and vote count. It is not let lead.
func TestMachineStops(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"leader", "follower"} {
		t.Run(role, func(t *testing.T) {
			c := mustTrio(t)
			group := c.mustOpen(1)
			c.mustOpen(2)
			broken := group[0]
			if role == "follower" {
				broken = group[1]
			}
			c.mustServe(1, 1)
			if role == "follower" { // the graver panic of two is shown
				broken.View(func(*queue.Machine) { panic("poison") })
			}
			broken.in().applier.mu.Lock()
			broken.in().applier.machine = nil // whatever is applied now panics
			broken.in().applier.mu.Unlock()
			await(t, "the machine stops", func() bool {
				leader := c.mustLead(1)
				if leader.Submit(enqueues(2, -1, "m")) == nil {
					_ = leader.Barrier(patience)
				}
				return broken.in().applier.hasStopped()
			})
			if q := broken.Quarantined(); q == nil || !q.Stopped || !strings.HasPrefix(q.Doing, "apply entry ") {
				t.Errorf("noted: %+v", q)
			}
			c.mustServe(1, 2) // another entry may have stopped it
			if leader := c.mustServe(1, 3); leader == broken {
				t.Error("a replica without a machine leads")
			}
			shown := -1
			broken.View(func(m *queue.Machine) { shown = int(m.Stats().Ready.Messages) })
			if shown != 0 {
				t.Errorf("what is left of the machine is shown: %d messages", shown)
			}
			if err := broken.LiftQuarantine(); err != ErrStopped {
				t.Errorf("lifted: %v", err)
			}
			if err := broken.in().Raft().Snapshot().Error(); err == nil {
				t.Error("a snapshot of nothing is written")
			}
			// Its vote counts: with it, and without the other follower, the leader commits.
			leader := c.mustLead(1)
			for _, g := range group {
				if g != broken && g != leader {
					if err := c.host(g).Drop(1); err != nil {
						t.Fatal(err)
					}
				}
			}
			await(t, "the message is taken", func() bool { return leader.Submit(enqueues(4, -1, "m")) == nil })
			await(t, "the message is committed", func() bool { return ready(leader) == 4 })
			c.mustServe(2, 1)
		})
	}
}

// A local queue that panics serves no longer, until that is lifted. It can be
// dropped.
func TestQuarantineLocal(t *testing.T) {
	t.Parallel()
	n := mustHost(t, t.TempDir())
	g, other := n.OpenLocal(localSpec(1, &QueueConfig{DeliveryLimit: 20})), n.OpenLocal(localSpec(2, &QueueConfig{DeliveryLimit: 20}))
	n.poison(1, true)
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "a quarantine", func() bool { return g.Quarantined() != nil })
	n.outside.await(t, "the outside hears of it", func() bool { return n.outside.terms[len(n.outside.terms)-1] == 0 })
	if err := g.Submit(enqueues(2, -1, "m")); err != replica.ErrNotLeading {
		t.Errorf("it serves: %v", err)
	}
	if err := g.Expire(patience); err != nil {
		t.Errorf("nothing is due, and yet: %v", err)
	}
	mustSubmit(t, other, enqueues(1, -1, "m"))
	n.outside.await(t, "the other queue answers", func() bool { return answered(n.outside.outcomes) == 1 })
	n.poison(1, false)
	if err := g.LiftQuarantine(); err != nil {
		t.Fatal(err)
	}
	mustSubmit(t, g, enqueues(2, -1, "m"))
	await(t, "it serves again", func() bool { return ready(g) == 2 })

	g.in().applier.mu.Lock()
	g.in().applier.machine = nil
	g.in().applier.mu.Unlock()
	mustSubmit(t, g, enqueues(3, 1, "m"))
	await(t, "the machine stops", g.in().applier.hasStopped)
	if err := g.LiftQuarantine(); err != ErrStopped {
		t.Errorf("lifted: %v", err)
	}
	if !n.DropLocal(1) {
		t.Error("a quarantined queue cannot be dropped")
	}
}

// Panics wherever a group is worked for are the group's, leave no lock behind,
// and the group can be closed.
func TestPanicsAreContained(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		do   func(g *Group)
	}{
		{"view", func(g *Group) { g.View(func(*queue.Machine) { panic("poison") }) }},
		{"resync", func(g *Group) {
			breakMachine(g)
			g.Resync(fsm.ConsumerID{Session: session, Number: 1}, 0)
		}},
		{"tick", func(g *Group) {
			breakMachine(g)
			_ = g.Expire(patience)
		}},
		{"watch", func(g *Group) {
			breakMachine(g)
			g.in().Stall(&Watched{}, 0)
		}},
		{"settings", func(g *Group) {
			breakMachine(g)
			g.in().settings.propose(true)
		}},
		{"leadership", func(g *Group) {
			g.in().leadership.changing.Lock()
			g.in().leave()
			g.in().leadership.changing.Unlock()
			breakMachine(g)
			g.in().Review()
		}},
		{"entry", func(g *Group) {
			g.in().proposer.mu.Lock()
			g.in().proposer.stamper = clock.Stamper{} // an entry cannot be stamped
			g.in().proposer.mu.Unlock()
			_ = g.Submit(enqueues(1, -1, "m"))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := mustHost(t, t.TempDir())
			g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
			other := n.mustGroup(t, 2, &QueueConfig{DeliveryLimit: 20})
			tc.do(g)
			await(t, "a quarantine", func() bool { return g.Quarantined() != nil && g.in().leadership.term.Load() == 0 })
			for _, lock := range []interface {
				TryLock() bool
				Unlock()
			}{&g.in().applier.mu, &g.in().leadership.changing, &g.in().outgoing.mu, &g.in().proposer.mu, &g.in().timer.mu, &g.in().settings.mu} {
				await(t, "a lock is free", func() bool {
					free := lock.TryLock()
					if free {
						lock.Unlock()
					}
					return free
				})
			}
			mustSubmit(t, other, Batch{Count: 1, Commands: AppendCommand(nil, &logpb.Command{Kind: logpb.Command_TOUCH, Session: session.Proto(), Seq: 1})})
			n.outside.await(t, "the other queue answers", func() bool { return len(n.outside.outcomes) > 0 })
			n.shut(t)
		})
	}
}

// breakMachine makes everything that reads or changes the machine panic.
func breakMachine(g *Group) {
	g.in().applier.mu.Lock()
	defer g.in().applier.mu.Unlock()
	g.in().applier.machine = nil
}
