package group

import (
	"errors"
	"slices"
	"sync"

	"github.com/quorate/quorate/fsm"
)

// admissionLimit is roughly how many bytes may have been submitted to all groups of this node that are
// not in an entry yet.
const admissionLimit = 256 << 20

// ErrFull is returned for a submission of a node that has too much waiting here.
var ErrFull = errors.New("too many bytes of commands are waiting to be proposed")

// admission counts what the nodes have submitted, this one included. A node may have as much waiting as is free for
// all, plus one batch, unless twice the limit is reached.
//
//	sum of waiting = all ≤ 2 × limit
type admission struct {
	limit int
	floor floor

	mu      sync.Mutex
	waiting map[string]int
	all     int
}

func newAdmission() *admission {
	return &admission{limit: admissionLimit, waiting: map[string]int{}}
}

// take reports whether a batch may wait. What a leader itself submits, without a session, always may: it
// is bounded there.
func (a *admission) take(b *Batch, runs []run) bool {
	if b.From == "" && !slices.ContainsFunc(runs, func(r run) bool { return r.session != (fsm.SessionID{}) }) {
		return true
	}
	n := len(b.Commands) + b.Bytes
	a.mu.Lock()
	defer a.mu.Unlock()
	has, free := a.waiting[b.From], a.limit-a.all
	if has+n > free && (has > 0 || n > free+a.limit) {
		return false
	}
	a.waiting[b.From] = has + n
	a.all += n
	b.waits = n
	return true
}

// crowded reports whether so much waits that nothing should wait longer than it must.
func (a *admission) crowded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all > a.limit/4
}

// release records that batches no longer wait.
func (a *admission) release(batches []Batch) {
	for j := range batches {
		b := &batches[j]
		if b.waits == 0 {
			continue
		}
		a.mu.Lock()
		a.all -= b.waits
		if a.waiting[b.From] -= b.waits; a.waiting[b.From] <= 0 {
			delete(a.waiting, b.From)
		}
		a.mu.Unlock()
	}
}
