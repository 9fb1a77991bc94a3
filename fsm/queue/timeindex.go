package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// timed is one entry of a timeIndex: v is due at at. seq orders equal instants.
type timed[V any] struct {
	at  fsm.Time
	seq uint64
	v   V
}

func (t *timed[V]) compare(o *timed[V]) int {
	return cmp.Or(cmp.Compare(t.at, o.at), cmp.Compare(t.seq, o.seq))
}

// before reports whether t comes before o.
func (t *timed[V]) before(o *timed[V]) bool {
	return t.at < o.at || t.at == o.at && t.seq < o.seq
}

// heapWidth is the number of children in the heap. Four lie side by side: a
// large heap is waiting for memory, and has half as many levels this way.
const heapWidth = 4

// timeIndex orders what is due by (instant, seq). Entries that come in this
// order, as those of one uniform TTL do, cost O(1); others go through a heap.
//
// Nothing is ever taken out of the middle. The owner says with stale which
// entries do not count any more, and calls rebuild when tooLong.
type timeIndex[V any] struct {
	fifo deque[timed[V]]
	heap []timed[V]
}

func (x *timeIndex[V]) len() int { return x.fifo.len() + len(x.heap) }

// tooLong reports whether more than half of the entries must be stale when
// live ones are not.
func (x *timeIndex[V]) tooLong(live int) bool { return x.len() > 2*live+64 }

func (x *timeIndex[V]) push(t timed[V]) {
	if n := x.fifo.len(); n == 0 || x.fifo.item(n-1).compare(&t) <= 0 {
		x.fifo.push(t)
		return
	}
	x.heap = append(x.heap, t)
	i := len(x.heap) - 1
	for i > 0 {
		up := (i - 1) / heapWidth
		if !x.heap[i].before(&x.heap[up]) {
			break
		}
		x.heap[up], x.heap[i] = x.heap[i], x.heap[up]
		i = up
	}
}

// first returns the earliest entry that is not stale, nil if there is none,
// and forgets the stale ones before it. The pointer is good until the next call.
func (x *timeIndex[V]) first(stale func(*timed[V]) bool) *timed[V] {
	for x.fifo.len() > 0 && stale(x.fifo.item(0)) {
		x.fifo.pop()
	}
	for len(x.heap) > 0 && stale(&x.heap[0]) {
		x.popHeap()
	}
	switch {
	case x.fifo.len() == 0 && len(x.heap) == 0:
		return nil
	case x.fifo.len() == 0:
		return &x.heap[0]
	case len(x.heap) == 0 || x.fifo.item(0).compare(&x.heap[0]) <= 0:
		return x.fifo.item(0)
	}
	return &x.heap[0]
}

// popHeap removes the least entry of the heap.
func (x *timeIndex[V]) popHeap() {
	last := len(x.heap) - 1
	v := x.heap[last]
	x.heap[last] = timed[V]{}
	x.heap = x.heap[:last]
	if last == 0 {
		return
	}
	i := 0
	for {
		first := heapWidth*i + 1
		if first >= last {
			break
		}
		least := first
		for down := first + 1; down < min(first+heapWidth, last); down++ {
			if x.heap[down].before(&x.heap[least]) {
				least = down
			}
		}
		if !x.heap[least].before(&v) {
			break
		}
		x.heap[i] = x.heap[least]
		i = least
	}
	x.heap[i] = v
}

// rebuild replaces the content by entries, which it sorts.
func (x *timeIndex[V]) rebuild(entries []timed[V]) {
	x.clear()
	slices.SortFunc(entries, func(a, b timed[V]) int { return a.compare(&b) })
	for _, t := range entries {
		x.fifo.push(t)
	}
}

func (x *timeIndex[V]) clear() {
	x.fifo.clear()
	x.heap = nil
}
