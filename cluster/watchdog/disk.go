// Package watchdog withdraws a node whose disk hangs from its cluster, and ends its process if the
// disk does not recover. To tell a hanging disk from a machine that is merely busy it measures how
// long the process has been able to run.
//
// It promises that a process which was not able to run blames nobody: everything with a bound is
// measured in awake time, which does not pass while nothing here can run; and that nothing in it
// waits for the disk. What a node does to withdraw is supplied to it.
package watchdog

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/worker"
)

// operations is how many operations are watched at a time. There are rarely more than a few; further ones
// are not watched.
const operations = 64

// Disk watches what is done on the disk: files of the stores that are opened, read, written, synced,
// created and removed.
type Disk struct {
	clock *AwakeClock
	gate  func()
	// since is when an operation began, in awake time plus 1; 0: there is none.
	since [operations]atomic.Int64
	begun atomic.Uint64 // operations
	syncs atomic.Uint64 // of files and folders, that make durable what was written
}

// NewDisk returns a watch. gate, if not nil, is called before each write and may
// block, as a hanging disk does.
func NewDisk(clock *AwakeClock, gate func()) *Disk { return &Disk{clock: clock, gate: gate} }

// write is begin for an operation that changes something.
func (d *Disk) write() (slot int) {
	slot = d.begin()
	if d.gate != nil {
		d.gate()
	}
	return slot
}

// begin records the start of an operation, and end its end.
func (d *Disk) begin() (slot int) {
	d.begun.Add(1)
	now := int64(d.clock.Awake()) + 1
	for slot = range d.since {
		if d.since[slot].CompareAndSwap(0, now) {
			break
		}
		if slot == operations-1 {
			slot = -1
		}
	}
	return slot
}

func (d *Disk) end(slot int) {
	if slot >= 0 {
		d.since[slot].Store(0)
	}
}

// Waiting returns the age of the oldest outstanding operation; 0: there is none.
func (d *Disk) Waiting() (longest time.Duration) {
	now := d.clock.Awake()
	for i := range d.since {
		if since := d.since[i].Load(); since != 0 {
			longest = max(longest, now-time.Duration(since-1))
		}
	}
	return longest
}

// FS returns a filesystem that is watched.
func (d *Disk) FS(fs vfs.FS) vfs.FS { return watchedFS{fs, d} }

type watchedFS struct {
	vfs.FS
	d *Disk
}

func (w watchedFS) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return watchedFile{f, w.d}, nil
}

func (w watchedFS) do(f func() error) error {
	defer w.d.end(w.d.write())
	return f()
}

// Create implements vfs.FS.
func (w watchedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	defer w.d.end(w.d.write())
	return w.file(w.FS.Create(name, c))
}

// OpenReadWrite implements vfs.FS.
func (w watchedFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	defer w.d.end(w.d.begin())
	return w.file(w.FS.OpenReadWrite(name, c, opts...))
}

// Open implements vfs.FS.
func (w watchedFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	defer w.d.end(w.d.begin())
	return w.file(w.FS.Open(name, opts...))
}

// OpenDir implements vfs.FS.
func (w watchedFS) OpenDir(name string) (vfs.File, error) {
	defer w.d.end(w.d.begin())
	return w.file(w.FS.OpenDir(name))
}

// ReuseForWrite implements vfs.FS.
func (w watchedFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	defer w.d.end(w.d.write())
	return w.file(w.FS.ReuseForWrite(oldname, newname, c))
}

// Link implements vfs.FS.
func (w watchedFS) Link(oldname, newname string) error {
	return w.do(func() error { return w.FS.Link(oldname, newname) })
}

// Remove implements vfs.FS.
func (w watchedFS) Remove(name string) error {
	return w.do(func() error { return w.FS.Remove(name) })
}

// RemoveAll implements vfs.FS.
func (w watchedFS) RemoveAll(name string) error {
	return w.do(func() error { return w.FS.RemoveAll(name) })
}

// Rename implements vfs.FS.
func (w watchedFS) Rename(oldname, newname string) error {
	return w.do(func() error { return w.FS.Rename(oldname, newname) })
}

// MkdirAll implements vfs.FS.
func (w watchedFS) MkdirAll(dir string, perm os.FileMode) error {
	return w.do(func() error { return w.FS.MkdirAll(dir, perm) })
}

// Unwrap implements vfs.FS.
func (w watchedFS) Unwrap() vfs.FS { return w.FS }

type watchedFile struct {
	vfs.File
	d *Disk
}

// Read implements vfs.File.
func (w watchedFile) Read(p []byte) (int, error) {
	defer w.d.end(w.d.begin())
	return w.File.Read(p)
}

// ReadAt implements vfs.File.
func (w watchedFile) ReadAt(p []byte, at int64) (int, error) {
	defer w.d.end(w.d.begin())
	return w.File.ReadAt(p, at)
}

// Write implements vfs.File.
func (w watchedFile) Write(p []byte) (int, error) {
	defer w.d.end(w.d.write())
	return w.File.Write(p)
}

// WriteAt implements vfs.File.
func (w watchedFile) WriteAt(p []byte, at int64) (int, error) {
	defer w.d.end(w.d.write())
	return w.File.WriteAt(p, at)
}

// Preallocate implements vfs.File.
func (w watchedFile) Preallocate(offset, length int64) error {
	defer w.d.end(w.d.write())
	return w.File.Preallocate(offset, length)
}

// Sync implements vfs.File.
func (w watchedFile) Sync() error {
	w.d.syncs.Add(1)
	defer w.d.end(w.d.write())
	return w.File.Sync()
}

// SyncData implements vfs.File.
func (w watchedFile) SyncData() error {
	w.d.syncs.Add(1)
	defer w.d.end(w.d.write())
	return w.File.SyncData()
}

// SyncTo implements vfs.File. It begins to write, and makes nothing durable, unless the filesystem can only sync all.
func (w watchedFile) SyncTo(length int64) (full bool, err error) {
	defer w.d.end(w.d.write())
	if full, err = w.File.SyncTo(length); full {
		w.d.syncs.Add(1)
	}
	return full, err
}

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
