// Package session carries out the requests of clients: it changes definitions, routes by the
// catalog's view, and keeps the sessions of the clients connected to this node.
//
// It promises: a confirm is given only after the commands it stands for were applied; a session is
// notified by one call at a time, in order; a publish whose queue is gone is routed again. That
// commands and deliveries arrive once and in order is ensured by cluster/stream; that dead letters
// do, by cluster/deadletter. It knows neither AMQP frames nor raft.
package session

import (
	"context"
	"log/slog"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Catalog is the replicated catalog as the broker uses it.
type Catalog interface {
	// View is the newest view this node has applied.
	View() *catalog.View
	// Fresh reports whether a view that is read after the call holds every change that has been
	// reported as done to anybody.
	Fresh() bool
	// Isolated says why nothing can be proposed here, and has not been possible for a while; empty:
	// it is possible.
	Isolated() string
	// Refresh returns when Fresh holds.
	Refresh(ctx context.Context) error
	// Converge returns when all nodes that may route hold what the view holds.
	Converge(ctx context.Context) error
	// Propose commits commands in one entry. It returns their results once the views of this node
	// and of all nodes that may route hold them.
	Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)
	// Note is Propose for changes that are reported to nobody: it waits for this node only.
	Note(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)
}

// Properties reads the parts of an encoded AMQP property list that the broker needs.
type Properties interface {
	deadletter.Properties
	// Describe returns all properties of a message, by name, as a delivery of it shows them.
	Describe(properties []byte, m *fsm.Message) *fsm.Table
	// Encode is the inverse of Describe. The error is a *fsm.Refusal.
	Encode(properties *fsm.Table) ([]byte, error)
	// Publish makes a publish for a user of properties and a body that did not
	// come over AMQP. The error is a *fsm.Refusal.
	Publish(user, exchange, key string, properties *fsm.Table, body []byte) (*fsm.Publish, error)
	// Answer returns the properties of an answer in JSON to a request with this correlation id; nil:
	// it has none.
	Answer(correlationID []byte) []byte
	// Reason returns the reply code and text with which a refused command is returned; nil: there is
	// no such command.
	Reason(why *fsm.Refusal) (code uint16, text string)
}

// Config is what a Broker needs.
type Config struct {
	Node        string
	ClusterName string
	Mesh        *peer.Mesh
	Catalog     Catalog
	Properties  Properties
	Clock       func() fsm.Time // for durations
	Stamp       func() fsm.Time // current time, as used to stamp log entries
	Logger      *slog.Logger
	Audit       *audit.Log // nil: nothing is audited
	Defaults    catalog.Defaults
	// LoopbackUsers may log in from loopback addresses only.
	LoopbackUsers []string
	// Logins configures what logins with passwords may cost.
	Logins login.Config
	// MaxConnections is the maximum number of clients connected to the node; 0: unlimited.
	MaxConnections int
	// LeaderlessGrace is how long a request waits for a queue without a leader.
	LeaderlessGrace time.Duration
	// GroupSize is the default number of replicas of a queue.
	GroupSize int
	// LeaderLocator is the default way to choose the leader of a new queue.
	LeaderLocator catalog.Locator
}

// Broker serves the clients of one node. It consists of parts, each with its own state, and keeps
// the sessions and connections of this node.
type Broker struct {
	config Config
	*node
	*tasks
	*Authenticator
	*Inspector

	clients     *registry
	limits      *limits
	definitions *definitions
	routes      *stream.Table
	available   *availability
	answers     *answers
	replies     *replyRouter
	letters     *deadletter.Sender

	detector *detector
	reporter *reporter

	links      *links
	dispatcher *dispatcher
	late       *lateness
	watch      *watch
	changes    *worker.Worker // of the catalog
}

// New returns a broker; Serve makes it work.
func New(c Config) *Broker {
	return newBroker(c, func(h stream.Host) stream.Host { return h })
}

