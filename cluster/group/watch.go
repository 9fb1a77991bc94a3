package group

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
)

const (
	// watchEvery is how often leaders with work waiting are looked at.
	watchEvery = 250 * time.Millisecond
	// resignLook is how often it is looked whether somebody has taken over.
	resignLook = 50 * time.Millisecond
	// slowCrowd: with so many more leaders that stand still, all are given one
	// more bound. Many at a time are a busy machine more often than a fault of
	// each, and elections make it busier.
	slowCrowd = 256
	// A leader that has resigned does so again, and stands for election where
	// others can win, after a pause: at first shortPause, each time twice as
	// long, up to longestPause; it begins anew after another longestPause.
	shortPause   = 5 * time.Second
	longestPause = 80 * time.Second
	// keptResignations is how many are remembered.
	keptResignations = 16
)

// Why a leader resigns: what waits does not go on.
const (
	StuckEntries  = "entries"  // in the log, or to be put there, and not applied
	StuckTick     = "tick"     // something is due, and no tick is applied
	StuckSettings = "settings" // of the queue, in a new revision
	StuckDisk     = "disk"     // of the node, see Host.Withdraw
	StuckCatalog  = "catalog"  // its entries
)

// Reasons are all those, in the order in which they are shown.
var Reasons = []string{StuckEntries, StuckTick, StuckSettings, StuckDisk, StuckCatalog}

// Stall is a leader that stands still.
type Stall struct {
	Group  *Group // nil: it is the catalog's
	Reason string
	For    time.Duration
	// Keeps says why it does not give way; empty: it does.
	Keeps                       string
	Term, Last, Commit, Applied uint64
}

// Why a leader that stands still does not give way.
const (
	keepsAlone    = "it has no other voter"
	keepsMajority = "no majority of its members is up"
	keepsNobody   = "no other member can be elected"
	keepsPause    = "it has resigned a short time ago"
)

// Resignation is an office that was given up.
type Resignation struct {
	Stall
	At fsm.Time
}

// watch looks after the leaders of a host that have work waiting: who makes no
// progress for too long gives way to another member. A group is looked at while
// it has something to do and no longer; with none the watch sleeps.
type watch struct {
	host  *Host
	bound time.Duration
	// now does not pass while the process is kept from running: a stalled leader
	// is not to blame.
	now  func() time.Duration
	kick kicks

	mu     sync.Mutex
	groups map[*Group]*watched
	slow   int               // of them, leaders that stood still at the last look
	still  map[*Group]Stall  // beyond the bound
	given  map[string]uint64 // resignations by reason
	last   []Resignation     // the newest last
}

// watched is what is known of a group that is looked at.
type watched struct{ entries, tick, settings mark }

// mark is one kind of work: since when it waits without progress.
type mark struct {
	waits    bool
	progress uint64
	since    time.Duration
}

// look takes how the work stands, and returns for how long it has stood still.
func (m *mark) look(waits bool, progress uint64, now time.Duration) time.Duration {
	if !waits || !m.waits || m.progress != progress {
		*m = mark{waits, progress, now}
		return 0
	}
	return now - m.since
}

func newWatch(h *Host) *watch {
	w := &watch{
		host: h, bound: cmp.Or(h.config.Progress, 2*time.Second), now: h.config.Awake, kick: newKicks(),
		groups: map[*Group]*watched{}, still: map[*Group]Stall{}, given: map[string]uint64{},
	}
	if w.now == nil {
		w.now = h.clock.Monotonic
	}
	return w
}

// add has a group looked at, which has something to do.
func (w *watch) add(g *Group) {
	if g.watched.Load() || g.IsLocal() || g.watched.Swap(true) {
		return
	}
	w.mu.Lock()
	w.groups[g] = &watched{}
	first := len(w.groups) == 1
	w.mu.Unlock()
	if first {
		w.kick.wake()
	}
}

// run looks until stop is closed.
func (w *watch) run(stop <-chan struct{}) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-w.kick:
		}
		for tick.Reset(watchEvery); w.look(); {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
		tick.Stop()
	}
}

