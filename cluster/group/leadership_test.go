package group

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// A leader that raft does not give a barrier, because it is handing over and
// will not succeed, begins to lead when raft goes on.
func TestLeadershipBeginsAfterRefusedBarrier(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	g := c.mustOpen(1)[0]
	lost := c.other(g)
	lost.shut(t)
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "an entry that the lost one does not have", func() bool { return ready(g) == 1 })
	term := g.Term()
	// Raft hands over to a member that has everything, and refuses everything
	// until it finds that this one does not get there.
	transfer := g.raft.Load().LeadershipTransferToServer(raft.ServerID(lost.config.Node), raft.ServerAddress(lost.config.Node))
	g.leadership.changing.Lock()
	g.leave()
	g.leadership.changing.Unlock()
	if err := g.barrier(0); err == nil {
		t.Fatal("raft gives a barrier while it hands over")
	}
	g.review()
	if transfer.Error() == nil {
		t.Fatal("a node that is gone leads")
	}
	await(t, "the leader serves", func() bool { return g.Leading() == term })
}

// other returns a host that does not have this replica.
func (c *trio) other(g *Group) *lone {
	for _, h := range c.hosts {
		if h.Group(g.Spec().Group) != g {
			return h
		}
	}
	c.t.Fatal("no other host")
	return nil
}

// A leadership begins in the term that its barrier was asked for in, or not at all.
func TestLeadershipOfOneTerm(t *testing.T) {
	refused := errors.New("refused")
	for _, tc := range []struct {
		name   string
		terms  []uint64 // as they are read; the last one stays
		errs   []error  // of the barriers
		leads  bool
		want   uint64
		rounds int
	}{
		{"at once", []uint64{3}, []error{nil}, true, 3, 1},
		{"refused twice", []uint64{3}, []error{refused, refused, nil}, true, 3, 3},
		{"another term meanwhile", []uint64{3, 5}, []error{nil, nil}, true, 5, 2},
		{"lost", []uint64{3}, []error{nil}, false, 0, 1},
		{"lost and refused", []uint64{3}, []error{refused}, false, 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			reads, rounds := 0, 0
			term := func() uint64 {
				reads++
				return tc.terms[min(reads, len(tc.terms))-1]
			}
			barrier := func() error {
				rounds++
				return tc.errs[rounds-1]
			}
			got := awaitBarrier(term, func() bool { return tc.leads }, barrier, nil)
			if got != tc.want || rounds != tc.rounds {
				t.Errorf("%s: term %d after %d barriers, want %d after %d", tc.name, got, rounds, tc.want, tc.rounds)
			}
		})
	}
	ending := make(chan struct{})
	close(ending)
	if awaitBarrier(func() uint64 { return 1 }, func() bool { return true }, func() error { return refused }, ending) != 0 {
		t.Error("a group that ends begins to lead")
	}
	g := mustTrio(t).mustOpen(1)[0]
	for _, term := range []uint64{g.Term() - 1, g.Term() + 1} {
		if _, ok := g.begin(term); ok {
			t.Errorf("in term %d a leadership begins in term %d", g.Term(), term)
		}
	}
}

// Raft may tell of a leader whose node has died since: the group is looked
// after as one without a leader.
func TestLeaderThatDiedBeforeItWasSeen(t *testing.T) {
	c := mustTrio(t)
	all := c.mustOpen(1)
	dead, g := c.host(all[0]), all[1]
	h := c.host(g)
	name := dead.config.Node
	dead.shut(t)
	await(t, "the node is dead", func() bool { return !h.mesh.Alive(name) })
	for _, other := range c.hosts { // nobody campaigns
		other.elections.end(1)
	}
	h.leaderSeen(g, name)
	h.elections.mu.Lock()
	noted := h.elections.running[fsm.GroupID(1)] != nil
	h.elections.mu.Unlock()
	if !noted && h.Group(1).Leader() == name {
		t.Error("nobody looks for a leader")
	}
}

// A transfer that takes too long makes the leader of then resign, and not the
// one that has come meanwhile.
func TestResignsOfItsOwnTerm(t *testing.T) {
	c := mustTrio(t)
	g := c.mustOpen(1)[0]
	transferee := c.other(g)
	term := g.Term()
	await(t, "the other one has what the leader has", func() bool { return transferee.Group(1).raft.Load().LastIndex() >= g.raft.Load().LastIndex() })
	transferee.mesh.Campaign(1)
	latest := term
	await(t, "the other one leads", func() bool {
		for _, r := range c.replicas(1) {
			switch now := r.Leading(); {
			case r == transferee.Group(1) && now > term:
				return true
			case now > latest: // elected instead
				latest = now
				transferee.mesh.Campaign(1)
			}
		}
		return false
	})
	c.host(g).mesh.Resign(1, term+1, transferee.config.Node)
	if err := transferee.Group(1).Barrier(time.Second); err != nil || transferee.Group(1).Leading() == 0 {
		t.Errorf("the leader of a later term is disturbed: %v", err)
	}
}