// newBroker is New for a test that puts something between the broker and its streams.
func newBroker(c Config, between func(stream.Host) stream.Host) *Broker {
	t := newTasks(c.Logger)
	n := &node{
		name: c.Node, catalog: c.Catalog, mesh: c.Mesh, clock: c.Clock, stamp: c.Stamp, slog: c.Logger,
		peers: &stats.Nodes{Self: c.Node, Mesh: c.Mesh, Try: t.guard, Logger: c.Logger},
	}
	b := &Broker{
		config: c, node: n, tasks: t,
		clients: &registry{traffic: traffic.NewTable(), sessions: map[uint64]*Session{}, connections: map[*Connection]struct{}{}, owners: newOwners(n, t)},
		limits:  &limits{node: n, connections: c.MaxConnections, tallies: tallies{by: map[counted]*tally{}}},
		answers: &answers{node: n},
		links:   &links{node: n, transmit: c.Mesh.Send, unsent: map[unsent]struct{}{}},
		late:    &lateness{node: n},
		changes: worker.New(worker.Options{}),
	}
	b.Authenticator = &Authenticator{node: n, tasks: t, gate: login.New(c.Logins), loopback: c.LoopbackUsers, audit: c.Audit}
	b.replies = &replyRouter{node: n, clients: b.clients}
	b.detector = &detector{node: n, tasks: t, retention: c.Defaults.DisconnectedTimeout, suspects: suspects{byName: map[string]suspect{}}}
	b.reporter = &reporter{node: n, tasks: t, detector: b.detector, ended: map[uint32]uint64{}}
	uses := &uses{node: n, tasks: t}
	h := &host{node: n, tasks: t, uses: uses, answers: b.answers, queueGone: b.QueueGone}
	b.routes = stream.NewTable(between(h))
	b.letters = deadletter.New(deadletter.Config{
		Node: c.Node, Host: h, Routes: b.routes, Properties: c.Properties, Logger: c.Logger,
	})
	b.definitions = &definitions{
		node: n, tasks: t, uses: uses, audit: c.Audit, grace: c.LeaderlessGrace, defaults: c.Defaults,
		placer: &placer{node: n, routes: b.routes, size: c.GroupSize, locator: c.LeaderLocator},
	}
	b.available = &availability{node: n, routes: b.routes, answers: b.answers, grace: c.LeaderlessGrace}
	b.Inspector = &Inspector{
		node: n, routes: b.routes, available: b.available, uses: uses, properties: c.Properties,
		peeks: peeks{at: map[fsm.QueueID]int64{}},
	}
	b.Inspector.backups = &Backups{
		node: n, tasks: t, routes: b.routes, available: b.available, definitions: b.definitions,
		cuts: map[uint64]*cut{}, restoring: map[fsm.QueueID]bool{},
	}
	h.leads = b.Inspector.leads
	b.dispatcher = &dispatcher{node: n, routes: b.routes, links: b.links, readsStored: func(to string) bool { return n.mesh.ReadsStored(to) }}
	b.watch = &watch{
		node: n, tasks: t, routes: b.routes, letters: b.letters, detector: b.detector, reporter: b.reporter, links: b.links,
	}
	return b
}

// Listen registers the broker's handlers. It is called before the mesh starts.
func (b *Broker) Listen(groups *group.Host) {
	b.groups = groups
	for k, limit := range bounds {
		b.mesh.Bound(k, limit)
	}
	(&receiver{node: b.node, routes: b.routes, links: b.links, replica: b.replicaOf}).listen()
	b.Inspector.listen()
	b.replies.listen()
	peer.HandleAsk(b.mesh, kindCounts, b.limits.counts)
	peer.HandleAsk(b.mesh, kindHears, b.detector.hears)
}

// Serve starts the broker under the node and boot numbers assigned by the catalog.
func (b *Broker) Serve(self fsm.NodeID, boot uint64) {
	b.boot.Store(boot)
	b.number.Store(uint32(self))
	b.detector.served = b.now()
	b.spawn("watch", func() { b.watch.run(b.stop) })
	b.spawn("follow the catalog", b.followCatalog)
}

// followCatalog acts on changes of the catalog.
func (b *Broker) followCatalog() {
	b.changes.Run(b.stop, func(time.Time) time.Duration {
		b.guard("report ended boots to queues", b.reporter.catalogChanged)
		return 0
	})
}

