package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/durations"
	"github.com/quorate/quorate/fsm"
)

// ExitCode is the exit code of a process that could not write or read durable state.
const ExitCode = 74

// Sizes used where Options has zero.
const (
	DefaultCacheBytes    = 96 << 20
	DefaultMemTableBytes = 128 << 20
)

// Options configures a Store. The zero value is good for production.
type Options struct {
	// FS is the filesystem; nil: that of the operating system.
	FS vfs.FS
	// Logger receives errors; nil: they are not logged.
	Logger *slog.Logger
	// Exit ends the process; nil: os.Exit. A failed operation is not reported to its caller, also if
	// Exit returns: it is tried again until it succeeds, and what cannot be blocks for ever. So a
	// process can end in name only, if Exit takes its disk from it and gives it one that works.
	Exit func(code int)
	// CacheBytes bounds the entries kept in memory, of all groups together.
	CacheBytes int64
	// MemTableBytes is how much is written before it is flushed to a table file. Payloads that die
	// earlier never get there.
	MemTableBytes int64
	// TrailingLogs is raft's setting of how many entries it keeps behind a snapshot. Reclaimable
	// does not count them.
	TrailingLogs uint64
	// segmentFrom and segmentBytes, for tests, have segments used from Open on, for payload sections from
	// this size on, and how long they get.
	segmentFrom  int
	segmentBytes int64
	// OpenFiles is how many table files are open at a time; 0: 1000.
	OpenFiles int
}

// Store stores the logs of all queue groups of a node.
type Store struct {
	db       *pebble.DB
	lock     *pebble.Lock // of the folder
	ledger   *ledger
	logs     *oldLogs
	log      *slog.Logger
	exit     func(code int)
	cache    *cache
	trailing uint64

	epochs      atomic.Uint64 // the last one given out
	reclaimable atomic.Int64  // over all groups
	healing     atomic.Bool   // damage is being removed
	freed       atomic.Int64  // bytes of pinned sections deleted since the last requested flush
	flushAt     int64         // request one when freed exceeds this

	segments *segments
	syncer   *syncer
	dearth   dearth
	closing  chan struct{}
	resting  sync.WaitGroup

	mu     sync.Mutex
	groups map[fsm.GroupID]*slot
}

// slot makes each group load once, and different groups in parallel.
type slot struct {
	once   sync.Once
	group  *Group
	err    error
	loaded bool // there is a group; under Store.mu
}

