package watchdog

import (
	"os"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
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
	defer w.d.end(w.d.write())
	return w.File.Sync()
}

// SyncData implements vfs.File.
func (w watchedFile) SyncData() error {
	defer w.d.end(w.d.write())
	return w.File.SyncData()
}

// SyncTo implements vfs.File.
func (w watchedFile) SyncTo(length int64) (bool, error) {
	defer w.d.end(w.d.write())
	return w.File.SyncTo(length)
}
