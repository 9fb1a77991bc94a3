package group

import (
	"io"
	"testing"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// mustRest puts a replica to sleep.
func (g *Group) mustRest(t *testing.T) {
	t.Helper()
	await(t, "it sleeps", func() bool { return g.sleep(func(*instance) bool { return true }) })
}

// mustAwaken opens a group, in which a message waits, on three hosts that put none to sleep by themselves.
func mustAwaken(t *testing.T) (c *trio, all []*Group) {
	t.Helper()
	c = mustTrio(t, sleepy, func(c *Config) { c.IdleAfter = 0 })
	all = c.mustOpen(1)
	c.mustServe(1, 1)
	return c, all
}

// What is requested of a leader is answered, although it falls asleep at that moment: nobody hears of another one, and
// would repeat it.
func TestRequestKeepsAwake(t *testing.T) {
	t.Parallel()
	c, all := mustAwaken(t)
	g := all[0]
	i := g.in()
	i.applier.mu.Lock()
	go g.Resync(fsm.ConsumerID{Session: session, Number: 1}, 0)
	await(t, "the request has come", func() bool { return i.users.n.Load() > 0 })
	slept := make(chan bool)
	go func() { slept <- g.sleep(func(*instance) bool { return true }) }()
	await(t, "it is about to sleep", func() bool {
		if g.changing.TryLock() {
			g.changing.Unlock()
			return false
		}
		return true
	})
	i.applier.mu.Unlock()
	if <-slept {
		t.Error("it sleeps")
	}
	o := c.host(g).outside
	o.await(t, "it is answered", func() bool { return len(o.resyncs) == 1 })
	g.mustRest(t)
	if i.users.begin() {
		t.Error("one that has ended is used")
	}
	g.Resync(fsm.ConsumerID{Session: session, Number: 1}, 0)
	o.await(t, "one that sleeps wakes, and answers", func() bool { return len(o.resyncs) == 2 })
}

// napping is a reader of a history that has the group fall asleep meanwhile, if it can.
type napping struct {
	g     *Group
	slept bool
}

func (n *napping) Restore(io.Reader) error { return nil }

func (n *napping) Apply(uint64, uint64, *logpb.Entry) error {
	n.slept = n.slept || n.g.sleep(func(*instance) bool { return true })
	return nil
}

// Who reads a group's history keeps it awake.
func TestReplayKeepsAwake(t *testing.T) {
	t.Parallel()
	_, all := mustAwaken(t)
	n := &napping{g: all[0]}
	n.g.mustRest(t)
	if err := n.g.Replay(n); err != nil || n.slept {
		t.Errorf("asleep: %t, %v", n.slept, err)
	}
}

// A replica that was dropped while it slept leads nothing.
func TestDroppedSleeperLeadsNothing(t *testing.T) {
	t.Parallel()
	_, all := mustAwaken(t)
	g := all[0]
	for _, r := range all[1:] {
		r.mustRest(t)
	}
	g.mustRest(t)
	if g.Leading() == 0 {
		t.Fatal("it does not lead")
	}
	if err := g.host.Drop(1); err != nil || g.Leading() != 0 {
		t.Errorf("it leads in term %d, %v", g.Leading(), err)
	}
}

// A node dies again while its first death is still being dealt with, which ends, and leaves alone what belongs to the second.
func TestTakeoverLeavesTheNext(t *testing.T) {
	t.Parallel()
	_, all := mustAwaken(t)
	dead := all[0].host.config.Node
	for _, g := range all[1:] {
		g.mustRest(t)
		r, v := g.asleep.Load(), g.host.sleepers.voter
		g.believe(r.at.raft, "")
		if v.candidate(1, r, dead) != g.host.config.Node {
			continue
		}
		term, later := r.at.raft+1, &takeover{dead}
		v.polls[1] = &poll{term: term, takeover: later}
		v.takeOver([]*Group{g}, dead, func() bool { return false })
		if p := v.polls[1]; p == nil || p.takeover != later {
			t.Errorf("the poll is %+v", p)
		}
		mine := &takeover{dead}
		v.stand([]election.Item{{Kind: election.ItemVote, Group: 1, Term: term, Position: r.at.Position}}, mine)
		if p := v.polls[1]; p != nil && p.takeover != mine {
			t.Errorf("the poll that goes on is %+v", p)
		}
		return
	}
	t.Fatal("nobody would stand")
}

// A group that is woken while it is dropped is not there afterwards.
func TestDropWhileWaking(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	g := c.mustSleep(1)[0]
	h := g.host
	if h.groups.remove(1) != g { // as Drop begins
		t.Fatal("another group")
	}
	g.wake()
	g.close()
	if h.Group(1) != nil || len(h.groups.all()) != 0 || len(h.groups.replicas(func(*instance) bool { return true })) != 0 {
		t.Error("it is there")
	}
	if g.wake() != nil && !g.running.Load().IsClosed() {
		t.Error("it wakes")
	}
}
