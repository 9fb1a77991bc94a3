package raftlog

import (
	"path"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// aheadStep is how many zeros are written beyond the end of the log at once.
	aheadStep = 1 << 20
	// aheadShare of a step is what a sync may bring, this one and on average, and what may be left,
	// for more zeros to be written.
	aheadShare = 16
	// aheadMemory is how many syncs the average remembers.
	aheadMemory = 8
	// aheadPiece is how many of them are written in one call: Linux may keep what one call brings in
	// one piece of memory, and counts all of it as written whenever a byte of it changes.
	aheadPiece = 16 << 10
	// reserveStep is how many bytes beyond the end of the log are reserved at once.
	reserveStep = 8 << 20
)

// zeroAhead keeps zeros on disk beyond the end of Pebble's log. Where a file's
// blocks lie and how long it is are then known to the filesystem before records
// come, and a sync writes records only: it takes two thirds of the time, and
// waits for the filesystem's journal once in a step and not each time. Pebble reads
// zeros as the end of a log, and has the same effect by writing over old logs; of
// these there is none until a memtable has been filled.
//
// Under load, when syncs bring much at a time, nothing is written twice. A small one among them, of a
// settlement, is no reason to: what follows it would write over the zeros at once.
type zeroAhead struct {
	vfs.FS
	zeros []byte // a step
}

// newZeroAhead returns fs with zeros ahead in logs that belong to memtables of that size.
func newZeroAhead(fs vfs.FS, memTable int64) zeroAhead {
	return zeroAhead{fs, make([]byte, min(aheadStep, memTable/32))}
}

func isLog(name string) bool { return path.Ext(name) == ".log" }

// Create implements vfs.FS.
func (z zeroAhead) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := z.FS.Create(name, c)
	if err != nil || !isLog(name) {
		return file, err
	}
	return &zeroAheadFile{File: file, zeros: z.zeros}, nil
}

// ReuseForWrite implements vfs.FS.
func (z zeroAhead) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := z.FS.ReuseForWrite(oldname, newname, c)
	if err != nil || !isLog(newname) {
		return file, err
	}
	f := &zeroAheadFile{File: file, zeros: z.zeros}
	if info, err := file.Stat(); err == nil {
		f.filled, f.reserved = info.Size(), info.Size()
	}
	return f, nil
}

// Unwrap implements vfs.FS.
func (z zeroAhead) Unwrap() vfs.FS { return z.FS }

// zeroAheadFile is a log. One goroutine at a time writes and syncs it.
type zeroAheadFile struct {
	vfs.File
	zeros    []byte
	at       int64 // where the next record goes
	synced   int64 // at, when it was synced last
	average  int64 // of what syncs bring
	filled   int64 // the file has blocks up to here
	step     int64 // how much is reserved at once; 0: nothing
	reserved int64 // up to here
}

// Preallocate implements vfs.File. Pebble wants the blocks of a whole memtable at once, which a
// node that writes little would hold for days: they are reserved in steps.
func (f *zeroAheadFile) Preallocate(_, length int64) error {
	f.step = min(length, reserveStep)
	return nil
}

// Write implements vfs.File.
func (f *zeroAheadFile) Write(p []byte) (int, error) {
	if f.step > 0 && f.at+int64(len(p)) > f.reserved {
		more := f.at + int64(len(p)) - f.reserved + f.step
		f.reserved += more
		if f.File.Preallocate(f.reserved-more, more) != nil {
			f.step = 0 // not every filesystem can, and a full disk tells the write itself
		}
	}
	n, err := f.File.Write(p)
	f.at += int64(n)
	f.filled = max(f.filled, f.at)
	return n, err
}

// SyncData implements vfs.File.
func (f *zeroAheadFile) SyncData() error {
	few, brings := int64(len(f.zeros)/aheadShare), f.at-f.synced
	f.average += (brings - f.average) / aheadMemory
	if brings < few && f.average < few && f.filled-f.at < few {
		f.fill()
	}
	f.synced = f.at
	return f.File.SyncData()
}

// fill writes zeros. A disk that refuses them may still take records, and says itself if not.
func (f *zeroAheadFile) fill() {
	for at := 0; at < len(f.zeros); at += aheadPiece {
		if _, err := f.File.WriteAt(f.zeros[at:min(at+aheadPiece, len(f.zeros))], f.filled+int64(at)); err != nil {
			f.zeros = nil
			return
		}
	}
	f.filled += int64(len(f.zeros))
}
