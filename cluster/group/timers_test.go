package group

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer/peertest"
)

// noTimers leaves raft without timers, as in production.
func noTimers(c *HostConfig) { c.Heartbeat = 0 }

// mustCut returns three hosts without timers of raft, and what cuts them off.
func mustCut(t *testing.T) (*trio, *peertest.Valve) {
	t.Helper()
	v := peertest.NewValve()
	return mustTrio(t, v.Tune, noTimers), v
}

// mustDepose has another member lead a group whose leader is cut off.
func (c *trio) mustDepose(v *peertest.Valve, old *Group) (leader *Group) {
	c.t.Helper()
	v.Set(old.in().Node(), true)
	leader = c.other(old).Group(old.spec.Group)
	leader.mustStand(c.t)
	return leader
}

// mustStand has a replica stand for election until it leads. It is told so again each time after twice as long: one that is
// told while it is being elected begins anew.
func (g *Group) mustStand(t testing.TB) {
	t.Helper()
	var told time.Time
	pause := 50 * time.Millisecond
	await(t, "it leads", func() bool {
		if time.Since(told) > pause {
			told, pause = time.Now(), 2*pause
			g.in()
			g.node.config.Mesh.Campaign(g.spec.Group)
		}
		return g.Leading() != 0
	})
}

// What raft's timers would heal heals without them: a leader that was cut off hears of the next one as soon as
// it has links again, although nothing happens in the queue.
func TestDeposedLeaderHears(t *testing.T) {
	t.Parallel()
	c, v := mustCut(t)
	all := c.mustOpen(1)
	old := all[0]
	c.mustDepose(v, old)
	if role, _ := old.in().Role(); role != raft.Leader {
		t.Skipf("the machine is too slow: the leader that is cut off is a %v before the next one leads", role)
	}
	v.Set(old.in().Node(), false)
	await(t, "all follow one", func() bool { // the next one, but on a machine that is so slow that it resigns
		return slices.ContainsFunc(all, func(g *Group) bool {
			return g.Leading() != 0 && !slices.ContainsFunc(all, func(m *Group) bool {
				return m.Leader() != g.in().Node() || m.Term() != g.Term()
			})
		})
	})
}

// A link that comes up costs a group nothing on disk if its members have everything.
func TestLinkComesUp(t *testing.T) {
	t.Parallel()
	c, v := mustCut(t)
	all := c.mustOpen(1)
	g, follower := all[0], all[1]
	c.mustPublish(1, 1, 1)
	await(t, "the follower to have everything", func() bool {
		return g.in().Reached(follower.in().Node(), g.Term()).Index == g.in().LastIndex() && follower.in().LastIndex() == g.in().LastIndex()
	})
	before := mustHaveAll(t, all)
	v.Set(follower.in().Node(), true)
	await(t, "no link", func() bool { return !c.host(g).linked(follower.in().Node()) && !c.host(follower).linked(g.in().Node()) })
	v.Set(follower.in().Node(), false)
	await(t, "it learns what is committed", func() bool { return follower.AppliedIndex() == before })
	if last := g.in().LastIndex(); last != before {
		t.Errorf("the log has grown from %d to %d", before, last)
	}
}

// mustHaveAll waits until the leader, the first of all, knows that the others have everything. It returns
// where its log ends.
func mustHaveAll(t *testing.T, all []*Group) uint64 {
	t.Helper()
	g := all[0]
	for _, m := range all[1:] {
		await(t, "all to have everything", func() bool { return g.in().Reached(m.in().Node(), g.Term()).Index == g.in().LastIndex() })
	}
	return g.in().LastIndex()
}

// A member that asks who leads, and has everything, costs no entry either: it is reminded.
func TestQuestionCostsNoEntry(t *testing.T) {
	t.Parallel()
	c, _ := mustCut(t)
	all := c.mustOpen(1)
	g, follower := all[0], all[1]
	c.mustPublish(1, 1, 1)
	before := mustHaveAll(t, all)
	follower.node.Elections.Begin(follower.in())
	await(t, "the leader has said so, and what is committed", func() bool {
		return !follower.node.Elections.Runs(1) && follower.AppliedIndex() == before
	})
	if last := g.in().LastIndex(); last != before {
		t.Errorf("the log has grown from %d to %d", before, last)
	}
}

// Those that have voted for a leader know it.
func TestVotedFor(t *testing.T) {
	t.Parallel()
	all := mustTrio(t).mustOpen(1)
	term, voters := all[0].Term(), 0
	for _, m := range all {
		if m.in().VotedFor(term) == all[0].in().Node() {
			voters++
		}
		if other := m.in().VotedFor(term + 1); other != "" {
			t.Errorf("%s has voted for %s in a term that has not been", m.in().Node(), other)
		}
	}
	if voters < 2 {
		t.Errorf("%d members have voted for the leader", voters)
	}
}

// A member that has missed what is committed learns it from a reminder, and one that lacks entries is sent them.
func TestRemind(t *testing.T) {
	t.Parallel()
	c, v := mustCut(t)
	all := c.mustOpen(1)
	g, follower := all[0], all[2]
	c.mustPublish(1, 1, 1)
	await(t, "the member to have the message", func() bool { return follower.in().LastIndex() == g.in().LastIndex() })
	g.in().Remind(follower.in().Node())
	await(t, "it has applied the message", func() bool { return ready(follower) == 1 })
	v.Set(follower.in().Node(), true)
	c.mustPublish(1, 2, 2)
	v.Set(follower.in().Node(), false)
	await(t, "it has the next one", func() bool { return ready(follower) == 2 })
}

// A leadership can go to a member that has stood for election in the same term, and lost.
func TestTransferToLoser(t *testing.T) {
	t.Parallel()
	c, v := mustCut(t)
	all := c.mustOpen(1)
	g, loser := all[0], all[2]
	v.Set(loser.in().Node(), true)
	await(t, "no link", func() bool { return !c.host(loser).linked(g.in().Node()) })
	loser.node.config.Mesh.Campaign(1)
	await(t, "a candidate", func() bool { role, term := loser.in().Role(); return role == raft.Candidate && term == g.Term()+1 })
	next := all[1]
	await(t, "another leader", func() bool {
		if next.Leading() == 0 {
			_ = g.Transfer(next.in().Node())
		}
		return next.Leading() != 0 && next.Term() == loser.Term()
	})
	v.Set(loser.in().Node(), false)
	await(t, "it follows, in its own way", func() bool {
		role, _ := loser.in().Role()
		return role == raft.Candidate && loser.Leader() == next.in().Node()
	})
	await(t, "the leadership goes there", func() bool {
		return loser.Leading() != 0 || next.Transfer(loser.in().Node()) == nil && loser.Leading() != 0
	})
}
