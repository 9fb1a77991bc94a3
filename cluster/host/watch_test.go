package host

import (
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// A process that is kept from running blames no leader: no awake time passes. One whose timers are late,
// or whose peers are far, gives them more.
func TestStallIsNoHang(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, clock.set)
	g := c.mustOpen(1)[0]
	w := c.host(g).watch
	const slack = time.Second
	release := hang(g)
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
		stuck(t, c.leadAt(fsm.GroupID(id+1)))
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
	g = lone.mustGroup(t, 1, &group.QueueConfig{DeliveryLimit: 20})
	defer hang(g)()
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
		if in(g).ResignedLately() || in(g).WhyKeep(clock.now()) != "" {
			t.Fatal("it waits although nothing has happened")
		}
		h.watch.resign(in(g), Stall{Group: g, Stalled: replica.Stalled{Reason: replica.StuckEntries, Term: g.Term() + 100}}, clock.now())
		clock.pass(want - 1)
		if !in(g).ResignedLately() || in(g).WhyKeep(clock.now()) != replica.KeepsPause {
			t.Errorf("it does not wait for %v", want)
		}
		clock.pass(1)
	}
	clock.pass(2*replica.LongestPause + 1)
	h.watch.resign(in(g), Stall{Group: g, Stalled: replica.Stalled{Reason: replica.StuckEntries, Term: g.Term() + 100}}, clock.now())
	if clock.pass(replica.ShortPause); in(g).ResignedLately() {
		t.Error("it waits for something that is long ago")
	}
	if _, last := h.Resignations(); len(last) != 7 {
		t.Errorf("%d resignations are remembered", len(last))
	}
	for range 2 * keptResignations {
		h.watch.resign(in(g), Stall{Group: g, Stalled: replica.Stalled{Reason: replica.StuckTick, Term: g.Term() + 100}}, clock.now())
	}
	if _, last := h.Resignations(); len(last) != keptResignations || last[0].Reason != replica.StuckTick {
		t.Errorf("%d resignations are remembered", len(last))
	}
}

// So many leaders that stand still at a time are given more time.
func TestCrowdIsGivenTime(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, clock.set, quickWatch)
	g := c.mustOpen(1)[0]
	w, r := c.host(g).watch, in(g).Raft()
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "it has begun its term", func() bool { return ready(g) == 1 && r.AppliedIndex() == r.LastIndex() })
	last := r.LastIndex()
	defer hang(g)()
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
	if in(g).watched.Load() {
		t.Error("the group would not be looked at again")
	}
	local := c.hosts[0].OpenLocal(group.Spec{Group: 9, Queue: 9 << 16, VHost: "/", Name: "l", Local: true, Config: &group.QueueConfig{}})
	mustSubmit(t, local, enqueues(1, -1, "m"))
	if !resting() || in(local).watched.Load() {
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
	goOn := hang(g)
	defer goOn()
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "it is busy", in(g).Busy)
	w.drop(in(g))
	w.mu.Lock()
	watched := w.groups[in(g)] != nil
	w.mu.Unlock()
	if !watched || !in(g).watched.Load() {
		t.Error("it is not looked at any more")
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

// stuck has a leader's machine stand still while the leader has something to do, with all it had to do before done.
func stuck(t *testing.T, g *group.Group) {
	t.Helper()
	i := in(g)
	await(t, "it has made its last progress", func() bool { return !i.Busy() && i.Raft().AppliedIndex() == i.Raft().LastIndex() })
	t.Cleanup(hang(g))
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "it has something to do", i.Busy)
}

// The last of many leaders that get on one after the other waits for twice as long as all of them need, and no longer.
func TestLastOfCrowd(t *testing.T) {
	clock := &handClock{}
	c := mustTrio(t, quickWatch, patientRaft, clock.set)
	w := c.hosts[0].watch
	w.mu.Lock()
	w.slack = func(...string) time.Duration { return 0 }
	w.mu.Unlock()
	stuck(t, c.leadAt(1))
	for _, tc := range []struct {
		wait    time.Duration // quarters of a bound
		others  int           // that still wait, where ten get on in each bound
		stalled int
	}{{0, 40, 0}, {1, 40, 0}, {4, 20, 0}, {4, 1, 0}, {2, 1, 0}, {8, 1, 0}, {2, 1, 1}} {
		clock.pass(tc.wait * w.bound / 4)
		w.mu.Lock()
		w.slow, w.served = tc.others+1, throughput{clock.now(), 10, 10}
		w.mu.Unlock()
		if w.check(); len(c.hosts[0].Stalls()) != tc.stalled {
			t.Fatalf("with %d others %d are found stalled, want %d", tc.others, len(c.hosts[0].Stalls()), tc.stalled)
		}
	}
}
