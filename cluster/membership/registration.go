package membership

import (
	"bytes"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	registerWait  = 5 * time.Second        // bounds one attempt to register
	registerPause = 100 * time.Millisecond // between two attempts
)

// Registration holds the numbers that the catalog has assigned to this process.
type Registration struct {
	Node fsm.NodeID
	Boot uint64
}

// registration registers this process in the catalog under its incarnation. Whenever the process
// was declared dead but is alive, it registers again and gets a new boot number.
type registration struct {
	config      *Config
	slog        *slog.Logger
	directory   *directory
	catalog     *group.Catalog
	incarnation [16]byte
	boot        atomic.Uint64 // 0: none yet
	renewed     func(boot uint64)
	check       *worker.Worker
}

// register obtains a boot number for this process from the catalog, or returns the one it has. It
// may be repeated.
func (r *registration) register(ctx context.Context) (Registration, error) {
	results, err := r.catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{
		RegisterNode: &logpb.RegisterNode{
			Name: r.config.Node, PeerAddress: r.config.Nodes[r.config.Node], Incarnation: r.incarnation[:], Identity: r.directory.record().Identity,
			OldestVersion: r.config.Versions.Oldest, NewestVersion: r.config.Versions.Newest,
		},
	}})
	if err != nil {
		return Registration{}, err
	}
	if err := catalog.Refused(results[0]); err != nil {
		return Registration{}, err
	}
	r.boot.Store(results[0].Boot)
	return Registration{fsm.NodeID(results[0].Node), results[0].Boot}, nil
}

// valid reports whether the catalog lists this process under its current boot number.
func (r *registration) valid() bool {
	boot := r.boot.Load()
	state, known := r.catalog.View().NodeByName(r.config.Node)
	if boot == 0 || !known || !bytes.Equal(state.Incarnation, r.incarnation[:]) {
		return true // it is forgotten, or has a successor: nothing to be done
	}
	return !state.Dead && state.Boot == boot
}

// run registers again whenever needed, until ctx ends.
func (r *registration) run(ctx context.Context) {
	r.check.Run(ctx.Done(), func(time.Time) (again time.Duration) {
		if r.valid() {
			return 0
		}
		r.registerAgain(ctx)
		return registerPause
	})
}

func (r *registration) registerAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, registerWait)
	defer cancel()
	before := r.boot.Load()
	registered, err := r.register(ctx)
	if err != nil {
		r.slog.Warn("this node was declared dead and cannot register again", "error", err)
		return
	}
	r.slog.Warn("this node was declared dead; it has registered again, and its clients reconnect",
		"boot", before, "new_boot", registered.Boot)
	r.renewed(registered.Boot)
}
