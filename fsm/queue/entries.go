package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
)

// entries tracks which log entries are still needed: those with a live message,
// whose payload is read from there. It reports an entry in fsm.Effects.Released
// when its last message goes, or if it never had one, and withdraws that if
// another message of the same entry follows.
//
// Invariant: it has exactly the entries of the messages in the arena, each
// with their number; none is above index.
//
// A snapshot holds index, and with each message the time of its entry. Restore
// counts the messages again.
type entries struct {
	liveIndexes
	// 0 before the first entry. It never falls.
	index uint64 // of the last entry
	// released: the current entry was released, perhaps more than once.
	released bool
	coming   []coming // while a snapshot is restored
}

type coming struct {
	index uint64
	at    fsm.Time
}

// begin starts the entry at index, which is applied next. One entry may hold
// several commands. Requires, asserted: index ≥ e.index.
func (e *entries) begin(index uint64) {
	invariants.Assert(index >= e.index, "log indexes grow")
	if index != e.index {
		e.index, e.released = index, false
	}
}

// keep counts a new message of the current entry, whose time is now. If all earlier messages of
// the entry are already gone, or were refused, the release is withdrawn: all
// mentions of it, since there may be several.
//
// Requires: eff has been the same since begin. O(len(eff.Released)) if something
// is withdrawn, else O(1).
func (e *entries) keep(now fsm.Time, eff *fsm.Effects) {
	e.add(e.index, now)
	if !e.released {
		return
	}
	e.released = false
	eff.Released = slices.DeleteFunc(eff.Released, func(index uint64) bool { return index == e.index })
}

// again counts one more message of the entry at index, which has some.
func (e *entries) again(index uint64) {
	p, ok := e.Locate(fsm.Time(index))
	invariants.Assert(ok, "a message's entry is live")
	*e.EditAt(p)++
}

// drop counts one message less of an entry, which must have some.
//
// Ensures: index is in eff.Released if no message of the entry is left. An entry
// before the current one is released once only, since no message can join it.
func (e *entries) drop(index uint64, eff *fsm.Effects) {
	if e.liveIndexes.drop(index) {
		eff.Released = append(eff.Released, index)
		e.released = e.released || index == e.index
	}
}

// refuse releases the current entry, unless it holds messages. It may name the
// entry again if others were released in between.
func (e *entries) refuse(eff *fsm.Effects) {
	if e.has(e.index) {
		return
	}
	if n := len(eff.Released); n == 0 || eff.Released[n-1] != e.index {
		eff.Released = append(eff.Released, e.index)
	}
	e.released = true
}

// abandon gives up all entries and returns them, ascending, for the group to
// free. The table that it reads is no longer written to.
//
// It costs O(1): the table changes its owner. The iterator may be used by another
// goroutine, and after the machine has applied more entries. nil: none was live.
func (e *entries) abandon() iter.Seq[uint64] {
	live := e.liveIndexes
	e.liveIndexes = liveIndexes{}
	if live.Len() == 0 {
		return nil
	}
	return live.indexes()
}

func (e *entries) last() uint64 { return e.index }

func (e *entries) capture(keep bool) liveIndexes { return liveIndexes{e.Capture(keep)} }

func (e *entries) expectAll(n uint64) { e.coming = make([]coming, 0, min(n, 1<<20)) }

// expect notes a message of a snapshot. Purged messages do not say when they
// came: at is 0.
func (e *entries) expect(index uint64, at fsm.Time) { e.coming = append(e.coming, coming{index, at}) }

// restore counts the expected messages. Requires: begin has set the last index,
// and nothing was counted yet. It sorts them, since the table grows only at its end.
// The time of an entry is that of any message that has one.
func (e *entries) restore() {
	slices.SortFunc(e.coming, func(a, b coming) int { return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(b.at, a.at)) })
	for _, c := range e.coming {
		e.add(c.index, c.at)
	}
	e.coming = nil
}

// time is when the entry at index, which has live messages, was applied. now is the
// time of the current entry.
func (e *entries) time(index uint64, now fsm.Time) fsm.Time {
	if index == e.index {
		return now
	}
	return e.liveIndexes.time(index)
}

func (e *entries) check(k *checker) {
	slices.Sort(k.live)
	found, last := 0, uint64(0)
	for at, count := range e.All() {
		n := found
		index := uint64(at.At)
		for n < len(k.live) && k.live[n] == index {
			n++
		}
		if found > 0 && index <= last || n-found != int(*count) || *count == 0 {
			k.fail("entry %d after %d has %d messages, counted %d", index, last, n-found, *count)
		}
		last, found = index, n
	}
	k.that(found == len(k.live), "live entries are miscounted")
	k.that(last <= e.index, "entry %d is live, the last one is %d", last, e.index)
}

// liveIndexes counts the live messages of each log entry that has any, and
// knows the time of each: ascending by index, which is the order in which
// messages arrive. Keys have at = index and seq = the time of the entry, so the
// time takes no space of its own. Values are at least 1: an entry whose last
// message goes is removed.
//
// Invariant: Σ values = live messages of the arena.
type liveIndexes struct{ sorted[uint32] }

// add counts one more message of the entry at index, which is not below any index before.
func (l *liveIndexes) add(index uint64, now fsm.Time) {
	if l.Len() > 0 {
		last, _ := l.Last()
		invariants.Assert(last.At <= fsm.Time(index), "log indexes grow")
		if last.At == fsm.Time(index) {
			*l.Edit(last)++
			return
		}
	}
	l.Put(key{At: fsm.Time(index), Seq: uint64(now)}, 1)
}

// drop counts one message less and reports whether it was the last of its entry, which has one.
func (l *liveIndexes) drop(index uint64) bool {
	p, ok := l.Locate(fsm.Time(index))
	invariants.Assert(ok, "a message's entry is live")
	if count := l.EditAt(p); *count > 1 {
		*count--
		return false
	}
	l.RemoveAt(p)
	return true
}

func (l *liveIndexes) has(index uint64) bool {
	_, ok := l.Locate(fsm.Time(index))
	return ok
}

func (l *liveIndexes) time(index uint64) fsm.Time {
	if p, ok := l.Locate(fsm.Time(index)); ok {
		return fsm.Time(l.KeyAt(p).Seq)
	}
	return 0
}

func (l *liveIndexes) indexes() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for k := range l.All() {
			if !yield(uint64(k.At)) {
				return
			}
		}
	}
}
