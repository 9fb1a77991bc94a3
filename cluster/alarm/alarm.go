// Package alarm watches the memory and the disk space of a node and says when
// there is too little of either. It knows nothing of other nodes, and of what
// is to be done about a shortage only this: memory that the program has freed
// and not given back is given back first.
package alarm

import (
	"log/slog"
	"sync"
	"time"
)

// Names of what may be short, as the API calls it.
const (
	Memory = "memory"
	Disk   = "disk"
)

// Pace is how often Check is to be called.
const Pace = time.Second

const (
	// releaseEvery bounds how often memory is given back, which costs a full
	// garbage collection.
	releaseEvery = 5 * time.Second
	// leastHeap is the smallest limit that the garbage collector is told of:
	// below it, it would do little else but collect.
	leastHeap = 256 << 20
)

// Probe measures. Sizes are bytes.
type Probe interface {
	// MemoryTotal is how much memory the machine, or the process's control
	// group, has.
	MemoryTotal() int64
	// MemoryUsed is the resident memory of the process.
	MemoryUsed() int64
	// DiskFree is the space left for the node's data.
	DiskFree() (int64, error)
	// Release gives memory back to the system.
	Release()
	// LimitHeap has the garbage collector work harder when memory in use comes
	// near a limit.
	LimitHeap(limit int64)
}

// Config is what a Watch begins with.
type Config struct {
	Memory Limit // of what is used; relative: to all memory
	Disk   Limit // of what is free; relative: to all memory
	Probe  Probe
	Logger *slog.Logger
	Now    func() time.Time // monotonic
}

// Figures are how a node stands. Sizes are bytes.
type Figures struct {
	MemoryUsed, MemoryLimit int64
	DiskFree, DiskLimit     int64
	MemoryShort, DiskShort  bool
}

// Short lists the names of what is short, in order.
func (f Figures) Short() []string {
	var list []string
	if f.DiskShort {
		list = append(list, Disk)
	}
	if f.MemoryShort {
		list = append(list, Memory)
	}
	return list
}

// Watch watches one node. It may be used by several goroutines.
type Watch struct {
	probe Probe
	log   *slog.Logger
	now   func() time.Time

	checking sync.Mutex // one check at a time
	released time.Time
	blind    bool // the disk could not be measured the last time

	mu           sync.Mutex
	memory, disk Limit
	figures      Figures
}

// New returns a Watch that has not measured yet.
func New(c Config) *Watch {
	w := &Watch{probe: c.Probe, log: c.Logger, now: c.Now, memory: c.Memory, disk: c.Disk}
	w.figures = Figures{MemoryLimit: c.Memory.of(c.Probe.MemoryTotal()), DiskLimit: c.Disk.of(c.Probe.MemoryTotal())}
	c.Probe.LimitHeap(max(w.figures.MemoryLimit, leastHeap))
	return w
}

// Figures are those of the last check.
func (w *Watch) Figures() Figures {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.figures
}

// SetMemory changes the limit of memory, and checks.
func (w *Watch) SetMemory(l Limit) Figures {
	w.mu.Lock()
	w.memory = l
	w.mu.Unlock()
	w.probe.LimitHeap(max(l.of(w.probe.MemoryTotal()), leastHeap))
	w.log.Info("memory limit set", "limit", l.String())
	return w.Check()
}

// SetDisk changes the limit of free disk space, and checks.
func (w *Watch) SetDisk(l Limit) Figures {
	w.mu.Lock()
	w.disk = l
	w.mu.Unlock()
	w.log.Info("limit of free disk space set", "limit", l.String())
	return w.Check()
}

// Check measures.
func (w *Watch) Check() Figures {
	w.checking.Lock()
	defer w.checking.Unlock()
	w.mu.Lock()
	old, memory, disk := w.figures, w.memory, w.disk
	w.mu.Unlock()

	total := w.probe.MemoryTotal()
	f := Figures{MemoryLimit: memory.of(total), DiskLimit: disk.of(total), MemoryUsed: w.probe.MemoryUsed()}
	if f.MemoryUsed >= f.MemoryLimit && (w.released.IsZero() || w.now().Sub(w.released) >= releaseEvery) {
		w.probe.Release()
		w.released = w.now()
		f.MemoryUsed = w.probe.MemoryUsed()
	}
	f.MemoryShort = f.MemoryUsed >= f.MemoryLimit
	f.DiskFree, f.DiskShort = w.checkDisk(old, f.DiskLimit)

	w.mu.Lock()
	w.figures = f
	w.mu.Unlock()
	w.tell(old, f)
	return f
}

// checkDisk keeps what it knew of a disk that cannot be measured.
func (w *Watch) checkDisk(old Figures, limit int64) (free int64, short bool) {
	free, err := w.probe.DiskFree()
	if err != nil {
		if !w.blind {
			w.log.Error("free disk space is not known", "error", err)
		}
		w.blind = true
		return old.DiskFree, old.DiskShort
	}
	w.blind = false
	return free, free < limit
}

// tell logs what has changed.
func (w *Watch) tell(old, f Figures) {
	switch {
	case f.MemoryShort && !old.MemoryShort:
		w.log.Warn("memory alarm: publishers are blocked", "alarm", Memory, "used", f.MemoryUsed, "limit", f.MemoryLimit)
	case !f.MemoryShort && old.MemoryShort:
		w.log.Info("memory alarm is over", "alarm", Memory, "used", f.MemoryUsed, "limit", f.MemoryLimit)
	}
	switch {
	case f.DiskShort && !old.DiskShort:
		w.log.Warn("disk alarm: publishers are blocked", "alarm", Disk, "free", f.DiskFree, "limit", f.DiskLimit)
	case !f.DiskShort && old.DiskShort:
		w.log.Info("disk alarm is over", "alarm", Disk, "free", f.DiskFree, "limit", f.DiskLimit)
	}
}
