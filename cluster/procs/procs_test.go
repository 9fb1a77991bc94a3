package procs

import (
	"log/slog"
	"runtime"
	"testing"
	"time"
)

// epoch is a moment at which each check is due.
var epoch = time.Unix(1_700_000_000, 0)

// seen is one check: what share of a processor was used since the last one, how late it is, how long syncs take, and
// how much memory is in use.
type seen struct {
	share      float64
	late, sync time.Duration
	heap       uint64
}

// checked is a governor, and how often it has had garbage collected.
type checked struct {
	governor
	collections int
}

// checks has a governor check n times at the same use, and reports what it says in the end.
func (g *checked) checks(n int, s seen) (one bool) {
	for range n {
		passed := g.last.at.Truncate(g.every).Add(g.every).Sub(g.last.at) + s.late
		var collect bool
		one, collect = g.check(use{g.last.at.Add(passed), g.last.busy + time.Duration(s.share*float64(passed)), s.sync, s.heap})
		if collect {
			g.collections++
		}
	}
	return one
}

func newGovernor() *checked {
	return &checked{governor: governor{lateness: lateness, every: busyEvery, last: use{at: epoch}}}
}

// A process that needs little for a second gets one processor, and all of them as soon as something speaks against one.
func TestCheck(t *testing.T) {
	t.Parallel()
	calm := seen{share: little - 0.05}
	second := int(calmTime / busyEvery)
	if g := newGovernor(); g.checks(second-1, calm) || !g.checks(1, calm) {
		t.Error("it is not given one processor after a second")
	}
	if g := newGovernor(); g.checks(second-1, calm) || g.checks(1, seen{share: little + 0.05}) || g.checks(second-1, calm) || !g.checks(1, calm) {
		t.Error("the second does not begin anew")
	}
	for name, s := range map[string]seen{
		"much to do":    {share: much + 0.05},
		"a late check":  {share: calm.share, late: lateness + time.Millisecond},
		"a later check": {share: calm.share, late: 2 * busyEvery},
		"slow syncs":    {share: calm.share, sync: slowSync + time.Microsecond},
		"a large heap":  {share: calm.share, heap: largeHeap + 1},
	} {
		if g := newGovernor(); g.checks(3*second, s) {
			t.Errorf("%s: it is given one processor", name)
		}
		if g := newGovernor(); !g.checks(second, calm) || g.checks(1, s) {
			t.Errorf("%s: it is left with one processor", name)
		}
	}
	if g := newGovernor(); !g.checks(second, calm) || !g.checks(second, seen{share: much - 0.05}) {
		t.Error("it is given all processors although one will do")
	}
}

// What the heap was while there was much to do may be garbage: it is collected once a process has needed little for a
// second, and again only after a while.
func TestCollects(t *testing.T) {
	t.Parallel()
	large := seen{share: little - 0.05, heap: largeHeap + 1}
	small := seen{share: large.share, heap: largeHeap}
	second, minute := int(calmTime/busyEvery), int(collectEvery/busyEvery)
	g := newGovernor()
	if g.checks(second-1, large); g.collections != 0 {
		t.Error("garbage is collected before a second has passed")
	}
	if g.checks(1, large); g.collections != 1 {
		t.Errorf("garbage is collected %d times after a second, not once", g.collections)
	}
	if g.checks(minute-1, large); g.collections != 1 {
		t.Errorf("garbage is collected %d times within a minute, not once", g.collections)
	}
	if g.checks(1, large); g.collections != 2 {
		t.Errorf("garbage is collected %d times after a minute, not twice", g.collections)
	}
	if !g.checks(1, small) {
		t.Error("it is not given one processor once the heap is small")
	}
	if g.checks(1, large) || g.collections != 2 {
		t.Error("it is left with one processor, or garbage is collected, when the heap has grown")
	}
	busy := newGovernor()
	if busy.checks(2*second, seen{share: much + 0.05, heap: largeHeap + 1}); busy.collections != 0 {
		t.Error("garbage of a busy process is collected")
	}
}

// A process that does nothing is checked less often.
func TestIdle(t *testing.T) {
	t.Parallel()
	g := newGovernor()
	if g.checks(1, seen{share: idle / 2}); g.every != idleEvery {
		t.Errorf("the next check is after %v", g.every)
	}
	if !g.checks(int(calmTime/idleEvery), seen{}) {
		t.Error("it is not given one processor")
	}
	if g.checks(1, seen{share: little}); g.every != busyEvery {
		t.Errorf("the next check is after %v", g.every)
	}
}

// Govern changes how many processors this process uses, and gives all of them back in the end.
func TestGovern(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	if before == 1 {
		t.Skip("there is one processor")
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		g := governor{lateness: time.Hour} // the machine may have other work
		g.govern(done, slog.New(slog.DiscardHandler), func() time.Duration { return 0 })
	}()
	await := func(what string, n int, meanwhile func()) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); runtime.GOMAXPROCS(0) != n; meanwhile() {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d processors are used, not %d", what, runtime.GOMAXPROCS(0), n)
			}
		}
		if Processors() != before {
			t.Errorf("%s: there are %d processors, it says", what, Processors())
		}
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	await("idle", 1, func() { <-tick.C })
	await("busy", before, func() {})
	await("idle again", 1, func() { <-tick.C })
	close(done)
	<-ended
	await("in the end", before, func() {})
}

// A GOMAXPROCS in the environment is obeyed.
func TestObeys(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Setenv("GOMAXPROCS", "3")
	Govern(nil, slog.New(slog.DiscardHandler), nil)
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("%d processors are used, not %d", n, before)
	}
}
