package host

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/semaphore"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm/queue"
)

// When a snapshot is worth its cost.
const (
	snapshotEvery      = 50 * time.Millisecond
	snapshotBytes      = 4 << 20 // shared by busy groups: payloads that die in the memtable cost half
	snapshotsAtOneTime = 4
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

// snapshots decides which groups write a snapshot, so that log space is freed
// while it is still cheap to free. An idle group is never considered, and while nothing is applied
// nothing is looked at, but once in retainEvery: payloads may be freed after the entries were applied.
type snapshots struct {
	host     *Host
	worker   *worker.Worker // woken when a busy group has applied something
	mu       sync.Mutex
	busy     map[*awake]bool // applied something since they were last considered
	retained map[*awake]kept // by groups, for members that lag
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
		busy: map[*awake]bool{}, retained: map[*awake]kept{}, slots: semaphore.NewWeighted(snapshotsAtOneTime),
	}
}

// note has a group considered that has applied enough, or has enough to reclaim.
func (s *snapshots) note(g *awake) {
	if g.Usage().Unnoted.Load() >= group.Noteworthy || g.Store().Reclaimable() >= group.Noteworthy {
		g.Usage().Unnoted.Store(0)
		s.mu.Lock()
		s.busy[g] = true
		g.considered.Store(true)
		s.mu.Unlock()
	}
	if g.considered.Load() {
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
	var dirty, long *awake // those with the most to reclaim, and to apply again
	var dirtiest, longest int64
	for _, g := range busy {
		if g.IsClosed() || g.Stopped() {
			s.forget(g)
			continue
		}
		if !g.fitted.Load() && g.Usage().Entries.Load() >= trailingSample {
			s.setTrailing(g, uint64(len(busy)))
		}
		w := g.worth()
		if w.due(len(busy)) {
			s.take(g, len(busy))
			continue
		}
		if w.reclaimable > max(dirtiest, group.Noteworthy, w.state/replayPart) {
			dirty, dirtiest = g, w.reclaimable
		}
		if w.replay > max(longest, w.state/replayPart) {
			long, longest = g, w.replay
		}
	}
	if dirty != nil && s.host.config.Store.Reclaimable() > s.host.config.Reclaimable {
		s.take(dirty, len(busy))
	}
	if long != nil && s.host.node.Replays() > replayNode {
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

func (g *awake) worth() worth {
	var messages uint64
	g.View(func(m *queue.Machine) {
		s := m.Stats()
		messages = s.Ready.Messages + s.Unacknowledged.Messages + s.Outbox.Messages
	})
	return worth{
		state: bytesPerMessage * int64(messages), live: g.Store().LiveBytes(),
		reclaimable: g.Store().Reclaimable(), replay: g.Usage().Replay(),
	}
}

// due reports whether a snapshot pays: it frees as much as it takes itself, up
// to four times as much if that is not more than what the queue holds alive; or
// it saves applying as much again. busy is how many groups share the memtable.
func (w worth) due(busy int) bool {
	reclaim := max(snapshotBytes/int64(busy), group.Noteworthy, w.state, min(4*w.state, w.live))
	replay := min(max(replayMin, w.state), replayMax)
	return w.reclaimable >= reclaim || w.replay >= replay
}

func (s *snapshots) forget(g *awake) {
	s.mu.Lock()
	delete(s.busy, g)
	g.considered.Store(false)
	s.mu.Unlock()
}

// take writes a snapshot of g, one of so many busy groups, in the background
// if a slot is free.
func (s *snapshots) take(g *awake, busy int) {
	if !s.slots.TryAcquire(1) {
		return // it is tried again when a slot is free
	}
	s.forget(g)
	s.host.done.Go(func() {
		defer s.worker.Wake()
		defer s.slots.Release(1)
		s.setTrailing(g, uint64(busy))
		s.retainFor(g)
		_ = g.WriteSnapshot()
	})
}

// write writes a snapshot of g when a slot is free, and waits for it.
func (s *snapshots) write(ctx context.Context, g *awake) error {
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.worker.Wake()
	defer s.slots.Release(1)
	s.retainFor(g)
	return g.WriteSnapshot()
}

// retainFor keeps the entries of a group that this node leads for members that
// lag, within the group's share of what the node may keep. A member that lacks
// more gets a snapshot, so nothing is kept for it.
func (s *snapshots) retainFor(g *awake) {
	s.mu.Lock()
	share := s.host.config.Retained
	if n := s.lagging(g); n > 0 {
		share /= int64(n) + 1
	}
	s.mu.Unlock()
	from := g.needed(share)
	g.Store().Retain(from)
	much := from != 0 && g.Store().Retained(from, trailingBytes) > trailingBytes
	s.mu.Lock()
	defer s.mu.Unlock()
	if from == 0 {
		delete(s.retained, g)
	} else {
		s.retained[g] = kept{from, much}
	}
}

// lagging counts the groups beside g that keep much. s.mu is held.
func (s *snapshots) lagging(g *awake) (n int) {
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
func (g *awake) needed(share int64) (from uint64) {
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
		if lags(has, last, trailing) && (from == 0 || has < from) && g.Store().Retained(has, share) <= share {
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
func (*snapshots) setTrailing(g *awake, busy uint64) {
	entries, bytes := g.Usage().Entries.Swap(0), g.Usage().Bytes.Swap(0)
	if entries == 0 {
		return
	}
	g.fitted.Store(true)
	keep := trailing(bytes/entries, busy)
	if keep == g.Raft().ReloadableConfig().TrailingLogs {
		return
	}
	if err := g.Reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = keep }); err != nil {
		g.Logger().Warn("trailing entries not set", "error", err)
		return
	}
	g.Store().SetTrailing(keep)
}
