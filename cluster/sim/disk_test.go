package sim

import (
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
)

// gate is called before each write, and waits while the disk hangs.
func (m *machine) gate() {
	m.mu.Lock()
	stuck := m.stuck
	m.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
}

// hang has the disk hang.
func (m *machine) hang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stuck == nil && m.run != nil {
		m.stuck = make(chan struct{})
	}
}

func (m *machine) unhang() {
	m.mu.Lock()
	defer m.mu.Unlock()
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
	was  byte // the byte it is part of
	bit  byte
}

// flip flips one bit of one file. While a process runs it is one of a table: other
// files are read only when a process starts, and those that it writes are its own.
// Of a machine that has lost power it is none of a log: then the end of a log is no
// longer known otherwise (see cluster/raftlog/DESIGN.md, section 10). Of a file and its copy only one is hit.
func (w *world) flip(m *machine) {
	m.mu.Lock()
	disk, run, dark, flips := m.disk, m.run != nil, m.dark, slices.Clone(m.flips)
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
			case slices.ContainsFunc(flips, func(f flipped) bool { return f.path+".copy" == path || f.path == path+".copy" }):
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
	if f.was, err = f.change(disk, func(now byte) byte { return now }); err != nil {
		return // likewise
	}
	m.mu.Lock()
	m.damaged = true
	m.flips = append(m.flips, f) // before a process can meet it
	m.mu.Unlock()
	if _, err := f.change(disk, func(now byte) byte { return now ^ f.bit }); err != nil {
		w.problem("no bit flips: %v", err)
	}
}

// draw returns a random number below n.
func (w *world) draw(n int) int {
	w.fates.Lock()
	defer w.fates.Unlock()
	return w.rng.IntN(n)
}

// flipBack flips the bit back, if nobody has written there since.
func (f flipped) flipBack(disk *vfs.MemFS) error {
	_, err := f.change(disk, func(now byte) byte {
		if now == f.was^f.bit {
			return f.was
		}
		return now
	})
	return err
}

// change changes the byte that the bit is part of, and returns what it was.
func (f flipped) change(disk *vfs.MemFS, to func(now byte) byte) (was byte, err error) {
	file, err := disk.OpenReadWrite(f.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	raw := make([]byte, 1)
	if _, err := file.ReadAt(raw, f.at); err != nil {
		return 0, err
	}
	was = raw[0]
	if raw[0] = to(was); raw[0] == was {
		return was, nil
	}
	if _, err := file.WriteAt(raw, f.at); err != nil {
		return was, err
	}
	return was, file.Sync()
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
