// Package watchdog withdraws a node whose disk hangs from its cluster, and ends its process if the
// disk does not recover. To tell a hanging disk from a machine that is merely busy it measures how
// long the process has been able to run.
//
// It promises that a process which was not able to run blames nobody: everything with a bound is
// measured in awake time, which does not pass while nothing here can run; and that nothing in it
// waits for the disk. What a node does to withdraw is supplied to it.
package watchdog

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/worker"
)

const (
	// tickEvery is how often the clock ticks. Awake time passes in such steps.
	tickEvery = 100 * time.Millisecond
	// maxTick is how much of the time since the last tick counts. The rest is a stall.
	maxTick = 2 * tickEvery
	// restEvery is how often the clock ticks while nothing is measured by it. Whoever reads it then
	// moves it on.
	restEvery = 5 * tickEvery
)

// AwakeClock measures how long the process has been able to run, and how long it
// has been stalled.
type AwakeClock struct {
	awake   atomic.Int64
	stalled atomic.Int64
	longest atomic.Int64
	resting atomic.Bool

	// mu guards until when awake has been counted, and when the next tick is due.
	mu        sync.Mutex
	last, due time.Time
}

// Run runs the clock until stop is closed. It rests while idle says so, which is asked at each tick.
func (c *AwakeClock) Run(stop <-chan struct{}, idle func() bool) {
	next := time.NewTimer(c.begin())
	defer next.Stop()
	for {
		select {
		case <-stop:
			return
		case <-next.C:
		}
		next.Reset(c.tick(idle()))
	}
}

func (c *AwakeClock) begin() (next time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = time.Now()
	c.due = c.last.Add(tickEvery)
	return tickEvery
}

// tick accounts for the time since the last tick, and returns the time until the next one.
func (c *AwakeClock) tick(rest bool) (next time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if late := now.Sub(c.due); late > tickEvery/2 {
		c.stalled.Add(int64(late))
		c.longest.Store(max(c.longest.Load(), int64(late)))
	}
	c.passed(now)
	if next = tickEvery; rest {
		next = worker.Next(restEvery)
	}
	c.due = now.Add(next)
	c.resting.Store(rest)
	return next
}

// passed counts the time since it was last counted: until the next tick is due, and little more. c.mu is
// held.
func (c *AwakeClock) passed(now time.Time) {
	c.awake.Add(int64(min(now.Sub(c.last), max(0, c.due.Sub(c.last))+maxTick-tickEvery)))
	c.last = now
}

// Awake returns how long the process has been able to run.
func (c *AwakeClock) Awake() time.Duration {
	if c.resting.Load() {
		c.mu.Lock()
		c.passed(time.Now())
		c.mu.Unlock()
	}
	return time.Duration(c.awake.Load())
}

// Stalls returns the total and the longest stall since the process started. The short
// delays that are usual on a busy machine do not count.
func (c *AwakeClock) Stalls() (total, longest time.Duration) {
	return time.Duration(c.stalled.Load()), time.Duration(c.longest.Load())
}
