package login

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// fairQueue lets a fixed number of callers hash at a time. The others wait in one
// line per address, and the lines are served in turn, so an address with many
// callers delays each of the others by one hash.
//
// Invariants: free > 0 only if nobody waits; waiting is the sum of all lines and
// ≤ maxWaiting; order holds each address with a line once; no line is empty.
type fairQueue struct {
	mu      sync.Mutex
	free    int
	waiting int
	lines   map[netip.Prefix][]*waiter
	order   []netip.Prefix // the first is served next
}

// waiter is a waiting caller. answer receives one value; nil means that it may hash.
type waiter struct{ answer chan error }

// maxWaiting bounds the waiting callers. When there are more, the address with the
// longest line loses the last of it.
const maxWaiting = 1024

func newFairQueue(atOnce int) *fairQueue {
	return &fairQueue{free: atOnce, lines: map[netip.Prefix][]*waiter{}}
}

// take waits until the caller may hash; the caller must call give afterwards. take
// returns ErrBusy if ctx ends first, or too many callers wait.
func (q *fairQueue) take(ctx context.Context, from netip.Prefix) error {
	if ctx.Err() != nil {
		return ErrBusy
	}
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	w := &waiter{make(chan error, 1)}
	q.join(from, w)
	q.mu.Unlock()
	select {
	case err := <-w.answer:
		return err
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if at := slices.Index(q.lines[from], w); at >= 0 {
		q.cut(from, at)
		return ErrBusy
	}
	return <-w.answer // answered in the meantime
}

// join appends a waiter to its address's line. The lock is held, here and in cut.
func (q *fairQueue) join(from netip.Prefix, w *waiter) {
	if len(q.lines[from]) == 0 {
		q.order = append(q.order, from)
	}
	q.lines[from] = append(q.lines[from], w)
	if q.waiting++; q.waiting <= maxWaiting {
		return
	}
	longest := from
	for _, address := range q.order {
		if len(q.lines[address]) > len(q.lines[longest]) {
			longest = address
		}
	}
	line := q.lines[longest]
	last := line[len(line)-1]
	q.cut(longest, len(line)-1)
	last.answer <- ErrBusy
}

// cut removes a waiter from its line.
func (q *fairQueue) cut(from netip.Prefix, at int) {
	q.waiting--
	line := slices.Delete(q.lines[from], at, at+1)
	if len(line) > 0 {
		q.lines[from] = line
		return
	}
	delete(q.lines, from)
	q.order = slices.DeleteFunc(q.order, func(p netip.Prefix) bool { return p == from })
}

// give ends the turn that take began; the next address is served.
func (q *fairQueue) give() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		q.free++
		return
	}
	next := q.order[0]
	w := q.lines[next][0]
	q.order = append(q.order[1:], next)
	q.cut(next, 0)
	w.answer <- nil
}
