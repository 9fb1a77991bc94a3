package host

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm/queue"
)

// disturbance is one of these.
type disturbance struct {
	name string
	do   func(c *terms)
}

// disturbances are what happens to a group while commands are under way. Each begins with
// a leader, and leaves three hosts with links.
var disturbances = []disturbance{
	{"transfer", (*terms).transfers},
	{"deposed", (*terms).deposes},
	{"transfer fails", (*terms).failsToTransfer},
	{"cut off", (*terms).cutsOff},
	{"comes back with what was never committed", (*terms).bringsBack},
	{"ticks", (*terms).ticks},
	{"snapshot", (*terms).snapshots},
	{"restored from a snapshot", (*terms).restoresFollower},
	{"leader ends", (*terms).endsLeader},
	{"resigns", (*terms).resigns},
}

// next is the host after that of a replica.
func (c *terms) next(g *group.Group) int { return (c.at(g) + 1) % len(c.hosts) }

// busy gives the leader work of all kinds, and does not wait for any of it.
func (c *terms) busy() *group.Group {
	c.t.Helper()
	c.until("a leader", func() bool { return c.leader() != nil })
	g := c.leader()
	c.pump()
	c.publish(30, -1)
	c.pump()
	c.publish(30, -1)
	return g
}

// transfers: a leader hands over in the middle of batches.
func (c *terms) transfers() {
	g := c.busy()
	to := c.hosts[c.next(g)].config.Node
	done := make(chan struct{})
	go func() {
		_ = g.Transfer(to) // it may have lost its leadership by itself
		close(done)
	}()
	c.publish(20, -1)
	c.until("the transfer ends", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

// deposes: another member is elected while the leader has entries under way. What
// the deposed one answers late is of its term.
func (c *terms) deposes() {
	g := c.busy()
	c.elect(c.next(g))
}

// failsToTransfer: a leader does not get rid of its leadership, and goes on.
func (c *terms) failsToTransfer() {
	g := c.busy()
	if g.Transfer("nobody") == nil {
		c.t.Error("nobody leads")
	}
	c.publish(20, -1)
}

// cutsOff: a leader that reaches nobody takes commands, which a later leader's
// entries replace.
func (c *terms) cutsOff() {
	g := c.busy()
	old := c.at(g)
	c.valve.Set(trioNames[old], true)
	end := in(g).LastIndex()
	batch := c.publisher.unanswered
	c.publish(20, -1)
	if c.publisher.submit(c.host(g).outside, g, c.publisher.unanswered[len(batch):]) == nil {
		c.until("entries that will never be committed", func() bool { return in(g).LastIndex() > end || g.Leading() == 0 })
	}
	next := c.elect(c.next(g), old)
	c.publish(20, -1)
	c.until("the others go on", func() bool { return len(c.publisher.unanswered) == 0 })
	c.valve.Set(trioNames[old], false)
	c.until("the deposed leader follows", func() bool {
		return g.Leading() == 0 && g.Term() >= next.Term() && g.AppliedIndex() >= next.AppliedIndex()
	})
}

// bringsBack: a leader ends with entries that were never committed, and comes back
// with them when others have gone on.
func (c *terms) bringsBack() {
	g := c.busy()
	old := c.at(g)
	c.valve.Set(trioNames[old], true)
	end := in(g).LastIndex()
	c.publish(20, -1)
	if c.publisher.submit(c.host(g).outside, g, c.publisher.unanswered) == nil {
		c.until("entries that will never be committed", func() bool { return in(g).LastIndex() > end || g.Leading() == 0 })
	}
	c.gather()
	c.hosts[old].shut(c.t)
	next := c.elect((old+1)%len(c.hosts), old)
	c.publish(20, -1)
	c.until("the others go on", func() bool { return len(c.publisher.unanswered) == 0 })
	c.valve.Set(trioNames[old], false)
	c.restart(old)
	c.until("the one that is back follows", func() bool {
		g := c.hosts[old].Group(1)
		return g.Leading() == 0 && g.AppliedIndex() >= next.AppliedIndex()
	})
}

// ticks: what expires does so once, whoever leads then.
func (c *terms) ticks() {
	g := c.busy()
	c.publish(10, 20)
	c.publish(10, 60)
	c.elect(c.next(g))
	c.publish(10, 1)
	if g := c.leader(); g != nil {
		_ = g.Transfer(trioNames[c.next(g)])
	}
}

// snapshots: a snapshot is written by a leader that is deposed meanwhile, and by one
// that follows.
func (c *terms) snapshots() {
	g := c.busy()
	c.gather()
	all := []raft.SnapshotFuture{in(g).Raft().Snapshot(), in(c.hosts[c.next(g)].Group(1)).Raft().Snapshot()}
	c.elect(c.next(g))
	for _, f := range all {
		_ = f.Error() // there may be nothing new
	}
}

// restoresFollower: a member that was away for long gets a snapshot while commands flow,
// and leads then.
func (c *terms) restoresFollower() {
	g := c.busy()
	away := c.next(g)
	c.gather()
	gone := c.hosts[away].Group(1)
	c.hosts[away].shut(c.t)
	before := in(gone).LastIndex()
	c.keep(1)
	c.until("the logs of the others to be cut", func() bool {
		c.traffic(5)
		c.gather() // all that there is: nothing is under way
		if g := c.leader(); g != nil {
			in(g).Transport().Lacks(trioNames[away], g.Term(), 1<<40) // nothing is kept for it
		}
		for _, h := range c.hosts {
			if h.closed {
				continue
			}
			_ = in(h.Group(1)).Raft().Snapshot().Error()
			if first, err := in(h.Group(1)).Store().FirstIndex(); err != nil || first <= before+16 { // it may have stored a few more
				return false
			}
		}
		return true
	})
	c.keep(1 << 20)
	c.publish(20, -1)
	c.restart(away)
	c.publish(20, -1)
	back := c.hosts[away].Group(1)
	c.until("it has a snapshot of the leader's", func() bool { return back.SnapshotIndex() > int64(before) && back.AppliedIndex() > before })
	c.publish(20, -1)
	c.elect(away)
}

// keep sets how many entries the hosts keep behind a snapshot.
func (c *terms) keep(n uint64) {
	for _, h := range c.hosts {
		if !h.closed {
			h.config.Retained = int64(n)
			if err := in(h.Group(1)).Reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = n }); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

// endsLeader: the process of the leader ends, and starts again.
func (c *terms) endsLeader() {
	g := c.busy()
	old := c.at(g)
	c.gather()
	c.hosts[old].shut(c.t)
	c.elect((old+1)%len(c.hosts), old)
	c.publish(20, -1)
	c.restart(old)
}

// resigns: a leader is made to step down, and whoever can leads.
func (c *terms) resigns() {
	g := c.busy()
	c.hosts[c.at(g)].mesh.Resign(1, g.Term()+1, trioNames[c.next(g)])
	c.publish(20, -1)
	c.elect(c.next(g))
}

// What a group does while its leader changes is what its log says: the leader of a
// term acts on the entries of that term and nobody else does, every command has one
// answer, the states of replicas are equal, and time does not run back.
func TestTerms(t *testing.T) {
	for _, d := range disturbances {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			c := mustTerms(t)
			c.traffic(20)
			d.do(c)
			c.traffic(20)
			d.do(c)
			c.verify()
		})
	}
}

// The same for disturbances one after the other.
func TestManyTerms(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 7))
			c := mustTerms(t)
			for range 6 {
				disturbances[random.IntN(len(disturbances))].do(c)
				c.gather()
			}
			c.verify()
		})
	}
}

