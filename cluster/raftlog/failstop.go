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
	fatal  func(why string, attrs ...any)
	synced func(manifest, size uint64)
}

func (s *stopper) check(doing, path string, err error) error {
	if err != nil && s.armed.Load() {
		s.fatal("durable write failed", "doing", doing, "path", path, "error", err)
	}
	return err
}

func (f failStop) file(doing, name string, file vfs.File, err error) (vfs.File, error) {
	if err := f.stop.check(doing, name, err); err != nil {
		return nil, err
	}
	return &failStopFile{File: file, stop: f.stop, name: name, manifest: manifestNumber(f.PathBase(name))}, nil
}

// Create implements vfs.FS.
func (f failStop) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return f.file("create", name, file, err)
}

// OpenReadWrite implements vfs.FS.
func (f failStop) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	return f.file("open", name, file, err)
}

// ReuseForWrite implements vfs.FS.
func (f failStop) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(oldname, newname, c)
	return f.file("create", newname, file, err)
}

// OpenDir implements vfs.FS. Directories are opened to be synced.
func (f failStop) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.file("open", name, file, err)
}

// Link implements vfs.FS.
func (f failStop) Link(oldname, newname string) error {
	return f.stop.check("link", newname, f.FS.Link(oldname, newname))
}

// Rename implements vfs.FS.
func (f failStop) Rename(oldname, newname string) error {
	return f.stop.check("rename", newname, f.FS.Rename(oldname, newname))
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
func (f *failStopFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.written += uint64(n)
	return n, f.stop.check("write", f.name, err)
}

// WriteAt implements vfs.File.
func (f *failStopFile) WriteAt(p []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(p, at)
	return n, f.stop.check("write", f.name, err)
}

// Sync implements vfs.File.
func (f *failStopFile) Sync() error {
	err := f.stop.check("sync", f.name, f.File.Sync())
	if err == nil && f.manifest != 0 {
		f.stop.synced(f.manifest, f.written)
	}
	return err
}

// SyncData implements vfs.File.
func (f *failStopFile) SyncData() error { return f.stop.check("sync", f.name, f.File.SyncData()) }

// SyncTo implements vfs.File.
func (f *failStopFile) SyncTo(length int64) (fullSync bool, err error) {
	fullSync, err = f.File.SyncTo(length)
	return fullSync, f.stop.check("sync", f.name, err)
}

// Close implements vfs.File.
func (f *failStopFile) Close() error { return f.stop.check("close", f.name, f.File.Close()) }
