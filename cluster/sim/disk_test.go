package sim

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quorate/quorate/cluster/membership"
)

// gate is called before each write, and waits while the disk hangs.
func (m *machine) gate() {
	m.mu.Lock()
	if m.hanging && m.stuck == nil && m.run != nil && m.run.canHang() {
		m.stuck = make(chan struct{})
	}
	stuck := m.stuck
	m.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
}

// hang has the disk hang, once it can.
func (m *machine) hang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hanging = true
}

func (m *machine) unhang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hanging = false
	if m.stuck != nil {
		close(m.stuck)
		m.stuck = nil
	}
}

// failure is what a disk answers to operations of a kind, from some moment on, until
// the process has ended.
type failure struct {
	err   error
	syncs bool // to syncs; else to all that changes something
	keep  int  // percent of what was not synced that the disk keeps
	skip  atomic.Int64
	hit   atomic.Bool
}

// errnos are the errors that a script names.
var errnos = map[string]error{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC}

func (f *failure) concerns(k errorfs.OpKind) bool {
	switch k {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		return true
	case errorfs.OpCreate, errorfs.OpLink, errorfs.OpRename, errorfs.OpReuseForWrite, errorfs.OpFileWrite, errorfs.OpFileWriteAt:
		return !f.syncs
	}
	return false
}

// endsWithin is how long a process may live whose disk has failed.
const endsWithin = time.Second

// logFill is how many bytes were written to Pebble's newest log.
type logFill struct{ bytes atomic.Int64 }

// maxFill is what leaves a memtable about half empty: it has 256 KiB at least.
const maxFill = 96 << 10

// canHang reports whether the disk may hang: not while one of the stores is about to
// begin another log. It does that under locks that others wait for, and time would
// stand still.
func (p *process) canHang() bool {
	return p.logs[0].bytes.Load() < maxFill && p.logs[1].bytes.Load() < maxFill
}

// countedFS counts what is written to logs.
type countedFS struct {
	vfs.FS
	p *process
}

func (c countedFS) file(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	fill := &c.p.logs[0]
	if strings.Contains(name, membership.CatalogFolder) {
		fill = &c.p.logs[1]
	}
	fill.bytes.Store(0)
	return countedFile{f, fill}, nil
}

func (c countedFS) Create(name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.Create(name, k)
	return c.file(name, f, err)
}

func (c countedFS) ReuseForWrite(old, name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.ReuseForWrite(old, name, k)
	return c.file(name, f, err)
}

func (c countedFS) Unwrap() vfs.FS { return c.FS }

type countedFile struct {
	vfs.File
	fill *logFill
}

func (f countedFile) Write(p []byte) (int, error) {
	if len(p) < 4096 || bytes.Count(p, []byte{0}) < len(p) { // zeros are room for records
		f.fill.bytes.Add(int64(len(p)))
	}
	return f.File.Write(p)
}

// MaybeError implements errorfs.Injector. A process that is dead has a disk that
// works.
func (p *process) MaybeError(op errorfs.Op) error {
	f := p.m.failing.Load()
	if f == nil || p.dead.Load() || !f.concerns(op.Kind) || f.skip.Add(-1) >= 0 {
		return nil
	}
	if !f.hit.Swap(true) {
		time.AfterFunc(endsWithin, func() {
			if !p.dead.Load() && p.m.running() == p {
				p.w.problem("%s lives %v after its disk has failed", p.m.name, endsWithin)
			}
		})
	}
	return &os.PathError{Op: "write", Path: op.Path, Err: f.err}
}

func (*process) String() string { return "(process)" }

// fail has the disk answer what a step says.
func (m *machine) fail(s step) {
	f := &failure{err: errnos[s.Error], syncs: s.Syncs, keep: s.Keep}
	if f.err == nil {
		f.err = syscall.EIO
	}
	f.skip.Store(int64(s.Skip))
	m.failing.Store(f)
}

// flipped is a bit of a file.
type flipped struct {
	path string
	at   int64
	bit  byte
}

// flip flips one bit of one file. While a process runs it is one of a table: other
// files are read only when a process starts, and those that it writes are its own.
// Of a machine that has lost power it is none of a log: then the end of a log is no
// longer known otherwise (see cluster/raftlog/DESIGN.md, section 10).
func (w *world) flip(m *machine) {
	m.mu.Lock()
	disk, run, dark := m.disk, m.run != nil, m.dark
	m.mu.Unlock()
	var files []string
	var walk func(dir string) error
	walk = func(dir string) error {
		names, err := disk.List(dir)
		for _, name := range names {
			path := disk.PathJoin(dir, name)
			info, err := disk.Stat(path)
			switch {
			case err != nil:
				return err
			case info.IsDir():
				if err := walk(path); err != nil {
					return err
				}
			case info.Size() == 0 || run && !strings.HasSuffix(name, ".sst") || dark && strings.HasSuffix(name, ".log"):
			default:
				files = append(files, path)
			}
		}
		return err
	}
	err := walk(dataDir)
	if err != nil || len(files) == 0 {
		return // of a disk that is being used
	}
	slices.Sort(files)
	f := flipped{path: files[w.draw(len(files))], bit: 1 << w.draw(8)}
	info, err := disk.Stat(f.path)
	if err != nil || info.Size() == 0 {
		return
	}
	f.at = int64(w.draw(int(info.Size())))
	m.mu.Lock()
	m.damaged = true
	m.flips = append(m.flips, f)
	m.mu.Unlock()
	if err := f.flip(disk); err != nil {
		w.problem("no bit flips: %v", err)
	}
}

// draw returns a random number below n.
func (w *world) draw(n int) int {
	w.fates.Lock()
	defer w.fates.Unlock()
	return w.rng.IntN(n)
}

// flip flips the bit, or flips it back.
func (f flipped) flip(disk *vfs.MemFS) error {
	file, err := disk.OpenReadWrite(f.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer file.Close()
	raw := make([]byte, 1)
	if _, err := file.ReadAt(raw, f.at); err != nil {
		return err
	}
	raw[0] ^= f.bit
	if _, err := file.WriteAt(raw, f.at); err != nil {
		return err
	}
	return file.Sync()
}

// keep writes the disks of a run that has found problems to -sim.keep: what the
// replicas have applied can be read there, with quorate log explain.
func (w *world) keep() {
	if *keepIn == "" || len(w.problems) == 0 {
		return
	}
	for _, name := range w.names {
		to := filepath.Join(*keepIn, name)
		if _, err := vfs.Clone(w.nodes[name].getDisk(), vfs.Default, dataDir, to); err != nil {
			w.problem("the disk of %s is not kept: %v", name, err)
		}
	}
	fmt.Printf("disks are kept in %s\n", *keepIn)
}