// A leader that was deposed before it noticed gives no answer to what it has taken: its
// entries are replaced by those of the next term.
func TestDeposedLeaderAnswersNothing(t *testing.T) {
	t.Parallel()
	c := mustTerms(t)
	c.traffic(5)
	g := c.leader()
	old := c.at(g)
	c.valve.Set(trioNames[old], true)
	o := c.runs[old].outside
	o.mu.Lock()
	answers := len(o.outcomes)
	o.mu.Unlock()
	c.publish(10, -1) // it does not know
	c.elect((old+1)%len(c.hosts), old)
	c.rest()
	c.valve.Set(trioNames[old], false)
	c.until("the deposed leader follows", func() bool { return g.Leading() == 0 && g.AppliedIndex() >= c.leader().AppliedIndex() })
	o.await(t, "it is said that what it had taken is lost", func() bool { return o.undecided > 0 })
	o.mu.Lock()
	if got := len(o.outcomes); got != answers {
		t.Errorf("%d answers of a leader without a majority", got-answers)
	}
	o.mu.Unlock()
	c.until("all messages are in its machine", func() (all bool) { // raft has applied what it has handed over
		g.View(func(m *queue.Machine) { all = m.Stats().Counters.Enqueued == 15 })
		return all
	})
	c.verify()
}
