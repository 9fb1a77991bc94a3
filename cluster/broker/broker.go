// Package broker does what clients ask for: it keeps definitions, routes on the
// catalog's view, and keeps the sessions of the clients that are connected to this
// node.
//
// It promises: a confirm is given only after the commands it stands for were
// applied; what a session is told comes one call at a time, in order; a publish
// whose queue is gone is routed again. That commands and deliveries arrive once
// and in order is cluster/stream's, that dead letters do is cluster/deadletter's.
// It knows neither AMQP frames nor raft.
package broker

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Message kinds between brokers.
const (
	KindElection peer.Kind = 16 + iota // elections, see cluster/group
	KindCatalog                        // call: to the catalog's leader, see cluster/group
	kindSubmit
	kindOutcomes
	kindDeliveries
	kindNotice
	kindResync
	kindStats      // call
	KindQueueStats // call, see cluster/stats
	KindReplicas   // call: how a node's replicas stand, see package cluster
	KindTransfer   // call: to hand a leadership over
	KindNodes      // call: which nodes the cluster has
	KindAdmit      // call: a node that wants to join, for the catalog's leader
	kindPeek       // call
	kindReply
	kindRequester       // call: whether a channel takes replies
	KindConsumers       // call, see cluster/stats
	KindConnections     // call: a node's clients, see package cluster
	KindCloseConnection // call
	kindScheduled       // call
	kindCounts          // call
	KindResourceAlarms  // what a node has too little of, see package cluster
	kindHears           // call: whether a node hears a process of another one
	KindApplied         // what a node has applied of the catalog, see cluster/group
	KindLearner         // of replicas that do not vote, see cluster/group
)

// bounds are those of kinds that are longer than others, or never have a payload.
var bounds = map[peer.Kind]peer.Bounds{
	KindElection:       {Head: 4 << 20}, // of a hundred thousand groups
	KindLearner:        {Head: 4 << 20},
	KindCatalog:        {Head: group.MaxCatalogEntry + 1<<10},
	kindSubmit:         {Head: group.MaxCommandBytes + 1<<10, Payload: peer.MaxMessage},
	kindOutcomes:       {Head: 4 << 20},
	kindDeliveries:     {Head: 16 << 20, Payload: peer.MaxMessage}, // with how messages died
	kindNotice:         {Head: 1 << 20},
	kindResync:         {Head: 1 << 10},
	kindReply:          {Payload: peer.MaxMessage},
	KindResourceAlarms: {Head: 1 << 10},
	KindApplied:        {Head: 1 << 10},
}

// Catalog is the replicated catalog as the broker uses it.
type Catalog interface {
	// View is the newest view this node has applied.
	View() *catalog.View
	// Fresh reports whether a view that is read after that holds everything
	// that anybody has been told is done.
	Fresh() bool
	// Isolated says why nothing can be proposed here, and could not for a while;
	// empty: it can.
	Isolated() string
	// Refresh returns when that is so.
	Refresh(ctx context.Context) error
	// Converge returns when all nodes that may route hold what the view holds.
	Converge(ctx context.Context) error
	// Propose commits commands in one entry and returns their results once
	// this node's view holds them, and all nodes' that may route.
	Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)
	// Note is Propose of what nobody is told of: it waits for this node only.
	Note(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)
}

// Properties reads what the broker must know of an encoded AMQP property list.
type Properties interface {
	deadletter.Properties
	// Describe returns all properties of a message, by name, as a delivery of
	// it shows them.
	Describe(properties []byte, m *fsm.Message) *fsm.Table
}

// Config is what a Broker needs.
type Config struct {
	Node        string
	ClusterName string
	Mesh        *peer.Mesh
	Catalog     Catalog
	Properties  Properties
	Clock       func() fsm.Time // for durations
	Stamp       func() fsm.Time // the instant, as entries of logs are stamped
	Logger      *slog.Logger
	Audit       *audit.Log // nil: nothing is audited
	Defaults    catalog.Defaults
	// LoopbackUsers may log in from loopback addresses only.
	LoopbackUsers []string
	// Logins says what logins with passwords may cost.
	Logins login.Config
	// MaxConnections is how many clients may be connected to the node; 0: any.
	MaxConnections int
	// LeaderlessGrace is how long a request waits for a queue without leader.
	LeaderlessGrace time.Duration
	// GroupSize is the number of replicas of a queue unless it says otherwise.
	GroupSize int
	// LeaderLocator chooses the leaders of new queues unless they say otherwise.
	LeaderLocator catalog.Locator
}

// Broker serves the clients of one node.
type Broker struct {
	config Config
	host   *group.Host
	mesh   *peer.Mesh
	slog   *slog.Logger
	// transmit sends to a node: Mesh.Send.
	transmit func(node string, k kind, head []byte, payloads ...[]byte) error

	self atomic.Uint32 // number of this node; 0: not known yet
	boot atomic.Uint64

	served    int64 // since when, ms
	suspects  suspects
	unsettled atomic.Bool // some queue may believe of a node what is not so, see noteNodes
	removing  atomic.Bool // the local queues of lost nodes, see removeLost

	sessionNumber atomic.Uint64
	connNumber    atomic.Uint64

	tallies tallies

	mu       sync.RWMutex
	closed   bool
	sessions map[uint64]*Session
	entered  map[*Connection]struct{} // the connections of clients
	unsent   map[unsent]struct{}

	// Messages, of queues while this node led them.
	timedOut, lateAcks atomic.Uint64

	odd    atomic.Uint64 // answers that no command should be given
	panics atomic.Uint64 // see contain

	logins  *login.Gate
	refusal refusals
	uses    uses

	routes  *stream.Table
	letters *deadletter.Sender
	look    chan struct{} // the catalog has changed
	stop    chan struct{}
	done    sync.WaitGroup
}