// look looks at all groups with something to do, and reports whether there are
// any.
func (w *watch) look() bool {
	w.mu.Lock()
	all := maps.Clone(w.groups)
	bound := w.bound + w.bound*time.Duration(w.slow/slowCrowd)
	w.mu.Unlock()
	slow, now := 0, w.now()
	still := map[*Group]Stall{}
	for g, x := range all {
		s, busy := g.stands(x, now)
		if s.For > 0 {
			slow++
		}
		if s.For >= bound {
			s.Keeps = g.keeps(now)
			still[g] = s
			if s.Keeps == "" {
				w.resign(s, now)
			}
		}
		if !busy {
			w.drop(g)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slow, w.still = slow, still
	return len(w.groups) > 0
}

// drop ends looking at a group that has nothing to do, unless it has meanwhile.
func (w *watch) drop(g *Group) {
	w.mu.Lock()
	delete(w.groups, g)
	w.mu.Unlock()
	if g.watched.Store(false); g.busy() {
		w.add(g)
	}
}

// resign ends the office of a leader that stands still.
func (w *watch) resign(s Stall, now time.Duration) {
	s.Group.resign(s, now)
	w.note(s)
}

// note remembers an office that was given up.
func (w *watch) note(s Stall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given[s.Reason]++
	w.last = append(w.last, Resignation{Stall: s, At: w.host.clock.Now()})
	w.last = w.last[max(0, len(w.last)-keptResignations):]
}

// count counts offices given up for a reason that is not the group's own.
func (w *watch) count(reason string, n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given[reason] += n
}

// Stalls lists the leaders that stand still on this node, in order of their
// numbers.
func (h *Host) Stalls() (list []Stall) {
	h.watch.mu.Lock()
	defer h.watch.mu.Unlock()
	for _, s := range h.watch.still {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Stall) int { return int(a.Group.spec.Group) - int(b.Group.spec.Group) })
	return list
}

// Resignations returns how many offices have been given up on this node since it
// started, by reason, and the last ones that were for reasons of the group.
func (h *Host) Resignations() (count map[string]uint64, last []Resignation) {
	h.watch.mu.Lock()
	defer h.watch.mu.Unlock()
	count = map[string]uint64{}
	for _, reason := range Reasons {
		count[reason] = h.watch.given[reason]
	}
	return count, slices.Clone(h.watch.last)
}

// resigning is what a replica remembers of offices that it has given up here.
type resigning struct {
	term  atomic.Uint64 // in which it has resigned; 0: in none
	until atomic.Int64  // it neither resigns nor takes office lightly, by the watch's time
	pause time.Duration // the last one; of the watch's goroutine
	at    time.Duration // when it began; likewise
}

// begin notes that the office of a term is given up.
func (r *resigning) begin(term uint64, now time.Duration) {
	if now-r.at > longestPause+r.pause {
		r.pause = 0
	}
	r.at, r.pause = now, min(max(2*r.pause, shortPause), longestPause)
	r.until.Store(int64(now + r.pause))
	r.term.Store(term)
}

// stands returns how a group stands: for how long what work, and whether it has
// any.
func (g *Group) stands(x *watched, now time.Duration) (s Stall, busy bool) {
	if g.closed.Load() || g.raft.State() != raft.Leader || g.barred() {
		*x = watched{}
		return Stall{}, g.leadsNobody(now)
	}
	s = Stall{Group: g, Term: g.raft.CurrentTerm(), Last: g.raft.LastIndex(), Commit: g.raft.CommitIndex(), Applied: g.raft.AppliedIndex()}
	serves := g.leading.Load() != 0
	entries := s.Last > s.Applied || g.proposer.busy()
	if g.yielding.Load() { // which has bounds of its own
		*x = watched{}
		return s, true
	}
	s.For, s.Reason = x.entries.look(entries, s.Applied, now), StuckEntries
	var tick, settings bool
	var ticks, revision uint64
	if g.mu.TryLock() { // else it is being applied to
		tick, ticks = serves && g.tickIsDue(), g.timer.count()
		settings, revision = serves && g.settingsWait(), g.machine.Config().GetRevision()
		g.mu.Unlock()
		if d := x.tick.look(tick, ticks, now); d > s.For {
			s.For, s.Reason = d, StuckTick
		}
		if d := x.settings.look(settings, revision, now); d > s.For {
			s.For, s.Reason = d, StuckSettings
		}
	} else {
		tick, settings = x.tick.waits, x.settings.waits
	}
	return s, entries || tick || settings || !serves
}

// leadsNobody reports whether raft leads here in a term in which the group has
// resigned. If nobody has taken over for long, the office goes on.
func (g *Group) leadsNobody(now time.Duration) bool {
	if g.closed.Load() || g.raft.State() != raft.Leader || !g.resigned() {
		return false
	}
	if now-g.resigning.at > 3*g.host.watch.bound {
		g.slog.Warn("a leader that makes no progress goes on: nobody has taken over")
		g.resigning.term.Store(0)
		g.host.spawn(g.review)
	}
	return true
}

// busy reports whether the group has something to do that is not looked at.
func (g *Group) busy() bool {
	return !g.closed.Load() && g.raft.State() == raft.Leader && !g.barred() && (g.proposer.busy() || g.raft.LastIndex() > g.raft.AppliedIndex())
}

// busy reports whether entries are being built or are under way.
func (p *proposer) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running || p.waiting
}

