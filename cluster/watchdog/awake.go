// Package vitals takes the signs of life of a node: whether its process gets to
// run, and whether its disk takes what is written.
//
// It promises: a process that was kept waiting accuses nobody. All that is
// measured against a bound is measured in awake time, which does not pass while
// nobody here can run. It decides nothing; what follows from a disk that hangs
// is the node's business.
package vitals

import (
	"sync/atomic"
	"time"
)

const (
	// beat is how often the pulse is taken. Awake time passes in such steps.
	beat = 100 * time.Millisecond
	// longestBeat is how much of the time since the last beat counts. What is
	// beyond it is a stall.
	longestBeat = 2 * beat
)

// Pulse measures how long the process has been able to run, and how long it has
// been kept waiting.
type Pulse struct {
	awake   atomic.Int64
	stalled atomic.Int64
	longest atomic.Int64
}

// Run takes the pulse until stop is closed.
func (p *Pulse) Run(stop <-chan struct{}) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := time.Now()
		p.passed(now.Sub(last))
		last = now
	}
}

// passed notes the time since the last beat.
func (p *Pulse) passed(d time.Duration) {
	p.awake.Add(int64(min(d, longestBeat)))
	if late := d - beat; late > beat/2 {
		p.stalled.Add(int64(late))
		p.longest.Store(max(p.longest.Load(), int64(late)))
	}
}

// Awake is for how long the process has been able to run.
func (p *Pulse) Awake() time.Duration { return time.Duration(p.awake.Load()) }

// Stalls are how long the process has been kept waiting altogether, and at most,
// since it started. What a busy machine lets everybody wait for is not counted.
func (p *Pulse) Stalls() (total, longest time.Duration) {
	return time.Duration(p.stalled.Load()), time.Duration(p.longest.Load())
}
