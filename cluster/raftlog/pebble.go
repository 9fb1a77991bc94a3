package raftlog

import (
	"cmp"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

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