// New returns a broker; Serve makes it work.
func New(c Config) *Broker {
	b := &Broker{
		config: c, mesh: c.Mesh, slog: c.Logger, transmit: c.Mesh.Send,
		sessions: map[uint64]*Session{},
		entered:  map[*Connection]struct{}{},
		tallies:  tallies{by: map[tallied]*tally{}},
		suspects: suspects{byName: map[string]suspect{}},
		unsent:   map[unsent]struct{}{},
		look:     make(chan struct{}, 1),
		stop:     make(chan struct{}),
		logins:   login.New(c.Logins),
	}
	b.routes = stream.NewTable((*host)(b))
	b.letters = deadletter.New(deadletter.Config{
		Node: c.Node, Host: (*host)(b), Routes: b.routes, Properties: c.Properties, Logger: c.Logger,
	})
	return b
}

// Listen registers the broker's handlers. It is called before the mesh starts.
func (b *Broker) Listen(host *group.Host) {
	b.host = host
	for k, most := range bounds {
		b.mesh.Bound(k, most)
	}
	b.mesh.Handle(kindSubmit, b.onSubmit)
	b.mesh.Handle(kindOutcomes, b.onOutcomes)
	b.mesh.Handle(kindDeliveries, b.onDeliveries)
	b.mesh.Handle(kindNotice, b.onNotice)
	b.mesh.Handle(kindResync, b.onResync)
	b.mesh.HandleCall(kindStats, b.onStats)
	peer.HandleAsk(b.mesh, kindPeek, b.peek)
	peer.HandleAsk(b.mesh, kindCounts, b.counts)
	b.mesh.Handle(kindReply, b.onReply)
	b.mesh.HandleCall(kindRequester, b.onRequester)
	peer.HandleAsk(b.mesh, kindScheduled, b.scheduled)
	peer.HandleAsk(b.mesh, kindHears, b.hears)
}

// Serve starts the broker under the numbers the catalog gave this node.
func (b *Broker) Serve(self fsm.NodeID, boot uint64) {
	b.boot.Store(boot)
	b.self.Store(uint32(self))
	b.served = b.now()
	b.spawn("watch", b.watch)
}

// isSelf reports whether n is this node.
func (b *Broker) isSelf(n fsm.NodeID) bool { return uint32(n) == b.self.Load() }

// Close ends the broker. Sessions have been closed before.
func (b *Broker) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	close(b.stop)
	b.letters.Close()
	b.done.Wait()
}

// spawn runs f on a goroutine that Close waits for, and reports so; not any
// more once the broker closes. A panic ends f, and nothing else: what others
// wait for f has to release by defer.
func (b *Broker) spawn(doing string, f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.done.Go(func() { b.guard(doing, f) })
	}
	return !b.closed
}

// ClusterName is announced to clients.
func (b *Broker) ClusterName() string { return b.config.ClusterName }

// whileOpen is a context that ends with the broker.
func (b *Broker) whileOpen() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-b.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (b *Broker) view() *catalog.View { return b.config.Catalog.View() }

func (b *Broker) session(num uint64) *Session {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.sessions[num]
}

// allSessions lists the sessions of this node. The locks of sessions are not
// taken under the broker's: it is the other way round.
func (b *Broker) allSessions() []*Session {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Collect(maps.Values(b.sessions))
}

// DropMissing forgets the queues that the catalog does not hold any more.
func (b *Broker) DropMissing() {
	view := b.view()
	for _, r := range b.routes.All() {
		if _, ok := view.QueueByID(r.Queue()); !ok {
			b.QueueGone(r.Queue())
		}
	}
}

// removeGone removes the record of a queue that has ended by itself, and
// tries again until that is done or somebody else leads the queue.
func (b *Broker) removeGone(g *group.Group) {
	spec := g.Spec()
	b.spawn("remove the record of a queue", func() {
		ctx, cancel := b.whileOpen()
		defer cancel()
		q, ok := b.view().QueueByID(spec.Queue)
		for ok && g.Leading() != 0 && ctx.Err() == nil {
			if b.removeRecord(ctx, q) == nil {
				return
			}
			q, ok = b.view().QueueByID(spec.Queue)
		}
	})
}

// QueueAdded is told when the catalog holds a new queue.
func (b *Broker) QueueAdded(q *catalog.Queue) { b.routes.QueueAdded(q) }

// QueueGone is told when the catalog has lost a queue: what waits for it is
// answered, its consumers are cancelled.
func (b *Broker) QueueGone(id fsm.QueueID) {
	b.letters.Drop(id)
	b.routes.QueueGone(id)
}

// LostOnce counts the dead letters of no outbox that did not arrive, see
// deadletter.Sender.
func (b *Broker) LostOnce() uint64 { return b.letters.LostOnce() }

// leadsHere reports whether this node serves a queue.
func (b *Broker) leadsHere(q *catalog.Queue) bool { return b.routes.Route(q).IsLeader(b.config.Node) }
