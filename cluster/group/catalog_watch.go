package group

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// told is to how many members in turn a leader of the catalog that makes no
// progress gives way before it merely steps down. That takes less than
// shortPause.
const told = 2

// steward sees to it that a leader of the catalog with work waiting makes
// progress, or gives way, as watch does for those of queues. There are no
// elections but raft's own here, so the leader itself names its successors.
type steward struct {
	waiting atomic.Int64          // for answers of raft as the leader
	still   atomic.Pointer[Stall] // beyond the bound; nil: it makes progress
	until   atomic.Int64          // it does not stand for election, by the watch's time

	// Of the goroutine that looks.
	entries   mark
	resigning resigning
	turn      int // how many members have been told to take over
}

// ask waits for what raft does as the leader.
func (k *Catalog) ask(f raft.Future) error {
	k.steward.waiting.Add(1)
	defer k.steward.waiting.Add(-1)
	return endingWith(f, k.ending).Error()
}

// keepProgress looks, until the catalog closes.
func (k *Catalog) keepProgress() {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-k.ending:
			return
		case <-t.C:
			k.look(k.config.Host.watch.now())
		}
	}
}

// look has this node give the catalog up if it leads that and makes no progress.
func (k *Catalog) look(now time.Duration) {
	w := k.config.Host.watch
	s := k.stands(now)
	if s.For < w.bound {
		k.steward.still.Store(nil)
		return
	}
	s.Keeps = k.keeps(now)
	k.steward.still.Store(&s)
	if s.Keeps != "" {
		return
	}
	k.steward.resigning.begin(s.Term, now)
	k.steward.until.Store(int64(now + shortPause))
	k.config.Logger.Warn("the catalog's leader makes no progress and gives way", "reason", s.Reason, "for", s.For.Round(time.Millisecond),
		"term", s.Term, "last", s.Last, "commit", s.Commit, "applied", s.Applied)
	w.note(s)
	turn := k.steward.turn
	k.steward.turn += told
	k.done.Go(func() { k.giveWay(s.Term, turn) })
}

// stands returns for how long the leader's work has stood still: what its log
// has, or is to take, is not applied.
func (k *Catalog) stands(now time.Duration) Stall {
	r := k.raft.Load()
	if r.State() != raft.Leader {
		k.steward.entries = mark{}
		return Stall{}
	}
	s := Stall{Reason: StuckCatalog, Term: r.CurrentTerm(), Last: r.LastIndex(), Commit: r.CommitIndex(), Applied: r.AppliedIndex()}
	// Raft counts as applied what it has handed to the machine.
	s.For = k.steward.entries.look(s.Last > s.Applied || k.steward.waiting.Load() > 0, s.Applied+k.appliedIndex(), now)
	return s
}

// keeps says why a leader that stands still does not give way. Empty: it may.
func (k *Catalog) keeps(now time.Duration) string {
	voters := k.Voters()
	switch {
	case len(voters) < 2:
		return keepsAlone
	case !k.config.Mesh.HasMajority(voters):
		return keepsMajority
	case k.steward.resigning.until.Load() > int64(now):
		return keepsPause
	}
	return ""
}

// errReluctant is returned for a vote that a node would ask for which has given
// the catalog up lately: with the longest log it would win, and stand still
// again.
var errReluctant = errors.New("the node has given the catalog up a short time ago")

// refuses is why this node should not stand for election.
func (k *Catalog) refuses() error {
	if until := k.steward.until.Load(); until != 0 && until > int64(k.config.Host.watch.now()) {
		return errReluctant
	}
	return k.trust.refuses()
}

// heirs lists the voters that are up, those first that have acknowledged most.
func (k *Catalog) heirs(term uint64) []string {
	transport := k.config.Mesh.Transport(catalogGroup).(transport)
	heirs := slices.DeleteFunc(k.Voters(), func(n string) bool { return n == k.config.Node || !k.config.Mesh.Alive(n) })
	reached := func(n string) uint64 { return transport.Reached(n, term).Index }
	slices.SortStableFunc(heirs, func(a, b string) int { return cmp.Compare(reached(b), reached(a)) })
	return heirs
}

// giveWay tells some voters, one after the other, to stand for election, and
// then steps down if this node leads in the same term still. Who was told last
// time, and has not taken over, is not told again at once.
func (k *Catalog) giveWay(term uint64, turn int) {
	heirs := k.heirs(term)
	leads := func() bool {
		now, leads := k.leadsIn()
		return leads && now == term
	}
	for i := range min(told, len(heirs)) {
		to := heirs[(turn+i)%len(heirs)]
		err := tellToStand(k.config.Mesh.Transport(catalogGroup), k.config.Node, to, leads, k.ending, k.done.Go)
		if !leads() || k.isClosed() {
			return
		}
		k.config.Logger.Warn("a node does not take the catalog over", "to", to, "error", err)
	}
	if len(heirs) > 0 {
		k.config.Mesh.Resign(catalogGroup, term+1, heirs[0])
	}
}

// Stall says how the catalog stands still, if this node leads it and its work
// makes no progress; nil: it makes progress.
func (k *Catalog) Stall() *Stall { return k.steward.still.Load() }
