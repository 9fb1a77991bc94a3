// Package self is this node as the parts that serve clients and queues see it: who it is, what it
// knows of the cluster, how it asks other nodes and proposes definitions, and the kinds of messages
// between nodes.
//
// It promises that what it confirms of the catalog, every node gives as an answer by then. It knows
// no sessions, and of queues only which this node leads.
package self

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Catalog is the replicated catalog as this node uses it.
type Catalog interface {
	// View is the newest view this node has applied.
	View() *catalog.View
	// Fresh reports whether a view that is read after the call holds every change that has been
	// reported as done to anybody.
	Fresh() bool
	// Refresh returns when Fresh holds.
	Refresh(ctx context.Context) error
	// Converge returns when all nodes that may route hold what the view holds.
	Converge(ctx context.Context) error
	// Leader is the name of the node that leads it; empty: not known.
	Leader() string
	// HashAt returns the hash of the state at an entry, see group.Group.
	HashAt(at uint64, wait time.Duration) (index uint64, hash string, err error)
	// Progress says how far this node's replica is.
	Progress() replica.Progress
	// Propose commits commands in one entry. It returns their results once the views of this node
	// and of all nodes that may route hold them.
	Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)
	// Note is Propose for changes that are reported to nobody: it waits for this node only.
	Note(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)
}

// Config is what a Node needs.
type Config struct {
	Node    string
	Mesh    *peer.Mesh
	Catalog Catalog
	// Isolated says why nothing can be proposed here, and has not been possible for a while; empty:
	// it is possible. nil: it always is.
	Isolated func() string
	Clock    func() fsm.Time // for durations
	Stamp    func() fsm.Time // current time, as used to stamp log entries
	Logger   *slog.Logger
	// LeaderlessGrace is how long a request waits for a queue, or a catalog, without a leader.
	LeaderlessGrace time.Duration
}

// Node is this node: its identity, its knowledge of the cluster, its links, and the goroutines that
// work for its clients and queues.
type Node struct {
	*worker.Tasks
	Number atomic.Uint32 // 0: not yet assigned by the catalog
	Boot   atomic.Uint64

	// Set before the node serves.
	Catalog Catalog
	Mesh    *peer.Mesh
	Groups  *host.Host
	Peers   *stats.Nodes // to ask several nodes at a time
	Grace   time.Duration
	Logger  *slog.Logger

	name         string
	isolated     func() string
	clock, stamp func() fsm.Time
}

// New returns a node that has no number yet.
func New(c Config) *Node {
	if c.Isolated == nil {
		c.Isolated = func() string { return "" }
	}
	t := worker.NewTasks(worker.NewGuard(c.Logger.With("part", "broker")))
	return &Node{
		Tasks: t, Catalog: c.Catalog, Mesh: c.Mesh, Grace: c.LeaderlessGrace, Logger: c.Logger,
		name: c.Node, isolated: c.Isolated, clock: c.Clock, stamp: c.Stamp,
		Peers: &stats.Nodes{Self: c.Node, Mesh: c.Mesh, Try: t.Try, Logger: c.Logger},
	}
}

// Listen gives the node its groups, and bounds the messages of other nodes. It is called before the
// mesh starts.
func (n *Node) Listen(groups *host.Host) {
	n.Groups = groups
	for k, limit := range bounds {
		n.Mesh.Bound(k, limit)
	}
}

// Serve begins to serve under the numbers that the catalog has assigned.
func (n *Node) Serve(self fsm.NodeID, boot uint64) {
	n.Boot.Store(boot)
	n.Number.Store(uint32(self))
}

const (
	// refreshWait bounds how long a request waits for an up-to-date view. After that it uses the
	// current one.
	refreshWait = time.Second
	// convergeWait bounds how long an answer that only repeats what the view says waits for the
	// other nodes. A node that has not seen the view by then has lost its lease.
	convergeWait = 2 * time.Second
)

// Name is the name of this node.
func (n *Node) Name() string { return n.name }

// Self is the number of this node and of its boot; 0: it has none yet.
func (n *Node) Self() (node fsm.NodeID, boot uint64) {
	return fsm.NodeID(n.Number.Load()), n.Boot.Load()
}

// Is reports whether id is this node.
func (n *Node) Is(id fsm.NodeID) bool { return uint32(id) == n.Number.Load() }

// Now is for durations, in milliseconds.
func (n *Node) Now() int64 { return int64(n.clock()) }

// Stamp is the current time, as used to stamp log entries.
func (n *Node) Stamp() fsm.Time { return n.stamp() }

// View is the newest view of the catalog.
func (n *Node) View() *catalog.View { return n.Catalog.View() }

// Fresh reports whether the view holds every change that has been reported as done to anybody.
func (n *Node) Fresh() bool { return n.Catalog.Fresh() }

// FreshView returns the view after an attempt to bring it up to date.
func (n *Node) FreshView(ctx context.Context) *catalog.View {
	v, _ := n.TryFresh(ctx)
	return v
}

