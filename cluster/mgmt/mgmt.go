// Package mgmt is the HTTP API of a node. It answers health checks to
// everybody and everything else to users with a tag: routes.go says which
// request needs which. Pages of other sites get nothing, see cluster/origin.
package mgmt

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"regexp"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Node is what the API needs of the node.
type Node interface {
	// NotReady says why clients are not served; empty: they are.
	NotReady() string
	// Login checks the credentials of a request. A *fsm.Refusal says that it
	// could not, at the moment.
	Login(ctx context.Context, user, password string, remote netip.Addr) error
	// HashPassword makes the hash of a new password.
	HashPassword(ctx context.Context, password string) ([]byte, error)
	// View is the newest view of the catalog that this node has applied.
	View() *catalog.View
	// Propose commits commands to the catalog and returns their answers once
	// this node's view holds them.
	Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)
	// QueueStats asks the leaders of queues how these are doing; without ids, of all
	// queues. Queues without a leader that answers are missing.
	QueueStats(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]stats.Queue
	// Take gets up to count messages for a user and settles them all.
	Take(ctx context.Context, user, vhost, queue string, count int, outcome fsm.Outcome) ([]Message, error)
	// Peek shows up to limit messages of a queue, of those in a place whose
	// number is above after. more: there may be others.
	Peek(ctx context.Context, q *catalog.Queue, in queue.Place, after uint64, limit int) (list []Message, more bool, err error)
	// Consumers asks the leaders of queues for their consumers; without ids,
	// of all queues.
	Consumers(ctx context.Context, ids ...fsm.QueueID) []stats.Consumer
	// Scheduled asks a queue's leader for a page of its scheduled messages.
	Scheduled(ctx context.Context, q *catalog.Queue, r *peerpb.ScheduledRequest) ([]*peerpb.ScheduledMessage, error)
	// Command performs commands at a queue and returns their answers.
	Command(ctx context.Context, q *catalog.Queue, commands ...*logpb.Command) ([]fsm.Result, error)
	// Now is what entries are stamped with.
	Now() fsm.Time
	// Online reports whether a node is up as far as this one knows.
	Online(node string) bool
	// Defaults are the node's settings for queues that do not say otherwise.
	Defaults() catalog.Defaults
	// Replicas describes every queue replica on this node.
	ReplicasOf(queue string) []api.Replica
	// Status describes the node and the others as it sees them.
	Status() api.Status
	// Clock describes the node's clock.
	Clock() api.Clock
	// Settings lists the settings of the whole cluster.
	Settings() []api.Setting
	// PutSetting gives a setting of the whole cluster a value; nil: the
	// program's. An error that is a *fsm.Refusal is the caller's fault.
	PutSetting(ctx context.Context, name string, value *int64) error
	// Settle makes the followers of all queues that this node leads learn
	// what is committed.
	Settle(ctx context.Context) error
	// Connections lists clients' connections to all nodes that answer, by name.
	Connections(ctx context.Context) []api.Connection
	// CloseConnection has the node that a client is connected to send it away,
	// for this reason. It returns false if the connection is gone.
	CloseConnection(ctx context.Context, c api.Connection, reason string) (bool, error)
	// Version is the product's version.
	Version() string
	Operator
	Membership
	Tokens
}

