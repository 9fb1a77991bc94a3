package group

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/semaphore"

	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm/queue"
)

// When a snapshot is worth its cost.
const (
	snapshotEvery      = 50 * time.Millisecond
	snapshotBytes      = 4 << 20 // shared by busy groups: payloads that die in the memtable cost half
	nodeGroupMinimum   = 1 << 20
	snapshotsAtOneTime = 4
	// A group is considered when it has applied so many entries, or as many bytes as may be worth a snapshot.
	notedEntries = 64
	// A snapshot is written again when as much was applied since the last one
	// as it takes itself, in bytes of the entries' headers, within these
	// limits. What was applied since is applied again at the next start;
	// replayNode bounds it for all groups together, but for what is less than a
	// replayPart of a group's state.
	replayMin  = 4 << 20
	replayMax  = 32 << 20
	replayNode = 128 << 20
	replayPart = 4
	// How much raft keeps behind a snapshot for followers that lag: about so
	// many bytes, shared by busy groups, within these numbers of entries.
	trailingBytes = 4 << 20
	trailingFew   = 8
	trailingMany  = 256
	// trailingSample is how many entries tell the size of a group's first ones.
	trailingSample = 4
	// retainEvery is how often it is checked whether members still need what is retained
	// for them. While groups are busy it is checked before each snapshot that might free
	// it, as long as the check looks at no more than so many entries.
	retainEvery     = time.Second
	retainedChecked = 1 << 14
)

// usage is what a group has applied since certain moments.
type usage struct {
	note  func()        // has the scheduler consider the group
	total *atomic.Int64 // of replay, of all groups of the node

	unnoted        atomic.Int64  // bytes since the scheduler last heard of the group, and some for each entry
	busy           atomic.Bool   // the scheduler considers the group
	fitted         atomic.Bool   // the number of trailing entries fits their size
	entries, bytes atomic.Uint64 // since the last snapshot
	replay         atomic.Int64  // bytes of headers since then: the next start applies them again
	active         atomic.Int64  // when an entry was last applied, in ns; 0: none was
	writing        atomic.Int32  // snapshots that are being written
}

// applied notes that so many entries of so many bytes were applied.
func (u *usage) applied(entries, bytes int) {
	u.unnoted.Add(int64(bytes + entries*(nodeGroupMinimum/notedEntries)))
	u.entries.Add(uint64(entries))
	u.bytes.Add(uint64(bytes))
	u.note()
}

// toReplay notes that entries with headers of so many bytes were applied.
func (u *usage) toReplay(bytes int64) {
	u.replay.Add(bytes)
	u.total.Add(bytes)
}

// captured notes that what was applied so far is in a snapshot that is being
// written, or in a machine that came with one, and returns how much that is.
func (u *usage) captured() int64 {
	n := u.replay.Swap(0)
	u.total.Add(-n)
	return n
}

// snapshots decides which groups write a snapshot, so that log space is freed
// while it is still cheap to free. An idle group is never considered, and while nothing is applied
// nothing is looked at, but once in retainEvery: payloads may be freed after the entries were applied.
type snapshots struct {
	host     *Host
	worker   *worker.Worker // woken when a busy group has applied something
	replay   atomic.Int64   // bytes that the next start applies again, of all groups
	mu       sync.Mutex
	busy     map[*instance]bool // applied something since they were last considered
	retained map[*instance]kept // by groups, for members that lag
	slots    *semaphore.Weighted
}

// kept is what a group keeps for members that lag.
type kept struct {
	from uint64 // the first entry
	much bool   // more than groups keep in any case
}

func newSnapshots(h *Host) *snapshots {
	return &snapshots{
		host: h, worker: worker.New(worker.Options{Pause: snapshotEvery}),
		busy: map[*instance]bool{}, retained: map[*instance]kept{}, slots: semaphore.NewWeighted(snapshotsAtOneTime),
	}
}

// note has a group considered that has applied enough, or has enough to reclaim.
func (s *snapshots) note(g *instance) {
	if g.usage.unnoted.Load() >= nodeGroupMinimum || g.store.Reclaimable() >= nodeGroupMinimum {
		g.usage.unnoted.Store(0)
		s.mu.Lock()
		s.busy[g] = true
		g.usage.busy.Store(true)
		s.mu.Unlock()
	}
	if g.usage.busy.Load() {
		s.worker.Wake()
	}
}