// tickIsDue reports whether a tick would change something. The caller holds g.mu.
func (g *Group) tickIsDue() bool {
	d := g.machine.NextDeadline()
	return d != 0 && g.proposer.until(d) == 0
}

// settingsWait reports whether the catalog has settings for the queue that its
// log does not have. The caller holds g.mu.
func (g *Group) settingsWait() bool {
	if !g.settings.changed.Load() {
		return false
	}
	want, have := g.wantSettings(), g.machine.Config()
	if want.Revision >= have.GetRevision() && !proto.Equal(want, have) {
		return true
	}
	g.settings.changed.Store(false)
	return false
}

// keeps says why a leader that stands still does not give way: it would not
// help. Empty: it may.
func (g *Group) keeps(now time.Duration) string {
	voters := g.Voters()
	switch {
	case len(voters) < 2:
		return keepsAlone
	case !g.host.config.Mesh.HasMajority(voters):
		return keepsMajority
	case g.resigning.until.Load() > int64(now):
		return keepsPause
	}
	return ""
}

// resign gives up the office of a leader that stands still. Its raft may hang, so
// nothing is asked of it: the group is served here no more in this term, the
// members are asked who can be elected, and that one is told to stand.
func (g *Group) resign(s Stall, now time.Duration) {
	g.resigning.begin(s.Term, now)
	g.slog.Warn("a leader makes no progress and gives way", "reason", s.Reason, "for", s.For.Round(time.Millisecond),
		"term", s.Term, "last", s.Last, "commit", s.Commit, "applied", s.Applied)
	g.host.spawn(g.review)
	g.host.elections.vacant(g)
}

// resigned reports whether the group has given up its office in the present term.
func (g *Group) resigned() bool {
	term := g.resigning.term.Load()
	return term != 0 && term == g.raft.CurrentTerm()
}

// reluctant reports whether the group has given up its office here lately.
func (g *Group) reluctant() bool {
	until := g.resigning.until.Load()
	return until != 0 && until > int64(g.host.watch.now())
}

// giveWay has another member stand for election at once. If that is not told, or
// does not win, this replica steps down, so that whoever can is elected. If
// nobody can be, the office goes on.
func (g *Group) giveWay(node string, wins bool) {
	term := g.resigning.term.Load()
	if !wins {
		g.slog.Warn("a leader that makes no progress goes on: " + keepsNobody)
		g.resigning.term.Store(0)
		g.review()
		return
	}
	leads := func() bool { return g.raft.State() == raft.Leader && g.raft.CurrentTerm() == term }
	err := tellToStand(g.host.config.Mesh.Transport(g.spec.Group), g.host.config.Node, node, leads, g.ending, g.host.spawn)
	if leads() && !g.closed.Load() {
		g.slog.Warn("nobody has taken over from a leader that makes no progress: it steps down", "to", node, "error", err)
		g.host.config.Mesh.Resign(g.spec.Group, term+1, node)
	}
}

// tellToStand tells a member to stand for election at once, and returns when this
// node leads no more, or after a time in which that one should have won. It may
// not even answer: its raft may hang, too.
func tellToStand(t raft.Transport, self, to string, leads func() bool, ending <-chan struct{}, spawn func(func())) error {
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(self), Addr: []byte(self)}
	told := make(chan error, 1)
	spawn(func() {
		told <- t.TimeoutNow(raft.ServerID(to), raft.ServerAddress(to), &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{})
	})
	limit, look := time.NewTimer(resignTime), time.NewTicker(resignLook)
	defer limit.Stop()
	defer look.Stop()
	for leads() {
		select {
		case err := <-told:
			if told = nil; err != nil {
				return err
			}
		case <-look.C:
		case <-limit.C:
			return errors.New("it has not won in time")
		case <-ending:
			return nil
		}
	}
	return nil
}
