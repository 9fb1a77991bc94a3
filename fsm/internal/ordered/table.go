package ordered

import (
	"iter"
	"slices"
	"sort"

	"github.com/quorate/quorate/fsm"
)

// Key orders the entries of a Table: by At, then by Seq. Keys are unique.
type Key struct {
	At  fsm.Time
	Seq uint64
}

// Before reports whether k comes before o.
func (k Key) Before(o Key) bool { return k.At < o.At || k.At == o.At && k.Seq < o.Seq }

// blockLen is the maximum number of entries in a block; firstBlock is the
// initial length of a block.
const (
	blockLen   = 128
	firstBlock = 4
)

// block is a run of entries: keys[head:tail], ascending. keys and vals have
// equal length. len(keys) ≤ blockLen. Values outside of head … tail are zero,
// so that they keep nothing alive.
type block[V any] struct {
	keys       []Key
	vals       []V
	head, tail int
	epoch      uint64 // shared with a frozen copy unless it is the owner's
}

func (b *block[V]) len() int { return b.tail - b.head }

// search returns the position of the first entry that is not before k.
func (b *block[V]) search(k Key) int {
	low, high := b.head, b.tail
	for low < high {
		mid := (low + high) / 2
		if b.keys[mid].Before(k) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// Table is a map ordered by key, stored in blocks. It never has stale entries,
// and no operation takes more steps than a block has entries, plus a move of
// the table of blocks when a block is added or removed. Appending at the end
// and removing from the front, as with one uniform TTL, cost O(1). A frozen
// copy shares the blocks; they are copied before the next write.
//
// Invariants:
//
//	1 ≤ blocks[i].len() ≤ blockLen, firsts[i] is the first key of blocks[i]
//	n = Σ blocks[i].len(); keys ascend strictly over all blocks
//	a block whose epoch is not the table's is shared, and never written to
//
// What blocks it has depends on the order of changes, not only on the entries:
// a restored table may have others. So nothing may depend on their borders. A
// zero Table is empty and ready for use. Pointers to values are good until the
// next change or freeze.
type Table[V any] struct {
	blocks []*block[V]
	firsts []Key
	n      int
	epoch  uint64
	spare  *block[V] // an empty block for reuse
}

// Len is the number of entries.
func (s *Table[V]) Len() int { return s.n }

// own makes block i writable. After each freeze it copies a block at most once.
func (s *Table[V]) own(i int) *block[V] {
	b := s.blocks[i]
	if b.epoch != s.epoch {
		b = &block[V]{keys: slices.Clone(b.keys), vals: slices.Clone(b.vals), head: b.head, tail: b.tail, epoch: s.epoch}
		s.blocks[i] = b
	}
	return b
}

// seek returns the block in which k is or would be. O(log blocks). It is 0 if k
// is before everything. Requires: not empty, for the result to be a block.
func (s *Table[V]) seek(k Key) int {
	return max(sort.Search(len(s.firsts), func(i int) bool { return k.Before(s.firsts[i]) })-1, 0)
}

// find returns where k is.
func (s *Table[V]) find(k Key) (i, at int, ok bool) {
	if s.n == 0 {
		return 0, 0, false
	}
	if s.firsts[0] == k {
		return 0, s.blocks[0].head, true
	}
	i = s.seek(k)
	b := s.blocks[i]
	at = b.search(k)
	return i, at, at < b.tail && b.keys[at] == k
}

// Get returns the value at k, for reading until the next change; nil: there is
// none.
func (s *Table[V]) Get(k Key) *V {
	if i, at, ok := s.find(k); ok {
		return &s.blocks[i].vals[at]
	}
	return nil
}

// Value returns the value at k; the zero value: there is none.
func (s *Table[V]) Value(k Key) (v V) {
	if p := s.Get(k); p != nil {
		v = *p
	}
	return v
}

// Edit is like get, for writing.
func (s *Table[V]) Edit(k Key) *V {
	if i, at, ok := s.find(k); ok {
		return &s.own(i).vals[at]
	}
	return nil
}

// First returns the first entry. The table must not be empty.
func (s *Table[V]) First() (Key, *V) {
	b := s.blocks[0]
	return b.keys[b.head], &b.vals[b.head]
}

// Peek returns the first entry; false: there is none.
func (s *Table[V]) Peek() (k Key, v V, ok bool) {
	if s.n == 0 {
		return k, v, false
	}
	k, p := s.First()
	return k, *p, true
}

// Last returns the last entry. The table must not be empty.
func (s *Table[V]) Last() (Key, *V) {
	b := s.blocks[len(s.blocks)-1]
	return b.keys[b.tail-1], &b.vals[b.tail-1]
}

// Put adds v at k, which must not be in the table.
func (s *Table[V]) Put(k Key, v V) { *s.Add(k) = v }

// Add adds k, which must not be in the table, and returns where its value is. The
// caller sets it, whatever it was.
//
// A new greatest key costs O(1) and leaves full blocks behind; one in between
// splits a full block into halves.
func (s *Table[V]) Add(k Key) *V {
	s.n++
	if len(s.blocks) == 0 {
		return s.insertBlock(0, k)
	}
	i := len(s.blocks) - 1
	b := s.blocks[i]
	if b.keys[b.tail-1].Before(k) {
		if b.len() == blockLen {
			return s.insertBlock(i+1, k)
		}
		return s.own(i).insert(b.tail, k)
	}
	i = s.seek(k)
	if s.blocks[i].len() == blockLen {
		s.split(i, s.blocks[i].head+blockLen/2)
		if !k.Before(s.firsts[i+1]) {
			i++
		}
	}
	b = s.own(i)
	v := b.insert(b.search(k), k)
	s.firsts[i] = b.keys[b.head]
	return v
}

// insert inserts an entry at a position of a block that is not full, and returns
// where its value is.
func (b *block[V]) insert(at int, k Key) *V {
	if b.tail == len(b.keys) {
		at -= b.head
		if n := b.len(); b.head > n || len(b.keys) == blockLen {
			b.slide()
		} else {
			keys, vals := make([]Key, min(2*len(b.keys), blockLen)), make([]V, min(2*len(b.keys), blockLen))
			copy(keys, b.keys[b.head:b.tail])
			copy(vals, b.vals[b.head:b.tail])
			b.keys, b.vals, b.head, b.tail = keys, vals, 0, n
		}
		at += b.head
	}
	copy(b.keys[at+1:b.tail+1], b.keys[at:b.tail])
	copy(b.vals[at+1:b.tail+1], b.vals[at:b.tail])
	b.keys[at] = k
	b.tail++
	return &b.vals[at]
}

// slide moves the entries to the beginning.
func (b *block[V]) slide() {
	n := copy(b.keys, b.keys[b.head:b.tail])
	copy(b.vals, b.vals[b.head:b.tail])
	clear(b.vals[n:b.tail])
	b.head, b.tail = 0, n
}

// insertBlock inserts a block with one entry at index i, and returns where its value
// is.
func (s *Table[V]) insertBlock(i int, k Key) *V {
	b := s.spare
	if s.spare = nil; b == nil {
		n := firstBlock
		if len(s.blocks) > 0 {
			n = blockLen
		}
		b = &block[V]{keys: make([]Key, n), vals: make([]V, n)}
	}
	b.head, b.tail, b.epoch = 0, 1, s.epoch
	b.keys[0] = k
	s.blocks = slices.Insert(s.blocks, i, b)
	s.firsts = slices.Insert(s.firsts, i, k)
	return &b.vals[0]
}

// split moves the entries of block i from position mid on to a new block.
// Neither side may be empty.
func (s *Table[V]) split(i, mid int) {
	b := s.own(i)
	second := &block[V]{keys: make([]Key, blockLen), vals: make([]V, blockLen), epoch: s.epoch}
	second.tail = copy(second.keys, b.keys[mid:b.tail])
	copy(second.vals, b.vals[mid:b.tail])
	clear(b.vals[mid:b.tail])
	b.tail = mid
	s.blocks = slices.Insert(s.blocks, i+1, second)
	s.firsts = slices.Insert(s.firsts, i+1, second.keys[0])
}

// Remove removes k and returns its value.
func (s *Table[V]) Remove(k Key) (v V, ok bool) {
	i, at, ok := s.find(k)
	if !ok {
		return v, false
	}
	v = s.blocks[i].vals[at]
	s.removeAt(i, at)
	return v, true
}

// removeAt removes an entry that find has found.
func (s *Table[V]) removeAt(i, at int) {
	s.own(i).delete(at, at+1)
	s.n--
	s.shrunk(i)
}

// delete removes the entries from … to-1 of a block.
func (b *block[V]) delete(from, to int) {
	if from-b.head < b.tail-to {
		n := to - from
		copy(b.keys[b.head+n:to], b.keys[b.head:from])
		copy(b.vals[b.head+n:to], b.vals[b.head:from])
		clear(b.vals[b.head : b.head+n])
		b.head += n
		return
	}
	copy(b.keys[from:], b.keys[to:b.tail])
	copy(b.vals[from:], b.vals[to:b.tail])
	n := to - from
	clear(b.vals[b.tail-n : b.tail])
	b.tail -= n
}

// shrunk updates the table after block i, which is owned, has become shorter:
// it is dropped if it is empty, and merged with the next one if both are small.
func (s *Table[V]) shrunk(i int) {
	b := s.blocks[i]
	if b.len() == 0 {
		s.spare = b
		s.dropBlock(i)
		return
	}
	s.firsts[i] = b.keys[b.head]
	if i+1 < len(s.blocks) && b.len()+s.blocks[i+1].len() <= blockLen/2 {
		next := s.blocks[i+1]
		for at := next.head; at < next.tail; at++ {
			*b.insert(b.tail, next.keys[at]) = next.vals[at]
		}
		s.dropBlock(i + 1)
	}
}

// dropBlock removes block i from the table.
func (s *Table[V]) dropBlock(i int) {
	switch {
	case len(s.blocks) == 1:
		s.blocks[0] = nil
		s.blocks, s.firsts = s.blocks[:0], s.firsts[:0]
		return
	case i == 0:
		s.blocks[0] = nil
		s.blocks, s.firsts = s.blocks[1:], s.firsts[1:]
		return
	}
	s.blocks, s.firsts = slices.Delete(s.blocks, i, i+1), slices.Delete(s.firsts, i, i+1)
}

// Spot is where an entry is, until the next change of its table.
type Spot struct{ block, at int }

// Locate returns where the entry with an At is, in a table that has at most one with
// each and none below 0; false: there is none. O(log n), O(1) for the first.
//
// They ascend by at least 1, so an entry is at most as far from the first of its
// block as they are apart. It is there if none between is missing, which spares the
// search most of the memory that it would touch.
func (s *Table[V]) Locate(at fsm.Time) (p Spot, ok bool) {
	if s.n == 0 {
		return p, false
	}
	first := Key{At: at} // no entry with at is before it
	if s.firsts[0].At == at {
		return Spot{0, s.blocks[0].head}, true
	}
	p.block = s.seek(Key{At: at, Seq: ^uint64(0)})
	b := s.blocks[p.block]
	p.at = b.head + int(min(uint64(at-s.firsts[p.block].At), uint64(b.len()-1)))
	if b.keys[p.at].At != at {
		p.at = b.search(first)
	}
	return p, p.at < b.tail && b.keys[p.at].At == at
}

// KeyAt returns the key of an entry that Locate has found.
func (s *Table[V]) KeyAt(p Spot) Key { return s.blocks[p.block].keys[p.at] }

// EditAt returns the value of an entry that Locate has found, for writing.
func (s *Table[V]) EditAt(p Spot) *V { return &s.own(p.block).vals[p.at] }

// RemoveAt removes an entry that Locate has found.
func (s *Table[V]) RemoveAt(p Spot) { s.removeAt(p.block, p.at) }

// Cut removes the entries from … to, both included, and passes them to f,
// ascending. f must not use the table. O(log n + what is removed).
func (s *Table[V]) Cut(from, to Key, f func(Key, V)) {
	if s.n == 0 {
		return
	}
	for i := s.seek(from); i < len(s.blocks); {
		b := s.blocks[i]
		low, high := b.search(from), b.search(to)
		if high < b.tail && b.keys[high] == to {
			high++
		}
		done := high < b.tail
		if low < high {
			b = s.own(i)
			for at := low; at < high; at++ {
				f(b.keys[at], b.vals[at])
			}
			b.delete(low, high)
			s.n -= high - low
			s.shrunk(i) // it may have absorbed the next block: again
		} else {
			i++
		}
		if done {
			return
		}
	}
}

// Sever removes the entries from … to, both included, and returns them as a
// table. It touches only the entries of the blocks at both ends. part may be
// written to, and joined to a table of the same epoch.
func (s *Table[V]) Sever(from, to Key) (part Table[V]) {
	part.epoch = s.epoch
	if s.n == 0 || to.Before(from) {
		return part
	}
	behind := Key{At: to.At, Seq: to.Seq + 1}
	if behind.Seq == 0 {
		behind.At++
	}
	i, j := s.breakAt(from), s.breakAt(behind)
	part.blocks, part.firsts = slices.Clone(s.blocks[i:j]), slices.Clone(s.firsts[i:j])
	for _, b := range part.blocks {
		part.n += b.len()
	}
	s.n -= part.n
	s.blocks, s.firsts = slices.Delete(s.blocks, i, j), slices.Delete(s.firsts, i, j)
	s.close(i)
	part.close(len(part.blocks) - 1)
	part.close(0)
	return part
}

// close merges block i and its neighbours where they are small after a split or
// a removal between them.
func (s *Table[V]) close(i int) {
	for _, i := range []int{i, i - 1, i - 2} {
		if i >= 0 && i < len(s.blocks) {
			s.own(i)
			s.shrunk(i)
		}
	}
}

// breakAt makes the first entry that is not before k the first of its block,
// and returns the index of that block, or the number of blocks if all entries
// are before k. The table must not be empty.
func (s *Table[V]) breakAt(k Key) int {
	i := s.seek(k)
	b := s.blocks[i]
	switch at := b.search(k); at {
	case b.head:
		return i
	case b.tail:
		return i + 1
	default:
		s.split(i, at)
		return i + 1
	}
}

// Join adds all of part, which was severed from a table of the same epoch. If
// part follows the existing entries, its entries are not touched. part must not
// be used afterwards: its blocks belong to s.
func (s *Table[V]) Join(part Table[V]) {
	if s.n > 0 && part.n > 0 {
		if last, _ := s.Last(); !last.Before(part.firsts[0]) {
			for k, v := range part.All() {
				s.Put(k, *v)
			}
			return
		}
	}
	s.epoch = max(s.epoch, part.epoch)
	seam := len(s.blocks) - 1
	s.blocks, s.firsts, s.n = append(s.blocks, part.blocks...), append(s.firsts, part.firsts...), s.n+part.n
	s.close(seam)
}

// From iterates over the entries from k on. The table must not change meanwhile.
func (s *Table[V]) From(k Key) iter.Seq2[Key, *V] {
	return func(yield func(Key, *V) bool) {
		if s.n == 0 {
			return
		}
		for i := s.seek(k); i < len(s.blocks); i++ {
			b := s.blocks[i]
			for at := b.search(k); at < b.tail; at++ {
				if !yield(b.keys[at], &b.vals[at]) {
					return
				}
			}
		}
	}
}

// Values iterates over the values from k on. The table must not change meanwhile.
func (s *Table[V]) Values(k Key) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range s.From(k) {
			if !yield(*v) {
				return
			}
		}
	}
}

