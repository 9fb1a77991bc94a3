// Package mgmt is the HTTP API of a node. It answers health checks to everybody and everything else
// to users with a tag: routes.go says which request needs which. Pages of other sites are refused,
// see cluster/origin.
package mgmt

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/origin"
	leader "github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Limits of a request.
const (
	headerTimeout  = 10 * time.Second
	bodyTimeout    = 30 * time.Second // from the header to the end of the body
	restTimeout    = time.Second      // for more of a body that is not needed
	discardTimeout = time.Minute      // for all of it
	writeTimeout   = 30 * time.Second // for each part of an answer
	idleTimeout    = 2 * time.Minute
	maxHeader      = 64 << 10
	maxBody        = 1 << 20
	largeBody      = 20 << 20 // of a message
	// definitionsBody is for definitions of as many queues as there may be by default.
	definitionsBody = 64 << 20
	largeBodies     = 2 // of more than maxBody, in memory at a time
)

// Server serves the API: it finds the endpoint of a request and checks that the user may use it.
// The answers are the business of the types of resources.
type Server struct {
	catalog   Catalog
	logins    Logins
	node      Node
	resources []resource
	slog      *slog.Logger
	guard     *origin.Guard
	audit     *audit.Log    // nil: nothing is audited
	large     chan struct{} // has an element for each large body that is in memory
	http      *http.Server
}

