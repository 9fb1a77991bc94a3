package raftlog

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failStop ends the process with the first write that fails, before Pebble
// hears of it: some of its goroutines answer such an error with a panic, under
// locks and with nobody to recover it. While a store is being opened errors
// pass: Open returns them.
type failStop struct {
	vfs.FS
	stop *stopper
}

// stopper says what happens when a write fails, and when a manifest was synced.
type stopper struct {
	armed  atomic.Bool
	end    func(why string, attrs ...any)
	synced func(manifest, size uint64)
}

// do acts, and passes an error on only as long as the stopper is not armed. Behind
// end, the process has ended in name, and what failed is done again.
func (s *stopper) do(doing, path string, act func() error) error {
	for {
		err := act()
		if err == nil || !s.armed.Load() {
			return err
		}
		s.end("durable write failed", "doing", doing, "path", path, "error", err)
	}
}

func (f failStop) file(doing, name string, open func() (vfs.File, error)) (file vfs.File, err error) {
	err = f.stop.do(doing, name, func() (err error) {
		file, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &failStopFile{File: file, stop: f.stop, name: name, manifest: manifestNumber(f.PathBase(name))}, nil
}

// Create implements vfs.FS.
func (f failStop) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file("create", name, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

// OpenReadWrite implements vfs.FS.
func (f failStop) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.file("open", name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, opts...) })
}

// ReuseForWrite implements vfs.FS.
func (f failStop) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file("create", newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, c) })
}

// OpenDir implements vfs.FS. Directories are opened to be synced.
func (f failStop) OpenDir(name string) (vfs.File, error) {
	return f.file("open", name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

// Link implements vfs.FS.
func (f failStop) Link(oldname, newname string) error {
	return f.stop.do("link", newname, func() error { return f.FS.Link(oldname, newname) })
}

// Rename implements vfs.FS.
func (f failStop) Rename(oldname, newname string) error {
	return f.stop.do("rename", newname, func() error { return f.FS.Rename(oldname, newname) })
}

// Unwrap implements vfs.FS.
func (f failStop) Unwrap() vfs.FS { return f.FS }

type failStopFile struct {
	vfs.File
	stop     *stopper
	name     string
	manifest uint64 // its number; 0: it is another file
	written  uint64 // of a manifest, by one goroutine at a time
}

// Write implements vfs.File.
func (f *failStopFile) Write(p []byte) (n int, err error) {
	err = f.stop.do("write", f.name, func() error {
		k, err := f.File.Write(p[n:])
		n += k
		f.written += uint64(k)
		return err
	})
	return n, err
}

// WriteAt implements vfs.File.
func (f *failStopFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.stop.do("write", f.name, func() (err error) {
		n, err = f.File.WriteAt(p, at)
		return err
	})
	return n, err
}

// Sync implements vfs.File.
func (f *failStopFile) Sync() error {
	err := f.stop.do("sync", f.name, f.File.Sync)
	if err == nil && f.manifest != 0 {
		f.stop.synced(f.manifest, f.written)
	}
	return err
}

// SyncData implements vfs.File.
func (f *failStopFile) SyncData() error { return f.stop.do("sync", f.name, f.File.SyncData) }

// SyncTo implements vfs.File.
func (f *failStopFile) SyncTo(length int64) (fullSync bool, err error) {
	err = f.stop.do("sync", f.name, func() (err error) {
		fullSync, err = f.File.SyncTo(length)
		return err
	})
	return fullSync, err
}

// Close implements vfs.File.
func (f *failStopFile) Close() error { return f.stop.do("close", f.name, f.File.Close) }
