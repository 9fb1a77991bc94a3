package group

import (
	"errors"
	"sync"
)

// intakeBudget is about how much other nodes may have submitted to all groups of
// this one that no entry holds yet, in bytes.
const intakeBudget = 256 << 20

// ErrFull is returned for a submission of a node that has too much waiting here.
var ErrFull = errors.New("too much waits to be proposed")

// intake counts what other nodes have submitted. A node may have as much as is
// free for everybody, and one batch, unless the budget is used up twice.
//
//	sum of waiting = all ≤ 2 × limit
type intake struct {
	limit int

	mu      sync.Mutex
	waiting map[string]int
	all     int
}

func newIntake() *intake { return &intake{limit: intakeBudget, waiting: map[string]int{}} }

// size is what a batch counts for.
func (b *Batch) size() int { return len(b.Commands) + b.Bytes }

// take reports whether a batch may wait. Those of this node may.
func (i *intake) take(b *Batch) bool {
	if b.From == "" {
		return true
	}
	n := b.size()
	i.mu.Lock()
	defer i.mu.Unlock()
	has, free := i.waiting[b.From], i.limit-i.all
	if has+n > free && (has > 0 || n > free+i.limit) {
		return false
	}
	i.waiting[b.From] = has + n
	i.all += n
	return true
}

// put is told that batches do not wait any more.
func (i *intake) put(batches []Batch) {
	for j := range batches {
		b := &batches[j]
		if b.From == "" {
			continue
		}
		i.mu.Lock()
		i.all -= b.size()
		if i.waiting[b.From] -= b.size(); i.waiting[b.From] <= 0 {
			delete(i.waiting, b.From)
		}
		i.mu.Unlock()
	}
}
