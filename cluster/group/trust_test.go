package group

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// start opens a host that was shut again, and its replica of a group.
func (c *trio) start(i int, id fsm.GroupID) *Group {
	c.t.Helper()
	name, dir := trioNames[i], c.hosts[i].dir
	l, err := net.Listen("tcp", c.nodes[name].Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = l
	c.hosts[i] = mustHostOf(c.t, dir, name, c.nodes, slog.New(slog.NewTextHandler(c.log, nil)))
	g, err := c.hosts[i].Open(Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: "q", Members: trioNames, Config: &QueueConfig{DeliveryLimit: 20}})
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

// mustPublish has the leader commit messages with numbers up to last.
func (c *trio) mustPublish(id fsm.GroupID, from, last uint64) {
	c.t.Helper()
	for seq := from; seq <= last; seq++ {
		c.mustServe(id, seq)
	}
}

// mustHold waits until a replica has applied so many messages.
func mustHold(t *testing.T, g *Group, n uint64) {
	t.Helper()
	await(t, "the replica holds every message", func() bool { return ready(g) == n })
}

// lose deletes what a host keeps of its queues, but not the ledger.
func lose(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, "queues")); err != nil {
		t.Fatal(err)
	}
}

// back puts an older copy in the place of a store.
func back(t *testing.T, dir, older string) {
	t.Helper()
	lose(t, dir)
	if err := os.CopyFS(filepath.Join(dir, "queues"), os.DirFS(older)); err != nil {
		t.Fatal(err)
	}
}

// A replica that has lost what it acknowledged, all of it or the end, makes no
// leader of a member that lacks it. The group waits for one that has it; that
// one brings the replica up to date, which then votes, and leads.
func TestLearnerElectsNobody(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		lose func(t *testing.T, dir, older string)
	}{
		{"lost folder", func(t *testing.T, dir, _ string) { lose(t, dir) }},
		{"older image", back},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			learnerElectsNobody(t, tc.lose)
		})
	}
}

func learnerElectsNobody(t *testing.T, lose func(t *testing.T, dir, older string)) {
	const early, all = 3, 10
	c := mustTrio(t)
	c.mustOpen(1)
	c.mustPublish(1, 1, early)
	lead := slices.Index(trioNames, c.mustLead(1).Leader())
	learns, lags := (lead+1)%3, (lead+2)%3
	for _, g := range c.replicas(1) {
		mustHold(t, g, early)
	}
	// The image is of a store that was closed.
	older, dir := filepath.Join(t.TempDir(), "older"), c.hosts[learns].dir
	c.hosts[learns].shut(t)
	if err := os.CopyFS(older, os.DirFS(filepath.Join(dir, "queues"))); err != nil {
		t.Fatal(err)
	}
	learner := c.start(learns, 1)
	mustHold(t, learner, early)
	c.hosts[lags].shut(t)
	c.mustPublish(1, early+1, all)
	mustHold(t, learner, all)

	c.hosts[learns].shut(t)
	c.hosts[lead].shut(t)
	lose(t, dir, older)
	learner, lagsMuch := c.start(learns, 1), c.start(lags, 1)
	if learner.Doubt() == nil || len(c.hosts[learns].Learners()) != 1 || lagsMuch.Doubt() != nil {
		t.Fatalf("in doubt: %v, and %v", learner.Doubt(), lagsMuch.Doubt())
	}
	for range 3 {
		mustLose(t, c.hosts[lags], lagsMuch, learner)
	}
	mustLose(t, c.hosts[learns], learner, nil)

	full := c.start(lead, 1)
	await(t, "the learner votes", func() bool { return learner.Doubt() == nil })
	for _, g := range []*Group{full, learner, lagsMuch} {
		mustHold(t, g, all)
	}
	c.hosts[lead].shut(t)
	c.mustLead(1)
	await(t, "the former learner leads", func() bool {
		if g := c.mustLead(1); g != learner {
			_ = g.Transfer(trioNames[learns])
		}
		return learner.Leading() != 0
	})
	c.mustPublish(1, all+1, all+2)
	c.hosts[learns].shut(t)
	if again := c.start(learns, 1); again.Doubt() != nil {
		t.Errorf("in doubt again: %v", again.Doubt())
	}
}

// mustLose has a replica stand for election. Nobody leads when the other one
// has heard of it, nor if it is a learner, and does not even ask.
func mustLose(t *testing.T, n *lone, g, other *Group) {
	t.Helper()
	before := g.Term()
	if other != nil {
		await(t, "a link", func() bool { return n.linked(other.node.config.Node) })
	}
	replica.Stand(n.mesh, 1, n.config.Node, g.in())
	if other == nil {
		if err := n.mesh.Transport(1).TimeoutNow("n1", "n1", &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{}); err == nil {
			t.Error("a node asks itself")
		}
	} else {
		since := time.Now()
		await(t, "the candidate's term is known", func() bool {
			if time.Since(since) > time.Second { // the link has broken meanwhile, and raft asks once
				since = time.Now()
				replica.Stand(n.mesh, 1, n.config.Node, g.in())
			}
			return g.Term() > before && other.Term() >= g.Term()
		})
	}
	for _, r := range []*Group{g, other} {
		if r != nil && (r.Leading() != 0 || r.in().Raft().State() == raft.Leader) {
			t.Fatal("it leads, and lacks what is committed")
		}
	}
}