// Operator is what the API needs of the node for those who keep it running.
type Operator interface {
	// Nodes lists the nodes of the cluster.
	Nodes(ctx context.Context) []api.Node
	// SetLimit changes vm_memory_high_watermark or disk_free_limit of this
	// node, until it is restarted. An error that is a *fsm.Refusal is the
	// caller's fault.
	SetLimit(name string, to api.Limit) error
	// Certificates lists when what the node shows, and checks others by, ends.
	Certificates() []api.Certificate
	// Alarms lists the alarms in effect in the cluster.
	Alarms(ctx context.Context) []api.Alarm
	// Quarantined lists the queues that do not lead on this node because work
	// for them has panicked here. LiftQuarantine lets one lead again; an error
	// that is a *fsm.Refusal is the caller's fault.
	Quarantined() []api.Quarantine
	LiftQuarantine(q *catalog.Queue) error
	// StandingStill lists the queues that this node leads and whose work makes no
	// progress.
	StandingStill() []api.Standstill
	// Unproven lists the replicas on this node that do not vote, because they
	// cannot prove what they acknowledged. The catalog's has no name.
	Unproven() []api.Unproven
	// Draining reports whether this node is about to stop.
	Draining() bool
	// Drain prepares the node for its stop; Revive undoes that.
	Drain(ctx context.Context) (api.Drained, error)
	Revive(ctx context.Context) error
	// QuorumCritical lists the queues that would lose their majority if this
	// node stopped; a nil stands for the catalog.
	QuorumCritical(ctx context.Context) []*catalog.Queue
	// Leaderless lists those of the queues that have no leader.
	Leaderless(ctx context.Context, queues []*catalog.Queue) []*catalog.Queue
	// Members says how each replica of a queue stands.
	Members(ctx context.Context, q *catalog.Queue) []api.Member
	// Rebalance spreads the leaderships of queues whose vhost and name match;
	// nil matches everything.
	Rebalance(ctx context.Context, vhosts, queues *regexp.Regexp) (api.Rebalanced, error)
	// TransferLeadership makes a node the leader of a queue. An error that is
	// a *fsm.Refusal is the caller's fault.
	TransferLeadership(ctx context.Context, q *catalog.Queue, to string) error
}

// Message is a message that is shown. What stands behind Properties is known
// of those that were looked at only.
type Message struct {
	fsm.Message
	Properties *fsm.Table
	Number     uint64
	Place      queue.Place
	ExpireAt   fsm.Time // 0: never
	DueAt      fsm.Time // scheduled or delayed only
	Deadline   fsm.Time // checked out only; 0: none
	ScheduleID string
}

// Limits of a request.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second // from the header to the end of the body
	restTimeout   = time.Second      // for the rest of one that nobody wants
	writeTimeout  = 30 * time.Second // for each part of an answer
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	maxBody       = 1 << 20
)

// Server serves the API.
type Server struct {
	node  Node
	slog  *slog.Logger
	guard *origin.Guard
	audit *audit.Log // nil: nothing is audited
	http  *http.Server
}

// New returns a server for a node that answers what guard lets through.
func New(node Node, logger *slog.Logger, guard *origin.Guard) *Server {
	s := &Server{node: node, slog: logger, guard: guard}
	s.http = &http.Server{
		Handler: http.MaxBytesHandler(bounded(s.router()), maxBody), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ConnContext:    withSocket,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve answers on a listener until Close.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends the server. Requests under way have until ctx ends.
func (s *Server) Close(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Handler answers requests as Serve does.
func (s *Server) Handler() http.Handler { return s.http.Handler }

func (s *Server) version(w http.ResponseWriter, _ *request) {
	s.answer(w, http.StatusOK, api.Version{ProductVersion: s.node.Version()})
}

func (s *Server) replicas(w http.ResponseWriter, r *request) {
	s.answer(w, http.StatusOK, orEmpty(s.node.ReplicasOf(r.URL.Query().Get("name"))))
}

// profile answers Go's profiles: cpu (for ?seconds=30), trace, and the named
// ones, such as heap and goroutine.
func (*Server) profile(w http.ResponseWriter, r *request) {
	switch name := r.PathValue("profile"); name {
	case "cpu":
		pprof.Profile(w, r.Request)
	case "trace":
		pprof.Trace(w, r.Request)
	default:
		pprof.Handler(name).ServeHTTP(w, r.Request)
	}
}

func (s *Server) settle(w http.ResponseWriter, r *request) {
	if err := s.node.Settle(r.Context()); err != nil {
		s.answer(w, http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: err.Error()})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
