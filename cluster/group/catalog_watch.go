package group

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/worker"
)

// watchRest is how often the leader of a catalog is checked for which nothing waits. Whoever begins to
// wait has it checked.
const watchRest = time.Second

// catalogWatch is what is known of the progress of the catalog's leader on this
// node, and of when it has resigned. The catalog has no elections but raft's own,
// so the leader itself chooses its transferee.
type catalogWatch struct {
	waiting  atomic.Int64          // for answers of raft as the leader
	stall    atomic.Pointer[Stall] // beyond the bound; nil: it makes progress
	noVote   atomic.Int64          // until then it does not stand for election, by the watch's time
	resigned resignation
	worker   *worker.Worker // woken when raft's state changes, and when something begins to wait

	entries mark // of the worker's goroutine
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
	k.slog.Warn("the catalog's leader is making no progress and resigns", "reason", s.Reason, "for", s.For.Round(time.Millisecond),
		"term", s.Term, "last", s.Last, "commit", s.Commit, "applied", s.Applied)
	w.note(s)
	k.spawn(func() {
		if to := k.transferee(s.Term); to != "" {
			k.handover.yield(&k.replica, to, s.Term, true)
		}
	})
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
var errResignedLately = errors.New("the node gave up the catalog a short time ago")

// refuses is why this node should not stand for election.
func (k *Catalog) refuses() error {
	if until := k.watchdog.noVote.Load(); until != 0 && until > int64(k.config.Host.watch.now()) {
		return errResignedLately
	}
	return k.trust.refuses()
}

// transferee is the voter that has acknowledged most of those that are up; empty: none is. If it does not take
// over, this node steps down, and another one is elected.
func (k *Catalog) transferee(term uint64) (best string) {
	for _, n := range k.Voters() {
		if n != k.node && k.mesh.Alive(n) && (best == "" || k.reached(n, term).Index > k.reached(best, term).Index) {
			best = n
		}
	}
	return best
}

// Stall says how the catalog stalls, if this node leads it and its work makes no
// progress; nil: it makes progress.
func (k *Catalog) Stall() *Stall { return k.watchdog.stall.Load() }
