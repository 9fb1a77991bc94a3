package sim

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
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

func (m *machine) hang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stuck == nil {
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

// flip flips one bit of one file.
func (w *world) flip(disk *vfs.MemFS) {
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
			case info.Size() > 0:
				files = append(files, path)
			}
		}
		return err
	}
	err := walk(dataDir)
	if err == nil && len(files) > 0 {
		err = w.flipIn(disk, files[w.rng.IntN(len(files))])
	}
	if err != nil {
		w.problem("no bit flips: %v", err)
	}
}

func (w *world) flipIn(disk *vfs.MemFS, path string) error {
	f, err := disk.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil || len(raw) == 0 {
		return err
	}
	at := w.rng.IntN(len(raw))
	if _, err := f.WriteAt([]byte{raw[at] ^ 1<<w.rng.IntN(8)}, int64(at)); err != nil {
		return err
	}
	return f.Sync()
}

// keep writes the disks of a run that has found problems to -sim.keep: what the
// replicas have applied can be read there, with quorate log explain.
func (w *world) keep() {
	if *keepIn == "" || len(w.problems) == 0 {
		return
	}
	for _, name := range w.names {
		to := filepath.Join(*keepIn, name)
		if _, err := vfs.Clone(w.nodes[name].disk, vfs.Default, dataDir, to); err != nil {
			w.problem("the disk of %s is not kept: %v", name, err)
		}
	}
	fmt.Printf("disks are kept in %s\n", *keepIn)
}
