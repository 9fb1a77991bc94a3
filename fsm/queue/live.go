package queue

import (
	"iter"
	"sort"

	"github.com/quorate/quorate/fsm/invariants"
)

// liveEntry counts the live messages of one log entry. Entries with count 0
// are waiting to be swept.
type liveEntry struct {
	index uint64
	count uint32
}

// liveIndexes knows for each log entry how many of its messages are live:
// ascending by index, which is the order in which messages come.
type liveIndexes struct {
	deque[liveEntry]
	zeros int
}

// add counts one more message of the entry at index, which is not below any
// index before.
func (l *liveIndexes) add(index uint64) {
	if n := l.len(); n > 0 {
		last := l.edit(n - 1)
		invariants.Assert(last.index <= index, "log indexes grow")
		if last.index == index {
			if last.count == 0 {
				l.zeros--
			}
			last.count++
			return
		}
	}
	l.push(liveEntry{index, 1})
}

// find returns the position of the entry at index, -1 if there is none.
func (l *liveIndexes) find(index uint64) int {
	if l.len() > 0 && l.item(0).index == index {
		return 0
	}
	i := sort.Search(l.len(), func(i int) bool { return l.item(i).index >= index })
	if i == l.len() || l.item(i).index != index {
		return -1
	}
	return i
}

// drop counts one message less and reports whether it was the last of its entry.
func (l *liveIndexes) drop(index uint64) bool {
	i := l.find(index)
	invariants.Assert(i >= 0 && l.item(i).count > 0, "a message's entry is live")
	e := l.edit(i)
	e.count--
	if e.count > 0 {
		return false
	}
	l.zeros++
	for l.len() > 0 && l.item(0).count == 0 {
		l.pop()
		l.zeros--
	}
	if l.zeros > chunkLen && l.zeros > l.len()/2 {
		l.sweep()
	}
	return true
}

// sweep removes the entries with count 0.
func (l *liveIndexes) sweep() {
	var kept liveIndexes
	for i := range l.len() {
		if e := *l.item(i); e.count > 0 {
			kept.push(e)
		}
	}
	kept.epoch = l.epoch
	for i := range kept.epochs {
		kept.epochs[i] = l.epoch
	}
	*l = kept
}

func (l *liveIndexes) has(index uint64) bool {
	i := l.find(index)
	return i >= 0 && l.item(i).count > 0
}

// all iterates over the indexes with live messages, ascending.
func (l *liveIndexes) all() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for i := range l.len() {
			if e := l.item(i); e.count > 0 && !yield(e.index) {
				return
			}
		}
	}
}
