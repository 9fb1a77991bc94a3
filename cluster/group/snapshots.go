package group

import (
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm/queue"
)

// When a snapshot is worth its cost.
const (
	snapshotLook       = 50 * time.Millisecond
	snapshotEntries    = 4096
	snapshotBytes      = 4 << 20 // shared by busy groups: payloads that die in the memtable cost half
	nodeGroupMinimum   = 1 << 20
	snapshotsAtOneTime = 2
	// How much raft keeps behind a snapshot for followers that lag: about so
	// many bytes, shared by busy groups, within these numbers of entries.
	trailingBytes = 4 << 20
	trailingFew   = 16
	trailingMany  = 256
)

// snapshots decides which groups write a snapshot, so that log space is freed
// while it is still cheap to free. An idle group is never looked at.
type snapshots struct {
	host  *Host
	mu    sync.Mutex
	busy  map[*Group]bool // applied something since the last look
	slots chan struct{}
}

func newSnapshots(h *Host) *snapshots {
	return &snapshots{host: h, busy: map[*Group]bool{}, slots: make(chan struct{}, snapshotsAtOneTime)}
}

// touch notes that a group has applied entries.
func (s *snapshots) touch(g *Group) {
	if g.applied.Load() < 64 && g.log.Reclaimable() < nodeGroupMinimum {
		return
	}
	g.applied.Store(0)
	s.mu.Lock()
	s.busy[g] = true
	s.mu.Unlock()
}

func (s *snapshots) run(stop <-chan struct{}) {
	t := time.NewTicker(snapshotLook)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			s.look()
		}
	}
}

// look starts snapshots of groups that have much to reclaim or a long log.
func (s *snapshots) look() {
	s.mu.Lock()
	busy := make([]*Group, 0, len(s.busy))
	for g := range s.busy {
		busy = append(busy, g)
	}
	s.mu.Unlock()
	var most *Group
	for _, g := range busy {
		switch {
		case g.closed.Load() || g.hasStopped():
			s.forget(g)
		case g.log.EntriesSinceSnapshot() >= snapshotEntries || g.log.Reclaimable() >= g.worthwhile(len(busy)):
			s.take(g, len(busy))
		case most == nil || g.log.Reclaimable() > most.log.Reclaimable():
			most = g
		}
	}
	if most != nil && s.host.config.Store.Reclaimable() > s.host.config.Reclaimable && most.log.Reclaimable() > nodeGroupMinimum {
		s.take(most, len(busy))
	}
}

// bytesPerMessage is about what a message takes in a snapshot.
const bytesPerMessage = 48

// worthwhile is how much there must be to reclaim for a snapshot to pay: a
// few times its own size, but not more than what the queue holds alive. busy
// is how many groups share the memtable.
func (g *Group) worthwhile(busy int) int64 {
	var messages int64
	g.View(func(m *queue.Machine) {
		s := m.Stats()
		messages = int64(s.Ready.Messages + s.Unacknowledged.Messages + s.Outbox.Messages)
	})
	return max(snapshotBytes/int64(busy), nodeGroupMinimum, min(4*bytesPerMessage*messages, g.log.LiveBytes()))
}

func (s *snapshots) forget(g *Group) {
	s.mu.Lock()
	delete(s.busy, g)
	s.mu.Unlock()
}

// take writes a snapshot of g, one of so many busy groups, in the background
// if a slot is free.
func (s *snapshots) take(g *Group, busy int) {
	select {
	case s.slots <- struct{}{}:
	default:
		return // the next look comes soon
	}
	s.forget(g)
	s.host.done.Go(func() {
		defer func() { <-s.slots }()
		g.setTrailing(uint64(busy))
		err := g.raft.Snapshot().Error()
		if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown) {
			g.slog.Warn("snapshot failed", "error", err)
		}
	})
}

// setTrailing fits raft's number of trailing entries to their present size.
func (g *Group) setTrailing(busy uint64) {
	entries, bytes := g.entries.Swap(0), g.bytes.Swap(0)
	if entries == 0 {
		return
	}
	keep := min(max(trailingBytes/busy/max(bytes/entries, 1), trailingFew), trailingMany)
	if err := g.reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = keep }); err != nil {
		g.slog.Warn("trailing entries not set", "error", err)
		return
	}
	g.log.SetTrailing(keep)
}
