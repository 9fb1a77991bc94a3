package queue

import "slices"

// chunkLen is the length of all chunks but an only one, which starts small:
// most queues of a node are short.
const (
	chunkLen   = 512
	firstChunk = 8
)

// pages is an array in chunks that can be frozen: a frozen array never changes,
// and the chunks it shares with the living one are copied before the next
// write to them. at is for reading; a pointer from own may be written to until
// the next freeze or extend.
//
// Invariants:
//
//	len(chunks) = len(epochs); 0 ≤ epochs[i] ≤ epoch
//	an only chunk has firstChunk … chunkLen items, several have chunkLen each
//	a chunk that is shared is never written to
//
// The owner and a frozen copy may be used by different goroutines: the copy reads
// chunks that nobody writes to. There is no lock, since chunks are never handed
// back.
type pages[T any] struct {
	// The tables themselves are not shared: freeze copies them.
	chunks [][]T
	epochs []uint64 // chunk i is shared unless epochs[i] == epoch
	epoch  uint64
	spare  []T // a chunk that was dropped, for the next extend
}

// at returns item i, for reading. Requires: 0 ≤ i < capacity(). The pointer is
// good until the next own, extend or freeze: later writes may go to a copy.
func (p *pages[T]) at(i int) *T { return &p.chunks[i/chunkLen][i%chunkLen] }

// own returns item i for writing. A chunk that is shared is copied before, so
// that the first write to each after a freeze costs a chunk. It allocates only
// then.
func (p *pages[T]) own(i int) *T {
	c := i / chunkLen
	if p.epochs[c] != p.epoch {
		p.chunks[c] = slices.Clone(p.chunks[c])
		p.epochs[c] = p.epoch
	}
	return &p.chunks[c][i%chunkLen]
}

// capacity is the number of items at and own reach.
func (p *pages[T]) capacity() int {
	switch len(p.chunks) {
	case 0:
		return 0
	case 1:
		return len(p.chunks[0])
	}
	return len(p.chunks) * chunkLen
}

// extend adds capacity. It adds one chunk, or doubles an only chunk, up to
// chunkLen. Added items are zero. A chunk that grows is copied, so a frozen
// copy keeps the old one.
func (p *pages[T]) extend() {
	switch n := p.capacity(); {
	case n == 0:
		p.chunks = append(p.chunks, make([]T, firstChunk))
		p.epochs = append(p.epochs, p.epoch)
	case n < chunkLen:
		larger := make([]T, min(2*n, chunkLen))
		copy(larger, p.chunks[0])
		p.chunks[0], p.epochs[0] = larger, p.epoch
	default:
		next := p.spare
		if p.spare = nil; next == nil {
			next = make([]T, chunkLen)
		}
		p.chunks = append(p.chunks, next)
		p.epochs = append(p.epochs, p.epoch)
	}
}

// dropFirst removes the first chunk; there is another one. It becomes the spare
// unless it is shared, since a frozen copy may still read it. Requires: nobody
// uses handles or indexes into it; all indexes fall by chunkLen.
func (p *pages[T]) dropFirst() {
	if p.epochs[0] == p.epoch {
		p.spare = p.chunks[0]
		clear(p.spare)
	}
	p.chunks[0] = nil
	p.chunks, p.epochs = p.chunks[1:], p.epochs[1:]
}

// shrink drops all chunks but the first. The table is copied, so that a large
// one does not stay behind a small slice.
func (p *pages[T]) shrink() {
	if len(p.chunks) > 1 {
		p.chunks, p.epochs = slices.Clone(p.chunks[:1]), slices.Clone(p.epochs[:1])
		p.spare = nil
	}
}

// capture is freeze if keep, or else an array that is valid until the next change, and
// makes no chunk shared.
func (p *pages[T]) capture(keep bool) pages[T] {
	if keep {
		return p.freeze()
	}
	return *p
}

// freeze returns the array as it is now; the chunks are shared. O(number of
// chunks). The copy has no epochs: it must not be written to.
func (p *pages[T]) freeze() pages[T] {
	p.epoch++
	return pages[T]{chunks: slices.Clone(p.chunks)}
}

