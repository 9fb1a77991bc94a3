package raftlog

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// ErrDropped is returned by a Group whose data was deleted by DropGroup, and by one that was unloaded.
var ErrDropped = errors.New("raftlog: the group was dropped")

// noCopyFrom is the size from which the cache keeps the slices that raft passed in. Smaller
// entries are copied: on a follower they are part of one large received message, which a
// long-lived slice would keep in memory.
const noCopyFrom = 8 << 10

// Group is the log, the term and vote, and the snapshots of one raft group. It implements
// raft.LogStore and raft.StableStore.
//
// A stored entry is shared from then on: its Data and Extensions must not be changed, nor may what
// GetLog and Payload return.
type Group struct {
	s     *Store
	id    fsm.GroupID
	place *place // its place in the ledger

	stable
	overlap overlap

	founder

	// epoch of the cache. It changes, under mu, when entries are deleted whose indexes may be
	// reused, before they are.
	epoch atomic.Uint64

	// closing serialises whatever replaces the snapshot. It is taken before mu.
	closing sync.Mutex

	// mu guards what follows. It is held during unsynced commits, so that
	// what is known here and what is in the store change together.
	//
	//	the index of a pin is not that of an entry
	//	snapshot.index() ≥ entries.first-1
	mu       sync.Mutex
	dropped  bool
	entries  entries
	voters   voters
	pins     pins
	snapshot snapshotState
	offers   offers
	loose    loose
}

var (
	_ raft.LogStore          = (*Group)(nil)
	_ raft.StableStore       = (*Group)(nil)
	_ raft.MonotonicLogStore = (*Group)(nil)
)

// ID returns the group's number.
func (g *Group) ID() fsm.GroupID { return g.id }

// IsMonotonic returns false: a gap between indexes is accepted. Entries before a gap are covered
// by a snapshot and are truncated. (If it were true, raft would delete the whole log after
// installing a snapshot. That would lose entries after the snapshot that raft still believes in;
// see DESIGN.md.)
func (g *Group) IsMonotonic() bool { return false }

// FirstIndex returns the index of the first entry, 0 if there is none.
func (g *Group) FirstIndex() (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries.begin(), nil
}

// LastIndex returns the index of the last entry, 0 if there is none.
func (g *Group) LastIndex() (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries.last(), nil
}

// leftOut are the Extensions of an entry whose payload section GetLog has not read.
var leftOut = []byte{}

// GetLog reads an entry. It returns raft.ErrLogNotFound if raft has none at this index. A payload section that
// is not in memory is left out: only who sends entries needs it, and calls Complete.
func (g *Group) GetLog(index uint64, out *raft.Log) error {
	if e := g.entry(index, false); e != nil {
		e.fill(index, out)
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.installedEntry(index, out) {
		return nil
	}
	return raft.ErrLogNotFound
}

// Complete reads the payload section of an entry if GetLog has left it out. It returns an error if raft has
// another entry at this index by now, or none.
func (g *Group) Complete(l *raft.Log) error {
	if l.Extensions == nil || len(l.Extensions) > 0 {
		return nil
	}
	e := g.entry(l.Index, true)
	if e == nil || e.term != l.Term {
		return fmt.Errorf("raftlog: group %d: entry %d of term %d: %w", g.id, l.Index, l.Term, raft.ErrLogNotFound)
	}
	l.Extensions = e.ext
	return nil
}

// entry returns an entry that raft has, or nil, with its payload section if that is asked for, or in memory.
func (g *Group) entry(index uint64, whole bool) *entry {
	for {
		epoch := g.epoch.Load()
		g.mu.Lock()
		i := g.entries.at(index)
		if i == nil {
			g.mu.Unlock()
			return nil
		}
		found := *i
		g.mu.Unlock()

		if f := g.founding.Load(); f != nil && index == f.log.Index {
			return f.entry
		}
		key := cacheKey{epoch, g.id, index}
		if e := g.s.cache.get(key); e != nil && e.whole() {
			return e
		}
		var at *info
		if whole {
			at = &found
		}
		e, err := g.readEntry(index, at)
		if g.epoch.Load() != epoch {
			continue // entries were replaced meanwhile: the parts may not belong together
		}
		if absent(err) && !g.visible(index, epoch, found.extent) {
			continue // truncated meanwhile, or moved
		}
		if err != nil {
			g.s.readFailed(g.id, fmt.Sprintf("entry %d", index), lost(err))
			continue
		}
		if e.whole() {
			g.s.cache.put(key, e)
		}
		return e
	}
}

// installedEntry answers for the last entry that an installed snapshot covers, as long as entries
// follow it. If those are of a superseded term, raft must find out by comparing this one;
// otherwise it would ask for the snapshot again and again. The entry has the right index and term
// and nothing else; it is never replicated, because raft would need the entry before it first. The
// caller holds mu.
func (g *Group) installedEntry(index uint64, out *raft.Log) bool {
	if index <= 1 || index != g.snapshot.installed.index || g.entries.begin() != index+1 {
		return false
	}
	*out = raft.Log{Index: index, Term: g.snapshot.installed.term, Type: raft.LogNoop}
	return true
}

// visible reports whether raft can see an entry, and could see it ever since the epoch was read, with its
// payload section in the same place.
func (g *Group) visible(index, epoch uint64, at extent) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := g.entries.at(index)
	return i != nil && i.extent == at && g.epoch.Load() == epoch
}

