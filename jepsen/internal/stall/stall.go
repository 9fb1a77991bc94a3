// Package stall measures how long this machine keeps waiting those who are due
// to run: goroutines sleep for a moment again and again and look how late they
// wake. All nodes of a test run on the same machine, so what the test's own
// process had to wait stands for what the nodes had to wait.
//
// Who sleeps is woken soon even where others have to wait for long. So it also
// looks at how long the threads of the nodes that run here, this test's or
// another's, were ready to run and did not, if the system tells.
//
// It measures processors only, not disks: who waits for a confirm knows how
// long that took.
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
	// witnesses sleep side by side, each on a thread of its own: a late wake-up
	// is then the machine's, and one of them meets a busy processor sooner.
	witnesses = 2
	// sampled is how often the nodes are looked at; window is for how long what
	// their threads waited is added up: from before something is due until it is
	// seen.
	sampled = 500 * time.Millisecond
	window  = 10 * time.Second
)

// Tolerance is how late something may be seen that was due while the longest
// stall was this: a second, for all that takes its time on an idle machine, and
// three times the stall, since a node, its followers and the test may have been
// kept waiting one after the other.
func Tolerance(longest time.Duration) time.Duration { return time.Second + 3*longest }

// Meter remembers the stalls since it was started.
type Meter struct {
	stop chan struct{}
	done sync.WaitGroup

	mu sync.Mutex
	// stalls are in the order of their ends; each is longer than all that ended
	// after it, so the first one that counts is the longest that counts.
	stalls []stalled
	due    [witnesses]time.Time // when each wakes; zero: it has ended
	waited []stalled            // of each sample: the thread that waited longest
}

type stalled struct {
	end    time.Time
	lasted time.Duration
}

// Start begins to measure. Stop ends it.
func Start() *Meter {
	m := start()
	m.done.Go(func() { m.sample(nodeWaits) })
	return m
}

// start begins to measure without looking at nodes.
func start() *Meter {
	m := &Meter{stop: make(chan struct{})}
	now := time.Now()
	for i := range m.due {
		m.due[i] = now.Add(every)
		m.done.Go(func() { m.watch(i) })
	}
	return m
}

// Stop ends the measuring. What was measured can still be asked for.
func (m *Meter) Stop() {
	close(m.stop)
	m.done.Wait()
}

// Longest is the longest stall of which a part lies after an instant; one that
// has not ended yet counts with what it has lasted. What a thread of a node has
// waited within some seconds counts for a third: it is a sum, to which each step
// on the way of a message has added already.
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

// waits is the most that was waited within a window after an instant. mu is held.
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

// sample looks at the nodes again and again.
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

// nodeWaits is how long each thread of each node has waited for a processor
// since it began; empty where the system does not tell.
func nodeWaits() map[string]time.Duration {
	all := map[string]time.Duration{}
	names, _ := filepath.Glob("/proc/[0-9]*/comm") // the pattern is a good one
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

// woke records that a witness woke, and whether it sleeps again.
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
