// Package durations counts how long things take, by their length.
//
// It promises: counting one costs two atomic additions, and neither a lock nor an allocation. It does
// not keep single durations.
package durations

import (
	"sync/atomic"
	"time"
)

// Bounds are the upper bounds of the durations that are counted together, ascending.
var Bounds = [...]time.Duration{
	10 * time.Microsecond, 25 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// Counts are durations by their length.
type Counts struct {
	Of  [len(Bounds) + 1]uint64 // up to each bound and above the one before; the last: longer ones
	Sum time.Duration           // of all
}

// Histogram counts durations. The zero value has counted none.
type Histogram struct {
	counts [len(Bounds) + 1]atomic.Uint64
	sum    atomic.Int64 // ns
}

// Observe counts a duration. One below zero counts as zero.
func (h *Histogram) Observe(took time.Duration) {
	took = max(took, 0)
	i := 0
	for i < len(Bounds) && took > Bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(took))
}

// Read returns what was counted. Durations that are counted meanwhile may be in one of the numbers and
// not yet in another.
func (h *Histogram) Read() (c Counts) {
	for i := range h.counts {
		c.Of[i] = h.counts[i].Load()
	}
	c.Sum = time.Duration(h.sum.Load())
	return c
}
