package host

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// mustSleepWith opens groups in each of which is a message that expires after so long, and waits until all sleep.
func (c *trio) mustSleepWith(n int, ttl fsm.Millis) (ids []fsm.GroupID) {
	c.t.Helper()
	for id := fsm.GroupID(1); int(id) <= n; id++ {
		c.mustOpen(id)
		c.mustTake(id, enqueues(1, ttl, "a"), 1)
		ids = append(ids, id)
	}
	for _, id := range ids {
		c.mustSleep(id)
	}
	return ids
}

// left returns the replicas of a group on the hosts that run, one that leads first.
func (c *trio) left(id fsm.GroupID) (all []*group.Group) {
	for _, h := range c.hosts {
		if g := h.Group(id); !h.closed && g != nil {
			if all = append(all, g); g.Leading() != 0 {
				all[0], all[len(all)-1] = g, all[0]
			}
		}
	}
	return all
}

// When a node dies, the groups that it led and that sleep have new leaders without waking: one term later, on both nodes
// that are left. Whoever uses them finds everything.
func TestSleepersAreTakenOver(t *testing.T) {
	t.Parallel()
	for tries := 1; !takenOver(t); tries++ {
		if tries == 10 {
			t.Fatal("what is due wakes them each time")
		}
	}
}

// takenOver returns false if what is due, so soon that nobody waits for the leader, wakes them before all are taken over: the
// machine is slow.
func takenOver(t *testing.T) bool {
	t.Helper()
	c := mustTrio(t, sleepy)
	const ttl = dueSoon - 1000
	due := time.Now().Add(time.Duration(ttl) * time.Millisecond)
	all, ids, terms := c.mustSleepWith(16, ttl), []fsm.GroupID(nil), map[fsm.GroupID]uint64{}
	for _, id := range all {
		if g := c.mustSleep(id)[0]; c.nodeOf(g) == trioNames[0] { // others have moved, since the machine is slow
			ids = append(ids, id)
			terms[id] = g.Term()
		}
	}
	if len(ids) == 0 {
		t.Fatal("it leads none")
	}
	c.mustStop(0)
	leaders, exact := map[string]int{}, 0
	for _, id := range ids {
		var all []*group.Group
		await(t, "another leads it", func() bool {
			all = c.left(id)
			return all[0].Leading() != 0 && all[1].Leader() == c.nodeOf(all[0])
		})
		leaders[c.nodeOf(all[0])]++
		for _, g := range all {
			if g.Term() <= terms[id] {
				t.Fatalf("group %d was in term %d, its replica at %s is in term %d", id, terms[id], c.nodeOf(g), g.Term())
			}
			if g.Asleep() && g.Term() == terms[id]+1 { // others have been woken: for what is due, or since the machine is slow
				exact++
			}
		}
		o, term := c.host(all[0]).outside, all[0].Term()
		o.await(t, "that is known", func() bool { return slices.ContainsFunc(o.terms, func(told uint64) bool { return told >= term }) })
	}
	if exact == 0 && time.Now().After(due) {
		return false
	}
	if exact == 0 {
		t.Error("none has been taken over asleep")
	}
	if len(ids) == len(all) && len(leaders) != 2 {
		t.Errorf("they are led by %v", leaders)
	}
	for _, id := range ids[:min(len(ids), 4)] {
		all := c.left(id)
		c.mustTake(id, enqueues(2, -1, "b"), 2)
		for _, g := range all {
			await(t, "the next message is taken", func() (taken bool) {
				g.View(func(m *queue.Machine) { taken = m.Stats().Counters.Enqueued == 2 }) // the first one may have expired
				return taken
			})
		}
		await(t, "both sleep again", func() bool { return all[0].Asleep() && all[1].Asleep() })
		c.mustAgree(all, all[0].AppliedIndex())
	}
	return true
}

// A replica that sleeps votes as raft would if it was awake.
func TestSleeperVotes(t *testing.T) {
	t.Parallel()
	for tries := 1; !sleeperVotes(t); tries++ {
		if tries == 10 {
			t.Fatal("something wakes it each time")
		}
	}
}

