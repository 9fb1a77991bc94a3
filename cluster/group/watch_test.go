package group

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// handClock is a time that only the test lets pass.
type handClock struct{ at atomic.Int64 }

func (c *handClock) now() time.Duration   { return time.Duration(c.at.Load()) }
func (c *handClock) pass(d time.Duration) { c.at.Add(int64(d)) }
func (c *handClock) set(config *Config)   { config.Awake = c.now }

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

func quickWatch(c *Config)  { c.Progress = 300 * time.Millisecond }
func patientRaft(c *Config) { c.Heartbeat = time.Minute }

// mustResign lets time pass until this replica has resigned once, for this
// reason, and returns the one that leads instead.
func (c *trio) mustResign(clock *handClock, g *Group, reason string) *Group {
	c.t.Helper()
	h := c.host(g)
	clock.await(c.t, "the leader resigns", func() bool {
		count, _ := h.Resignations()
		return count[reason] > 0
	})
	count, last := h.Resignations()
	for _, other := range replica.Reasons {
		if other != reason && count[other] != 0 {
			c.t.Errorf("it has resigned for %s", other)
		}
	}
	s := last[0]
	if s.Group != g || s.Reason != reason || s.For < h.watch.bound || s.Term == 0 || s.Last < s.Applied {
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
	await(t, "they are applied", func() bool { return ready(g) == 2 && !g.in().busy() })
	next := c.mustResign(clock, g, replica.StuckTick)
	expire(t, next)
}

// Settings that a leader takes for proposed, and that its log does not have, are
// brought in by another one.
func TestSettingsHang(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, clock.set)
	for _, h := range c.hosts {
		h.config.Settings = nil
	}
	g := c.mustOpen(1)[0]
	for _, r := range c.replicas(1) {
		r.in().settings.mu.Lock()
		r.spec.Config.DeliveryLimit, r.spec.Config.Revision = 7, 3
		r.in().settings.mu.Unlock()
	}
	g.in().settings.mu.Lock()
	g.in().settings.proposed = g.host.wantedSettings(&g.spec)
	g.in().settings.mu.Unlock()
	c.host(g).Reconfigure(nil)
	g.in().settings.change()
	next := c.mustResign(clock, g, replica.StuckSettings)
	await(t, "the settings are those of the catalog", func() (yes bool) {
		next.View(func(m *queue.Machine) { yes = m.Config().DeliveryLimit == 7 })
		return yes
	})
}

// A process that is kept from running blames no leader: no awake time passes. One whose timers are late,
// or whose peers are far, gives them more.
func TestStallIsNoHang(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, clock.set)
	g := c.mustOpen(1)[0]
	w := c.host(g).watch
	const slack = time.Second
	g.in().applier.mu.Lock()
	release := sync.OnceFunc(g.in().applier.mu.Unlock)
	defer release()
	w.mu.Lock()
	w.slack = func(of ...string) time.Duration { return slack }
	w.mu.Unlock()
	mustSubmit(t, g, enqueues(1, -1, "m"))
	w.check()
	for range 10 {
		if w.check(); len(c.host(g).Stalls()) != 0 {
			t.Fatal("a leader stands still in no time")
		}
	}
	clock.pass(w.bound + slack - 1)
	if w.check(); len(c.host(g).Stalls()) != 0 {
		t.Fatal("a leader stands still before its time")
	}
	clock.pass(1)
	w.check()
	release()
	if count, _ := c.host(g).Resignations(); count[replica.StuckEntries] != 1 {
		t.Errorf("resignations %v", count)
	}
}

// Leaders wait for as long as their turns take at the rate at which others get on, within limits; where none
// gets on, or one waits alone, they have the bound.
func TestThroughputOfLeaders(t *testing.T) {
	const window = 2 * time.Second
	for _, tc := range []struct {
		name          string
		each, waiting int // how many get on in each quarter of a second, and how many wait
		want          time.Duration
	}{
		{"nobody gets on", 0, 1000, 0},
		{"nobody else waits", 10, 0, 0},
		{"a busy machine", 10, 400, 10 * time.Second},
		{"a fast machine", 1000, 40, 10 * time.Millisecond},
		{"hardly anybody gets on", 1, 1000, maxBounds * window},
	} {
		var p throughput
		now := time.Hour
		for range 16 { // two windows
			p.passed(now, window, tc.each)
			now += window / 8
		}
		if have := p.waitFor(tc.waiting, now, window); have.Round(time.Millisecond) != tc.want {
			t.Errorf("%s: %v, not %v", tc.name, have, tc.want)
		}
		if p.passed(now+2*window, window, 0); p.waitFor(tc.waiting, now+2*window, window) != 0 {
			t.Errorf("%s: what is long ago counts", tc.name)
		}
	}
}

// stuck has a leader's machine stand still at an entry that raft has handed to it, which is the last progress it makes.
func (g *Group) stuck(t *testing.T) {
	t.Helper()
	g.in().applier.mu.Lock()
	t.Cleanup(g.in().applier.mu.Unlock)
	r := g.in().Raft()
	last := r.LastIndex()
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "the entry is handed to the machine", func() bool { return r.AppliedIndex() > last && r.AppliedIndex() == r.LastIndex() })
}

