package expiry

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// brokenCatalog panics once instead of talking to the cluster.
type brokenCatalog struct {
	*grouptest.Catalog
	broken atomic.Bool
}

var errOnly = errors.New("once")

func (c *brokenCatalog) Propose(context.Context, ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return nil, errOnly
}

func (c *brokenCatalog) Note(context.Context, ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	if c.broken.Swap(false) {
		panic("injected")
	}
	return nil, errOnly
}

// A panic while uses are noted does not end that for good.
func TestNotingPanics(t *testing.T) {
	k := &brokenCatalog{Catalog: grouptest.NewCatalog(t)}
	n := self.New(self.Config{Node: "n1", Catalog: k, Clock: k.Stamp, Stamp: k.Stamp, Logger: slog.New(slog.DiscardHandler)})
	k.broken.Store(true)
	u := NewUses(n)
	for range 2 {
		u.mu.Lock()
		u.pending = map[exchangeName]fsm.Time{{"/", "x"}: 1}
		u.running = n.Spawn("record uses", u.propose)
		u.mu.Unlock()
		grouptest.Eventually(t, func() bool {
			u.mu.Lock()
			defer u.mu.Unlock()
			return !u.running && u.noting == nil
		})
	}
	grouptest.Eventually(t, func() bool { return n.Panics() == 1 }) // it is counted on the way out
}