// readEntry reads an entry's header, and its payload section if it is told where that lies.
func (g *Group) readEntry(index uint64, i *info) (*entry, error) {
	key := indexKey(kindHeader, g.id, index)
	v, closer, err := g.s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, errNoKey
	}
	if err != nil {
		return nil, err
	}
	sealed := append([]byte(nil), v...)
	closer.Close()
	e, err := parseHeader(key, sealed)
	if err != nil {
		return nil, err
	}
	if i != nil && e.payload > 0 {
		e.ext, err = readSection(g.s.db, g.s.segments, section{indexKey(kindPayload, g.id, index), i.span()})
		if err == nil && len(e.ext) != int(e.payload) {
			err = errShort
		}
	}
	return e, err
}

// StoreLog stores one entry.
func (g *Group) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores entries atomically, and durably unless the group has Overlap. Their indexes must be
// ascending without gaps. Existing entries from the first new index on are deleted first; entries
// before a gap are truncated.
func (g *Group) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	size := 0
	for i, l := range logs {
		if l.Index != logs[0].Index+uint64(i) || l.Index == 0 {
			return fmt.Errorf("raftlog: group %d: entry %d cannot follow entry %d", g.id, l.Index, logs[0].Index+uint64(i)-1)
		}
		if err := checkSizes(g.id, l); err != nil {
			return err
		}
		size += headerSize(l) + 2*indexKeySize + 32
		if g.s.segments.takes(len(l.Extensions)) {
			size += extentSize + sealSize
		} else {
			size += len(l.Extensions)
		}
	}
	if err := g.truncateFor(logs[0].Index); err != nil {
		return err
	}
	g.begin()
	b := g.s.db.NewBatchWithSize(size)
	g.place.rouse(g.s, b)
	infos := make([]info, len(logs))
	for i, l := range logs {
		infos[i] = g.putEntry(b, l, uint32(i))
	}
	w := unsynced{g: g, b: b, ledger: g.place.beginSync()}
	w.number = g.s.write(b)
	if g.overlaps(logs) {
		w.cover(g.s.segments, infos)
		w.end = g.appended(logs, infos)
		g.s.syncer.await(w)
		return nil
	}
	w.segments = g.s.segments.appended.Load()
	g.s.syncer.sync(&w)
	g.awaitDurable()
	end := g.appended(logs, infos)
	g.place.acknowledge(end.index, end.term)
	return nil
}

