package raftlog

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/fsm"
)

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
