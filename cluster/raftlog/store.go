package raftlog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	chunks "github.com/cockroachdb/pebble/v2/record"
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
			if err := s.segments.open(fs, dir, func() []fsm.GroupID { return groupsInSegments(s) }); err != nil {
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
// Group, until it is dropped or unloaded.
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

// Unload forgets what is in memory of a group, and reports whether nothing of it is there any more. What is on disk
// stays, and Group reads it anew. The group's raft must have been shut down.
//
// False: the group is being loaded, or in use; a write of it is not durable yet; or it has payload sections in
// segments, which are moved where it is loaded.
//
// A Group that was returned before is as one that was dropped. For the next one all is as after a restart of the
// process: Overlap and Started are to be called again.
func (s *Store) Unload(id fsm.GroupID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.groups[id]
	if sl == nil {
		return true
	}
	if !sl.loaded || !s.forget(sl.group) {
		return false
	}
	delete(s.groups, id)
	return true
}

// forget empties what is in memory of a group that is not in use, and reports whether it has.
func (s *Store) forget(g *Group) bool {
	if !g.stable.mu.TryLock() {
		return false // a value is being stored
	}
	defer g.stable.mu.Unlock()
	if !g.closing.TryLock() {
		return false
	}
	defer g.closing.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.offers.open > 0 || g.entries.inSegments() || g.pins.inSegments() || !g.overlap.settled() {
		return false
	}
	epoch := g.epoch.Load()
	for _, p := range g.pins.items {
		s.cache.remove(cacheKey{epoch, g.id, p.index})
	}
	for index := g.entries.begin(); index > 0 && index <= g.entries.last(); index++ {
		s.cache.remove(cacheKey{epoch, g.id, index})
	}
	g.place.setPlain(g.snapshot.numbers == 0 && len(g.pins.items) == 0)
	g.forget()
	return true
}

// GroupIDs returns the groups that have data on disk, or had according to the ledger, in ascending
// order.
func (s *Store) GroupIDs() ([]fsm.GroupID, error) {
	ids := s.ledger.groups()
	if s.ledger.partial { // else it has each before the store has anything of it
		stored, err := s.listGroups()
		if err != nil && !isDamage(err) {
			return nil, fmt.Errorf("list groups: %w", err)
		}
		ids = append(ids, stored...)
	}
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
	return groupsWith(s.db, kindStable, kindHeader, kindMeta)
}

// groupsInSegments returns the groups that have something in segments, or may have.
func groupsInSegments(s *Store) []fsm.GroupID {
	ids, err := groupsWith(s.db, kindExtent)
	if err != nil {
		s.log.Error("the log store cannot be read in full", slog.Any("error", err))
		return append(s.storedGroups(), s.ledger.groups()...)
	}
	return ids
}

// groupsWith returns the groups that have records of some kinds, repeatedly those that have several.
func groupsWith(db *pebble.DB, some ...kind) ([]fsm.GroupID, error) {
	it, err := db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	var ids []fsm.GroupID
	for _, k := range some {
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
	if !(&Records{Store: s}).Has(id) {
		s.ledger.forget(id)
		return nil
	}
	if s.segments.isCounted(id) {
		if _, err := s.Group(id); err != nil { // what it has in segments is let go of one by one
			return err
		}
	}
	s.mu.Lock()
	sl := s.groups[id]
	delete(s.groups, id)
	s.mu.Unlock()
	if sl != nil && sl.group != nil {
		g := sl.group
		g.awaitDurable()
		g.stable.mu.Lock()
		defer g.stable.mu.Unlock()
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

// The catalog is one group of small entries.
const (
	catalogGroup    = fsm.GroupID(0)
	catalogMemTable = 4 << 20
	catalogCache    = 4 << 20
	catalogTrailing = 1024
)

// CatalogOptions says how to open a Catalog. The zero value is good for production.
type CatalogOptions struct {
	// FS is the filesystem; nil: the operating system's.
	FS vfs.FS
	// Logger takes what goes wrong; nil: nowhere.
	Logger *slog.Logger
	// Exit ends the process; nil: os.Exit. See Options.Exit.
	Exit func(code int)
}

// Catalog keeps the log, the term and vote, and the snapshots of the catalog's
// group, in a store of its own with a ledger of its own: what befalls one
// folder leaves the other.
type Catalog struct {
	*Group
	store *Store
}

// OpenCatalog opens the catalog's store in dir, or creates it.
func OpenCatalog(dir string, o CatalogOptions) (*Catalog, error) {
	s, err := Open(dir, Options{
		FS: o.FS, Logger: o.Logger, Exit: o.Exit, CacheBytes: catalogCache, MemTableBytes: catalogMemTable, TrailingLogs: catalogTrailing,
	})
	if err != nil {
		return nil, fmt.Errorf("open catalog store: %w", err)
	}
	g, err := s.Group(catalogGroup)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open catalog store in %s: %w", dir, err), s.Close())
	}
	return &Catalog{g, s}, nil
}

// Close closes the store. No raft may be running on it.
func (c *Catalog) Close() error { return c.store.Close() }

const (
	// blockCacheBytes holds table blocks, mostly headers and pins: entries
	// have a cache of their own.
	blockCacheBytes = 16 << 20
	// reservedTables is how many memtables Pebble takes out of the size of its cache: the one that is
	// written, and the one before, which is flushed or kept to be used again.
	reservedTables = 2
	// tableBytes is the size of table files on the first levels. Payloads are
	// large; files of the default size would hold a few dozen.
	tableBytes = 16 << 20
	// youngTables is how many tables of the first level wait until they are compacted. Payloads die in
	// them meanwhile, and then need not be written again. See tidy for those that are left.
	youngTables = 4
	// syncStep is how much of a table file is written before the operating
	// system is asked to begin writing it to disk.
	syncStep = 1 << 20
	// flushFactor: deletions of pinned sections are flushed once they free
	// that many memtables' worth of disk.
	flushFactor = 4
	// rangeDelay is how long the deletion of a long run may keep its disk
	// space when nothing else is written.
	rangeDelay = time.Minute
	// openFiles is how many table files are open unless fewer are allowed.
	openFiles = 1000
	// storeFormat is the format of Pebble's files. It is named, and not Pebble's newest: a store
	// that has been opened with a later one cannot be opened with this one again, so that a node
	// could not go back to the program before.
	storeFormat = pebble.FormatValueSeparation
)

func (s *Store) pebbleOptions(o Options) *pebble.Options {
	po := &pebble.Options{
		FS:                          o.FS,
		FormatMajorVersion:          storeFormat,
		MemTableSize:                uint64(o.MemTableBytes),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       youngTables,
		L0StopWritesThreshold:       64,
		LBaseMaxBytes:               o.MemTableBytes * 4,
		BytesPerSync:                syncStep,
		FlushDelayDeleteRange:       rangeDelay,
		CacheSize:                   blockCacheBytes + reservedTables*o.MemTableBytes,
		MaxOpenFiles:                cmp.Or(o.OpenFiles, openFiles),
		Logger:                      pebbleLogger{s},
		EventListener:               s.listener(),
		CompactionConcurrencyRange:  func() (int, int) { return 1, max(1, runtime.NumCPU()/2) },
	}
	po.Experimental.CompactionScheduler = new(compactions)
	po.TargetFileSizes[0] = min(tableBytes, o.MemTableBytes/2)
	for i := range po.Levels {
		po.Levels[i].BlockSize = 32 << 10
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	po.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	return po
}

// listener reports what an operator should know, and ends the process when a
// flush or a compaction cannot write.
func (s *Store) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			if s.healing.Load() && pebble.IsCorruptionError(err) {
				s.log.Warn("removing corrupt records from the log store", slog.String("error", err.Error()))
				return
			}
			s.end("log store cannot write its tables", "error", err.Error()) // not its stack
		},
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			s.log.Error("log store found a damaged file", slog.String("path", i.Path), slog.String("error", i.Details.Error()))
			s.suspected(i.Path)
		},
		WALCreated: func(i pebble.WALCreateInfo) {
			if i.Err == nil {
				s.logs.made(i.Path)
			}
		},
		WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
			s.log.Warn("log store is throttling writes", slog.String("reason", i.Reason))
		},
		WriteStallEnd: func() { s.log.Warn("log store accepts writes again") },
	}
}

