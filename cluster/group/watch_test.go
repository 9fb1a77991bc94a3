package group

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm/queue"
)

// handClock is a time that only the test lets pass.
type handClock struct{ at atomic.Int64 }

func (c *handClock) now() time.Duration     { return time.Duration(c.at.Load()) }
func (c *handClock) pass(d time.Duration)   { c.at.Add(int64(d)) }
func (c *handClock) set(config *HostConfig) { config.Awake = c.now }

// await waits for a state and lets time pass until then: nobody is blamed for
// what takes long before or after.
func (c *handClock) await(t testing.TB, what string, f func() bool) {
	t.Helper()
	await(t, what, func() bool {
		if f() {
			return true
		}
		c.pass(5 * time.Millisecond)
		return false
	})
}

func quickWatch(c *HostConfig)  { c.Progress = 300 * time.Millisecond }
func patientRaft(c *HostConfig) { c.Heartbeat = time.Minute }

// mustResign lets time pass until this replica has resigned once, for this
// reason, and returns the one that leads instead.
func (c *trio) mustResign(clock *handClock, g *Group, reason string) *Group {
	c.t.Helper()
	h := c.host(g)
	clock.await(c.t, "the leader resigns", func() bool {
		count, _, _ := h.Resigned()
		return count[reason] > 0
	})
	count, of, s := h.Resigned()
	for _, other := range replica.Reasons {
		if other != reason && count[other] != 0 {
			c.t.Errorf("it has resigned for %s", other)
		}
	}
	if of != g || s.Reason != reason || s.For < h.Bound() || s.Term == 0 || s.Last < s.Applied {
		c.t.Errorf("it has resigned as %+v", s)
	}
	if g.Leading() == s.Term {
		c.t.Error("it serves all the same")
	}
	var next *Group
	await(c.t, "somebody leads in a later term", func() bool {
		for _, r := range c.replicas(1) {
			if r.Leading() > s.Term {
				next = r
				return true
			}
		}
		return false
	})
	if log := c.log.String(); !strings.Contains(log, "is making no progress") || !strings.Contains(log, "reason="+reason) {
		c.t.Errorf("the log does not say why: %s", log)
	}
	return next
}

// A leader whose machine hangs, and with it all that is committed, gives way,
// although its raft answers every heartbeat. What it took is not lost for the
// others, and it follows when its machine goes on.
func TestLeaderHangs(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, clock.set)
	g := c.mustOpen(1)[0]
	c.mustServe(1, 1)
	g.in().applier.mu.Lock()
	goOn := sync.OnceFunc(g.in().applier.mu.Unlock)
	defer goOn() // a machine that hangs for ever cannot be closed
	mustSubmit(t, g, enqueues(2, -1, "m"))
	next := c.mustResign(clock, g, replica.StuckEntries)
	await(t, "what it had proposed is there", func() bool { return ready(next) == 2 })
	goOn()
	await(t, "the former leader follows", func() bool { return ready(g) == 2 && g.in().Raft().State() == raft.Follower })
	c.mustServe(1, 3)
}

// A leader that applies and does not answer, as when a payload cannot be read, gives way.
func TestEffectsHang(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, clock.set)
	g := c.mustOpen(1)[0]
	c.mustServe(1, 1)
	o := c.host(g).outside
	o.mu.Lock()
	o.hang = make(chan struct{})
	o.mu.Unlock()
	defer close(o.hang)
	mustSubmit(t, g, enqueues(2, -1, "m"))
	await(t, "it is applied", func() bool { return ready(g) == 2 })
	next := c.mustResign(clock, g, replica.StuckEffects)
	mustSubmit(t, next, enqueues(3, -1, "m"))
	await(t, "the next leader serves", func() bool { return ready(next) == 3 })
}

// A tick that is taken for one that is under way, and is not, stops the time of
// the queue: its leader gives way, and another one lets pass what is due.
func TestTickHangs(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, clock.set)
	g := c.mustOpen(1)[0]
	g.in().timer.mu.Lock()
	g.in().timer.inFlight = true
	g.in().timer.mu.Unlock()
	mustSubmit(t, g, enqueues(1, 1, "short", "lives"))
	await(t, "they are applied", func() bool { return ready(g) == 2 && !g.in().Busy() })
	next := c.mustResign(clock, g, replica.StuckTick)
	expire(t, next)
}

