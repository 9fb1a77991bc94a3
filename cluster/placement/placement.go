// Package placement decides where the replicas of queues are and who leads them: it opens and drops
// this node's replicas as the catalog says, brings the members of the groups led by this node in
// line with it, changes members on behalf of operators, and moves leaderships: for balance, and
// away from a stopping node.
//
// It promises that a group changes by one member at a time, with a majority left that is up, that
// its last member stays, and that a member becomes leader only if it has caught up. Placer chooses
// the nodes of new queues. It does not know of clients.
package placement

import (
	"log/slog"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Config is what placement works with on one node.
type Config struct {
	Node      string
	Host      *group.Host
	Catalog   *group.Catalog
	Mesh      *peer.Mesh
	Replicas  *stats.Replicas
	Placer    *Placer
	Guard     *worker.Guard
	Logger    *slog.Logger
	Defaults  catalog.Defaults // of queues
	GroupSize int              // of queues that do not say otherwise
	// Stored lists the groups that are on disk.
	Stored func() ([]fsm.GroupID, error)
	// LowDisk reports whether the node is short of disk space.
	LowDisk func() bool
	// Serving reports whether clients are accepted, apart from maintenance.
	Serving func() bool
	// KindTransfer is the kind of calls that ask other nodes to take over a leadership.
	KindTransfer peer.Kind
	// KindSnapshot is the kind of calls that ask other nodes for a snapshot of a replica.
	KindSnapshot peer.Kind
}

// Placement holds the parts of this package for one node.
type Placement struct {
	node *node

	*Members
	*Leaderships
	*Maintenance
	*Snapshots
	Local      *LocalReplicas
	Reconciler *Reconciler
}

// New returns the placement of a node, and registers its handlers for other nodes. It changes
// nothing before the parts are started.
func New(c Config) *Placement {
	n := &node{Config: c}
	p := &Placement{
		node: n, Members: &Members{n}, Leaderships: newLeaderships(n), Snapshots: newSnapshots(n),
		Local: newLocalReplicas(n), Reconciler: newReconciler(n),
	}
	p.Maintenance = newMaintenance(n, p.Leaderships)
	return p
}

// Draining reports whether this node is about to stop.
func (p *Placement) Draining() bool { return p.node.draining(p.node.Node) }

// IsDraining reports whether a node is about to stop, as far as this one knows.
func (p *Placement) IsDraining(node string) bool { return p.node.draining(node) }

// node is shared by the parts of this package.
type node struct {
	Config
	leaving atomic.Bool // this node is about to stop
}

func (n *node) view() *catalog.View { return n.Catalog.View() }

// online reports whether a node is up, as far as this one knows.
func (n *node) online(node string) bool { return node == n.Node || n.Mesh.Alive(node) }

func (n *node) draining(node string) bool {
	if node == n.Node && n.leaving.Load() {
		return true
	}
	state, known := n.view().NodeByName(node)
	return known && state.Draining
}

// free reports whether a node can get a replica of a queue.
func (n *node) free(v *catalog.View, q *catalog.Queue, s *logpb.NodeState) bool {
	return s.GetBoot() != 0 && n.online(s.GetName()) && !v.Holds(q, fsm.NodeID(s.GetNumber()))
}

// candidates lists the nodes that can get a replica of a queue, best first.
func (n *node) candidates(v *catalog.View, q *catalog.Queue) []uint32 {
	return n.Placer.candidates(v, func(id fsm.NodeID) bool {
		s, _ := v.Node(id)
		return !n.free(v, q, s)
	})
}

// memberNames returns the names of the nodes that hold a queue's replicas.
func memberNames(v *catalog.View, q *catalog.Queue) []string {
	var names []string
	for _, m := range v.Members(q) {
		if state, ok := v.Node(m); ok {
			names = append(names, state.Name)
		}
	}
	return names
}

func numbers(ids []fsm.NodeID) []uint32 {
	list := make([]uint32, len(ids))
	for i, n := range ids {
		list[i] = uint32(n)
	}
	return list
}
