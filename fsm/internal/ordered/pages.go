package ordered

import "slices"

// chunkLen is the length of all chunks but an only one, which starts small:
// most queues of a node are short.
const (
	chunkLen   = 512
	firstChunk = 8
)

// Pages is an array in chunks that can be frozen: a frozen array never changes,
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
type Pages[T any] struct {
	// The tables themselves are not shared: freeze copies them.
	chunks [][]T
	epochs []uint64 // chunk i is shared unless epochs[i] == epoch
	epoch  uint64
	spare  []T // a chunk that was dropped, for the next extend
}

// At returns item i, for reading. Requires: 0 ≤ i < capacity(). The pointer is
// good until the next own, extend or freeze: later writes may go to a copy.
func (p *Pages[T]) At(i int) *T { return &p.chunks[i/chunkLen][i%chunkLen] }

// own returns item i for writing. A chunk that is shared is copied before, so
// that the first write to each after a freeze costs a chunk. It allocates only
// then.
func (p *Pages[T]) own(i int) *T {
	c := i / chunkLen
	if p.epochs[c] != p.epoch {
		p.chunks[c] = slices.Clone(p.chunks[c])
		p.epochs[c] = p.epoch
	}
	return &p.chunks[c][i%chunkLen]
}

// Capacity is the number of items at and own reach.
func (p *Pages[T]) Capacity() int {
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
func (p *Pages[T]) extend() {
	switch n := p.Capacity(); {
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
func (p *Pages[T]) dropFirst() {
	if p.epochs[0] == p.epoch {
		p.spare = p.chunks[0]
		clear(p.spare)
	}
	p.chunks[0] = nil
	p.chunks, p.epochs = p.chunks[1:], p.epochs[1:]
}

// shrink drops all chunks but the first. The table is copied, so that a large
// one does not stay behind a small slice.
func (p *Pages[T]) shrink() {
	if len(p.chunks) > 1 {
		p.chunks, p.epochs = slices.Clone(p.chunks[:1]), slices.Clone(p.epochs[:1])
		p.spare = nil
	}
}

// Capture is freeze if keep, or else an array that is valid until the next change, and
// makes no chunk shared.
func (p *Pages[T]) Capture(keep bool) Pages[T] {
	if keep {
		return p.Freeze()
	}
	return *p
}

// Freeze returns the array as it is now; the chunks are shared. O(number of
// chunks). The copy has no epochs: it must not be written to.
func (p *Pages[T]) Freeze() Pages[T] {
	p.epoch++
	return Pages[T]{chunks: slices.Clone(p.chunks)}
}

// arena hands out items by handle. Handle 0 names none.
//
// Invariants: top = 0, or 1 ≤ top ≤ capacity(); free has handles below top, each
// once, and their items are zero. An arena that is empty keeps one chunk at most.
//
// The handle that was freed last is used first. Which handle a message has depends
// on the history of this process, not only on the log: a restored replica has
// others. So nothing that leaves the machine may be ordered by handle.
type Arena[T any] struct {
	Pages[T]
	top  int      // handles below have been handed out; 0 before the first
	free []uint32 // and these have come back
}

// Get is for reading. An item that was released is zero, until the arena
// becomes empty.
func (a *Arena[T]) Get(h uint32) *T { return a.At(int(h)) }

// Mut is for writing. Pointers from before may be stale afterwards.
func (a *Arena[T]) Mut(h uint32) *T { return a.own(int(h)) }

// End is above all handles that have been handed out.
func (a *Arena[T]) End() uint32 { return uint32(a.top) }

// Live is the number of items that are handed out.
func (a *Arena[T]) Live() int { return max(a.top-1, 0) - len(a.free) }

// Alloc returns the handle of a zero item. The item is zero because release
// clears it and extend adds zero items. Amortized O(1): it allocates when all
// handles are in use.
func (a *Arena[T]) Alloc() uint32 {
	if n := len(a.free); n > 0 {
		h := a.free[n-1]
		a.free = a.free[:n-1]
		return h
	}
	a.top = max(a.top, 1)
	if a.top == a.Capacity() || a.Capacity() == 0 {
		a.extend()
	}
	a.top++
	return uint32(a.top - 1)
}

// Release takes an item back. An arena that has become empty keeps no more than
// one chunk. Requires: h is handed out. Releasing it twice would hand it out
// twice.
func (a *Arena[T]) Release(h uint32) {
	var zero T
	*a.Mut(h) = zero
	a.free = append(a.free, h)
	if a.Live() == 0 && a.top > chunkLen {
		a.reset()
	}
}

// reset releases all items. Handles begin with 1 again.
func (a *Arena[T]) reset() {
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

// Deque is a queue in chunks. Item 0 is the front.
//
// Invariants: 0 ≤ head < chunkLen, head + n ≤ capacity(); items before the head
// and behind the last are zero, so that nothing is kept alive by them. It is
// used for what ends in the order in which it began: ended sessions, and the
// transfers to one target. push and pop cost O(1), amortized.
type Deque[T any] struct {
	Pages[T]
	head, n int
}

// Len is the number of items.
func (d *Deque[T]) Len() int { return d.n }

// Item is for reading, until the next change.
func (d *Deque[T]) Item(i int) *T { return d.At(d.head + i) }

// Edit is for writing, until the next change.
func (d *Deque[T]) Edit(i int) *T { return d.own(d.head + i) }

// Push adds v at the end.
func (d *Deque[T]) Push(v T) { *d.Add() = v }

// Add adds a zero item at the end, for writing. An only chunk that has more free items
// in front than used ones is compacted instead of doubled, so that a short queue stays
// short.
func (d *Deque[T]) Add() *T {
	if d.head+d.n == d.Capacity() {
		if len(d.chunks) == 1 && d.head > d.n {
			d.slide()
		} else {
			d.extend()
		}
	}
	d.n++
	return d.Edit(d.n - 1)
}

// slide moves the items of an only chunk to its beginning.
func (d *Deque[T]) slide() {
	d.own(0)
	c := d.chunks[0]
	copy(c, c[d.head:d.head+d.n])
	clear(c[d.n : d.head+d.n])
	d.head = 0
}

// Pop removes the front; there is one. The item is cleared, so that what it
// points to can be collected.
func (d *Deque[T]) Pop() {
	var zero T
	*d.Edit(0) = zero
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

// Clear removes all items and keeps no more than one chunk.
func (d *Deque[T]) Clear() {
	d.shrink()
	if len(d.chunks) > 0 {
		d.own(0)
		clear(d.chunks[0])
	}
	d.head, d.n = 0, 0
}

// Capture returns the deque as it is now, see pages.
func (d *Deque[T]) Capture(keep bool) Deque[T] {
	return Deque[T]{Pages: d.Pages.Capture(keep), head: d.head, n: d.n}
}
