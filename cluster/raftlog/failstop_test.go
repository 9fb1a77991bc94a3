package raftlog

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// stuck is a file that cannot be closed as long as b is on: errorfs knows none.
type stuck struct {
	vfs.File
	b *breaker
}

func (s stuck) Close() error {
	if s.b.on.Load() {
		return errorfs.ErrInjected
	}
	return s.File.Close()
}

// Every write that fails ends the process, whatever it is part of, unless the
// store is being opened: then its error is passed on. If nothing ends, it is tried
// again.
func TestEveryFailedWriteStops(t *testing.T) {
	const none = vfs.WriteCategoryUnspecified
	for kind, act := range map[errorfs.OpKind]func(fs vfs.FS, f vfs.File) error{
		errorfs.OpCreate:        func(fs vfs.FS, _ vfs.File) error { _, err := fs.Create("b", none); return err },
		errorfs.OpReuseForWrite: func(fs vfs.FS, _ vfs.File) error { _, err := fs.ReuseForWrite("a", "b", none); return err },
		errorfs.OpOpenDir:       func(fs vfs.FS, _ vfs.File) error { _, err := fs.OpenDir(""); return err },
		errorfs.OpOpen:          func(fs vfs.FS, _ vfs.File) error { _, err := fs.OpenReadWrite("a", none); return err },
		errorfs.OpLink:          func(fs vfs.FS, _ vfs.File) error { return fs.Link("a", "b") },
		errorfs.OpRename:        func(fs vfs.FS, _ vfs.File) error { return fs.Rename("a", "b") },
		errorfs.OpFileWrite:     func(_ vfs.FS, f vfs.File) error { _, err := f.Write([]byte("x")); return err },
		errorfs.OpFileWriteAt:   func(_ vfs.FS, f vfs.File) error { _, err := f.WriteAt([]byte("x"), 0); return err },
		errorfs.OpFileSync:      func(_ vfs.FS, f vfs.File) error { return f.Sync() },
		errorfs.OpFileSyncData:  func(_ vfs.FS, f vfs.File) error { return f.SyncData() },
		errorfs.OpFileSyncTo:    func(_ vfs.FS, f vfs.File) error { _, err := f.SyncTo(1); return err },
		errorfs.OpFileClose:     func(_ vfs.FS, f vfs.File) error { return f.Close() }, // see stuck
	} {
		for _, armed := range []bool{false, true} {
			t.Run(fmt.Sprintf("operation %d, armed %v", kind, armed), func(t *testing.T) {
				b := &breaker{hits: func(op errorfs.Op) bool { return op.Kind == kind }}
				ended := 0
				end := func(string, ...any) {
					ended++
					b.on.Store(false)
				}
				fs := failStop{errorfs.Wrap(vfs.NewMem(), b), &stopper{end: end}}
				f, err := fs.Create("a", none)
				must(t, err)
				if kind == errorfs.OpFileClose {
					file := f.(*failStopFile)
					file.File = stuck{file.File, b}
				}
				fs.stop.armed.Store(armed)
				b.on.Store(true)
				if err := act(fs, f); errors.Is(err, errorfs.ErrInjected) == armed || armed && err != nil {
					t.Errorf("it answers %v", err)
				}
				if armed != (ended == 1) {
					t.Errorf("the process ends %d times", ended)
				}
			})
		}
	}
}

// Of a manifest counts what was synced, all of it and no more; other files are
// not manifests.
func TestSyncedManifest(t *testing.T) {
	b := &breaker{hits: isSync}
	var noted []uint64
	fs := failStop{errorfs.Wrap(vfs.NewMem(), b), &stopper{
		end: func(string, ...any) {}, synced: func(number, size uint64) { noted = append(noted, number, size) },
	}}
	write := func(f vfs.File, n int) {
		_, err := f.Write(make([]byte, n))
		must(t, err)
	}
	must(t, fs.MkdirAll("db", 0o755))
	f, err := fs.Create("db/MANIFEST-000007", vfs.WriteCategoryUnspecified)
	must(t, err)
	other, err := fs.Create("db/000007.log", vfs.WriteCategoryUnspecified)
	must(t, err)
	write(f, 10)
	write(other, 99)
	must(t, other.Sync())
	if len(noted) > 0 {
		t.Errorf("noted before it is synced: %v", noted)
	}
	must(t, f.Sync())
	write(f, 5)
	b.on.Store(true)
	if f.Sync() == nil {
		t.Error("a sync that fails succeeds")
	}
	b.on.Store(false)
	if want := []uint64{7, 10}; !slices.Equal(noted, want) {
		t.Errorf("noted: %v, want %v", noted, want)
	}
	must(t, f.Sync())
	if want := []uint64{7, 10, 7, 15}; !slices.Equal(noted, want) {
		t.Errorf("noted: %v, want %v", noted, want)
	}
}
