// Package worker runs background work: a Worker does one thing again whenever it
// is woken, at most so often, and a Guard keeps a panic in such work from ending
// the process. It starts no goroutine of its own and knows nothing of what it
// runs: whoever starts a goroutine waits for it.
package worker

import "time"

// Options limit how often a Worker works. The zero value does not.
type Options struct {
	// Delay is the time from the first Wake to the run that it causes, for more
	// to come meanwhile.
	Delay time.Duration
	// Pause is the least time from the end of a run to the next one.
	Pause time.Duration
}

// Worker does one thing again when it is woken. Runs do not overlap. All Wakes
// that come before a run begins are answered by that run; one that comes after
// it has begun is answered by another one. So none is lost.
type Worker struct {
	options Options
	wake    chan struct{}
}

// New returns a worker that has not been woken.
func New(o Options) *Worker { return &Worker{options: o, wake: make(chan struct{}, 1)} }

// Wake causes a run. It does not wait, and may be called before Run and after it
// has returned.
func (w *Worker) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run calls do once, and after each Wake, until done is closed. What do returns
// is the longest time to its next run; 0: none but after a Wake.
func (w *Worker) Run(done <-chan struct{}, do func(now time.Time) (again time.Duration)) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-done:
			return
		case <-w.wake:
			if !wait(done, w.options.Delay) {
				return
			}
		case <-next.C:
		}
		select {
		case <-w.wake: // this run is its answer, too
		default:
		}
		if again := do(time.Now()); again > 0 {
			next.Reset(again)
		} else {
			next.Stop()
		}
		if !wait(done, w.options.Pause) {
			return
		}
	}
}

// Every calls do at once and then in this interval, until done is closed.
func Every(done <-chan struct{}, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		do()
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// wait reports whether d has passed before done was closed.
func wait(done <-chan struct{}, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return false
	case <-t.C:
		return true
	}
}