// A learner gives no vote, in no term, whoever asks: neither one that it may have
// given already, nor a new one. What it is voted of a term it takes up.
func TestLearnerGivesNoVote(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	c.mustOpen(1)
	c.mustPublish(1, 1, 2)
	lead := slices.Index(trioNames, c.mustLead(1).Leader())
	learns := (lead + 1) % 3
	if mustVote(t, c.hosts[learns].Group(1)) == 0 { // two votes are enough
		learns = (lead + 2) % 3
	}
	for i := range c.hosts {
		c.hosts[i].shut(t)
	}
	lose(t, c.hosts[learns].dir)
	learner := c.start(learns, 1)
	term, voted := learner.Term(), mustVote(t, learner)
	if term == 0 || voted == 0 {
		t.Fatalf("term %d, voted in %d: the ledger has lost that", term, voted)
	}
	asks := 3 - lead - learns
	asker := c.start(asks, 1)
	name := raft.ServerID(trioNames[learns])
	await(t, "a link", func() bool { return c.hosts[asks].linked(string(name)) })
	transport := c.hosts[asks].mesh.Transport(1).(replica.Transport)
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}
	for _, in := range []uint64{voted, term, term + 5} {
		var pre raft.RequestPreVoteResponse
		err := transport.RequestPreVote(name, "", &raft.RequestPreVoteRequest{RPCHeader: header, Term: in + 100, LastLogIndex: 1 << 20, LastLogTerm: in}, &pre)
		if err != nil || pre.Granted || pre.Term > in+100 {
			t.Errorf("term %d: would vote: %v, in %d, %v", in, pre.Granted, pre.Term, err)
		}
		var vote raft.RequestVoteResponse
		err = transport.RequestVote(name, "", &raft.RequestVoteRequest{RPCHeader: header, Term: in, LastLogIndex: 1 << 20, LastLogTerm: in, LeadershipTransfer: true}, &vote)
		if err != nil || vote.Granted {
			t.Errorf("term %d: votes: %v, %v", in, vote.Granted, err)
		}
	}
	if learner.Term() < term+5 {
		t.Errorf("term %d, it was voted of %d", learner.Term(), term+5)
	}
	if now := mustVote(t, learner); now != voted {
		t.Errorf("a vote of term %d is stored, want %d", now, voted)
	}
	if err := transport.TimeoutNow(name, "", &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{}); err == nil {
		t.Error("it is made a candidate")
	}
	if asker.Leading() != 0 || learner.Leading() != 0 {
		t.Error("one of them leads")
	}
}

// linked reports whether a node can be sent to.
func (n *lone) linked(node string) bool {
	return slices.ContainsFunc(n.mesh.Peers(), func(p peer.PeerStatus) bool { return p.Node == node && p.Linked })
}

// mustVote reads the term of the last vote.
func mustVote(t *testing.T, g *Group) uint64 {
	t.Helper()
	n, err := g.in().store.GetUint64([]byte(raftlog.VoteTermKey))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A learner of a queue that nobody uses becomes a voter, too, if its leader has
// sent everything that there was long before.
func TestLearnerOfIdleQueue(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	c.mustOpen(1)
	c.mustPublish(1, 1, 2)
	lead := slices.Index(trioNames, c.mustLead(1).Leader())
	learns := (lead + 1) % 3
	c.hosts[learns].shut(t)
	lose(t, c.hosts[learns].dir)
	learner := c.start(learns, 1)
	await(t, "the learner votes", func() bool { return learner.Doubt() == nil })
	mustHold(t, learner, 2)
	await(t, "it stands by raft's timers", func() bool { return learner.in().Raft().ReloadableConfig().HeartbeatTimeout < replica.Never })
	await(t, "that is said", func() bool { return strings.Contains(c.log.String(), "the replica is up to date again") })
}

// Replicas that can prove nothing, and are most of their group's, found no group
// anew, and elect nobody. They say that it stands still, once. So does the only
// one of its group.
func TestLearnersAreStuck(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	c.mustOpen(1)
	c.mustPublish(1, 1, 2)
	lead := slices.Index(trioNames, c.mustLead(1).Leader())
	for i := range c.hosts {
		c.hosts[i].shut(t)
		if i != lead {
			lose(t, c.hosts[i].dir)
		}
	}
	var learners []*Group
	full := c.start(lead, 1)
	for i := range c.hosts {
		if i != lead {
			learners = append(learners, c.start(i, 1))
		}
	}
	for _, g := range learners {
		if c := g.in().Raft().ReloadableConfig(); c.HeartbeatTimeout != replica.Never || c.ElectionTimeout != replica.Never {
			t.Errorf("it would stand by raft's timers, after %v and %v", c.HeartbeatTimeout, c.ElectionTimeout)
		}
		await(t, "it stands still", func() bool {
			d := g.Doubt()
			if d == nil {
				t.Fatal("a replica that has lost everything votes")
			}
			return d.Stuck
		})
		mustLose(t, c.hosts[lead], full, g)
	}
	if said := strings.Count(c.log.String(), "group is stopped"); said != len(learners) {
		t.Errorf("that is said %d times", said)
	}

	n := mustHost(t, t.TempDir())
	n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	n.shut(t)
	lose(t, n.dir)
	n = mustHost(t, n.dir)
	g, err := n.Open(Spec{Group: 1, Queue: 1, VHost: "/", Name: "q", Members: []string{"n1"}, Config: &QueueConfig{DeliveryLimit: 20}})
	if err != nil {
		t.Fatal(err)
	}
	if g.Doubt() == nil {
		t.Fatal("a replica that has lost everything votes")
	}
	await(t, "it stands still", func() bool { return g.Doubt().Stuck })
	n.mesh.Campaign(1)
	if g.Leading() != 0 || len(g.Voters()) != 0 {
		t.Errorf("the group is founded anew, of %v", g.Voters())
	}
}