// pebbleLogger passes on what Pebble says beyond its events.
type pebbleLogger struct{ s *Store }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.s.log.Debug("log store", slog.String("text", fmt.Sprintf(format, args...)))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.log.Warn("log store", slog.String("text", fmt.Sprintf(format, args...)))
}

// Fatalf is how Pebble reports that its write-ahead log or its manifest could
// not be written.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.s.fatal("durable write failed", slog.String("error", fmt.Sprintf(format, args...)))
}

const manifestPrefix = "MANIFEST-"

var errManifest = errors.New("its MANIFEST is incomplete")

// manifestNumber returns the number of a manifest, 0 if the file is none.
func manifestNumber(name string) uint64 {
	digits, is := strings.CutPrefix(name, manifestPrefix)
	if number, err := strconv.ParseUint(digits, 10, 64); is && err == nil {
		return number
	}
	return 0
}

// manifestSynced notes how long a manifest is on disk. Pebble takes damage in
// it for its end at times: tables and logs that are gone by then would leave a
// hole in what the store says, in the middle.
func (s *Store) manifestSynced(number, size uint64) {
	s.ledger.recordManifest(number, size)
}

// checkManifest reads the manifest that Pebble is about to read. It must be
// whole as far as it is known to have been synced.
func (s *Store) checkManifest(fs vfs.FS, dir string) error {
	h := s.ledger.getHead()
	d, err := pebble.Peek(dir, fs)
	if err != nil || !d.Exists {
		return err
	}
	name := fs.PathBase(d.ManifestFilename)
	if h.manifest == 0 || manifestNumber(name) != h.manifest {
		return nil
	}
	f, err := fs.Open(fs.PathJoin(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	whole := uint64(0)
	for r := chunks.NewReader(f, 0); ; {
		next, err := r.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, next)
		}
		if err != nil {
			break
		}
		whole = uint64(r.Offset())
	}
	if whole < h.manifestSize {
		return fmt.Errorf("%w: %d bytes of %d are whole", errManifest, whole, h.manifestSize)
	}
	return nil
}

// syncWeight is how many durable writes the mean of their times remembers, roughly.
const syncWeight = 16

// syncTime is the mean time that durable writes have taken of late, where of two that end at once one
// may be left out; and all of them by their times.
type syncTime struct {
	ns  atomic.Int64
	all durations.Histogram
}

func (t *syncTime) observe(began time.Time) {
	took, was := int64(time.Since(began)), t.ns.Load()
	t.all.Observe(time.Duration(took))
	if was != 0 {
		took = was + (took-was)/syncWeight
	}
	t.ns.CompareAndSwap(was, max(took, 1))
}
