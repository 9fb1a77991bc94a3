package queue

import (
	"iter"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
)

// liveIndexes counts the live messages of each log entry that has any, and
// knows the time of each: ascending by index, which is the order in which
// messages arrive. Keys have at = index and seq = the time of the entry, so the
// time takes no space of its own. Values are at least 1: an entry whose last
// message goes is removed.
//
// Invariant: Σ values = live messages of the arena.
type liveIndexes struct{ sorted[uint32] }

// add counts one more message of the entry at index, which is not below any
// index before. now is the time of the entry. It changes only the end of the
// table.
func (l *liveIndexes) add(index uint64, now fsm.Time) {
	if l.len() > 0 {
		last, _ := l.last()
		invariants.Assert(last.at <= fsm.Time(index), "log indexes grow")
		if last.at == fsm.Time(index) {
			*l.edit(last)++
			return
		}
	}
	l.put(key{fsm.Time(index), uint64(now)}, 1)
}

// drop counts one message less and reports whether it was the last of its
// entry. Requires, asserted: the entry has at least one. O(log n), O(1) for the
// oldest.
func (l *liveIndexes) drop(index uint64) bool {
	i, at, ok := l.locate(index)
	invariants.Assert(ok, "a message's entry is live")
	if count := &l.own(i).vals[at]; *count > 1 {
		*count--
		return false
	}
	l.removeAt(i, at)
	return true
}

// locate returns where the entry at index is. O(log n), O(1) for the oldest.
//
// Indexes ascend by at least 1, so an entry is at most as far from the first of its
// block as their indexes are apart. It is there if no index between is missing,
// which spares the search most of the memory that it would touch.
func (l *liveIndexes) locate(index uint64) (i, at int, ok bool) {
	if l.n == 0 {
		return 0, 0, false
	}
	first := key{at: fsm.Time(index)} // no entry of this index is before it
	if l.firsts[0].at == first.at {
		return 0, l.blocks[0].head, true
	}
	i = l.seek(key{first.at, ^uint64(0)})
	b := l.blocks[i]
	at = b.head + int(min(index-uint64(l.firsts[i].at), uint64(b.len()-1)))
	if b.keys[at].at != first.at {
		at = b.search(first)
	}
	return i, at, at < b.tail && b.keys[at].at == first.at
}

// has reports whether the entry at index has messages.
func (l *liveIndexes) has(index uint64) bool {
	_, _, ok := l.locate(index)
	return ok
}

// time is when the entry at index was applied; 0: it has no messages.
func (l *liveIndexes) time(index uint64) fsm.Time {
	if i, at, ok := l.locate(index); ok {
		return fsm.Time(l.blocks[i].keys[at].seq)
	}
	return 0
}

// indexes iterates over the indexes with live messages, ascending.
func (l *liveIndexes) indexes() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for k := range l.all() {
			if !yield(uint64(k.at)) {
				return
			}
		}
	}
}
