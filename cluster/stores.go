package cluster

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/raftlog"
)

// stores are the on-disk stores of the node's raft groups.
type stores struct {
	queues  *raftlog.Store
	catalog *raftlog.Catalog
}

// open opens both stores in the data folder.
func (s *stores) open(c *Config, fs vfs.FS) (err error) {
	s.queues, err = raftlog.Open(filepath.Join(c.DataDir, membership.QueuesFolder), raftlog.Options{
		Logger: c.Logger, Exit: c.Exit, MemTableBytes: c.MemTableBytes, TrailingLogs: group.TrailingLogs, OpenFiles: c.OpenFiles, FS: fs,
	})
	if err != nil {
		return fmt.Errorf("open queue store: %w", err)
	}
	s.catalog, err = raftlog.OpenCatalog(filepath.Join(c.DataDir, membership.CatalogFolder), raftlog.CatalogOptions{
		Logger: c.Logger, Exit: c.Exit, FS: fs,
	})
	if err != nil {
		return fmt.Errorf("open catalog store: %w", err)
	}
	return nil
}

// close closes the stores that are open.
func (s *stores) close() error {
	var errs []error
	if s.catalog != nil {
		errs = append(errs, s.catalog.Close())
	}
	if s.queues != nil {
		errs = append(errs, s.queues.Close())
	}
	return errors.Join(errs...)
}