// appended records that entries are in the log, and returns its end.
func (g *Group) appended(logs []*raft.Log, infos []info) logEnd {
	epoch := g.epoch.Load()
	for _, l := range logs {
		g.s.cache.put(cacheKey{epoch, g.id, l.Index}, cachedCopy(l))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entries.append(logs[0].Index, infos, logs[len(logs)-1].Term)
	for _, l := range logs {
		g.voters.configured(l.Index, l.Type, l.Data)
	}
	index, term := g.end()
	return logEnd{index, term}
}

// truncateFor deletes whatever prevents storing an entry at index.
func (g *Group) truncateFor(index uint64) error {
	if last, _ := g.LastIndex(); index <= last {
		g.awaitDurable()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch last := g.entries.last(); {
	case g.dropped:
		return ErrDropped
	case index <= g.snapshot.installed.index:
		return fmt.Errorf("raftlog: group %d: entry %d is part of the installed snapshot", g.id, index)
	case g.entries.empty() || index == last+1:
	case index > last:
		g.truncatePrefix(last)
	default:
		g.truncateSuffix(index)
	}
	return nil
}

// putEntry adds the records of an entry to a batch. behind is how many of the batch come before it.
func (g *Group) putEntry(b *pebble.Batch, l *raft.Log, behind uint32) info {
	i := info{payload: uint32(len(l.Extensions)), header: uint32(headerSize(l))}
	switch {
	case i.payload == 0:
	case g.s.segments.takes(len(l.Extensions)):
		at, check := g.s.segments.append(indexKey(kindPayload, g.id, l.Index), l.Extensions)
		i.extent, i.check = at, checkOf(check, l.Term)
		g.s.setSealed(b, indexKey(kindExtent, g.id, l.Index), putExtent(i.span(), behind))
	default:
		op := b.SetDeferred(indexKeySize, len(l.Extensions)+sealSize)
		appendIndexKey(op.Key[:0], kindPayload, g.id, l.Index)
		sealed := seal(op.Key, append(op.Value[:0], l.Extensions...))
		g.s.must(op.Finish())
		i.check = checkOf(sealOf(sealed), l.Term)
	}
	op := b.SetDeferred(indexKeySize, headerSize(l))
	appendIndexKey(op.Key[:0], kindHeader, g.id, l.Index)
	putHeader(op.Value, op.Key, l, i.check)
	g.s.must(op.Finish())
	return i
}

// cachedCopy returns the entry as the cache keeps it.
func cachedCopy(l *raft.Log) *entry {
	e := entryOf(l)
	if n := len(e.data); n+len(e.ext) < noCopyFrom {
		own := make([]byte, 0, n+len(e.ext))
		own = append(append(own, e.data...), e.ext...)
		e.data, e.ext = own[:n:n], own[n:]
	}
	return e
}

// Reclaimable returns how many bytes the truncation after a snapshot taken now would free:
// headers, and payload sections without live messages.
func (g *Group) Reclaimable() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries.reclaimable
}

// LiveBytes returns the size of all payload sections with live messages.
func (g *Group) LiveBytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries.live + g.pins.bytes
}

// EntriesSinceSnapshot returns how many entries follow the newest snapshot.
func (g *Group) EntriesSinceSnapshot() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	last, covered := g.entries.last(), g.snapshot.index()
	if last <= covered {
		return 0
	}
	return last - max(covered, g.entries.first-1)
}

// SnapshotIndex returns the last index that the group's snapshot covers, or 0 if it has none.
func (g *Group) SnapshotIndex() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.snapshot.index()
}

// SetTrailing sets how many entries raft will keep behind this group's next snapshot.
func (g *Group) SetTrailing(entries uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entries.trailing = entries
	g.entries.recount()
}

// forget clears the in-memory state of a group that is dropped or unloaded. The caller holds stable.mu, closing and mu.
func (g *Group) forget() {
	g.dropped = true
	g.founding.Store(nil)
	g.epoch.Store(g.s.epochs.Add(1))
	g.entries.forget()
	g.pins, g.snapshot, g.voters = pins{}, snapshotState{}, voters{}
	g.stable.forget()
}
