package raftlog

import (
	"context"
	"log/slog"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// restEvery is how often a store looks whether it rests.
	restEvery = 10 * time.Second
	// restBytes is how much it writes in that time at most if it rests.
	restBytes = 1 << 20
	// restLog is how long its log may be while it rests.
	restLog = 16 << 20
	// restTables is how long the tables of the first level may be together while it rests, unless
	// they are a small part of all: tidyShare is how many times as much is compacted at most.
	restTables = 16 << 20
	tidyShare  = 4
)

// oldLogs are the logs that Pebble has made, among them those that it keeps to write over
// them: as many as memtables can wait, each as long as a memtable. Under load they save work. A store
// that rests gives them back: Pebble is told of a file that is to be written over, and may get a new one.
type oldLogs struct {
	vfs.FS
	mu    sync.Mutex
	names []string        // that exist, from the oldest on
	gone  map[string]bool // that were given back, and that Pebble still counts on
	known string          // the newest that Pebble counts
}

func newOldLogs(fs vfs.FS) *oldLogs { return &oldLogs{FS: fs, gone: map[string]bool{}} }

// Create implements vfs.FS.
func (o *oldLogs) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !isLog(name) {
		return o.FS.Create(name, c)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.create(name, c)
}

// create makes a log. The caller holds mu.
func (o *oldLogs) create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := o.FS.Create(name, c)
	if err == nil {
		o.names = append(o.names, name)
	}
	return file, err
}

// ReuseForWrite implements vfs.FS.
func (o *oldLogs) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone[oldname] {
		delete(o.gone, oldname)
		return o.create(newname, c)
	}
	file, err := o.FS.ReuseForWrite(oldname, newname, c)
	if err == nil {
		o.forget(oldname)
		o.names = append(o.names, newname)
	}
	return file, err
}

// Remove implements vfs.FS.
func (o *oldLogs) Remove(name string) error {
	if !isLog(name) {
		return o.FS.Remove(name)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone[name] {
		delete(o.gone, name)
		return nil
	}
	o.forget(name)
	return o.FS.Remove(name)
}

func (o *oldLogs) forget(name string) {
	o.names = slices.DeleteFunc(o.names, func(n string) bool { return n == name })
}

// Unwrap implements vfs.FS.
func (o *oldLogs) Unwrap() vfs.FS { return o.FS }

// made notes that Pebble counts a log that was made.
func (o *oldLogs) made(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known = name
}

// newest returns the newest log, "" while one is being made.
func (o *oldLogs) newest() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.names); n > 0 && o.names[n-1] == o.known {
		return o.known
	}
	return ""
}

// giveBack removes all logs but the newest live ones. That they are so many was true when newest was
// the newest one, or later: by then there can be fewer, and more only if another was made.
func (o *oldLogs) giveBack(newest string, live int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.names); n == 0 || o.names[n-1] != newest {
		return
	}
	for len(o.names) > max(live, 1) {
		name := o.names[0]
		if o.FS.Remove(name) != nil {
			return // Pebble keeps it, or removes it
		}
		o.names = o.names[1:]
		o.gone[name] = true
	}
}

// rest gives disk space back, above all whenever little is written, until stop is closed.
func (s *Store) rest(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.resting.Go(func() {
		<-stop
		cancel()
	})
	t := time.NewTicker(restEvery)
	defer t.Stop()
	var written uint64
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			before := written
			written = s.db.Metrics().WAL.BytesWritten + uint64(s.segments.appended.Load())
			if written-before <= restBytes {
				s.giveBack(restLog)
				s.tidy(ctx, restTables)
				s.segments.retire()
				s.tidySegments(restGarbage, 0)
			} else {
				s.tidySegments(busyGarbage, spareSegments)
			}
		}
	}
}

// giveBack gives back the logs that are not needed, and begins another one if the one that is
// has more bytes than long.
func (s *Store) giveBack(long int64) {
	newest := s.logs.newest()
	if newest == "" {
		return
	}
	m := s.db.Metrics()
	s.logs.giveBack(newest, int(m.WAL.Files))
	info, err := s.logs.Stat(newest)
	if err != nil || info.Size() <= long {
		return
	}
	if _, err := s.db.AsyncFlush(); err != nil {
		s.end("log store cannot write its tables", "error", err)
	}
}

// tidy compacts all tables if those of the first level, in which most is dead once a store rests, have
// more bytes than long. They wait for more of their kind otherwise, which a store that rests may not
// get for days.
func (s *Store) tidy(ctx context.Context, long int64) {
	if !untidy(s.db.Metrics(), long) {
		return
	}
	// What it cannot write ends the process, and damage has been reported, by then.
	if err := s.db.Compact(ctx, []byte{0}, []byte{0xff}, false); err != nil && ctx.Err() == nil {
		s.log.Warn("log store cleanup failed", slog.String("error", err.Error()))
	}
}

// untidy reports whether the tables of the first level are longer than long, and no small part of all.
func untidy(m *pebble.Metrics, long int64) bool {
	young, all := m.Levels[0].TablesSize, m.Total()
	return young > long && all.TablesSize <= tidyShare*young
}

// tidySegments gives back segments that nothing refers to, but for so many spare ones, and has what is left
// in sparse ones written to others, if more than so many bytes are dead.
func (s *Store) tidySegments(garbage int64, spare int) {
	if victims := s.segments.sparse(garbage); len(victims) > 0 {
		s.rewrite(victims)
	}
	if s.segments.dying() {
		b := s.db.NewBatch()
		s.must(b.LogData(nil, nil))
		s.commit(b, pebble.Sync)
	}
	s.segments.giveBack(spare)
}

// rewrite writes what groups have in segments to others.
func (s *Store) rewrite(victims map[uint32]bool) {
	for _, id := range s.segments.countedIn(victims) {
		if _, err := s.Group(id); err != nil {
			s.log.Warn("a group cannot be read to move what it has in segments", slog.Any("group", id), slog.String("error", err.Error()))
		}
	}
	s.mu.Lock()
	var groups []*Group
	for _, sl := range s.groups {
		if sl.loaded {
			groups = append(groups, sl.group)
		}
	}
	s.mu.Unlock()
	for _, g := range groups {
		select {
		case <-s.closing:
			return
		default:
			(&mover{g: g}).rewrite(victims)
		}
	}
}

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
