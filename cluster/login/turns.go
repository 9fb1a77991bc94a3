package login

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// turns lets so many hash at a time. Addresses for which some wait take turns,
// so that one from which many come delays the others by one hash each.
//
// Invariants: free > 0 only if nobody waits; waiting is the sum of all lines,
// at most maxWaiting; order holds each address with a line once, and no line is
// empty.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting int
	lines   map[netip.Prefix][]*waiter
	order   []netip.Prefix // whose turn is next, first
}

// waiter is one who waits; told gets one answer, nil for its turn.
type waiter struct{ told chan error }

// maxWaiting bounds how many wait at a time. Beyond it the address with the
// longest line loses the last one in it.
const maxWaiting = 1024

func newTurns(atOnce int) *turns {
	return &turns{free: atOnce, lines: map[netip.Prefix][]*waiter{}}
}

// take waits for a turn, which has to be given back. ErrBusy: there is none
// before ctx ends, or too many wait.
func (t *turns) take(ctx context.Context, from netip.Prefix) error {
	if ctx.Err() != nil {
		return ErrBusy
	}
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	w := &waiter{make(chan error, 1)}
	t.join(from, w)
	t.mu.Unlock()
	select {
	case err := <-w.told:
		return err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(t.lines[from], w); at >= 0 {
		t.cut(from, at)
		return ErrBusy
	}
	return <-w.told // it has been told meanwhile
}

// join puts one at the end of its address's line. The lock is held, as by all
// that follow.
func (t *turns) join(from netip.Prefix, w *waiter) {
	if len(t.lines[from]) == 0 {
		t.order = append(t.order, from)
	}
	t.lines[from] = append(t.lines[from], w)
	if t.waiting++; t.waiting <= maxWaiting {
		return
	}
	longest := from
	for _, address := range t.order {
		if len(t.lines[address]) > len(t.lines[longest]) {
			longest = address
		}
	}
	line := t.lines[longest]
	last := line[len(line)-1]
	t.cut(longest, len(line)-1)
	last.told <- ErrBusy
}

// cut takes one out of a line.
func (t *turns) cut(from netip.Prefix, at int) {
	t.waiting--
	line := slices.Delete(t.lines[from], at, at+1)
	if len(line) > 0 {
		t.lines[from] = line
		return
	}
	delete(t.lines, from)
	t.order = slices.DeleteFunc(t.order, func(p netip.Prefix) bool { return p == from })
}

// give ends a turn: the next address has it.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.free++
		return
	}
	next := t.order[0]
	w := t.lines[next][0]
	t.order = append(t.order[1:], next)
	t.cut(next, 0)
	w.told <- nil
}
