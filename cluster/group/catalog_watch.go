package group

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/worker"
)

// maxTransferees is to how many members, one after the other, a leader of the catalog that makes
// no progress gives way before it merely steps down. That takes less than
// shortPause.
const maxTransferees = 2

// watchRest is how often the leader of a catalog is checked for which nothing waits. Whoever begins to
// wait has it checked.
const watchRest = time.Second

// catalogWatch is what is known of the progress of the catalog's leader on this
// node, and of when it has resigned. The catalog has no elections but raft's own,
// so the leader itself chooses its transferees.
type catalogWatch struct {
	waiting  atomic.Int64          // for answers of raft as the leader
	stall    atomic.Pointer[Stall] // beyond the bound; nil: it makes progress
	noVote   atomic.Int64          // until then it does not stand for election, by the watch's time
	resigned resignation
	worker   *worker.Worker // woken when raft's state changes, and when something begins to wait

	// Of the worker's goroutine.
	entries mark
	next    int // transferee
}

// watch checks the progress of the catalog while this node leads it.
func (k *Catalog) watch(time.Time) time.Duration {
	k.check(k.config.Host.watch.now())
	return k.watchAgain(k.watchdog.waiting.Load() > 0 || k.watchdog.entries.waits)
}

// watchAgain is when the progress is checked again, if something waits or not; 0: when raft's state
// changes.
func (k *Catalog) watchAgain(waits bool) time.Duration {
	switch {
	case !k.isLeader():
		return 0
	case waits:
		return watchEvery
	}
	return worker.Next(watchRest)
}

// check has this node give the catalog up if it leads that and makes no progress.
func (k *Catalog) check(now time.Duration) {
	w, d := k.config.Host.watch, &k.watchdog
	s := k.stall(now)
	if s.For < w.bound || s.For < w.bound+k.mesh.Slack(k.Voters()...) {
		d.stall.Store(nil)
		return
	}
	s.Keeps = k.whyKeep(&d.resigned, now)
	d.stall.Store(&s)
	if s.Keeps != "" {
		return
	}
	d.resigned.begin(s.Term, now)
	d.noVote.Store(int64(now + shortPause))
	k.slog.Warn("the catalog's leader makes no progress and resigns", "reason", s.Reason, "for", s.For.Round(time.Millisecond),
		"term", s.Term, "last", s.Last, "commit", s.Commit, "applied", s.Applied)
	w.note(s)
	next := d.next
	d.next += maxTransferees
	k.spawn(func() { k.yield(s.Term, next) })
}

// stall returns for how long the leader's work makes no progress: what its log
// has, or is to take, is not applied.
func (k *Catalog) stall(now time.Duration) Stall {
	r, d := k.raft.Load(), &k.watchdog
	if r.State() != raft.Leader {
		d.entries = mark{}
		return Stall{}
	}
	s := Stall{Reason: StuckCatalog, Term: r.CurrentTerm(), Last: r.LastIndex(), Commit: r.CommitIndex(), Applied: r.AppliedIndex()}
	// Raft counts as applied what it has handed to the machine.
	s.For = d.entries.update(s.Last > s.Applied || d.waiting.Load() > 0, s.Applied+k.convergence.appliedIndex(), now)
	return s
}

// errResignedLately is returned for a vote that a node would ask for which has given
// the catalog up lately: with the longest log it would win, and stall again.
var errResignedLately = errors.New("the node has given the catalog up a short time ago")

// refuses is why this node should not stand for election.
func (k *Catalog) refuses() error {
	if until := k.watchdog.noVote.Load(); until != 0 && until > int64(k.config.Host.watch.now()) {
		return errResignedLately
	}
	return k.trust.refuses()
}

// transferees lists the voters that are up, those first that have acknowledged most.
func (k *Catalog) transferees(term uint64) []string {
	list := slices.DeleteFunc(k.Voters(), func(n string) bool { return n == k.node || !k.mesh.Alive(n) })
	index := func(n string) uint64 { return k.reached(n, term).Index }
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(index(b), index(a)) })
	return list
}

// yield tells some voters, one after the other, to stand for election, and
// then steps down if this node leads in the same term still. The ones of last
// time, who have not taken over, are not told again at once: first says who is.
func (k *Catalog) yield(term uint64, first int) {
	list := k.transferees(term)
	for i := range min(maxTransferees, len(list)) {
		to := list[(first+i)%len(list)]
		err := k.handover.tell(&k.replica, to, term)
		if err == nil || k.isClosed() {
			return
		}
		k.slog.Warn("a node does not take the catalog over", "to", to, "error", err)
	}
	if len(list) > 0 {
		k.mesh.Resign(catalogGroup, term+1, list[0])
	}
}

// Stall says how the catalog stalls, if this node leads it and its work makes no
// progress; nil: it makes progress.
func (k *Catalog) Stall() *Stall { return k.watchdog.stall.Load() }