// Settings that a leader takes for proposed, and that its log does not have, are
// brought in by another one.
func TestSettingsHang(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, clock.set)
	g := c.mustOpen(1)[0]
	for _, r := range c.replicas(1) {
		r.in().settings.mu.Lock()
		r.spec.Config.DeliveryLimit, r.spec.Config.Revision = 7, 3
		r.in().settings.mu.Unlock()
	}
	g.in().settings.mu.Lock()
	g.in().settings.proposed = g.node.wantedSettings(&g.spec)
	g.in().settings.mu.Unlock()
	c.host(g).Reconfigure(nil)
	g.in().settings.change()
	next := c.mustResign(clock, g, replica.StuckSettings)
	await(t, "the settings are those of the catalog", func() (yes bool) {
		next.View(func(m *queue.Machine) { yes = m.Config().DeliveryLimit == 7 })
		return yes
	})
}

// A leader that has resigned goes on if nobody else can be elected, or nobody
// takes over.
func TestResignationInVain(t *testing.T) {
	clock := &handClock{}
	clock.pass(time.Hour)
	c := mustTrio(t, quickWatch, clock.set, patientRaft)
	g := c.mustOpen(1)[0]
	h := c.host(g)
	term := g.Term()
	for _, other := range c.hosts {
		if other != h {
			other.Withdraw() // nobody takes over
		}
	}
	g.in().leadership.resigned.Term.Store(term)
	g.in().leadership.resigned.At = clock.now()
	g.in().TransferTo("n9", false)
	await(t, "it serves again", func() bool { return g.Leading() == term })

	g.in().leadership.resigned.Term.Store(term)
	if x := (&Watched{}); !g.in().leadsNobody(clock.now()) {
		t.Errorf("it is not looked at any more: %+v", x)
	}
	clock.pass(3*h.Bound() + 1)
	if !g.in().leadsNobody(clock.now()) || g.in().leadership.resigned.Term.Load() != 0 {
		t.Error("it leads nobody for ever")
	}
	await(t, "it serves again", func() bool { return g.Leading() == term })
}

// One who is told to take over and does not is followed by an election in a later
// term: the leader steps down.
func TestNobodyTakesOver(t *testing.T) {
	c := mustTrio(t, patientRaft)
	g := c.mustOpen(1)[0]
	term := g.Term()
	gone := c.other(g)
	gone.shut(t)
	g.in().leadership.resigned.Term.Store(term)
	g.in().TransferTo(gone.config.Node, true)
	await(t, "raft steps down", func() bool { return g.Term() > term })
	c.mustServe(1, 1)
}

// One who is told to take over and does not answer, since its raft hangs as well,
// keeps nobody: the leader steps down.
func TestTransfereeHangs(t *testing.T) {
	c := mustTrio(t, patientRaft)
	g := c.mustOpen(1)[0]
	term := g.Term()
	transferee := c.other(g)
	transferee.mesh.DropGroup(1)
	transferee.mesh.Transport(1) // of which nothing is taken
	g.in().leadership.resigned.Term.Store(term)
	g.in().TransferTo(transferee.config.Node, true)
	await(t, "raft steps down", func() bool { return g.Term() > term })
	if log := c.log.String(); !strings.Contains(log, "did not win the election in time") {
		t.Errorf("the log does not say why: %s", log)
	}
}

// A leader gives way although its change of leadership hangs, too.
func TestLeadershipHangs(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, clock.set)
	g := c.mustOpen(1)[0]
	term := g.Term()
	g.in().leadership.changing.Lock()
	leave := sync.OnceFunc(g.in().leadership.changing.Unlock)
	defer leave()
	g.in().applier.mu.Lock()
	goOn := sync.OnceFunc(g.in().applier.mu.Unlock)
	defer goOn()
	mustSubmit(t, g, enqueues(1, -1, "m"))
	clock.await(t, "another one leads", func() bool {
		for _, r := range c.replicas(1) {
			if r != g && r.Leading() > term {
				return true
			}
		}
		return false
	})
}

// A leader that hands over makes no progress meanwhile, and is not to blame.
func TestHandoverIsNoHang(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, clock.set, patientRaft)
	g := c.mustOpen(1)[0]
	g.in().applier.mu.Lock()
	goOn := sync.OnceFunc(g.in().applier.mu.Unlock)
	defer goOn()
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "it is busy", g.in().Busy)
	x := &Watched{}
	g.in().Stall(x, 0)
	if s, _ := g.in().Stall(x, 7); s.For != 7 {
		t.Fatalf("it stands still for %v, want 7", s.For)
	}
	g.in().proposer.transfer(true)
	if s, busy := g.in().Stall(x, 9); s.For != 0 || !busy {
		t.Errorf("it stands still for %v, busy %v", s.For, busy)
	}
	g.in().proposer.transfer(false)
	if s, _ := g.in().Stall(x, 11); s.For != 0 {
		t.Errorf("afterwards it stands still for %v", s.For)
	}
}
