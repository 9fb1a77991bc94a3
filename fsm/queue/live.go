package queue

import (
	"iter"

	"github.com/quorate/quorate/fsm/invariants"
)

// liveIndexes counts the live messages of each log entry that has any:
// ascending by index, which is the order in which messages arrive. Keys have at
// = 0 and seq = index. Values are at least 1: an entry whose last message goes
// is removed.
//
// Invariant: Σ values = live messages of the arena.
type liveIndexes struct{ sorted[uint32] }

// add counts one more message of the entry at index, which is not below any
// index before. It changes only the end of the table.
func (l *liveIndexes) add(index uint64) {
	if l.len() > 0 {
		last, _ := l.last()
		invariants.Assert(last.seq <= index, "log indexes grow")
		if last.seq == index {
			*l.edit(last)++
			return
		}
	}
	l.put(key{seq: index}, 1)
}

// drop counts one message less and reports whether it was the last of its
// entry. Requires, asserted: the entry has at least one. O(log n), O(1) for the
// oldest.
func (l *liveIndexes) drop(index uint64) bool {
	i, at, ok := l.find(key{seq: index})
	invariants.Assert(ok, "a message's entry is live")
	if count := &l.own(i).vals[at]; *count > 1 {
		*count--
		return false
	}
	l.removeAt(i, at)
	return true
}

// has reports whether the entry at index has messages.
func (l *liveIndexes) has(index uint64) bool { return l.get(key{seq: index}) != nil }

// indexes iterates over the indexes with live messages, ascending.
func (l *liveIndexes) indexes() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for k := range l.all() {
			if !yield(k.seq) {
				return
			}
		}
	}
}