// Counts returns for each of some keys, ascending, how many entries are before it; at least so many if
// step says no. One step is a block that is passed.
func (s *Table[V]) Counts(keys []Key, step func() bool) []uint64 {
	list := make([]uint64, len(keys))
	i, passed := 0, 0 // passed: the entries of blocks[:i]
	for j, k := range keys {
		for ; i < len(s.blocks)-1 && s.firsts[i+1].Before(k) && step(); i++ {
			passed += s.blocks[i].len()
		}
		if s.n > 0 {
			list[j] = uint64(passed + s.blocks[i].search(k) - s.blocks[i].head)
		}
	}
	return list
}

// All iterates over all entries.
func (s *Table[V]) All() iter.Seq2[Key, *V] { return s.From(Key{At: -1 << 63}) }

// Clear removes all entries. Shared blocks stay as they are.
func (s *Table[V]) Clear() {
	*s = Table[V]{epoch: s.epoch}
}

// Capture is freeze if keep, or else a table that is valid until the next change, and
// makes no block shared.
func (s *Table[V]) Capture(keep bool) Table[V] {
	if keep {
		return s.Freeze()
	}
	return *s
}

// Freeze returns the current table, which then never changes. O(blocks). It is
// for reading, by any goroutine.
func (s *Table[V]) Freeze() Table[V] {
	s.epoch++
	s.spare = nil
	return Table[V]{blocks: slices.Clone(s.blocks), firsts: slices.Clone(s.firsts), n: s.n}
}