// sleeperVotes returns false if the replica was woken meanwhile: the machine is slow.
func sleeperVotes(t *testing.T) bool {
	t.Helper()
	c := mustTrio(t, sleepy)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	all := c.mustSleep(1)
	for _, g := range all {
		c.host(g).sleepers.sweeping.Store(true) // nobody wakes them for having no leader
	}
	leader, g := c.nodeOf(all[0]), all[1]
	r := g.Record()
	other := c.nodeOf(all[2])
	shorter, longer := r.At().Position, r.At().Position
	shorter.Index--
	longer.Index++
	stored := func(g *group.Group, key string) string {
		store := c.host(g).store
		log, err := store.Group(1)
		if err != nil {
			t.Fatal(err)
		}
		v, err := log.Get([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		store.Unload(1) // unless it has been woken
		return fmt.Sprintf("%x", v)
	}
	for _, x := range []struct {
		what, candidate string
		term            uint64
		position        replica.Position
		of              *group.Group
		votes           bool
	}{
		{"a leader is up", other, 1, longer, g, false},
		{"it leads", other, 1, longer, all[0], false},
		{"all is right", leader, 1, r.At().Position, g, true},
		{"an older term", leader, 0, longer, g, false},
		{"not a member", "n9", 2, longer, g, false},
		{"a shorter log", leader, 2, shorter, g, false},
		{"asked again", leader, 1, r.At().Position, g, true},
		{"it has voted", other, 1, longer, g, false},
		{"a later term", other, 2, longer, g, true},
	} {
		term := r.At().Raft + x.term
		if err := x.of.Settle(); err != nil { // who is about to wake or to sleep is passed over
			t.Fatal(err)
		}
		is := c.host(x.of).sleepers.voter.vote(x.candidate, []election.Item{{Kind: election.ItemVote, Group: 1, Term: term, Position: x.position}})
		now := x.of.Record()
		if now == nil {
			return false
		}
		if (len(is) == 1) != x.votes {
			t.Errorf("%s: %v", x.what, is)
		}
		if is, want := stored(x.of, raftlog.TermKey), fmt.Sprintf("%016x", now.At().Raft); is != want {
			t.Errorf("%s: the term on disk is %s, in the record %s", x.what, is, want)
		}
		if x.votes && (now.At().Raft != term || now.Leader() != "") {
			t.Errorf("%s: the record is %+v", x.what, now)
		}
	}
	if is := stored(g, raftlog.VotedForKey); is != fmt.Sprintf("%x", other) || stored(g, raftlog.TermKey) != stored(g, raftlog.VoteTermKey) {
		t.Errorf("the vote is for %s in term %s", is, stored(g, raftlog.VoteTermKey))
	}
	g.Wake()
	if is := c.host(g).sleepers.voter.vote(leader, []election.Item{{Kind: election.ItemVote, Group: 1, Term: r.At().Raft + 9, Position: longer}}); len(is) > 0 {
		t.Error("the voter votes for a group that is awake")
	}
	return true
}

// Nobody leads with fewer votes than a majority, with votes of another term, or with the same one twice.
func TestTakeoverNeedsMajority(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	for id, selfFirst := range map[fsm.GroupID]bool{1: false, 2: true} {
		c.mustOpen(id)
		c.mustTake(id, enqueues(1, -1, "a"), 1)
		g := c.mustSleep(id)[1]
		r, v := g.Record(), c.host(g).sleepers.voter
		believe(g, r.At().Raft, "")
		it := election.Item{Kind: election.ItemVote, Group: id, Term: r.At().Raft + 1, Position: r.At().Position}
		self := c.nodeOf(g)
		if len(v.vote(self, []election.Item{it})) != 1 {
			t.Fatal("it does not vote for itself")
		}
		v.polls[id] = &poll{term: it.Term}
		late := it
		late.Term--
		first, last := trioNames[0], self
		if selfFirst {
			first, last = self, trioNames[0]
		}
		v.voted("another", []election.Item{late})
		v.voted(first, []election.Item{it})
		v.voted(first, []election.Item{it})
		if p := v.polls[id]; p == nil || len(p.votes) != 1 {
			t.Fatalf("it counts %+v", p)
		}
		v.voted(last, []election.Item{it})
		await(t, "it leads", func() bool { return g.Leading() == it.Term || !g.Asleep() && g.Term() >= it.Term })
	}
}
