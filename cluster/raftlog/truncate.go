package raftlog

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// rangeFrom is the number of neighbouring records from which one range
// deletion is cheaper than a deletion each: every range deletion in the
// memtable slows reads down until the next flush.
const rangeFrom = 64

// DeleteRange does one of two things that raft calls by one name.
//
// After a snapshot, from the first entry on: the entries up to max become
// invisible and lose their headers, those excepted that Retain names. A payload section goes as well if Release
// has named its entry; else it is pinned and stays until Release does.
//
// Before entries of another leader, up to the last entry: they are deleted,
// and what was known about them is forgotten.
//
// Nothing is synced: after a crash raft sees the entries again, which is as
// good as if the call had not happened, and the next StoreLogs makes it
// durable. A range within the log is an error; raft asks for none.
func (g *Group) DeleteRange(minIndex, maxIndex uint64) error {
	g.awaitDurable()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dropped {
		return ErrDropped
	}
	first, last := g.entries.begin(), g.entries.last()
	lo, hi := max(minIndex, first), min(maxIndex, last)
	if g.entries.empty() || lo > hi {
		return nil
	}
	switch {
	case lo == first && (hi < last || hi <= g.snapshot.index()):
		g.entries.retention.requested = hi
		if hi = g.entries.retention.limit(hi); hi >= first {
			g.truncatePrefix(hi)
		}
	case hi == last:
		g.truncateSuffix(lo)
	default:
		return fmt.Errorf("raftlog: group %d: cannot delete entries %d to %d within %d to %d", g.id, minIndex, maxIndex, first, last)
	}
	return nil
}

// Retain keeps the entries from from on where they are although a snapshot covers
// them, because another member needs them; 0: none. What only an earlier call has
// retained is deleted. Nothing is remembered beyond a restart.
func (g *Group) Retain(from uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := &g.entries
	if g.dropped || e.retention.from == from {
		return
	}
	e.retention.from = from
	if last := min(e.retention.limit(e.retention.requested), e.last()); !e.empty() && last >= e.first {
		g.truncatePrefix(last)
	}
	e.recount()
}

// Retained is how many bytes the deletion of the entries from from on, up to the
// last one, would free. It counts no further once that is more than limit.
func (g *Group) Retained(from uint64, limit int64) (bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries.freed(from, limit)
}

// truncatePrefix makes the entries up to last invisible. The caller holds mu.
func (g *Group) truncatePrefix(last uint64) {
	first := g.entries.first
	b := g.s.db.NewBatch()
	g.deleteRun(b, kindHeader, first, last, int(last-first+1))
	run, inPebble, inSegments := first, 0, 0 // run: where the current run of dead sections starts
	deleteSections := func(last uint64) {
		g.deleteRun(b, kindPayload, run, last, inPebble)
		g.deleteRun(b, kindExtent, run, last, inSegments)
	}
	for index := first; index <= last; index++ {
		i := g.entries.at(index)
		switch {
		case i.payload == 0:
		case i.dead && i.segment == 0:
			inPebble++
		case i.dead:
			inSegments++
			g.loose.add(i.span())
		default:
			deleteSections(index - 1)
			run, inPebble, inSegments = index+1, 0, 0
			p := pin{index: index, size: i.payload, check: i.check, extent: i.extent}
			g.setPin(b, p)
			g.pins.add(p)
		}
	}
	deleteSections(last)
	g.loose.commit(g.s, b, pebble.NoSync)
	g.entries.truncatePrefix(last)
}

// deleteRun deletes the records of kind k, which is kindHeader, kindPayload or
// kindExtent, of the entries from first to last, of which n have one.
func (g *Group) deleteRun(b *pebble.Batch, k kind, first, last uint64, n int) {
	if n >= rangeFrom {
		g.s.deleteRange(b, indexKey(k, g.id, first), indexKey(k, g.id, last+1))
		return
	}
	for index := first; n > 0 && index <= last; index++ {
		if size := g.entries.at(index).recordSize(k); size > 0 {
			g.s.must(b.DeleteSized(indexKey(k, g.id, index), size, nil))
		}
	}
}