// TryFresh is FreshView; fresh: the view holds everything that anybody has been told is done. If it
// does not, nobody may be told that something exists, or is gone, because the view says so.
func (n *Node) TryFresh(ctx context.Context) (v *catalog.View, fresh bool) {
	if fresh = n.Catalog.Fresh(); !fresh {
		ctx, cancel := context.WithTimeout(ctx, refreshWait)
		defer cancel()
		err := n.Catalog.Refresh(ctx)
		if fresh = err == nil; !fresh {
			n.Logger.Debug("view not refreshed", "error", err)
		}
	}
	return n.View(), fresh
}

// Converge returns when the other nodes hold what this node's view says: a client that is told that
// something exists, or is gone, may rely on it at any node.
func (n *Node) Converge(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, convergeWait)
	defer cancel()
	if err := n.Catalog.Converge(ctx); err != nil {
		n.Logger.Debug("other nodes may not yet have what this node has acknowledged", "error", err)
	}
}

// NodeName returns the name of a node by its number; empty if unknown.
func (n *Node) NodeName(id fsm.NodeID) string {
	if s, ok := n.View().Node(id); ok {
		return s.Name
	}
	return ""
}

// NodeNames returns the names of nodes.
func (n *Node) NodeNames(ids []fsm.NodeID) []string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = n.NodeName(id)
	}
	return names
}

// Others lists the names of all other nodes of the cluster except one.
func (n *Node) Others(but string) (names []string) {
	for _, s := range n.View().Nodes() {
		if s.Name != n.Name() && s.Name != but {
			names = append(names, s.Name)
		}
	}
	return names
}

// LedGroup returns the group of a queue if this node leads it, otherwise nil.
func (n *Node) LedGroup(id fsm.GroupID, queue fsm.QueueID) *group.Group {
	if g := n.Groups.Group(id); g != nil && g.Spec().Queue == queue && g.Leading() != 0 {
		return g
	}
	return nil
}

var errUnreachable = errors.New("the node is not reachable")

// Ask asks a node, which may be this one: here answers then. An error comes with an
// empty answer.
func Ask[R any, P interface {
	*R
	proto.Message
}](ctx context.Context, n *Node, to string, within time.Duration, kind peer.Kind, req proto.Message, here func() P) (P, error) {
	if to == n.Name() {
		return here(), nil
	}
	if !n.Mesh.Alive(to) {
		return new(R), errUnreachable
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answer, err := peer.Ask[R, P](ctx, n.Mesh, to, kind, req)
	if err != nil {
		return new(R), err
	}
	return answer, nil
}

// Confirm asks a view. An answer that is told is one that every node gives when Confirm returns: it
// waits for that as long as for a change.
func (n *Node) Confirm(ctx context.Context, what string, ask func(v *catalog.View) (told bool, err error)) error {
	v, fresh := n.TryFresh(ctx)
	told, err := ask(v)
	if told && !fresh {
		limited, cancel := n.patient(ctx)
		defer cancel()
		if err := n.Catalog.Refresh(limited); err != nil {
			return n.unanswered(what, err)
		}
		told, err = ask(n.View())
	}
	if told {
		n.Converge(ctx)
	}
	return err
}

// patient bounds how long the catalog is waited for.
func (n *Node) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if n.isolated() != "" {
		return context.WithTimeout(ctx, n.Grace)
	}
	return context.WithCancel(ctx)
}

// unanswered is the refusal of what the catalog has not answered.
func (n *Node) unanswered(what string, err error) error {
	n.Logger.Warn("catalog does not answer", "operation", what, "error", err)
	text := fmt.Sprintf("Could not %s on node '%s' because the metadata store operation timed out", what, n.Name())
	if why := n.isolated(); why != "" {
		text += ": " + why
	}
	return fsm.Refuse(fsm.Internal, text)
}

// Propose commits one catalog command and turns its refusal into an error.
func (n *Node) Propose(ctx context.Context, what string, c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	if n.Catalog.Fresh() {
		if err := n.View().Fits(c); err != nil {
			return catalog.Refuse(err), err // as the leader would: it need not decode what is too large
		}
	}
	ctx, cancel := n.patient(ctx)
	defer cancel()
	results, err := n.Catalog.Propose(ctx, c)
	if err != nil {
		return nil, n.unanswered(what, err)
	}
	r := results[0]
	if r.Refusal != 0 {
		return r, fsm.Refuse(fsm.Kind(r.Refusal), r.Text)
	}
	return r, nil
}

// RemoveRecord removes a queue from the catalog.
func (n *Node) RemoveRecord(ctx context.Context, q *catalog.Queue) error {
	_, err := n.Propose(ctx, fmt.Sprintf("delete queue '%s' in vhost '%s'", q.Name, q.VHost), Removal(q, 0))
	return err
}

// Removal is the command that removes a queue; boot is not 0 if it was lost with that boot of its
// node.
func Removal(q *catalog.Queue, boot uint64) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{
		Vhost: q.VHost, Name: q.Name, Id: uint64(q.ID), LostBoot: boot,
	}}}
}
