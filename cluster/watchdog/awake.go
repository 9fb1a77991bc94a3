// Package watchdog withdraws a node whose disk hangs from its cluster, and ends its process if the
// disk does not recover. To tell a hanging disk from a machine that is merely busy it measures how
// long the process has been able to run.
//
// It promises that a process which was not able to run blames nobody: everything with a bound is
// measured in awake time, which does not pass while nothing here can run; and that nothing in it
// waits for the disk. What a node does to withdraw is supplied to it.
package watchdog

import (
	"sync/atomic"
	"time"
)

const (
	// tickEvery is how often the clock ticks. Awake time passes in such steps.
	tickEvery = 100 * time.Millisecond
	// maxTick is how much of the time since the last tick counts. The rest is a stall.
	maxTick = 2 * tickEvery
)

// AwakeClock measures how long the process has been able to run, and how long it
// has been stalled.
type AwakeClock struct {
	awake   atomic.Int64
	stalled atomic.Int64
	longest atomic.Int64
}

// Run runs the clock until stop is closed.
func (c *AwakeClock) Run(stop <-chan struct{}) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := time.Now()
		c.passed(now.Sub(last))
		last = now
	}
}

// passed accounts for the time since the last tick.
func (c *AwakeClock) passed(d time.Duration) {
	c.awake.Add(int64(min(d, maxTick)))
	if late := d - tickEvery; late > tickEvery/2 {
		c.stalled.Add(int64(late))
		c.longest.Store(max(c.longest.Load(), int64(late)))
	}
}

// Awake returns how long the process has been able to run.
func (c *AwakeClock) Awake() time.Duration { return time.Duration(c.awake.Load()) }

// Stalls returns the total and the longest stall since the process started. The short
// delays that are usual on a busy machine do not count.
func (c *AwakeClock) Stalls() (total, longest time.Duration) {
	return time.Duration(c.stalled.Load()), time.Duration(c.longest.Load())
}