func (s *snapshots) run(stop <-chan struct{}) {
	renewed := time.Now()
	s.worker.Run(stop, func(now time.Time) time.Duration {
		s.schedule()
		if now.Sub(renewed) >= retainEvery-snapshotEvery {
			renewed = now
			s.renewRetained(math.MaxInt64)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.busy)+len(s.retained) == 0 {
			return 0
		}
		return worker.Next(retainEvery)
	})
}

// schedule starts snapshots of groups that have much to reclaim or much to apply
// again.
func (s *snapshots) schedule() {
	s.renewRetained(retainedChecked)
	s.mu.Lock()
	busy := slices.Collect(maps.Keys(s.busy))
	s.mu.Unlock()
	var dirty, long *instance // those with the most to reclaim, and to apply again
	var dirtiest, longest int64
	for _, g := range busy {
		if g.IsClosed() || g.applier.hasStopped() {
			s.forget(g)
			continue
		}
		if !g.usage.fitted.Load() && g.usage.entries.Load() >= trailingSample {
			s.setTrailing(g, uint64(len(busy)))
		}
		w := g.worth()
		if w.due(len(busy)) {
			s.take(g, len(busy))
			continue
		}
		if w.reclaimable > max(dirtiest, nodeGroupMinimum, w.state/replayPart) {
			dirty, dirtiest = g, w.reclaimable
		}
		if w.replay > max(longest, w.state/replayPart) {
			long, longest = g, w.replay
		}
	}
	if dirty != nil && s.host.config.Store.Reclaimable() > s.host.config.Reclaimable {
		s.take(dirty, len(busy))
	}
	if long != nil && s.replay.Load() > replayNode {
		s.take(long, len(busy))
	}
}

// bytesPerMessage is about what a message takes in a snapshot.
const bytesPerMessage = 48

// worth is what a snapshot of a group costs and brings, in bytes.
type worth struct {
	state       int64 // its size
	live        int64 // payloads that stay
	reclaimable int64 // what it frees
	replay      int64 // what need not be applied again
}

func (g *instance) worth() worth {
	var messages uint64
	g.View(func(m *queue.Machine) {
		s := m.Stats()
		messages = s.Ready.Messages + s.Unacknowledged.Messages + s.Outbox.Messages
	})
	return worth{
		state: bytesPerMessage * int64(messages), live: g.store.LiveBytes(),
		reclaimable: g.store.Reclaimable(), replay: g.usage.replay.Load(),
	}
}

// due reports whether a snapshot pays: it frees as much as it takes itself, up
// to four times as much if that is not more than what the queue holds alive; or
// it saves applying as much again. busy is how many groups share the memtable.
func (w worth) due(busy int) bool {
	reclaim := max(snapshotBytes/int64(busy), nodeGroupMinimum, w.state, min(4*w.state, w.live))
	replay := min(max(replayMin, w.state), replayMax)
	return w.reclaimable >= reclaim || w.replay >= replay
}

func (s *snapshots) forget(g *instance) {
	s.mu.Lock()
	delete(s.busy, g)
	g.usage.busy.Store(false)
	s.mu.Unlock()
}

// take writes a snapshot of g, one of so many busy groups, in the background
// if a slot is free.
func (s *snapshots) take(g *instance, busy int) {
	if !s.slots.TryAcquire(1) {
		return // it is tried again when a slot is free
	}
	s.forget(g)
	s.host.done.Go(func() {
		defer s.worker.Wake()
		defer s.slots.Release(1)
		s.setTrailing(g, uint64(busy))
		s.retainFor(g)
		_ = g.snapshot()
	})
}

// ErrNoLog is returned for a queue whose log is in memory only.
var ErrNoLog = errors.New("the queue has no log on disk")

// Snapshot writes a snapshot now, and waits for it. Nothing is written if nothing was applied since the last
// one.
func (g *instance) Snapshot(ctx context.Context) error {
	if g.IsLocal() {
		return ErrNoLog
	}
	s := g.host.snapshots
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.worker.Wake()
	defer s.slots.Release(1)
	s.retainFor(g)
	if err := g.snapshot(); !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return err
	}
	return nil
}

// snapshot writes a snapshot and waits for it.
func (g *instance) snapshot() error {
	g.usage.writing.Add(1)
	defer g.usage.writing.Add(-1)
	err := g.Raft().Snapshot().Error()
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown) {
		g.slog.Warn("snapshot failed", "error", err)
	}
	return err
}

