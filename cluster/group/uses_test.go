package group

import (
	"io"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// mustRest puts a replica to sleep.
func (g *Group) mustRest(t *testing.T) {
	t.Helper()
	await(t, "it sleeps", func() bool { return g.Sleep(func(*Instance) bool { return true }) })
}

// mustAwaken opens a group, in which a message waits, on three hosts that put none to sleep by themselves.
func mustAwaken(t *testing.T) (c *trio, all []*Group) {
	t.Helper()
	c = mustTrio(t, sleepy, func(c *HostConfig) { c.IdleAfter = 0 })
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
	go func() { slept <- g.Sleep(func(*Instance) bool { return true }) }()
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
	n.slept = n.slept || n.g.Sleep(func(*Instance) bool { return true })
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
	c, all := mustAwaken(t)
	g := all[0]
	for _, r := range all[1:] {
		r.mustRest(t)
	}
	g.mustRest(t)
	if g.Leading() == 0 {
		t.Fatal("it does not lead")
	}
	if err := c.host(g).Drop(1); err != nil || g.Leading() != 0 {
		t.Errorf("it leads in term %d, %v", g.Leading(), err)
	}
}