// truncateSuffix deletes the entries from first on. The caller holds mu.
func (g *Group) truncateSuffix(first uint64) {
	last := g.entries.last()
	b := g.s.db.NewBatch()
	g.place.rouse(g.s, b)
	for _, k := range []kind{kindHeader, kindPayload, kindExtent} {
		g.s.deleteRange(b, indexKey(k, g.id, first), indexKey(k, g.id, last+1))
	}
	for index := max(first, g.entries.begin()); index <= last; index++ {
		g.loose.add(g.entries.at(index).span())
	}
	g.entries.truncateSuffix(first, g.termOf(first-1))
	g.voters.truncated(first)
	g.place.lower(g.end())
	g.loose.commit(g.s, b, pebble.NoSync)
	g.epoch.Store(g.s.epochs.Add(1))
}

// termOf reads the term of an entry that raft can see, 0 if it cannot be read.
func (g *Group) termOf(index uint64) uint64 {
	if g.entries.at(index) == nil {
		return 0
	}
	e, err := g.readEntry(index, nil)
	if err != nil {
		return 0
	}
	return e.term
}

// Release says that no message of these entries' payload sections is live any
// more, or ever will be. The sections of entries that raft has let go of are
// deleted; the others when raft lets go of them. Whoever still has to read a
// payload must do so before. Indexes may come in any order, and repeatedly.
//
// Nothing is synced: Started repeats what a crash undid.
func (g *Group) Release(indexes []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.release(indexes)
}

// release is Release for a caller that holds mu.
func (g *Group) release(indexes []uint64) {
	if g.offers.postpone(indexes) {
		return
	}
	var at []int // positions among the pins
	for _, index := range indexes {
		if g.entries.at(index) != nil {
			g.entries.die(index)
		} else if p := g.pins.find(index); p >= 0 {
			at = append(at, p)
		}
	}
	if len(at) == 0 {
		return
	}
	slices.Sort(at)
	at = slices.Compact(at)
	b, before := g.s.db.NewBatch(), g.pins.bytes
	for len(at) > 0 {
		n := 1
		for n < len(at) && at[n] == at[n-1]+1 && g.pins.items[at[n]].number == g.pins.items[at[0]].number {
			n++
		}
		g.deletePins(b, g.pins.items[at[0]:at[0]+n])
		for _, p := range at[:n] {
			g.pins.release(p)
		}
		at = at[n:]
	}
	g.loose.commit(g.s, b, pebble.NoSync)
	g.s.freedPins(before - g.pins.bytes)
	g.pins.tidy()
}

// deletePins deletes neighbouring pins of one origin and their payload sections.
func (g *Group) deletePins(b *pebble.Batch, run []pin) {
	long, inPebble, inSegments := len(run) >= rangeFrom, false, false
	for _, p := range run {
		if p.size == 0 {
			continue
		}
		inPebble, inSegments = inPebble || p.segment == 0, inSegments || p.segment != 0
		g.loose.add(p.span())
		switch {
		case long:
			continue
		case p.segment != 0:
			g.s.must(b.DeleteSized(indexKey(kindExtent, g.id, p.index), extentSize+sealSize, nil))
		default:
			g.s.must(b.DeleteSized(g.sectionKey(p), p.size+sealSize, nil))
		}
		g.s.remove(b, g.pinKey(p))
	}
	if !long {
		return
	}
	first, end := run[0], run[len(run)-1]
	end.index++
	if inPebble {
		g.s.deleteRange(b, g.sectionKey(first), g.sectionKey(end))
	}
	if inSegments {
		g.s.deleteRange(b, indexKey(kindExtent, g.id, first.index), indexKey(kindExtent, g.id, end.index))
	}
	g.s.deleteRange(b, g.pinKey(first), g.pinKey(end))
}

// Started tells the group what the machine's state holds: live reports
// whether an entry has live messages, applied is the last entry in the state.
// Call it at the end of every raft.FSM.Restore, which raft also calls when it
// starts with a snapshot; without one it applies every entry again. It frees what
// was released before a crash and came back, and what came with a snapshot and is
// not needed.
func (g *Group) Started(live func(index uint64) bool, applied uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sweep(live, applied)
}

// sweep releases everything up to last that is not live. The caller holds mu.
func (g *Group) sweep(live func(index uint64) bool, last uint64) {
	var gone []uint64
	for _, p := range g.pins.items {
		if p.size > 0 && p.index <= last && !live(p.index) {
			gone = append(gone, p.index)
		}
	}
	for index := g.entries.begin(); index <= min(last, g.entries.last()) && index > 0; index++ {
		if i := g.entries.at(index); i.payload > 0 && !i.dead && !live(index) {
			gone = append(gone, index)
		}
	}
	g.release(gone)
}
