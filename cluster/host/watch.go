package host

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

const (
	// manyStalls: for each further manyStalls stalled leaders, every leader is given one more
	// bound. When many stall at once, a busy machine is a more likely cause than a fault of each,
	// and elections would make it busier.
	manyStalls = 64
	// maxBounds is how many bounds more a leader is given at most because others wait, too, or get on.
	maxBounds = 15
	// lastOfCrowd: who is last of a crowd may wait so many times as long as the crowd takes on average. Its work
	// passes through several nodes, and each of them takes it up in an order of its own.
	lastOfCrowd = 2
	// keptResignations is how many resignations are remembered.
	keptResignations = 16
)

// Stall is a leader on this node whose work makes no progress.
type Stall struct {
	Group *group.Group // nil for the catalog
	replica.Stalled
}

// Resignation describes a leadership that was given up.
type Resignation struct {
	Stall
	At fsm.Time
}

// watch watches those leaders of a host that have work waiting. A leader that makes no progress
// for too long resigns. A group is watched only while it has work; when no group has any, the
// watch sleeps.
type watch struct {
	host  *Host
	bound time.Duration
	// now does not advance while the process is kept from running: a stalled leader is not to
	// blame for that.
	now    func() time.Duration
	slack  func(of ...string) time.Duration // see peer.Mesh.Slack
	worker *worker.Worker

	mu       sync.Mutex
	groups   map[*awake]*watched
	slow     int // number of leaders that were stalled at the last check
	served   throughput
	stalls   map[*awake]Stall  // stalls longer than the bound
	resigned map[string]uint64 // number of resignations by reason
	last     []Resignation     // the newest comes last
}

// throughput is how many groups under watch have got on of late, counted in windows as long as a bound. If a
// machine has little time, each gets its turn when the others have had theirs: to resign then would cost an
// election, which waits for its turn as well.
type throughput struct {
	began       time.Duration // of this window
	now, before int           // groups that have got on in this window and in that before it
}

// passed takes a moment and how many groups have got on since the last one.
func (t *throughput) passed(now, window time.Duration, n int) {
	if past := now - t.began; past >= window {
		t.before = t.now
		if past >= 2*window {
			t.before = 0
		}
		t.began, t.now = now, 0
	}
	t.now += n
}

// waitFor returns how long it takes until n groups that wait have had their turns; 0: none has got on.
func (t *throughput) waitFor(n int, now, window time.Duration) time.Duration {
	done := t.now + t.before
	if done == 0 || n <= 0 {
		return 0
	}
	return min(time.Duration(n)*(window+now-t.began)/time.Duration(done), maxBounds*window)
}

// watched is a group under watch.
type watched struct {
	group.Watched
	crowd int // how many leaders have waited at a time, at most, since this one waits: the last one waits for all their turns
}

func newWatch(h *Host) *watch {
	w := &watch{
		host: h, bound: cmp.Or(h.config.Progress, 2*time.Second), now: h.config.Awake, slack: h.config.Mesh.Slack, worker: worker.New(worker.Options{}),
		groups: map[*awake]*watched{}, stalls: map[*awake]Stall{}, resigned: map[string]uint64{},
	}
	if w.now == nil {
		w.now = h.config.Clock.Monotonic
	}
	return w
}

// add puts a group that has work under watch.
func (w *watch) add(g *awake) {
	if g.watched.Load() || g.IsLocal() || g.watched.Swap(true) {
		return
	}
	w.mu.Lock()
	w.groups[g] = &watched{}
	first := len(w.groups) == 1
	w.mu.Unlock()
	if first {
		w.worker.Wake()
	}
}

// run checks groups until stop is closed.
func (w *watch) run(stop <-chan struct{}) {
	w.worker.Run(stop, func(time.Time) time.Duration {
		if w.check() {
			return replica.WatchEvery
		}
		return 0
	})
}

// check checks all groups that have work and reports whether there are any.
func (w *watch) check() bool {
	w.mu.Lock()
	all := maps.Clone(w.groups)
	now := w.now()
	crowd, served := w.slow, w.served
	w.mu.Unlock()
	slow, done := 0, 0
	stalls := map[*awake]Stall{}
	for g, x := range all {
		was := x.Entries
		stalled, busy := g.Stall(&x.Watched, now)
		s := Stall{g.Shell(), stalled}
		if s.For > 0 {
			slow++
			x.crowd = max(x.crowd, crowd)
		} else {
			x.crowd = 0
		}
		bound := w.bound + max(w.bound*time.Duration(min(x.crowd/manyStalls, maxBounds)), served.waitFor(lastOfCrowd*(x.crowd-1), now, w.bound))
		if was.Waits && (!x.Entries.Waits || x.Entries.Progress != was.Progress) {
			done++
		}
		if s.For >= bound && s.For >= bound+w.slack(g.Voters()...) {
			s.Keeps = g.WhyKeep(now)
			stalls[g] = s
			if s.Keeps == "" {
				w.resign(g, s, now)
			}
		}
		if !busy {
			w.drop(g)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served.passed(now, w.bound, done)
	w.slow, w.stalls = slow, stalls
	return len(w.groups) > 0
}

// drop stops watching a group that has no work, unless it has got some meanwhile.
func (w *watch) drop(g *awake) {
	w.mu.Lock()
	delete(w.groups, g)
	w.mu.Unlock()
	if g.watched.Store(false); g.Busy() {
		w.add(g)
	}
}

// resign gives up the leadership of a stalled group.
func (w *watch) resign(g *awake, s Stall, now time.Duration) {
	g.Resign(s.Stalled, now)
	w.note(s)
}

// note records a resignation.
func (w *watch) note(s Stall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resigned[s.Reason]++
	w.last = append(w.last, Resignation{Stall: s, At: w.host.config.Clock.Now()})
	w.last = w.last[max(0, len(w.last)-keptResignations):]
}

// count counts resignations for a reason that does not lie in the group itself.
func (w *watch) count(reason string, n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resigned[reason] += n
}

// Awake is the time by which progress is counted.
func (h *Host) Awake() time.Duration { return h.watch.now() }

// Bound is for how long a leader may make no progress.
func (h *Host) Bound() time.Duration { return h.watch.bound }

// Resigned records that this node has given the catalog up.
func (h *Host) Resigned(s replica.Stalled) { h.watch.note(Stall{Stalled: s}) }

// Stalls returns the leaders on this node whose work makes no progress, ordered by group number.
func (h *Host) Stalls() (list []Stall) {
	h.watch.mu.Lock()
	defer h.watch.mu.Unlock()
	for _, s := range h.watch.stalls {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Stall) int { return int(a.Group.ID()) - int(b.Group.ID()) })
	return list
}

// Resignations returns the number of leaderships given up on this node since it started, by
// reason, and the most recent ones whose reason lay in the group.
func (h *Host) Resignations() (count map[string]uint64, last []Resignation) {
	h.watch.mu.Lock()
	defer h.watch.mu.Unlock()
	count = map[string]uint64{}
	for _, reason := range replica.Reasons {
		count[reason] = h.watch.resigned[reason]
	}
	return count, slices.Clone(h.watch.last)
}
