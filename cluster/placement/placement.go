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
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Config is what placement works with on one node.
type Config struct {
	Node        string
	Incarnation [16]byte // of this process
	Host        *host.Host
	Catalog     *replicated.Catalog
	Mesh        *peer.Mesh
	Replicas    *stats.Replicas
	Placer      *Placer
	Guard       *worker.Guard
	Logger      *slog.Logger
	Defaults    catalog.Defaults // of queues
	GroupSize   int              // of queues that do not say otherwise
	// Stored lists the groups that are on disk.
	Stored func() ([]fsm.GroupID, error)
	// LowDisk reports whether the node is short of disk space.
	LowDisk func() bool
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

func numbers(ids []fsm.NodeID) []uint32 {
	list := make([]uint32, len(ids))
	for i, n := range ids {
		list[i] = uint32(n)
	}
	return list
}

// Placer chooses nodes for replicas.
type Placer struct {
	Node    *self.Node
	Routes  *stream.Table
	Size    int             // of a group unless its queue says otherwise
	Locator catalog.Locator // of leaders unless a queue says otherwise
}

// Place chooses the nodes of a new queue: always this one, then running nodes before others, and
// among these the ones with the fewest replicas. The first is to be the leader: this node, or with
// a balanced locator the one that leads the fewest queues. A local queue lives on this node only.
func (p *Placer) Place(d *logpb.DeclareQueue) []uint32 {
	self := p.Node.Number.Load()
	if d.Local {
		return []uint32{self}
	}
	v := p.Node.View()
	size := catalog.InitialSize(d.Arguments, p.Size)
	members := append([]uint32{self}, p.candidates(v, func(n fsm.NodeID) bool { return p.Node.Is(n) })...)
	members = members[:min(len(members), max(size, 1))]
	if v.LeaderLocator(d, p.Locator) != catalog.ClientLocal {
		p.leadFirst(members)
	}
	return members
}

// candidates returns the nodes that may get another replica, best first, except those for which out
// returns true.
func (p *Placer) candidates(v *catalog.View, out func(fsm.NodeID) bool) []uint32 {
	var nodes []*logpb.NodeState
	for _, n := range v.Nodes() {
		if n.Boot != 0 && !out(fsm.NodeID(n.Number)) { // it has started at least once
			nodes = append(nodes, n)
		}
	}
	rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	slices.SortStableFunc(nodes, func(x, y *logpb.NodeState) int {
		if x.Draining != y.Draining {
			if x.Draining {
				return 1
			}
			return -1
		}
		if up := p.Node.Mesh.Alive(x.Name); up != p.Node.Mesh.Alive(y.Name) {
			if up {
				return -1
			}
			return 1
		}
		return cmp.Compare(v.Replicas(fsm.NodeID(x.Number)), v.Replicas(fsm.NodeID(y.Number)))
	})
	numbers := make([]uint32, len(nodes))
	for i, n := range nodes {
		numbers[i] = n.Number
	}
	return numbers
}

// mayLead reports whether a node is up and not about to stop.
func (p *Placer) mayLead(number uint32, name string) bool {
	n, ok := p.Node.View().Node(fsm.NodeID(number))
	return ok && !n.Draining && p.Node.Mesh.Alive(name)
}

// leadFirst puts the running member that leads the fewest queues first.
func (p *Placer) leadFirst(members []uint32) {
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	best := slices.MinFunc(members, func(x, y uint32) int {
		m, n := p.Node.NodeName(fsm.NodeID(x)), p.Node.NodeName(fsm.NodeID(y))
		if may := p.mayLead(x, m); may != p.mayLead(y, n) {
			if may {
				return -1
			}
			return 1
		}
		return cmp.Compare(p.Routes.Led(m), p.Routes.Led(n))
	})
	i := slices.Index(members, best)
	members[0], members[i] = members[i], members[0]
}

// snapshotWait bounds how long a node may take for a snapshot.
const snapshotWait = 15 * time.Second

// Snapshots writes snapshots of queues on behalf of operators.
type Snapshots struct{ node *node }

func newSnapshots(n *node) *Snapshots {
	s := &Snapshots{n}
	n.Mesh.HandleCall(n.KindSnapshot, func(ctx context.Context, _ string, req []byte) ([]byte, error) {
		if len(req) != 4 {
			return nil, errors.New("the request for a snapshot names no group")
		}
		return nil, s.here(ctx, fsm.GroupID(binary.BigEndian.Uint32(req)))
	})
	return s
}

// Snapshot has every replica of a queue write a snapshot, and returns an error if one did not: the others may
// have written theirs.
func (s *Snapshots) Snapshot(ctx context.Context, q *catalog.Queue) error {
	if q.Local {
		return fsm.Refuse(fsm.Precondition, "the queue has no log on disk")
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotWait)
	defer cancel()
	members := q.MemberNames(s.node.view())
	failed := make([]error, len(members))
	worker.Each(-1, members, func(i int, to string) {
		if err := s.at(ctx, to, q.Group); err != nil {
			failed[i] = fmt.Errorf("no snapshot on node '%s': %w", to, err)
		}
	})
	return errors.Join(failed...)
}

// at has one node write a snapshot.
func (s *Snapshots) at(ctx context.Context, to string, id fsm.GroupID) error {
	if to == s.node.Node {
		return s.here(ctx, id)
	}
	if !s.node.online(to) {
		return errors.New("the node is not up")
	}
	_, err := s.node.Mesh.Call(ctx, to, s.node.KindSnapshot, binary.BigEndian.AppendUint32(nil, uint32(id)))
	return err
}

func (s *Snapshots) here(ctx context.Context, id fsm.GroupID) error {
	g := s.node.Host.Group(id)
	if g == nil {
		return errors.New("it has no replica of the queue")
	}
	return g.Snapshot(ctx)
}
