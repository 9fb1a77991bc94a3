package session

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// node is this node as seen by the parts of the broker: its identity, its knowledge of the cluster,
// and its links. All fields except number and boot are set before the broker serves.
type node struct {
	name    string
	number  atomic.Uint32 // 0: not yet assigned by the catalog
	boot    atomic.Uint64
	catalog Catalog
	mesh    *peer.Mesh
	groups  *group.Host
	peers   *stats.Nodes // to ask several nodes at a time
	clock   func() fsm.Time
	stamp   func() fsm.Time
	slog    *slog.Logger
}

const (
	// refreshWait bounds how long a request waits for an up-to-date view. After that it uses the
	// current one.
	refreshWait = time.Second
	// convergeWait bounds how long an answer that only repeats what the view says waits for the
	// other nodes. A node that has not seen the view by then has lost its lease.
	convergeWait = 2 * time.Second
)

// is reports whether n is this node.
func (n *node) is(id fsm.NodeID) bool { return uint32(id) == n.number.Load() }

// now is for durations, in milliseconds.
func (n *node) now() int64 { return int64(n.clock()) }

func (n *node) view() *catalog.View { return n.catalog.View() }

// freshView returns the view after an attempt to bring it up to date.
func (n *node) freshView(ctx context.Context) *catalog.View {
	v, _ := n.tryFresh(ctx)
	return v
}

// tryFresh is freshView; fresh: the view holds everything that anybody has been told is done. If it
// does not, nobody may be told that something exists, or is gone, because the view says so.
func (n *node) tryFresh(ctx context.Context) (v *catalog.View, fresh bool) {
	if fresh = n.catalog.Fresh(); !fresh {
		ctx, cancel := context.WithTimeout(ctx, refreshWait)
		defer cancel()
		err := n.catalog.Refresh(ctx)
		if fresh = err == nil; !fresh {
			n.slog.Debug("view not refreshed", "error", err)
		}
	}
	return n.view(), fresh
}

// converge returns when the other nodes hold what this node's view says: a client that is told that
// something exists, or is gone, may rely on it at any node.
func (n *node) converge(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, convergeWait)
	defer cancel()
	if err := n.catalog.Converge(ctx); err != nil {
		n.slog.Debug("other nodes may not yet have what this node has acknowledged", "error", err)
	}
}

// nameOf returns the name of a node by its number; empty if unknown.
func (n *node) nameOf(id fsm.NodeID) string {
	if s, ok := n.view().Node(id); ok {
		return s.Name
	}
	return ""
}

// namesOf returns the names of nodes.
func (n *node) namesOf(ids []fsm.NodeID) []string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = n.nameOf(id)
	}
	return names
}

// others lists the names of all other nodes of the cluster except one.
func (n *node) others(but string) (names []string) {
	for _, s := range n.view().Nodes() {
		if s.Name != n.name && s.Name != but {
			names = append(names, s.Name)
		}
	}
	return names
}

// ledGroup returns the group of a queue if this node leads it, otherwise nil.
func (n *node) ledGroup(id fsm.GroupID, queue fsm.QueueID) *group.Group {
	if g := n.groups.Group(id); g != nil && g.Spec().Queue == queue && g.Leading() != 0 {
		return g
	}
	return nil
}
