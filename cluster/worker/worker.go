// Package worker runs background work. Tasks own goroutines, wait for them, and say what a panic in
// them does; Each and Queue do something for many, a few at a time; a Worker repeats one thing
// whenever it is woken, at a limited rate. None of them knows anything about what it runs.
package worker

import "time"

// Options limit how often a Worker runs. The zero value does not limit it.
type Options struct {
	// Delay is the time from the first Wake to the run that it causes, so that further Wakes can
	// join.
	Delay time.Duration
	// Pause is the minimum time from the end of a run to the next one.
	Pause time.Duration
	// Share, if not 0, makes the pause after a run at least this many times as long as the run took,
	// at most Longest: what is cheap is done at once, and what is dear takes no more than its share.
	Share   int
	Longest time.Duration
}

// pause returns the pause after a run.
func (o *Options) pause(took time.Duration) time.Duration {
	return max(o.Pause, min(time.Duration(o.Share)*took, o.Longest))
}

// Worker runs one thing whenever it is woken. Runs do not overlap. All Wakes before a run starts
// are answered by that run; a Wake after it has started is answered by another run. So none is
// lost.
type Worker struct {
	options Options
	wake    chan struct{}
}

// New returns a worker that has not been woken.
func New(o Options) *Worker { return &Worker{options: o, wake: make(chan struct{}, 1)} }

// Wake causes a run. It does not wait, and may be called before Run and after it has returned.
func (w *Worker) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run calls do once, and after each Wake, until done is closed. do returns the maximum time until
// its next run; 0: only after a Wake.
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
		case <-w.wake: // this run answers it, too
		default:
		}
		began := time.Now()
		if again := do(began); again > 0 {
			next.Reset(again)
		} else {
			next.Stop()
		}
		if !wait(done, w.options.pause(time.Since(began))) {
			return
		}
	}
}

// Every calls do at once and then at this interval, until done is closed.
func Every(done <-chan struct{}, interval time.Duration, do func()) {
	Again(done, func() time.Duration { do(); return interval })
}

// Again calls do at once and then at the interval that do returned last, until done is closed. The
// calls are at multiples of the interval, see Next.
func Again(done <-chan struct{}, do func() (interval time.Duration)) {
	next := time.NewTimer(time.Hour)
	defer next.Stop()
	for {
		next.Reset(Next(do()))
		select {
		case <-done:
			return
		case <-next.C:
		}
	}
}

// Next returns the time until the next multiple of interval on the wall clock. Loops that wait for
// it run at the same moments, at all nodes if their clocks agree, so they share a wake-up of the
// process and a packet: waking costs more than what these loops do. A multiple that is all but there
// counts as past: the wall clock may be slewed while somebody waits for it.
func Next(interval time.Duration) time.Duration {
	now := time.Now()
	d := now.Truncate(interval).Add(interval).Sub(now)
	if d < interval/64 {
		d += interval
	}
	return d
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