// Two leaders of a node stand still, of which the second is no better than the first: while others get on
// they wait for their turns.
func TestStalledBesideOthers(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, patientRaft, clock.set)
	w := c.hosts[0].watch
	w.mu.Lock()
	w.slack = func(...string) time.Duration { return 0 }
	w.mu.Unlock()
	for id := range 2 {
		c.leadAt(fsm.GroupID(id + 1)).stuck(t)
	}
	check := func(getOn int, wait time.Duration) (stalled int) {
		clock.pass(wait)
		w.mu.Lock()
		w.served.passed(clock.now(), w.bound, getOn)
		w.mu.Unlock()
		w.check()
		return len(c.hosts[0].Stalls())
	}
	check(1, 0)
	check(1, 1)
	if n := check(1, w.bound); n != 0 {
		t.Errorf("%d leaders are found stalled where others get on, one in each bound", n)
	}
	if n := check(0, 3*w.bound); n != 2 {
		t.Errorf("%d leaders are found stalled where nobody gets on", n)
	}
}

// The last of many leaders that get on one after the other waits for as long as all of them need, and no longer.
func TestLastOfCrowd(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, patientRaft, clock.set)
	w := c.hosts[0].watch
	w.mu.Lock()
	w.slack = func(...string) time.Duration { return 0 }
	w.mu.Unlock()
	c.leadAt(1).stuck(t)
	for _, tc := range []struct {
		wait    time.Duration // quarters of a bound
		others  int           // that still wait, where ten get on in each bound
		stalled int
	}{{0, 40, 0}, {1, 40, 0}, {4, 20, 0}, {4, 1, 0}, {2, 1, 0}, {8, 1, 1}} {
		clock.pass(tc.wait * w.bound / 4)
		w.mu.Lock()
		w.slow, w.served = tc.others+1, throughput{clock.now(), 10, 10}
		w.mu.Unlock()
		if w.check(); len(c.hosts[0].Stalls()) != tc.stalled {
			t.Fatalf("with %d others %d are found stalled, want %d", tc.others, len(c.hosts[0].Stalls()), tc.stalled)
		}
	}
}

// A leader that cannot help its group by resigning keeps its leadership, and says
// why it stands still: without a majority there is nobody to give way to.
func TestNobodyToTakeOver(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, patientRaft, clock.set)
	g := c.mustOpen(1)[0]
	h := c.host(g)
	for _, other := range c.hosts {
		if other != h {
			other.shut(t)
		}
	}
	await(t, "it is seen that nobody is up", func() bool { return !h.mesh.HasMajority(trioNames) })
	mustSubmit(t, g, enqueues(1, -1, "m"))
	clock.await(t, "it is seen to stand still", func() bool { return len(h.Stalls()) == 1 })
	if s := h.Stalls()[0]; s.Group != g || s.Reason != replica.StuckEntries || s.Keeps != replica.KeepsMajority || s.Last <= s.Commit {
		t.Errorf("it stands still as %+v", s)
	}
	term := g.Term()
	for range 3 {
		h.watch.check()
	}
	if count, _ := h.Resignations(); count[replica.StuckEntries] != 0 || g.Leading() != term {
		t.Errorf("resignations %v, leading in %d", count, g.Leading())
	}

	lone := mustHost(t, t.TempDir(), func(c *Config) { c.Progress = time.Nanosecond })
	g = lone.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	g.in().applier.mu.Lock()
	defer g.in().applier.mu.Unlock()
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "the only member is seen to stand still", func() bool {
		list := lone.Stalls()
		return len(list) == 1 && list[0].Keeps == replica.KeepsAlone
	})
}

