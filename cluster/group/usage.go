package group

import (
	"errors"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// Noteworthy is how many bytes a group has to have applied, or to reclaim, before a snapshot of it is considered, and
// NotedEntries how many entries count as much.
const (
	Noteworthy   = 1 << 20
	NotedEntries = 64
)

// Usage is what a group has applied since certain moments. The host considers it for a snapshot, and sets those to 0 that
// it has acted upon.
type Usage struct {
	Unnoted        atomic.Int64  // bytes since the host last took note of the group, and some for each entry
	Entries, Bytes atomic.Uint64 // since the last snapshot

	note    func()        // the host's
	total   *atomic.Int64 // of replay, of all groups of the node
	replay  atomic.Int64  // bytes of headers since the last snapshot: the next start applies them again
	active  atomic.Int64  // when an entry was last applied, in ns; 0: none was
	writing atomic.Int32  // snapshots that are being written
}

// Replay is how many bytes of entries the next start applies again.
func (u *Usage) Replay() int64 { return u.replay.Load() }

// applied notes that so many entries of so many bytes were applied.
func (u *Usage) applied(entries, bytes int) {
	u.Unnoted.Add(int64(bytes + entries*(Noteworthy/NotedEntries)))
	u.Entries.Add(uint64(entries))
	u.Bytes.Add(uint64(bytes))
	u.note()
}

// toReplay notes that entries with headers of so many bytes were applied.
func (u *Usage) toReplay(bytes int64) {
	u.replay.Add(bytes)
	u.total.Add(bytes)
}

// captured notes that what was applied so far is in a snapshot that is being
// written, or in a machine that came with one, and returns how much that is.
func (u *Usage) captured() int64 {
	n := u.replay.Swap(0)
	u.total.Add(-n)
	return n
}

// ErrNoLog is returned for a queue whose log is in memory only.
var ErrNoLog = errors.New("the queue has no log on disk")

// WriteSnapshot writes a snapshot now, and waits for it.
func (g *Instance) WriteSnapshot() error {
	g.usage.writing.Add(1)
	defer g.usage.writing.Add(-1)
	g.snapshotting.Lock()
	defer g.snapshotting.Unlock()
	err := g.Raft().Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		err = g.resumes.writeSnapshot(g)
	}
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown) {
		g.slog.Warn("snapshot failed", "error", err)
	}
	return err
}

// writeSnapshot writes a snapshot of a replica that has applied nothing since it has slept. To raft the machine that it went on
// with is a snapshot already.
func (r *Record) writeSnapshot(g *Instance) error {
	if r == nil || int64(r.at.Index) <= g.order.snapshot() {
		return raft.ErrNothingNewToSnapshot
	}
	s, err := g.applier.Snapshot()
	if err != nil {
		return err
	}
	defer s.Release()
	if index, _, _ := s.(*snapshot).view.Position(); index > r.at.Index { // something has been applied meanwhile
		return g.Raft().Snapshot().Error()
	}
	sink, err := g.store.Snapshots().Create(raft.SnapshotVersionMax, r.at.Index, r.at.Position.Term, r.config, r.configAt, nil)
	if err == nil {
		err = s.Persist(sink)
	}
	if err != nil {
		return err
	}
	first, _ := g.store.FirstIndex() // neither has errors
	last, _ := g.store.LastIndex()
	if keep := g.Raft().ReloadableConfig().TrailingLogs; last > keep {
		return g.store.DeleteRange(first, min(r.at.Index, last-keep))
	}
	return nil
}

// snapshotOffers is a group as the mesh asks it about snapshots that are sent.
type snapshotOffers struct {
	g       *Instance
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
	g.node.Tasks.Go(func() {
		if !o.renewed.CompareAndSwap(false, true) {
			return
		}
		defer o.renewed.Store(false)
		if g.store.SnapshotIndex() < index && g.Raft().AppliedIndex() >= index && g.WriteSnapshot() != nil {
			return // those who lag are sent something later
		}
		g.Nudge()
	})
}
