package raftlog

import (
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/durations"
)

// syncWeight is how many durable writes the mean of their times remembers, roughly.
const syncWeight = 16

// syncTime is the mean time that durable writes have taken of late, where of two that end at once one
// may be left out; and all of them by their times.
type syncTime struct {
	ns  atomic.Int64
	all durations.Histogram
}

func (t *syncTime) observe(began time.Time) {
	took, was := int64(time.Since(began)), t.ns.Load()
	t.all.Observe(time.Duration(took))
	if was != 0 {
		took = was + (took-was)/syncWeight
	}
	t.ns.CompareAndSwap(was, max(took, 1))
}