// retainFor keeps the entries of a group that this node leads for members that
// lag, within the group's share of what the node may keep. A member that lacks
// more gets a snapshot, so nothing is kept for it.
func (s *snapshots) retainFor(g *instance) {
	s.mu.Lock()
	share := s.host.config.Retained
	if n := s.lagging(g); n > 0 {
		share /= int64(n) + 1
	}
	s.mu.Unlock()
	from := g.needed(share)
	g.store.Retain(from)
	much := from != 0 && g.store.Retained(from, trailingBytes) > trailingBytes
	s.mu.Lock()
	defer s.mu.Unlock()
	if from == 0 {
		delete(s.retained, g)
	} else {
		s.retained[g] = kept{from, much}
	}
}

// lagging counts the groups beside g that keep much. s.mu is held.
func (s *snapshots) lagging(g *instance) (n int) {
	for other, kept := range s.retained {
		if kept.much && other != g {
			n++
		}
	}
	return n
}

// needed is the last entry that a member has whom those behind it, which can be
// kept, still help; 0: there is none. Raft sends entries with the term of the one
// before them.
func (g *instance) needed(share int64) (from uint64) {
	role, term := g.Role()
	if role != raft.Leader {
		return 0
	}
	last, trailing := g.LastIndex(), g.Raft().ReloadableConfig().TrailingLogs
	for _, m := range g.Configuration() {
		if m.Node == g.Node() {
			continue
		}
		r := g.Reached(m.Node, term)
		has := max(r.Index, r.Installing, 1)
		if lags(has, last, trailing) && (from == 0 || has < from) && g.store.Retained(has, share) <= share {
			from = has
		}
	}
	return from
}

// lags reports whether a member needs more than raft keeps for it anyway. What is
// under way to a member that keeps up is less; to retain it would free nothing.
func lags(has, last, trailing uint64) bool { return has+trailing/2 < last }

// renewRetained lets go of entries that nobody needs any more. It looks at about so many, of some groups if
// all retain more.
func (s *snapshots) renewRetained(entries int64) {
	s.mu.Lock()
	all := maps.Clone(s.retained)
	s.mu.Unlock()
	for g, kept := range all {
		if entries -= max(int64(g.LastIndex())-int64(kept.from), 1); entries < 0 {
			return
		}
		if g.IsClosed() {
			s.mu.Lock()
			delete(s.retained, g)
			s.mu.Unlock()
			continue
		}
		s.retainFor(g)
		s.note(g) // what was retained counts as reclaimable from now on
	}
}

// trailing is how many entries of a size raft keeps behind a snapshot of one of so many busy groups.
func trailing(size, busy uint64) uint64 {
	return min(max(trailingBytes/busy/max(size, 1), trailingFew), trailingMany)
}

// setTrailing fits raft's number of trailing entries of a group to their present size.
func (*snapshots) setTrailing(g *instance, busy uint64) {
	entries, bytes := g.usage.entries.Swap(0), g.usage.bytes.Swap(0)
	if entries == 0 {
		return
	}
	g.usage.fitted.Store(true)
	keep := trailing(bytes/entries, busy)
	if keep == g.Raft().ReloadableConfig().TrailingLogs {
		return
	}
	if err := g.Reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = keep }); err != nil {
		g.slog.Warn("trailing entries not set", "error", err)
		return
	}
	g.store.SetTrailing(keep)
}

// snapshotOffers is a group as the mesh asks it about snapshots that are sent.
type snapshotOffers struct {
	g       *instance
	renewed atomic.Bool // a newer snapshot is being written
}

// Offer implements peer.Snapshots.
func (o *snapshotOffers) Offer(index uint64) (list []byte, done func(), newer uint64) {
	if at := o.g.store.SnapshotIndex(); at > index {
		return nil, nil, at
	}
	list, done = o.g.store.Offer(index)
	return list, done, 0
}

// Refused implements peer.Snapshots. A member whose snapshot is newer than the
// one that was sent cannot go back to that. It takes one that is as new as its
// own, which raft would write much later, or never: the group may need that
// member for everything that it would have to commit before.
func (o *snapshotOffers) Refused(index uint64) {
	g := o.g
	g.host.tasks.Go(func() {
		if !o.renewed.CompareAndSwap(false, true) {
			return
		}
		defer o.renewed.Store(false)
		if g.store.SnapshotIndex() < index && g.Raft().AppliedIndex() >= index && g.snapshot() != nil {
			return // those who lag are sent something later
		}
		g.Nudge()
	})
}
