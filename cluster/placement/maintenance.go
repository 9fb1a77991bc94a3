package placement

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// markWait bounds how long a drain waits for its mark, and leaveMarkWait how long a stopping
	// node tries to set it.
	markWait      = 5 * time.Second
	leaveMarkWait = time.Second
	// disconnectWait bounds how long clients may take to leave a draining node.
	disconnectWait = 5 * time.Second
	// drainWait bounds how long a drain moves leaderships.
	drainWait = 60 * time.Second
	// leaveWait is the same bound for a node that stops without a drain.
	leaveWait = 15 * time.Second
	// keepAwayEvery is how often a draining node checks whether it leads anything.
	keepAwayEvery = time.Second
)

// maintenanceReason is the reason given to clients when a draining node disconnects them.
const maintenanceReason = "Node was put into maintenance mode"

// Listeners are the listeners for clients.
type Listeners interface {
	// Shut closes the listeners, disconnects all clients, and returns when they are gone or ctx
	// ends.
	Shut(ctx context.Context, reason string)
	// Open opens them again, if only to be served once the node serves clients. It does nothing if they are open.
	Open() error
}

// Maintenance puts this node into and out of maintenance mode. A draining node has no clients and
// leads nothing, but keeps following.
type Maintenance struct {
	node        *node
	leaderships *Leaderships
	listeners   Listeners // nil: there are no clients

	mu sync.Mutex // one drain, revival or handover at a time
}

func newMaintenance(n *node, l *Leaderships) *Maintenance {
	return &Maintenance{node: n, leaderships: l}
}

// SetListeners sets the listeners for clients. It is called before the node serves.
func (m *Maintenance) SetListeners(l Listeners) { m.listeners = l }

// commit commits catalog commands.
type commit func(context.Context, ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)

// mark sets or removes this node's mark as draining. commit is Propose if the result is reported to
// anybody, otherwise Note.
func (m *Maintenance) mark(ctx context.Context, limit time.Duration, commit commit, draining bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := commit(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_SetDraining{
		SetDraining: &logpb.SetDraining{Name: m.node.Node, Draining: draining},
	}})
	if err != nil {
		return err
	}
	return catalog.Refused(r[0])
}

// Drain prepares the node for its stop: it is marked in the catalog, clients are disconnected, and
// its leaderships are handed over. It keeps following until its process ends. An error means that
// the node could not be marked and nothing has been done; the later steps are best effort.
func (m *Maintenance) Drain(ctx context.Context) (api.Drained, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mark(ctx, markWait, m.node.Catalog.Propose, true); err != nil {
		return api.Drained{}, fmt.Errorf("mark the node as draining: %w", err)
	}
	m.node.Logger.Info("node is draining")
	if m.listeners != nil {
		out, cancel := context.WithTimeout(ctx, disconnectWait)
		defer cancel()
		m.listeners.Shut(out, maintenanceReason)
	}
	ctx, cancel := context.WithTimeout(ctx, drainWait)
	defer cancel()
	d := api.Drained{Node: m.node.Node}
	began := time.Now()
	d.Moved, d.Left = m.leaderships.HandOver(ctx)
	m.node.Logger.Info("node drained", "moved", d.Moved, "left", d.Left, "took", time.Since(began).Round(time.Millisecond))
	return d, nil
}

// Revive undoes Drain.
func (m *Maintenance) Revive(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mark(ctx, markWait, m.node.Catalog.Propose, false); err != nil {
		return fmt.Errorf("unmark the node: %w", err)
	}
	if m.listeners == nil {
		return nil
	}
	if err := m.listeners.Open(); err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	m.node.Logger.Info("node revived")
	return nil
}

// Leave is a drain for a stopping node: it hands over its leaderships until ctx ends. Clients must
// have been disconnected. Only the first call has an effect.
func (m *Maintenance) Leave(ctx context.Context) {
	n := m.node
	if n.leaving.Swap(true) {
		return
	}
	if len(n.view().Nodes()) <= 1 || ctx.Err() != nil || !n.Mesh.HasMajority(n.Catalog.Voters()) {
		return // there is nobody to tell, or to lead
	}
	if err := m.mark(ctx, leaveMarkWait, n.Catalog.Note, true); err != nil {
		n.Logger.Debug("the other nodes could not be told that this node is stopping", "error", err)
	}
	ctx, cancel := context.WithTimeout(ctx, leaveWait)
	defer cancel()
	if moved, left := m.leaderships.HandOver(ctx); moved+left > 0 {
		n.Logger.Info("leaderships handed over", "moved", moved, "left", left)
	}
}

// Run repeatedly hands over leaderships that a draining node has acquired, until ctx ends.
func (m *Maintenance) Run(ctx context.Context) {
	worker.Every(ctx.Done(), keepAwayEvery, func() {
		if m.node.draining(m.node.Node) {
			m.handOverBriefly(ctx)
		}
	})
}

// handOverBriefly hands over what it can within a moment, unless a drain is doing so.
func (m *Maintenance) handOverBriefly(ctx context.Context) {
	if !m.mu.TryLock() {
		return
	}
	defer m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, keepAwayEvery)
	defer cancel()
	m.leaderships.HandOver(ctx)
}