// Close shuts the broker down. Sessions must have been closed.
func (b *Broker) Close() {
	b.refuse()
	b.letters.Close()
	b.clients.owners.ended.Stop()
	b.wait()
}

// Renew gives the broker the boot number of the node's new registration, which it made because the
// former boot was declared dead. All sessions of the former boot end: the queues no longer know
// them, or are about to learn. Connections are not closed here.
func (b *Broker) Renew(boot uint64) {
	former, changed := b.clients.renew(b.node, boot)
	if !changed {
		return
	}
	b.letters.Restart()
	for _, s := range former {
		s.abandon()
	}
}

// Boot is the boot number of this node; 0: it has none yet.
func (b *Broker) Boot() uint64 { return b.boot.Load() }

// ClusterName is announced to clients.
func (b *Broker) ClusterName() string { return b.config.ClusterName }

// PeerChanged handles a node that has come or gone.
func (b *Broker) PeerChanged(ev peer.Event) {
	b.detector.peerChanged(ev)
	if ev.Up {
		b.reporter.pending.Store(true)
		b.links.announceAll(ev.Node)
		b.routes.NodeUp(ev.Node) // messages in the meantime may have been lost
	} else {
		b.routes.NodeDown(ev.Node)
	}
	b.spawn("report nodes to queues", func() { b.reporter.reportAll(false) })
}

// CatalogChanged is called after each entry of the catalog.
func (b *Broker) CatalogChanged() { b.changes.Wake() }

// QueueAdded is called when the catalog holds a new queue.
func (b *Broker) QueueAdded(q *catalog.Queue) {
	b.routes.QueueAdded(q)
	b.clients.owners.queueAdded(q)
}

// QueueGone is called when a queue is gone from the catalog: whatever waits for it is answered, and
// its consumers are cancelled.
func (b *Broker) QueueGone(id fsm.QueueID) {
	b.letters.Drop(id)
	b.routes.QueueGone(id)
	b.peeks.drop(id)
}

// DropMissing forgets the queues that the catalog no longer holds.
func (b *Broker) DropMissing() {
	view := b.view()
	for _, r := range b.routes.All() {
		if _, ok := view.QueueByID(r.Queue()); !ok {
			b.QueueGone(r.Queue())
		}
	}
}

// Candidates returns the nodes that may get another replica, best first, except those for which out
// returns true.
func (b *Broker) Candidates(v *catalog.View, out func(fsm.NodeID) bool) []uint32 {
	return b.definitions.candidates(v, out)
}

// leadsHere reports whether this node serves a queue.
func (b *Broker) leadsHere(q *catalog.Queue) bool { return b.routes.Route(q).IsLeader(b.name) }

// Panics counts the panics in the broker's own work since the node started.
func (b *Broker) Panics() uint64 { return b.panics.Panics() }

// Lateness returns how many messages timed out and went back while this node led their queues, and
// how many of those were settled late.
func (b *Broker) Lateness() (timedOut, lateAcks uint64) {
	return b.late.timedOut.Load(), b.late.acks.Load()
}

// QueuesEnded counts the queues that this node led when they ended by themselves.
func (b *Broker) QueuesEnded() uint64 { return b.definitions.ended.Load() }

// OddAnswers counts queue answers that no command can get. Any such answer is a bug in this
// program.
func (b *Broker) OddAnswers() uint64 { return b.answers.odd.Load() }

// ResentCommands counts the commands that were to be sent to the leader of a queue again.
func (b *Broker) ResentCommands() uint64 { return b.routes.Resent() }

// RefusedCommands counts the commands of clients that did not take effect.
func (b *Broker) RefusedCommands() uint64 { return b.answers.commands.Load() }

// LostOnce counts at-most-once dead letters that did not arrive; see deadletter.Sender.
func (b *Broker) LostOnce() uint64 { return b.letters.LostOnce() }

// Traffic is what the sessions of this node have counted, up to the last CollectTraffic.
func (b *Broker) Traffic() *traffic.Table { return b.clients.traffic }

// CollectTraffic adds what all sessions have counted.
func (b *Broker) CollectTraffic() {
	for _, s := range b.clients.all() {
		s.addTraffic()
	}
}
