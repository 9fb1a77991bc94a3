// Package stall measures how long this machine delays goroutines that are ready to
// run: witnesses sleep for a moment repeatedly and measure how late they wake. All
// nodes of a test run on the same machine, so the delays of the test's own process
// represent those of the nodes.
//
// A sleeping thread is woken soon even on a machine where others wait for long.
// Therefore the package also measures how long the threads of all nodes on this
// machine, of this test or another, were ready to run and did not, if the system
// reports it.
//
// It measures processors only, not disks: a client that waits for a confirm knows
// how long that took.
package stall

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

const (
	// every is how long a witness sleeps.
	every = 10 * time.Millisecond
	// witnesses sleep in parallel, each on a thread of its own, so that the machine
	// causes any late wake-up, and a busy processor is detected sooner.
	witnesses = 2
	// sampled is the interval at which the nodes are sampled. window is the time over
	// which the waits of their threads are added up: from before something is due
	// until it is seen.
	sampled = 500 * time.Millisecond
	window  = 10 * time.Second
)

// Tolerance returns how late something may be seen, given the longest stall at the
// time it was due: a second, which suffices on an idle machine, and three times the
// stall, since a node, its followers and the test may have been delayed one after
// the other.
func Tolerance(longest time.Duration) time.Duration { return time.Second + 3*longest }

// Meter remembers the stalls since it was started.
type Meter struct {
	stop chan struct{}
	done sync.WaitGroup

	mu sync.Mutex
	// stalls are in the order of their ends. Each is longer than all that ended after
	// it, so the first one that counts is the longest.
	stalls []stalled
	due    [witnesses]time.Time // when each wakes; zero: it has ended
	waited []stalled            // the thread that waited longest, for each sample
}

type stalled struct {
	end    time.Time
	lasted time.Duration
}

// Start starts measuring; Stop ends it.
func Start() *Meter {
	m := start()
	m.done.Go(func() { m.sample(nodeWaits) })
	return m
}

// start starts measuring without sampling nodes.
func start() *Meter {
	m := &Meter{stop: make(chan struct{})}
	now := time.Now()
	for i := range m.due {
		m.due[i] = now.Add(every)
		m.done.Go(func() { m.watch(i) })
	}
	return m
}

// Stop ends measuring. The results remain available.
func (m *Meter) Stop() {
	close(m.stop)
	m.done.Wait()
}

// Longest returns the longest stall that ended after an instant; one that has not
// ended yet counts with its duration so far. A third of the time that a thread of a
// node has waited within some seconds counts as a stall: it is a sum to which each
// step of a message's way has contributed.
func (m *Meter) Longest(since time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	var longest time.Duration
	for _, s := range m.stalls {
		if s.end.After(since) {
			longest = s.lasted
			break
		}
	}
	now := time.Now()
	for _, due := range m.due {
		if !due.IsZero() {
			longest = max(longest, now.Sub(due))
		}
	}
	return max(longest, m.waits(since)/3)
}

// waits returns the longest wait of a thread within a window after an instant. mu is
// held.
func (m *Meter) waits(since time.Time) (most time.Duration) {
	sum, first := time.Duration(0), 0
	for i, s := range m.waited {
		sum += s.lasted
		for ; s.end.Sub(m.waited[first].end) >= window || !m.waited[first].end.After(since) && first < i; first++ {
			sum -= m.waited[first].lasted
		}
		if s.end.After(since) {
			most = max(most, sum)
		}
	}
	return most
}

// sample samples the nodes periodically until the meter is stopped.
func (m *Meter) sample(look func() map[string]time.Duration) {
	tick := time.NewTicker(sampled)
	defer tick.Stop()
	last := look()
	for {
		select {
		case <-m.stop:
			return
		case <-tick.C:
		}
		next, most := look(), time.Duration(0)
		for thread, waited := range next {
			most = max(most, waited-last[thread])
		}
		last = next
		m.mu.Lock()
		m.waited = append(m.waited, stalled{end: time.Now(), lasted: most})
		m.mu.Unlock()
	}
}

// nodeWaits returns how long each thread of each node has waited for a processor
// since it started; empty where the system does not report it.
func nodeWaits() map[string]time.Duration {
	all := map[string]time.Duration{}
	names, _ := filepath.Glob("/proc/[0-9]*/comm") // the pattern is valid
	for _, name := range names {
		if comm, err := os.ReadFile(name); err != nil || strings.TrimSpace(string(comm)) != "quorate" {
			continue
		}
		threads, _ := filepath.Glob(filepath.Join(filepath.Dir(name), "task", "*", "schedstat"))
		for _, thread := range threads {
			var ran, waited int64
			if text, err := os.ReadFile(thread); err == nil {
				if n, _ := fmt.Sscan(string(text), &ran, &waited); n == 2 {
					all[thread] = time.Duration(waited)
				}
			}
		}
	}
	return all
}

// watch is one witness.
func (m *Meter) watch(n int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	alarm := time.NewTimer(every)
	defer alarm.Stop()
	for {
		select {
		case <-m.stop:
			m.woke(n, time.Now(), false)
			return
		case <-alarm.C:
			m.woke(n, time.Now(), true)
			alarm.Reset(every)
		}
	}
}

// woke records that a witness woke up, and whether it sleeps again.
func (m *Meter) woke(n int, now time.Time, again bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := stalled{end: now, lasted: now.Sub(m.due[n])}
	m.due[n] = time.Time{}
	if again {
		m.due[n] = now.Add(every)
	}
	if s.lasted <= 0 {
		return
	}
	keep := len(m.stalls)
	for keep > 0 && m.stalls[keep-1].lasted <= s.lasted {
		keep--
	}
	m.stalls = append(m.stalls[:keep], s)
}
