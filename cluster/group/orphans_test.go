package group

import (
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/peer/peertest"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
)

// mustOpenValved opens one group, in which a message waits, on three hosts whose links go through a valve, and waits until
// it sleeps.
func mustOpenValved(t *testing.T, tune ...any) (c *trio, v *peertest.Valve, all []*Group) {
	t.Helper()
	v = peertest.NewValve()
	c = mustTrio(t, append(tune, sleepy, v.Tune)...)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	return c, v, c.mustSleep(1)
}

// believe has a replica that sleeps know another leader, or none.
func (g *Group) believe(leader string) {
	for g.changing.Lock(); !g.Asleep(); g.changing.Lock() { // it may just have been asked again whether it sleeps
		g.changing.Unlock()
		runtime.Gosched()
	}
	defer g.changing.Unlock()
	r := g.asleep.Load()
	n := r.in(r.at.Raft, leader)
	g.node.sign(n)
	g.put(n)
}

// votes has a replica that sleeps vote, and reports whether it has.
func (g *Group) votes(t *testing.T, candidate string, it election.Item) bool {
	t.Helper()
	v, ok := g.Vote(candidate, it)
	if !ok {
		return false
	}
	defer v.End()
	if !g.node.config.Store.Vote(candidate, []raftlog.Ballot{v.Ballot})[0] {
		return false
	}
	v.Given()
	return true
}

// Replicas that sleep and know no leader, since an election was given up, find one.
func TestSleepersWithoutLeaderFindOne(t *testing.T) {
	t.Parallel()
	c, _, all := mustOpenValved(t)
	for _, g := range all {
		g.believe("")
	}
	await(t, "another leads", func() bool { return c.leads(1) })
	c.mustServe(1, 2)
}

// leads reports whether a group has a leader that serves.
func (c *trio) leads(id fsm.GroupID) bool {
	for _, h := range c.hosts {
		if g := h.Group(id); !h.closed && g != nil && g.Leading() != 0 {
			return true
		}
	}
	return false
}

// A leader's node is back before the others lose patience, in another process, which leads nothing. They do not wait for
// its replica to say so: it may be opened late.
func TestSleepersOfRestartedLeaderFindAnother(t *testing.T) {
	t.Parallel()
	c, v, all := mustOpenValved(t)
	i := 0
	for k, h := range c.hosts {
		if h == c.host(all[0]) {
			i = k
		}
	}
	c.hosts[i].shut(t)
	for _, g := range all[1:] {
		await(t, "it is down", func() bool { return !g.node.config.Mesh.Alive(trioNames[i]) })
	}
	l, err := net.Listen("tcp", c.nodes[trioNames[i]].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.nodes[trioNames[i]] = l
	c.hosts[i] = mustHostOf(t, c.hosts[i].dir, trioNames[i], c.nodes, slog.New(slog.NewTextHandler(c.log, nil)), sleepy, v.Tune)
	await(t, "another leads", func() bool { return c.leads(1) })
	c.mustOpenAt(c.hosts[i], 1)
	c.mustServe(1, 2)
}

// Whoever waits for a leader gets one, although each replica takes another one that is up for the leader.
func TestWishWakesSleepersThatNobodyLeads(t *testing.T) {
	t.Parallel()
	c, _, all := mustOpenValved(t)
	for k, g := range all {
		g.believe(all[(k+1)%3].node.config.Node)
	}
	said := time.Time{}
	await(t, "one leads", func() bool {
		if time.Since(said) > time.Second/5 {
			said = time.Now()
			c.hosts[0].Want(1, trioNames)
		}
		return c.leads(1)
	})
	c.mustServe(1, 2)
}

// A replica does not fall asleep while somebody waits for an entry.
func TestWaitKeepsAwake(t *testing.T) {
	t.Parallel()
	c, _, all := mustOpenValved(t)
	g, at := all[1], all[0].AppliedIndex()+10
	hash := make(chan string)
	go func() {
		_, h, _ := g.HashAt(at, patience)
		hash <- h
	}()
	await(t, "it is awake", func() bool { return !g.Asleep() })
	await(t, "somebody waits", func() bool { return g.in().users.n.Load() > 0 })
	if g.Sleep(func(*Instance) bool { return true }) {
		t.Error("it falls asleep")
	}
	for seq := uint64(2); g.AppliedIndex() < at; seq++ {
		c.mustServe(1, seq)
	}
	if <-hash == "" {
		t.Error("nobody waits any more")
	}
}

// A leader that was elected asleep has to hear from a majority before it serves. Who wakes it does not wait for that, nor
// does anybody who needs the group meanwhile, and it takes what was submitted to it when there is one.
func TestWakeWaitsForNobody(t *testing.T) {
	t.Parallel()
	c, v, all := mustOpenValved(t, func(c *HostConfig) { c.Progress = patience }) // it does not give up
	g := all[1]
	await(t, "it leads, and has lost its links", func() bool { // others may stand for election meanwhile
		v.Set(g.node.config.Node, false)
		for _, r := range all {
			r.believe("")
		}
		at := g.asleep.Load()
		if at == nil {
			return false
		}
		vote := election.Item{Kind: election.ItemVote, Group: 1, Position: at.at.Position}
		for _, r := range all {
			vote.Term = max(vote.Term, r.Term()+1)
		}
		for _, r := range all {
			if !r.votes(t, g.node.config.Node, vote) {
				return false
			}
		}
		if !g.Won(vote.Term) {
			return false
		}
		v.Set(g.node.config.Node, true)
		return g.Submit(enqueues(2, -1, "b")) == nil
	})
	awake := make(chan bool)
	go func() {
		i := g.Wake()
		g.Sleep(func(*Instance) bool { return true })
		awake <- i != nil
	}()
	select {
	case is := <-awake:
		if !is || g.Leading() != 0 {
			t.Error("it sleeps, or serves without a majority")
		}
	case <-time.After(10 * time.Second):
		t.Error("who wakes the group waits for other members")
	}
	v.Set(g.node.config.Node, false)
	o := c.host(g).outside
	o.await(t, "the message that has waited is taken, or comes back since others have lost patience", func() bool {
		return len(o.outcomes) > 0 || o.undecided > 0
	})
}
