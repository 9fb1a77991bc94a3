// Package alarm raises resource alarms. It compares the memory and the free disk
// space of a node with their limits. While either alarm is in effect at any node
// of the cluster, publishers are blocked at all of them. Before it raises a memory
// alarm, it returns memory that the program has freed to the system; it does
// nothing else to end an alarm.
package alarm

import (
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Names of the resources, as the API calls them.
const (
	Memory = "memory"
	Disk   = "disk"
)

// Interval is how often Check must be called.
const Interval = time.Second

const (
	// releaseEvery is the shortest time between two releases of memory, each of
	// which costs a full garbage collection.
	releaseEvery = 5 * time.Second
	// unknownAfter is after how long without a measurement the last one of the disk is no longer taken for
	// the present state.
	unknownAfter = 10 * time.Second
	// diskWait is how long a check waits for a measurement of the disk. A file system whose
	// device or server is gone may never answer.
	diskWait = Interval / 2
	// leastHeap is the smallest limit that the garbage collector is given: below
	// it, the program would do little but collect garbage.
	leastHeap = 256 << 20
)

// errNoAnswer says that a measurement of the disk has taken longer than diskWait.
var errNoAnswer = errors.New("the file system does not answer")

// Probe measures. Sizes are bytes.
type Probe interface {
	// MemoryTotal is how much memory the machine, or the process's control
	// group, has.
	MemoryTotal() int64
	// MemoryUsed is the resident memory of the process.
	MemoryUsed() int64
	// DiskFree is the space left for the node's data. It may take any time.
	DiskFree() (int64, error)
	// Release returns freed memory to the system.
	Release()
	// LimitHeap makes the garbage collector work harder as the memory in use
	// approaches a limit.
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

// Resources are those of a node, in bytes, and its alarms.
//
// Invariants: MemoryAlarm = MemoryUsed ≥ MemoryLimit; DiskAlarm = DiskFree <
// DiskLimit. While the disk cannot be measured, both keep their last values, and
// after a while DiskUnknown says so.
type Resources struct {
	MemoryUsed, MemoryLimit int64
	DiskFree, DiskLimit     int64
	MemoryAlarm, DiskAlarm  bool
	DiskUnknown             bool
}

// Alarms lists the names of the resources with an alarm that blocks publishers, in order.
func (r Resources) Alarms() []string {
	var list []string
	if r.DiskAlarm {
		list = append(list, Disk)
	}
	if r.MemoryAlarm {
		list = append(list, Memory)
	}
	return list
}

// Watch watches one node. It may be used by several goroutines.
type Watch struct {
	probe Probe
	log   *slog.Logger
	now   func() time.Time

	checking  sync.Mutex // one check at a time
	released  time.Time
	blind     time.Time  // since when the disk cannot be measured; zero: it can
	measuring chan space // for the measurement that is under way; nil: none is

	mu           sync.Mutex
	memory, disk Limit
	resources    Resources
}

// space is a measurement of the disk.
type space struct {
	free int64
	err  error
}

// New returns a Watch that has not measured anything yet.
func New(c Config) *Watch {
	w := &Watch{probe: c.Probe, log: c.Logger, now: c.Now, memory: c.Memory, disk: c.Disk}
	w.resources = Resources{MemoryLimit: c.Memory.of(c.Probe.MemoryTotal()), DiskLimit: c.Disk.of(c.Probe.MemoryTotal())}
	c.Probe.LimitHeap(max(w.resources.MemoryLimit, leastHeap))
	return w
}

// Resources are those of the last check.
func (w *Watch) Resources() Resources {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.resources
}

// SetMemory changes the memory limit and checks.
func (w *Watch) SetMemory(l Limit) Resources {
	w.mu.Lock()
	w.memory = l
	w.mu.Unlock()
	w.probe.LimitHeap(max(l.of(w.probe.MemoryTotal()), leastHeap))
	w.log.Info("memory limit set", "limit", l.String())
	return w.Check()
}

// SetDisk changes the limit of free disk space and checks.
func (w *Watch) SetDisk(l Limit) Resources {
	w.mu.Lock()
	w.disk = l
	w.mu.Unlock()
	w.log.Info("free disk space limit set", "limit", l.String())
	return w.Check()
}

// Check measures. It waits for the disk no longer than diskWait.
func (w *Watch) Check() Resources {
	w.checking.Lock()
	defer w.checking.Unlock()
	w.mu.Lock()
	old, memory, disk := w.resources, w.memory, w.disk
	w.mu.Unlock()

	total := w.probe.MemoryTotal()
	r := Resources{MemoryLimit: memory.of(total), DiskLimit: disk.of(total), MemoryUsed: w.probe.MemoryUsed()}
	if r.MemoryUsed >= r.MemoryLimit && (w.released.IsZero() || w.now().Sub(w.released) >= releaseEvery) {
		w.probe.Release()
		w.released = w.now()
		r.MemoryUsed = w.probe.MemoryUsed()
	}
	r.MemoryAlarm = r.MemoryUsed >= r.MemoryLimit
	w.checkDisk(&r, old)

	w.mu.Lock()
	w.resources = r
	w.mu.Unlock()
	w.logChanges(old, r)
	return r
}

// checkDisk keeps the last values while the disk cannot be measured.
func (w *Watch) checkDisk(r *Resources, old Resources) {
	switch s := w.measureDisk(); {
	case s.err == nil:
		w.blind = time.Time{}
		r.DiskFree, r.DiskAlarm = s.free, s.free < r.DiskLimit
		return
	case w.blind.IsZero():
		w.blind = w.now()
		w.log.Error("free disk space is unknown", "error", s.err)
	}
	r.DiskFree, r.DiskAlarm, r.DiskUnknown = old.DiskFree, old.DiskAlarm, w.now().Sub(w.blind) >= unknownAfter
}

// measureDisk begins a measurement unless one is under way, so that a disk that never answers
// costs one goroutine, which ends with the process: nothing else can end such a call.
func (w *Watch) measureDisk() space {
	if w.measuring == nil {
		answer := make(chan space, 1)
		go func() {
			free, err := w.probe.DiskFree()
			answer <- space{free, err}
		}()
		w.measuring = answer
	}
	t := time.NewTimer(diskWait)
	defer t.Stop()
	select {
	case s := <-w.measuring:
		w.measuring = nil
		return s
	case <-t.C:
		return space{err: errNoAnswer}
	}
}

// logChanges logs alarms that begin or end.
func (w *Watch) logChanges(old, r Resources) {
	switch {
	case r.MemoryAlarm && !old.MemoryAlarm:
		w.log.Warn("memory alarm: publishers are blocked", "alarm", Memory, "used", r.MemoryUsed, "limit", r.MemoryLimit)
	case !r.MemoryAlarm && old.MemoryAlarm:
		w.log.Info("memory alarm is over", "alarm", Memory, "used", r.MemoryUsed, "limit", r.MemoryLimit)
	}
	switch {
	case r.DiskAlarm && !old.DiskAlarm:
		w.log.Warn("disk alarm: publishers are blocked", "alarm", Disk, "free", r.DiskFree, "limit", r.DiskLimit)
	case !r.DiskAlarm && old.DiskAlarm:
		w.log.Info("disk alarm is over", "alarm", Disk, "free", r.DiskFree, "limit", r.DiskLimit)
	}
	switch {
	case r.DiskUnknown && !old.DiskUnknown:
		w.log.Error("free disk space has been unknown for a while: there will be no disk alarm", "alarm", "disk_unknown")
	case !r.DiskUnknown && old.DiskUnknown:
		w.log.Info("free disk space is known again", "alarm", "disk_unknown", "free", r.DiskFree, "limit", r.DiskLimit)
	}
}