// Who has resigned neither resigns again soon nor stands where others can win, and
// each time waits longer.
func TestPauseAfterResignation(t *testing.T) {
	clock := &handClock{}
	clock.pass(time.Hour)
	c := mustTrio(t, clock.set, patientRaft)
	g := c.mustOpen(1)[0]
	h := c.host(g)
	for _, want := range []time.Duration{replica.ShortPause, 2 * replica.ShortPause, 4 * replica.ShortPause, 8 * replica.ShortPause, replica.LongestPause, replica.LongestPause} {
		if g.in().ResignedLately() || g.in().WhyKeep(&g.in().leadership.resigned, clock.now()) != "" {
			t.Fatal("it waits although nothing has happened")
		}
		h.watch.resign(g.in(), Stall{Group: g, Stalled: replica.Stalled{Reason: replica.StuckEntries, Term: g.Term() + 100}}, clock.now())
		clock.pass(want - 1)
		if !g.in().ResignedLately() || g.in().WhyKeep(&g.in().leadership.resigned, clock.now()) != replica.KeepsPause {
			t.Errorf("it does not wait for %v", want)
		}
		clock.pass(1)
	}
	clock.pass(2*replica.LongestPause + 1)
	h.watch.resign(g.in(), Stall{Group: g, Stalled: replica.Stalled{Reason: replica.StuckEntries, Term: g.Term() + 100}}, clock.now())
	if clock.pass(replica.ShortPause); g.in().ResignedLately() {
		t.Error("it waits for something that is long ago")
	}
	if _, last := h.Resignations(); len(last) != 7 {
		t.Errorf("%d resignations are remembered", len(last))
	}
	for range 2 * keptResignations {
		h.watch.resign(g.in(), Stall{Group: g, Stalled: replica.Stalled{Reason: replica.StuckTick, Term: g.Term() + 100}}, clock.now())
	}
	if _, last := h.Resignations(); len(last) != keptResignations || last[0].Reason != replica.StuckTick {
		t.Errorf("%d resignations are remembered", len(last))
	}
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
	if x := (&watched{}); !g.in().leadsNobody(clock.now()) {
		t.Errorf("it is not looked at any more: %+v", x)
	}
	clock.pass(3*h.watch.bound + 1)
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

// So many leaders that stand still at a time are given more time.
func TestCrowdIsGivenTime(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, clock.set, quickWatch)
	g := c.mustOpen(1)[0]
	w, r := c.host(g).watch, g.in().Raft()
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "it has begun its term", func() bool { return ready(g) == 1 && r.AppliedIndex() == r.LastIndex() })
	last := r.LastIndex()
	g.in().applier.mu.Lock()
	defer g.in().applier.mu.Unlock()
	mustSubmit(t, g, enqueues(2, -1, "m"))
	await(t, "the entry is handed to the machine, which is progress", func() bool { return r.AppliedIndex() > last && r.AppliedIndex() == r.LastIndex() })
	w.check()
	clock.pass(2 * w.bound)
	w.mu.Lock()
	w.slow, w.served = 2*manyStalls, throughput{} // none of them has got on
	w.mu.Unlock()
	if w.check(); len(c.host(g).Stalls()) != 0 {
		t.Error("it stands still among many")
	}
	clock.pass(w.bound + 2*w.slack(g.Voters()...))
	w.mu.Lock()
	w.slow, w.served = 2*manyStalls, throughput{} // none of them has got on
	w.mu.Unlock()
	if w.check(); len(c.host(g).Stalls()) != 1 {
		t.Error("it is never found to stand still")
	}
}

// Groups without work are not looked at, and the watch sleeps.
func TestIdleGroupsAreNotWatched(t *testing.T) {
	c := mustTrio(t)
	g := c.mustOpen(1)[0]
	c.mustServe(1, 1)
	w := c.host(g).watch
	resting := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.groups) == 0
	}
	await(t, "nothing is watched", resting)
	mustSubmit(t, g, enqueues(2, 3_600_000, "for an hour"))
	await(t, "it is answered", func() bool { return ready(g) == 2 })
	await(t, "nothing is watched", resting)
	if g.in().watched.Load() {
		t.Error("the group would not be looked at again")
	}
	local := c.hosts[0].OpenLocal(Spec{Group: 9, Queue: 9 << 16, VHost: "/", Name: "l", Local: true, Config: &QueueConfig{}})
	mustSubmit(t, local, enqueues(1, -1, "m"))
	if !resting() || local.in().watched.Load() {
		t.Error("a local queue is watched")
	}
}

// A group that has got something to do while it was found to have nothing is
// looked at again.
func TestBusyGroupStaysWatched(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, clock.set, patientRaft)
	g := c.mustOpen(1)[0]
	w := c.host(g).watch
	g.in().applier.mu.Lock()
	goOn := sync.OnceFunc(g.in().applier.mu.Unlock)
	defer goOn()
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "it is busy", g.in().busy)
	w.drop(g.in())
	w.mu.Lock()
	watched := w.groups[g.in()] != nil
	w.mu.Unlock()
	if !watched || !g.in().watched.Load() {
		t.Error("it is not looked at any more")
	}
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
	await(t, "it is busy", g.in().busy)
	x := &watched{}
	g.in().stall(x, 0)
	if s, _ := g.in().stall(x, 7); s.For != 7 {
		t.Fatalf("it stands still for %v, want 7", s.For)
	}
	g.in().proposer.transfer(true)
	if s, busy := g.in().stall(x, 9); s.For != 0 || !busy {
		t.Errorf("it stands still for %v, busy %v", s.For, busy)
	}
	g.in().proposer.transfer(false)
	if s, _ := g.in().stall(x, 11); s.For != 0 {
		t.Errorf("afterwards it stands still for %v", s.For)
	}
}

// A host that withdraws leads nothing, and counts what it led; when it is back it
// may lead again.
func TestWithdraw(t *testing.T) {
	c := mustTrio(t)
	g := c.mustOpen(1)[0]
	h := c.host(g)
	h.Withdraw()
	await(t, "another one leads", func() bool {
		l := c.mustLead(1)
		return g.Leading() == 0 && l != g
	})
	if count, _ := h.Resignations(); count[replica.StuckDisk] != 1 {
		t.Errorf("resignations %v", count)
	}
	h.Return()
	await(t, "it leads again", func() bool {
		if l := c.mustLead(1); l != g {
			_ = l.Transfer(h.config.Node)
		}
		return g.Leading() != 0
	})
}
