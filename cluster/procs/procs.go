// Package procs has a process that has little to do use one processor.
//
// Go's scheduler wakes a thread for each goroutine that becomes ready while a processor is free. A message that
// passes from goroutine to goroutine has nothing for that thread to do: waking it, and its search for work, take a
// quarter of the processor time of such messages, and time of each. See cluster/DESIGN.md, "One processor or
// several".
package procs

import (
	"log/slog"
	"os"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/cluster/worker"
)

const (
	// busyEvery is how often a process is checked that does something, idleEvery another one. So long may one that
	// suddenly has much to do be left with one processor.
	busyEvery = 100 * time.Millisecond
	idleEvery = 5 * busyEvery
	idle      = 0.05 // of a processor
	// A process that needs less of one processor than little for calmTime gets along with one, until it needs more
	// than much of it. With one it needs less than before.
	little, much = 0.65, 0.8
	calmTime     = time.Second
	// lateness of the check itself says that others on the machine take the processor, or that one piece of work is in
	// the way of the rest.
	lateness = 5 * time.Millisecond
	// slowSync is how long durable writes may take on average. A goroutine in a system call keeps its processor until
	// the runtime's monitor takes that away, after up to 10 ms.
	slowSync = 500 * time.Microsecond
	// largeHeap is the size from which on the search for garbage takes one processor too long. The number of processors
	// does not change meanwhile.
	largeHeap = 128 << 20
	// collectEvery is how often, at most, garbage is collected to learn the size of the heap.
	collectEvery = time.Minute
)

// all is how many processors are used when all are; 0: nobody governs.
var all atomic.Int64

// Processors is how many processors this process uses when it has much to do.
func Processors() int {
	if n := all.Load(); n > 0 {
		return int(n)
	}
	return runtime.GOMAXPROCS(0)
}

// use is what the process uses.
type use struct {
	at   time.Time
	busy time.Duration // of processors, since the process began
	sync time.Duration // mean of late
	heap uint64        // bytes that were alive when garbage was collected last
}

// governor decides how many processors are used.
type governor struct {
	lateness time.Duration // the constant
	one      bool
	last     use
	every    time.Duration // until the next check
	calm     time.Duration // for how long the process has needed little
	// collected is when garbage was collected last to learn the size of the heap.
	collected time.Time
}

// check takes account of what has been used since the last check, and says whether one processor is to do. collect: that
// depends on nothing but the heap, whose size is known as it was before the process had little to do: what little makes
// no garbage that is collected soon.
func (g *governor) check(u use) (one, collect bool) {
	passed := u.at.Sub(g.last.at)
	share := float64(u.busy-g.last.busy) / float64(max(passed, 1))
	late := passed > 2*g.every && passed > g.lateness || u.at.Sub(u.at.Truncate(g.every)) > g.lateness
	g.last = u
	limit := little
	if g.one {
		limit = much
	}
	if share > limit || late || u.sync > slowSync {
		g.calm, g.one = 0, false
	} else {
		g.calm += passed
		calm, large := g.calm >= calmTime, u.heap > largeHeap
		g.one = (g.one || calm) && !large
		if collect = calm && large && u.at.Sub(g.collected) >= collectEvery; collect {
			g.collected = u.at
		}
	}
	if g.every = busyEvery; share < idle {
		g.every = idleEvery
	}
	return g.one, collect
}

// Govern decides again and again how many processors this process uses, until done is closed. syncLatency is how long
// durable writes have taken of late. A GOMAXPROCS in the environment is obeyed instead.
func Govern(done <-chan struct{}, log *slog.Logger, syncLatency func() time.Duration) {
	if os.Getenv("GOMAXPROCS") != "" || runtime.GOMAXPROCS(0) == 1 {
		return
	}
	g := governor{lateness: lateness}
	g.govern(done, log, syncLatency)
}

func (g *governor) govern(done <-chan struct{}, log *slog.Logger, syncLatency func() time.Duration) {
	all.Store(int64(runtime.GOMAXPROCS(0)))
	defer set(false)
	g.every, g.last = busyEvery, measure(syncLatency)
	worker.Again(done, func() time.Duration {
		was := g.one
		one, collect := g.check(measure(syncLatency))
		if one != was {
			set(one)
			log.Debug("processors in use", slog.Int("processors", runtime.GOMAXPROCS(0)))
		}
		if collect {
			runtime.GC()
		}
		return g.every
	})
}

func set(one bool) {
	if one {
		runtime.GOMAXPROCS(1)
		return
	}
	runtime.SetDefaultGOMAXPROCS()
	all.Store(int64(runtime.GOMAXPROCS(0)))
}

func measure(syncLatency func() time.Duration) (u use) {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		u.busy = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(heap)
	u.heap, u.sync, u.at = heap[0].Value.Uint64(), syncLatency(), time.Now()
	return u
}