// Open opens the store in dir, creating it if needed.
func Open(dir string, o Options) (*Store, error) {
	s := &Store{
		log:      o.Logger,
		exit:     o.Exit,
		trailing: o.TrailingLogs,
		closing:  make(chan struct{}),
		groups:   make(map[fsm.GroupID]*slot),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.exit == nil {
		s.exit = os.Exit
	}
	if o.CacheBytes <= 0 {
		o.CacheBytes = DefaultCacheBytes
	}
	if o.MemTableBytes <= 0 {
		o.MemTableBytes = DefaultMemTableBytes
	}
	s.segments = newSegments(o, s.log, s.fatal)
	s.syncer = newSyncer(s.fatal, s.segments)
	s.cache = newCache(o.CacheBytes)
	s.flushAt = flushFactor * o.MemTableBytes
	fs := o.FS
	if fs == nil {
		fs = vfs.Default
	}
	stop := &stopper{end: s.end, synced: s.manifestSynced}
	o.FS = failStop{newZeroAhead(fs, o.MemTableBytes), stop}
	if err := s.open(o.FS, dir, o); err != nil {
		return nil, errors.Join(fmt.Errorf("open log store in %s: %w", dir, err), s.Close())
	}
	stop.armed.Store(true)
	s.resting.Go(func() { s.rest(s.closing) })
	s.syncer.start()
	return s, nil
}

// open opens ledger and store, removes known damage from the store, and compares the two.
func (s *Store) open(fs vfs.FS, dir string, o Options) error {
	if err := s.lockDir(fs, dir); err != nil {
		return err
	}
	found, err := s.openLedger(fs, ledgerPath(fs, dir))
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	for attempt := 0; ; attempt++ {
		lost, err := s.openPebble(fs, dir, o)
		if err != nil {
			return err
		}
		st, unread := stamp{}, error(nil)
		if !s.suspects() {
			st, unread = s.readStamp()
		}
		if !s.suspects() || attempt == healAttempts {
			groups := func() []fsm.GroupID { return append(s.storedGroups(), s.ledger.groups()...) }
			if err := s.segments.open(fs, dir, groups); err != nil {
				return err
			}
			return s.prove(found, lost, st, unread)
		}
		if err := s.heal(fs, dir); err != nil {
			s.log.Error("the log store could not be repaired", slog.String("error", err.Error()))
			s.ledger.changeHead(func(h *ledgerHead) { h.hopeless = true })
		}
		if err := s.db.Close(); err != nil {
			s.log.Warn("the log store did not close", slog.String("error", err.Error()))
		}
		s.db = nil
	}
}

// Close closes the store. No group may be in use and no snapshot open.
func (s *Store) Close() error {
	close(s.closing)
	s.resting.Wait()
	s.syncer.close()
	s.segments.close()
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	if s.ledger != nil {
		err = errors.Join(err, s.ledger.close())
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	if err != nil {
		return fmt.Errorf("close log store: %w", err)
	}
	return nil
}

// Group returns a group's part of the store, which is empty if nothing was stored yet. It reads
// all headers once; groups can be loaded in parallel. Every call with the same id returns the same
// Group, until it is dropped.
//
// A group whose data is damaged is empty; its Doubt says so.
func (s *Store) Group(id fsm.GroupID) (*Group, error) {
	s.mu.Lock()
	sl := s.groups[id]
	if sl == nil {
		sl = new(slot)
		s.groups[id] = sl
	}
	s.mu.Unlock()
	sl.once.Do(func() {
		sl.group, sl.err = s.load(id)
		s.mu.Lock()
		defer s.mu.Unlock()
		sl.loaded = sl.err == nil
	})
	if sl.err != nil {
		s.mu.Lock()
		if s.groups[id] == sl {
			delete(s.groups, id)
		}
		s.mu.Unlock()
	}
	return sl.group, sl.err
}

// GroupIDs returns the groups that have data on disk, or had according to the ledger, in ascending
// order.
func (s *Store) GroupIDs() ([]fsm.GroupID, error) {
	ids, err := s.listGroups()
	if err != nil && !isDamage(err) {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	ids = append(ids, s.ledger.groups()...)
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// storedGroups returns the groups that have data in the store, as far as it can be read.
func (s *Store) storedGroups() []fsm.GroupID {
	ids, err := s.listGroups()
	if err != nil {
		s.log.Error("the log store cannot be read in full", slog.Any("error", err))
	}
	return ids
}

func (s *Store) listGroups() ([]fsm.GroupID, error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	var ids []fsm.GroupID
	for _, k := range []kind{kindStable, kindHeader, kindMeta} {
		end := []byte{byte(k) + 1}
		for ok := it.SeekGE([]byte{byte(k)}); ok && it.Key()[0] == byte(k); {
			id := groupOf(it.Key())
			ids = append(ids, id)
			if next := prefixEnd(prefixOf(k, id)); string(next) < string(end) {
				ok = it.SeekGE(next)
			} else {
				break
			}
		}
	}
	return ids, it.Error()
}

// DropGroup durably deletes everything of a group, including its snapshots and its doubt. The
// group's raft must have been shut down; a Group that was returned before refuses to store
// anything afterwards.
func (s *Store) DropGroup(id fsm.GroupID) error {
	s.mu.Lock()
	sl := s.groups[id]
	delete(s.groups, id)
	s.mu.Unlock()
	if sl != nil && sl.group != nil {
		g := sl.group
		g.awaitDurable()
		g.closing.Lock()
		defer g.closing.Unlock()
		g.mu.Lock()
		defer g.mu.Unlock()
		spans := spansOf(g.everySection(math.MaxUint64))
		g.forget()
		defer s.segments.release(spans)
	}
	s.deleteGroup(id)
	s.segments.forgotten(id)
	s.ledger.forget(id)
	return nil
}

// UseSegments lets large payload sections be written to segments from now on. A program of fsm_version 1
// cannot read them.
func (s *Store) UseSegments() { s.segments.on.Store(true) }

// Reclaimable returns how many bytes snapshots of all groups together would free: the sum of
// Group.Reclaimable.
func (s *Store) Reclaimable() int64 { return s.reclaimable.Load() }

// Metrics are current values, or totals since Open for counters.
type Metrics struct {
	DiskBytes    uint64 // in use, including files that wait for removal
	WrittenBytes uint64 // to disk: write-ahead log, flushes, compactions and segments
	CacheBytes   int64
	CacheHits    uint64
	CacheMisses  uint64
	Reclaimable  int64            // see Store.Reclaimable
	Groups       int              // loaded
	Syncs        durations.Counts // durable writes by their time
}

// Metrics returns the store's numbers.
func (s *Store) Metrics() Metrics {
	pm := s.db.Metrics()
	m := Metrics{DiskBytes: pm.DiskSpaceUsage(), WrittenBytes: pm.WAL.BytesWritten, Reclaimable: s.Reclaimable(), Syncs: s.syncer.took.all.Read()}
	m.WrittenBytes += uint64(s.segments.appended.Load())
	m.DiskBytes += uint64(s.segments.usage())
	for i := range pm.Levels {
		m.WrittenBytes += pm.Levels[i].TableBytesFlushed + pm.Levels[i].TableBytesCompacted
	}
	m.CacheBytes, m.CacheHits, m.CacheMisses = s.cache.stats()
	s.mu.Lock()
	m.Groups = len(s.groups)
	s.mu.Unlock()
	return m
}

// commit applies a batch, durably if how is pebble.Sync, and releases it. It
// does not return if that fails.
func (s *Store) commit(b *pebble.Batch, how *pebble.WriteOptions) {
	began, number := time.Now(), uint64(0)
	if how == pebble.Sync {
		number = s.segments.writes.begin()
	}
	if err := b.Commit(how); err != nil {
		s.fatal("durable write failed", "error", err)
	}
	if how == pebble.Sync {
		s.syncer.took.observe(began)
		s.segments.writes.end(number)
	}
	if err := b.Close(); err != nil {
		s.fatal("durable write failed", "error", err)
	}
}

// SyncLatency is the mean time that durable writes have taken of late; 0: there was none.
func (s *Store) SyncLatency() time.Duration { return time.Duration(s.syncer.took.ns.Load()) }

// write applies a batch, and has it synced without waiting for that. syncer.sync does, with the number.
func (s *Store) write(b *pebble.Batch) (number uint64) {
	number = s.segments.writes.begin()
	if err := s.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		s.fatal("durable write failed", "error", err)
	}
	return number
}

// freedPins notes how many bytes of pinned sections were deleted. The
// deletions are small: on a quiet node they would wait in the memtable for
// long, and the disk space with them.
func (s *Store) freedPins(n int64) {
	if s.freed.Add(n) > s.flushAt {
		s.freed.Store(0)
		if _, err := s.db.AsyncFlush(); err != nil {
			s.end("log store cannot write its tables", "error", err)
		}
	}
}

// set, remove and deleteRange add to a batch. A batch in memory cannot fail,
// except by a mistake in this package.
func (s *Store) set(b *pebble.Batch, key, value []byte) { s.must(b.Set(key, value, nil)) }

func (s *Store) remove(b *pebble.Batch, key []byte) { s.must(b.Delete(key, nil)) }

func (s *Store) deleteRange(b *pebble.Batch, from, to []byte) {
	s.must(b.DeleteRange(from, to, nil))
}

func (s *Store) must(err error) {
	if err != nil {
		s.fatal("batch refused a record", "error", err)
	}
}

// setSealed adds a sealed value to a batch.
func (s *Store) setSealed(b *pebble.Batch, key, value []byte) {
	s.set(b, key, seal(key, slices.Clip(value)))
}

// end logs why and ends the process. If it returns, what failed has to be tried
// again.
func (s *Store) end(why string, attrs ...any) {
	s.log.Error("stopping: "+why, attrs...)
	s.exit(ExitCode)
}

// fatal is end where nothing can be tried again. It does not return.
func (s *Store) fatal(why string, attrs ...any) {
	s.end(why, attrs...)
	select {}
}

// errNoKey says that nothing lies at a key.
var errNoKey = errors.New("no such key")