// New returns a server for a backend. It serves the requests that guard admits.
func New(b Backend, logger *slog.Logger, guard *origin.Guard) *Server {
	s := &Server{catalog: b.Catalog, logins: b.Logins, node: b.Node, resources: b.resources(), slog: logger, guard: guard, large: make(chan struct{}, largeBodies)}
	s.http = &http.Server{
		Handler: s.reporting(bounded(s.router())), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ConnContext:    withSocket,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve serves a listener until Close.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends the server. Requests in progress have until ctx ends.
func (s *Server) Close(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Handler answers requests as Serve does.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Backend is what the API works on. Errors of its parts that are *fsm.Refusal are the caller's
// fault.
type Backend struct {
	Catalog     Catalog
	Logins      Logins
	Queues      Queues
	Messages    Messages
	Objects     Objects
	History     History
	Node        Node
	Cluster     Cluster
	Settings    Settings
	Connections Connections
	Resources   Resources
	Placement   Placement
	Membership  Membership
	Backups     Backups
	Traffic     Traffic
	Seeds       *Seeds
	// DefaultQueueType is that of new vhosts; empty: classic.
	DefaultQueueType string
	// Effective returns the settings that the node runs with, by key, without secrets.
	Effective func() map[string]string
	// Hold bounds the memory that is held for a user; see cluster.Clients. nil: it is not bounded.
	Hold func(user string) func(bytes int64) error
}

// Catalog holds the definitions.
type Catalog interface {
	// View is the newest view of the catalog that this node has applied.
	View() *catalog.View
	// Propose commits commands to the catalog and returns their results once this node's view holds
	// them.
	Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)
}

// Logins authenticates users.
type Logins interface {
	// Login checks the credentials of a request. A *fsm.Refusal says that they cannot be checked at
	// the moment.
	Login(ctx context.Context, user, password string, remote netip.Addr) error
	// HashPassword makes the hash of a new password.
	HashPassword(ctx context.Context, password string) ([]byte, error)
}

// Queues reports the state of queues.
type Queues interface {
	// Stats asks the leaders of queues for their stats; without ids, of all queues. Queues without
	// a leader that answers are missing.
	Stats(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]stats.Queue
	// StatsDue is Stats of one queue with the messages that become ready within a time from now on, in ms; false: no
	// leader answers.
	StatsDue(ctx context.Context, id fsm.QueueID, within uint64) (stats.Queue, bool)
	// StatsAsIs is Stats for a part of a long list: what is due in the queues is not done first.
	StatsAsIs(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]stats.Queue
	// Numbers asks the leaders of all queues for a few numbers of each, see stats.NewNumbers.
	Numbers(ctx context.Context, soon bool, names ...string) *stats.Numbers
	// Consumers asks the leaders of queues for their consumers; without ids,
	// of all queues.
	Consumers(ctx context.Context, ids ...fsm.QueueID) []stats.Consumer
	// Ahead counts what comes next in all queues. The answer may be some seconds old.
	Ahead(ctx context.Context) *stats.Ahead
	// Timeouts lists the last consumer timeouts, the newest first.
	Timeouts(ctx context.Context) []stats.Timeout
	// Drifts lists with what arguments clients have declared otherwise what exists, the last first.
	Drifts(ctx context.Context) []api.Drift
}

// Messages gives access to the messages in queues.
type Messages interface {
	// Take gets up to count messages for a user and settles them all, fewer if admit refuses the memory
	// of one more. If that is the first one, the error is admit's, and nothing has changed.
	Take(ctx context.Context, user, vhost, queue string, count int, outcome fsm.Outcome, admit func(bytes int) error) ([]Message, error)
	// Peek shows up to limit messages of a queue that are in a given place and have a number above
	// after. more: there may be others.
	Peek(ctx context.Context, q *catalog.Queue, in queue.Place, after uint64, limit int) (list []Message, more bool, err error)
	// Scheduled asks a queue's leader for a page of its scheduled messages.
	Scheduled(ctx context.Context, q *catalog.Queue, r *peerpb.ScheduledRequest) ([]*peerpb.ScheduledMessage, error)
	// Select asks a queue's leader for the numbers of ready messages that meet conditions.
	Select(ctx context.Context, q *catalog.Queue, r *peerpb.SelectRequest) (*peerpb.SelectReply, error)
	// ExpireDue has a queue's leader propose ticks until nothing in it is due.
	ExpireDue(ctx context.Context, q *catalog.Queue) error
	// GroupsAfter asks a queue's leader for up to limit groups with an id above after, by id.
	GroupsAfter(ctx context.Context, q *catalog.Queue, after string, limit int) (api.GroupPage, error)
	// NameLocked makes a command be about the delivery that a lock token names. It returns false if
	// the token is none of this queue.
	NameLocked(q *catalog.Queue, token string, c *logpb.Command) bool
	// Command executes commands at a queue and returns their answers.
	Command(ctx context.Context, q *catalog.Queue, commands ...*logpb.Command) ([]fsm.Result, error)
}

// Node is the node that answers.
type Node interface {
	// Version is the product's version.
	Version() string
	// NotReady says why clients are not served; empty: they are.
	NotReady() string
	// Dead says why the process should be restarted; empty: it makes progress, whether or not
	// clients are served.
	Dead() string
	// Status describes the node, and the others as seen by it.
	Status() api.Status
	// Clock describes the node's clock. Now is the current time, as used to stamp entries.
	Clock() api.Clock
	Now() fsm.Time
	// Defaults are the node's settings for queues that do not say otherwise.
	Defaults() catalog.Defaults
	// Certificates lists when the certificates expire that the node presents, and those that it
	// checks others by.
	Certificates() []api.Certificate
	// Quarantined lists the queues that do not lead on the node because work for
	// them has panicked here.
	Quarantined() []api.Quarantine
	// StalledQueues lists the queues that the node leads and whose work makes no
	// progress.
	StalledQueues() []api.Standstill
	// Unproven lists the replicas on the node that do not vote because they cannot prove what they
	// acknowledged. The catalog's has no name.
	Unproven() []api.Unproven
	// Closed lists the replicas on the node that could not be opened.
	Closed() []api.Closed
	// Parked lists the queues that the node leads and that have parked messages.
	Parked() []fsm.QueueID
	// ReplicasOf describes the replicas of the queues with a name; empty: of all. Hashes of
	// their states cost a pass over all messages.
	ReplicasOf(queue string, hashed bool) []api.Replica
	// LiftQuarantine allows the node to lead a queue again.
	LiftQuarantine(q *catalog.Queue) error
	// Barrier makes the followers of all queues that the node leads learn what is
	// committed.
	Barrier(ctx context.Context) error
}

// Placement controls where replicas are, which of them lead, and whether this node serves.
type Placement interface {
	// Drain prepares the node for its stop; Revive undoes that.
	Drain(ctx context.Context) (api.Drained, error)
	Revive(ctx context.Context) error
	// Rebalance spreads the leaderships of queues whose vhost and name match;
	// nil matches everything.
	Rebalance(ctx context.Context, vhosts, queues *pattern.Pattern) (api.Rebalanced, error)
	// TransferLeadership makes a node the leader of a queue.
	TransferLeadership(ctx context.Context, q *catalog.Queue, to string) error
	// Snapshot has every replica of a queue write a snapshot.
	Snapshot(ctx context.Context, q *catalog.Queue) error
	// AddMember gives a queue a replica on a node, DeleteMember removes it.
	AddMember(ctx context.Context, vhost, queue, node string) error
	DeleteMember(ctx context.Context, vhost, queue, node string) error
	// Grow and Shrink do so for many queues, GrowTo up to a number of members.
	Grow(ctx context.Context, node string, s api.Selection) ([]api.MemberChange, error)
	Shrink(ctx context.Context, node string, s api.Selection) ([]api.MemberChange, error)
	GrowTo(ctx context.Context, count int, s api.Selection) ([]api.MemberChange, error)
}

// Objects lets users change what is in a vhost, and publish.
type Objects interface {
	// Open opens a vhost for a user. What the session refuses is what a channel would refuse the
	// user. The session must be closed.
	Open(ctx context.Context, user, vhost string) (Session, error)
	// Publish publishes a message and waits until it is confirmed. routed is false if no queue has
	// it.
	Publish(ctx context.Context, user, vhost string, m Outgoing) (routed bool, err error)
	// Place chooses the nodes of a queue that is imported.
	Place(d *logpb.DeclareQueue) []uint32
	// Blocked says why publishers are blocked; empty: they are not.
	Blocked() string
}

// Session is a vhost as a user's client has it.
type Session interface {
	DeclareExchange(ctx context.Context, spec fsm.ExchangeSpec) error
	DeleteExchange(ctx context.Context, name string, ifUnused bool) error
	DeclareQueue(ctx context.Context, spec fsm.QueueSpec) (fsm.QueueInfo, error)
	DeleteQueue(ctx context.Context, name string, ifUnused, ifEmpty bool) (uint64, error)
	PurgeQueue(ctx context.Context, name string) (uint64, error)
	Bind(ctx context.Context, spec fsm.BindSpec) error
	Unbind(ctx context.Context, spec fsm.BindSpec) error
	Close(ctx context.Context)
}

// Outgoing is a message to publish. Properties are named as in api.Message.
type Outgoing struct {
	Exchange, RoutingKey string
	Properties           *fsm.Table
	Body                 []byte
}

// Cluster covers all nodes that answer.
type Cluster interface {
	// Nodes lists the nodes of the cluster.
	Nodes(ctx context.Context) []api.Node
	// Online reports whether a node is up, as far as this one knows.
	Online(node string) bool
	// Alarms lists the alarms in effect in the cluster.
	Alarms(ctx context.Context) []api.Alarm
	// QuorumCritical lists the queues that would lose their majority if this node stopped; nil
	// stands for the catalog.
	QuorumCritical(ctx context.Context) []*catalog.Queue
	// Leaderless lists those of the queues that have no leader.
	Leaderless(ctx context.Context, queues []*catalog.Queue) []*catalog.Queue
	// Members returns the status of each replica of a queue.
	Members(ctx context.Context, q *catalog.Queue) []api.Member
}

// Settings are the cluster-wide settings.
type Settings interface {
	Settings() []api.Setting
	// PutSetting sets a setting; nil: the program's default.
	PutSetting(ctx context.Context, name string, value *int64) error
}

// Connections are the client connections of all nodes.
type Connections interface {
	// Connections lists those of all nodes that answer, sorted by name.
	Connections(ctx context.Context) []api.Connection
	// Channels lists their channels, sorted by connection and number.
	Channels(ctx context.Context) []api.Channel
	// SessionsOf lists the sessions of one of the connections, of AMQP 1.0, ordered by their channels.
	SessionsOf(ctx context.Context, c api.Connection) ([]api.Session, error)
	// CloseConnection makes the node that a client is connected to close the connection with this
	// reason. It returns false if the connection is gone.
	CloseConnection(ctx context.Context, c api.Connection, reason string) (bool, error)
	// CancelConsumer cancels the consumer of a queue that a channel has under a tag, and tells its
	// client. It returns false if the consumer is gone.
	CancelConsumer(ctx context.Context, q *catalog.Queue, at api.ChannelDetails, tag string) (bool, error)
}

// Resources are the memory and disk of this node.
type Resources interface {
	// SetLimit changes vm_memory_high_watermark or disk_free_limit until the node restarts.
	SetLimit(name string, to api.Limit) error
}

// Membership controls which nodes belong to the cluster.
type Membership interface {
	// ForgetNode removes a node that has stopped for good.
	ForgetNode(ctx context.Context, node string) error
	// CreateToken creates a token that admits one node, which must have this name unless it is
	// empty.
	CreateToken(ctx context.Context, ttl fsm.Millis, node string) (api.JoinToken, error)
	// Tokens lists the tokens that have not expired.
	Tokens() []api.JoinToken
	// RevokeToken revokes a token; false: there is none with this id.
	RevokeToken(ctx context.Context, id string) (bool, error)
}

// Backups makes backups of the whole cluster and brings them back.
type Backups interface {
	// Backup writes a backup, at most rate bytes in a second; 0: as many as by default.
	Backup(ctx context.Context, to io.Writer, rate int64) error
	// Restore brings back what a stream holds of a backup. It says how far it got.
	Restore(ctx context.Context, from io.Reader) (api.Restored, error)
	// Export writes the messages of a queue as lines of JSON, at most rate bytes in a second; 0: as
	// many as by default. If there is no such queue, nothing is written.
	Export(ctx context.Context, to io.Writer, vhost, queue string, rate int64) error
	// Import brings such lines to a queue. Those that an earlier run with the same id has brought do
	// not come again; an empty id is a new one. CheckLines only reads them.
	Import(ctx context.Context, from io.Reader, vhost, queue string, id []byte) (api.Restored, error)
	CheckLines(from io.Reader) (messages uint64, err error)
}

// Message is a message as shown. Of one that was taken no more than the fsm.Message is known.
type Message struct {
	leader.Peeked
	Properties *fsm.Table
	Body       []byte
}
