package queue

import (
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
)

// entries knows which entries of the log are still needed: those with a live
// message, whose payload is read from there. When the last message of an entry
// goes, or an entry never had one, it says so (fsm.Effects.Released), and takes
// that back if another message of the same entry follows.
//
// Invariant: live has exactly the entries of the messages in the arena, each
// with their number; none is above index.
type entries struct {
	live  liveIndexes
	index uint64 // of the last entry
	// released: the entry being applied was released, maybe more than once.
	released bool
}

// begin starts the entry at index, which is applied next. One entry may hold
// several commands.
func (e *entries) begin(index uint64) {
	invariants.Assert(index >= e.index, "log indexes grow")
	if index != e.index {
		e.index, e.released = index, false
	}
}

// keep counts a new message of the entry that is being applied. If the messages
// that came before it with this entry have all gone already, or were refused,
// what was said of that is taken back: all of it, for it may have been said more
// than once.
func (e *entries) keep(eff *fsm.Effects) {
	e.live.add(e.index)
	if !e.released {
		return
	}
	e.released = false
	eff.Released = slices.DeleteFunc(eff.Released, func(index uint64) bool { return index == e.index })
}

// drop counts one message less of an entry, which has some.
func (e *entries) drop(index uint64, eff *fsm.Effects) {
	if e.live.drop(index) {
		eff.Released = append(eff.Released, index)
		e.released = e.released || index == e.index
	}
}

// refuse releases the entry that is being applied, unless it holds messages.
func (e *entries) refuse(eff *fsm.Effects) {
	if e.live.has(e.index) {
		return
	}
	if n := len(eff.Released); n == 0 || eff.Released[n-1] != e.index {
		eff.Released = append(eff.Released, e.index)
	}
	e.released = true
}

// abandon lets go of all entries, and returns them, ascending, for the group to
// free: nobody writes to what it reads.
func (e *entries) abandon() iter.Seq[uint64] {
	live := e.live
	e.live = liveIndexes{}
	if live.len() == 0 {
		return nil
	}
	return live.indexes()
}

// last is the index of the last entry.
func (e *entries) last() uint64 { return e.index }

// has reports whether an entry is needed.
func (e *entries) has(index uint64) bool { return e.live.has(index) }

// indexes iterates over the entries that are needed, ascending.
func (e *entries) indexes() iter.Seq[uint64] { return e.live.indexes() }

// view returns the live entries, good until the next change.
func (e *entries) view() liveIndexes { return e.live }

// freeze returns the live entries as they are now.
func (e *entries) freeze() liveIndexes { return liveIndexes{e.live.freeze()} }

// restore counts messages, given by the index of their entry in any order.
func (e *entries) restore(indexes []uint64) {
	slices.Sort(indexes)
	for _, index := range indexes {
		e.live.add(index)
	}
}

// check compares the live messages per log entry with those found.
func (e *entries) check(k *checker) {
	slices.Sort(k.live)
	found, last := 0, uint64(0)
	for at, count := range e.live.all() {
		n := found
		for n < len(k.live) && k.live[n] == at.seq {
			n++
		}
		if found > 0 && at.seq <= last || n-found != int(*count) || *count == 0 {
			k.fail("entry %d after %d has %d messages, counted %d", at.seq, last, n-found, *count)
		}
		last, found = at.seq, n
	}
	k.that(found == len(k.live), "live entries are miscounted")
	k.that(last <= e.index, "entry %d is live, the last one is %d", last, e.index)
}
