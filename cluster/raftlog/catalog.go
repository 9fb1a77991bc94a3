package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"
)

const (
	catalogFile    = "catalog.db"
	catalogRetain  = 2
	catalogTimeout = time.Second // for the lock of the file
)

// CatalogOptions says how to open a Catalog. The zero value is good for production.
type CatalogOptions struct {
	// Logger takes what goes wrong; nil: nowhere.
	Logger *slog.Logger
	// Exit ends the process; nil: os.Exit. See Options.Exit.
	Exit func(code int)
}

// Catalog keeps the log, the term and vote, and the snapshots of the catalog's
// group: one bolt file, and a directory with a file per snapshot. It implements
// raft.LogStore and raft.StableStore.
type Catalog struct {
	bolt      *raftboltdb.BoltStore
	snapshots raft.SnapshotStore
	log       *slog.Logger
	exit      func(code int)
}

var (
	_ raft.LogStore    = (*Catalog)(nil)
	_ raft.StableStore = (*Catalog)(nil)
)

// OpenCatalog opens the catalog's store in dir, or creates it.
func OpenCatalog(dir string, o CatalogOptions) (*Catalog, error) {
	c := &Catalog{log: o.Logger, exit: o.Exit}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.exit == nil {
		c.exit = os.Exit
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open catalog store: %w", err)
	}
	// The freelist is rebuilt when the file is opened: writing it with every
	// commit costs more than that.
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: filepath.Join(dir, catalogFile),
		BoltOptions: &bbolt.Options{
			Timeout: catalogTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return nil, fmt.Errorf("open catalog store in %s: %w", dir, err)
	}
	text := slog.NewLogLogger(c.log.Handler(), slog.LevelDebug).Writer()
	files, err := raft.NewFileSnapshotStore(dir, catalogRetain, text)
	if err != nil {
		bolt.Close()
		return nil, fmt.Errorf("open catalog snapshots in %s: %w", dir, err)
	}
	c.bolt, c.snapshots = bolt, catalogSnapshots{files, c}
	return c, nil
}

// Close closes the store.
func (c *Catalog) Close() error {
	if err := c.bolt.Close(); err != nil {
		return fmt.Errorf("close catalog store: %w", err)
	}
	return nil
}

// Snapshots returns the catalog's snapshot store.
func (c *Catalog) Snapshots() raft.SnapshotStore { return c.snapshots }

// FirstIndex implements raft.LogStore.
func (c *Catalog) FirstIndex() (uint64, error) { return c.bolt.FirstIndex() }

// LastIndex implements raft.LogStore.
func (c *Catalog) LastIndex() (uint64, error) { return c.bolt.LastIndex() }

// GetLog implements raft.LogStore.
func (c *Catalog) GetLog(index uint64, out *raft.Log) error { return c.bolt.GetLog(index, out) }

// StoreLog implements raft.LogStore.
func (c *Catalog) StoreLog(l *raft.Log) error { return c.written(c.bolt.StoreLog(l)) }

// StoreLogs implements raft.LogStore.
func (c *Catalog) StoreLogs(logs []*raft.Log) error { return c.written(c.bolt.StoreLogs(logs)) }

// DeleteRange implements raft.LogStore.
func (c *Catalog) DeleteRange(minIndex, maxIndex uint64) error {
	return c.written(c.bolt.DeleteRange(minIndex, maxIndex))
}

// Set implements raft.StableStore.
func (c *Catalog) Set(key, value []byte) error { return c.written(c.bolt.Set(key, value)) }

// Get implements raft.StableStore.
func (c *Catalog) Get(key []byte) ([]byte, error) {
	v, err := c.bolt.Get(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, nil
	}
	return v, err
}

// SetUint64 implements raft.StableStore. As with Group.Set, the term of a new vote
// takes the candidate of the last one away: in a commit of its own, ahead of it,
// as raft has stored a current term by then in which nobody asks for that one.
func (c *Catalog) SetUint64(key []byte, value uint64) error {
	if string(key) == voteTermKey {
		if last, err := c.GetUint64(key); err != nil || last == value {
			return err
		}
		if err := c.Set([]byte(votedForKey), nil); err != nil {
			return err
		}
	}
	return c.written(c.bolt.SetUint64(key, value))
}

// GetUint64 implements raft.StableStore.
func (c *Catalog) GetUint64(key []byte) (uint64, error) {
	v, err := c.bolt.GetUint64(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return 0, nil
	}
	return v, err
}

// written returns nil or, if a write failed, not at all: raft would carry on.
// A store that was closed is not a disk that failed.
func (c *Catalog) written(err error) error {
	if err == nil || errors.Is(err, bberrors.ErrDatabaseNotOpen) {
		return err
	}
	c.log.Error("stopping: durable write of the catalog failed", slog.Any("error", err))
	c.exit(ExitCode)
	select {}
}

// catalogSnapshots ends the process when a snapshot cannot be written.
type catalogSnapshots struct {
	raft.SnapshotStore
	c *Catalog
}

// Create implements raft.SnapshotStore.
func (s catalogSnapshots) Create(version raft.SnapshotVersion, index, term uint64, config raft.Configuration,
	configIndex uint64, trans raft.Transport,
) (raft.SnapshotSink, error) {
	k, err := s.SnapshotStore.Create(version, index, term, config, configIndex, trans)
	if err != nil {
		return nil, s.c.written(err)
	}
	return catalogSink{k, s.c}, nil
}

type catalogSink struct {
	raft.SnapshotSink
	c *Catalog
}

// Write implements io.Writer.
func (k catalogSink) Write(p []byte) (int, error) {
	n, err := k.SnapshotSink.Write(p)
	return n, k.c.written(err)
}

// Close makes the snapshot durable.
func (k catalogSink) Close() error { return k.c.written(k.SnapshotSink.Close()) }