// arena hands out items by handle. Handle 0 names none.
//
// Invariants: top = 0, or 1 ≤ top ≤ capacity(); free has handles below top, each
// once, and their items are zero. An arena that is empty keeps one chunk at most.
//
// The handle that was freed last is used first. Which handle a message has depends
// on the history of this process, not only on the log: a restored replica has
// others. So nothing that leaves the machine may be ordered by handle.
type arena[T any] struct {
	pages[T]
	top  int      // handles below have been handed out; 0 before the first
	free []uint32 // and these have come back
}

// get is for reading. An item that was released is zero, until the arena
// becomes empty.
func (a *arena[T]) get(h uint32) *T { return a.at(int(h)) }

// mut is for writing. Pointers from before may be stale afterwards.
func (a *arena[T]) mut(h uint32) *T { return a.own(int(h)) }

// end is above all handles that have been handed out.
func (a *arena[T]) end() uint32 { return uint32(a.top) }

// live is the number of items that are handed out.
func (a *arena[T]) live() int { return max(a.top-1, 0) - len(a.free) }

// alloc returns the handle of a zero item. The item is zero because release
// clears it and extend adds zero items. Amortized O(1): it allocates when all
// handles are in use.
func (a *arena[T]) alloc() uint32 {
	if n := len(a.free); n > 0 {
		h := a.free[n-1]
		a.free = a.free[:n-1]
		return h
	}
	a.top = max(a.top, 1)
	if a.top == a.capacity() || a.capacity() == 0 {
		a.extend()
	}
	a.top++
	return uint32(a.top - 1)
}

// release takes an item back. An arena that has become empty keeps no more than
// one chunk. Requires: h is handed out. Releasing it twice would hand it out
// twice.
func (a *arena[T]) release(h uint32) {
	var zero T
	*a.mut(h) = zero
	a.free = append(a.free, h)
	if a.live() == 0 && a.top > chunkLen {
		a.reset()
	}
}

// reset releases all items. Handles begin with 1 again.
func (a *arena[T]) reset() {
	a.shrink()
	if len(a.chunks) > 0 {
		a.own(0)
		clear(a.chunks[0])
	}
	a.top = 0
	if a.free = a.free[:0]; cap(a.free) > chunkLen {
		a.free = nil
	}
}

// deque is a queue in chunks. Item 0 is the front.
//
// Invariants: 0 ≤ head < chunkLen, head + n ≤ capacity(); items before the head
// and behind the last are zero, so that nothing is kept alive by them. It is
// used for what ends in the order in which it began: ended sessions, and the
// transfers to one target. push and pop cost O(1), amortized.
type deque[T any] struct {
	pages[T]
	head, n int
}

func (d *deque[T]) len() int { return d.n }

// item is for reading, edit for writing, until the next change.
func (d *deque[T]) item(i int) *T { return d.at(d.head + i) }
func (d *deque[T]) edit(i int) *T { return d.own(d.head + i) }

// push adds v at the end.
func (d *deque[T]) push(v T) { *d.add() = v }

// add adds a zero item at the end, for writing. An only chunk that has more free items
// in front than used ones is compacted instead of doubled, so that a short queue stays
// short.
func (d *deque[T]) add() *T {
	if d.head+d.n == d.capacity() {
		if len(d.chunks) == 1 && d.head > d.n {
			d.slide()
		} else {
			d.extend()
		}
	}
	d.n++
	return d.edit(d.n - 1)
}

// slide moves the items of an only chunk to its beginning.
func (d *deque[T]) slide() {
	d.own(0)
	c := d.chunks[0]
	copy(c, c[d.head:d.head+d.n])
	clear(c[d.n : d.head+d.n])
	d.head = 0
}

// pop removes the front; there is one. The item is cleared, so that what it
// points to can be collected.
func (d *deque[T]) pop() {
	var zero T
	*d.edit(0) = zero
	d.head++
	d.n--
	switch {
	case d.head == chunkLen && len(d.chunks) > 1:
		d.dropFirst()
		d.head = 0
	case d.n == 0:
		d.shrink()
		d.head = 0
	}
}

// clear removes all items and keeps no more than one chunk.
func (d *deque[T]) clear() {
	d.shrink()
	if len(d.chunks) > 0 {
		d.own(0)
		clear(d.chunks[0])
	}
	d.head, d.n = 0, 0
}

// capture returns the deque as it is now, see pages.
func (d *deque[T]) capture(keep bool) deque[T] {
	return deque[T]{pages: d.pages.capture(keep), head: d.head, n: d.n}
}
