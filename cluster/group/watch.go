package group

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/durations"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

const (
	// manyStalls: for each further manyStalls stalled leaders, every leader is given one more
	// bound. When many stall at once, a busy machine is a more likely cause than a fault of each,
	// and elections would make it busier.
	manyStalls = 256
	// maxBounds is how many bounds more a leader is given at most because others get on.
	maxBounds = 15
	// keptResignations is how many resignations are remembered.
	keptResignations = 16
)

// Stall is a leader on this node whose work makes no progress.
type Stall struct {
	Group *Group // nil for the catalog
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
	groups   map[*instance]*watched
	slow     int // number of leaders that were stalled at the last check
	served   throughput
	stalls   map[*instance]Stall // stalls longer than the bound
	resigned map[string]uint64   // number of resignations by reason
	last     []Resignation       // the newest comes last
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

// watched holds the progress of a group under watch.
type watched struct {
	entries, tick, settings, effects replica.Mark

	crowd int // how many leaders have waited at a time, at most, since this one waits: the last one waits for all their turns
}

func newWatch(h *Host) *watch {
	w := &watch{
		host: h, bound: cmp.Or(h.config.Progress, 2*time.Second), now: h.config.Awake, slack: h.config.Mesh.Slack, worker: worker.New(worker.Options{}),
		groups: map[*instance]*watched{}, stalls: map[*instance]Stall{}, resigned: map[string]uint64{},
	}
	if w.now == nil {
		w.now = h.config.Clock.Monotonic
	}
	return w
}

// add puts a group that has work under watch.
func (w *watch) add(g *instance) {
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
	stalls := map[*instance]Stall{}
	for g, x := range all {
		was := x.entries
		s, busy := g.stall(x, now)
		if s.For > 0 {
			slow++
			x.crowd = max(x.crowd, crowd)
		} else {
			x.crowd = 0
		}
		bound := w.bound + max(w.bound*time.Duration(x.crowd/manyStalls), served.waitFor(x.crowd-1, now, w.bound))
		if was.Waits && (!x.entries.Waits || x.entries.Progress != was.Progress) {
			done++
		}
		if s.For >= bound && s.For >= bound+w.slack(g.Voters()...) {
			s.Keeps = g.WhyKeep(&g.leadership.resigned, now)
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
func (w *watch) drop(g *instance) {
	w.mu.Lock()
	delete(w.groups, g)
	w.mu.Unlock()
	if g.watched.Store(false); g.busy() {
		w.add(g)
	}
}

// resign gives up the leadership of a stalled group.
func (w *watch) resign(g *instance, s Stall, now time.Duration) {
	g.resign(s, now)
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
	slices.SortFunc(list, func(a, b Stall) int { return int(a.Group.spec.Group) - int(b.Group.spec.Group) })
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

// stall returns for how long work of the group has made no progress, and whether the group has any
// work.
func (g *instance) stall(x *watched, now time.Duration) (s Stall, busy bool) {
	if g.IsClosed() || !g.IsLeader() || g.Barred() {
		*x = watched{}
		return Stall{}, g.leadsNobody(now)
	}
	r, l := g.Raft(), &g.leadership
	s = Stall{Group: g.shell, Stalled: replica.Stalled{Term: r.CurrentTerm(), Last: r.LastIndex(), Commit: r.CommitIndex(), Applied: r.AppliedIndex()}}
	serves := l.term.Load() != 0
	entries := s.Last > s.Applied || g.proposer.busy()
	if l.pauses() { // which has time limits of its own
		*x = watched{}
		return s, true
	}
	s.For, s.Reason = x.entries.Update(entries, s.Applied, now), replica.StuckEntries
	performs, steps := g.outgoing.progress()
	if d := x.effects.Update(performs, steps, now); d > s.For {
		s.For, s.Reason = d, replica.StuckEffects
	}
	tick, settings := x.tick.Waits, x.settings.Waits
	if w, ok := g.applier.waiting(serves, &g.settings); ok {
		tick, settings = w.tick, w.settings
		if d := x.tick.Update(w.tick, w.ticks, now); d > s.For {
			s.For, s.Reason = d, replica.StuckTick
		}
		if d := x.settings.Update(w.settings, w.revision, now); d > s.For {
			s.For, s.Reason = d, replica.StuckSettings
		}
	}
	return s, entries || tick || settings || performs || !serves
}

// leadsNobody reports whether raft leads here in a term in which the group has resigned. If nobody
// takes over for a long time, the group resumes its leadership.
func (g *instance) leadsNobody(now time.Duration) bool {
	l := &g.leadership
	if g.IsClosed() || !g.IsLeader() || !l.hasResigned() {
		return false
	}
	if now-l.resigned.At > 3*g.host.watch.bound {
		g.slog.Warn("a leader that makes no progress keeps leading: no member has taken over")
		l.resigned.Term.Store(0)
		g.host.tasks.Go(g.review)
	}
	return true
}

// busy reports whether the group has work that is not under watch.
func (g *instance) busy() bool {
	if g.IsClosed() || !g.IsLeader() || g.Barred() {
		return false
	}
	r := g.Raft()
	performs, _ := g.outgoing.progress()
	return performs || g.proposer.busy() || r.LastIndex() > r.AppliedIndex()
}

// resign gives up the leadership of a stalled group. Its raft may hang, so resign does not depend
// on it: this node stops serving the group in this term, asks the members which of them can be
// elected, and tells that member to stand.
func (g *instance) resign(s Stall, now time.Duration) {
	g.leadership.resigned.Begin(s.Term, now)
	g.slog.Warn("a leader is making no progress and resigns", "reason", s.Reason, "for", s.For.Round(time.Millisecond),
		"term", s.Term, "last", s.Last, "commit", s.Commit, "applied", s.Applied)
	g.host.tasks.Go(g.review)
	g.host.elections.Begin(g)
}

// TransferTo implements election.Electable. This replica is raft's leader and must not serve.
func (g *instance) TransferTo(node string, wins bool) {
	g.host.tasks.Go(func() {
		term, leads := g.LeadsIn()
		resigned := g.leadership.hasResigned() && g.Quarantined() == nil
		switch {
		case !leads || !g.Barred() || g.IsClosed():
		case resigned && !wins:
			g.slog.Warn("a leader that makes no progress keeps leading: " + replica.KeepsNobody)
			g.leadership.resigned.Term.Store(0)
			g.review()
		default:
			g.Yield(node, term, resigned)
		}
	})
}

// latency is how long entries take until they are committed: a mean in which the latest weigh most.
type latency struct{ ns atomic.Int64 }

// weight is the number of entries after which an older one counts for about a third.
const weight = 16

// observe adds an entry. Concurrent ones may be left out.
func (l *latency) observe(took time.Duration) {
	was := l.ns.Load()
	if was == 0 {
		l.ns.CompareAndSwap(0, max(int64(took), 1))
		return
	}
	l.ns.CompareAndSwap(was, max(was+(int64(took)-was)/weight, 1))
}

// mean is 0 before the first entry.
func (l *latency) mean() time.Duration { return time.Duration(l.ns.Load()) }

// meters count what the replicas of queues on a node do, local queues left out. None of them costs
// more than some atomic additions for a batch of entries, a request or a snapshot.
type meters struct {
	applies   durations.Histogram // of batches of committed entries
	snapshots durations.Histogram // that were written
	led       atomic.Uint64       // how often a replica has begun to lead
	refused   atomic.Uint64       // requests to append, by other members
	copies    atomic.Uint64       // commands that leaders had already, and kept out of their logs
	early     atomic.Uint64       // and those that came before one that is missing
}

// Meters are what the replicas of queues on a node have done since it started, local queues left out.
type Meters struct {
	Applies   durations.Counts // of batches of committed entries
	Snapshots durations.Counts // that were written
	Led       uint64           // how often a replica has begun to lead
	Refused   uint64           // requests to append that other members have refused
	// Commands, of local queues as well, that did not enter a log: because they had been taken already, and
	// because one before them is missing.
	Copies, Early uint64
}

// Meters returns what the replicas of queues have done.
func (h *Host) Meters() Meters {
	m := &h.applying.meters
	return Meters{
		Applies: m.applies.Read(), Snapshots: m.snapshots.Read(), Led: m.led.Load(), Refused: m.refused.Load(),
		Copies: m.copies.Load(), Early: m.early.Load(),
	}
}

// refusals is a transport that counts the requests to append that other members refuse. Behind a
// refusal in a pipeline raft sends the request again without one.
type refusals struct {
	replica.Transport
	count *atomic.Uint64
}

// AppendEntries implements raft.Transport.
func (r refusals) AppendEntries(id raft.ServerID, addr raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := r.Transport.AppendEntries(id, addr, args, resp)
	if err == nil && !resp.Success {
		r.count.Add(1)
	}
	return err
}
