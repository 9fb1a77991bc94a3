// Package metrics is the one table of a node's metrics, and its page for Prometheus.
//
// Stats are read when the page is requested, from the node's own knowledge; only the lateness of
// timers is collected as it happens. Metrics whose names begin with rabbitmq_ mean the same as in
// RabbitMQ, so that its dashboards work; the others are quorate's own. How the values are obtained
// is the node's business.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/limit"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// Stats is what a node knows about itself at one moment.
type Stats struct {
	Node, Cluster, Version string
	Clock                  clock.Status
	Resources              alarm.Resources
	Watchdog               watchdog.Stats
	Lease                  Lease
	Links                  Links
	Log                    raftlog.Metrics
	Replicas               Replicas
	Queues                 Queues
	DeadLetters            DeadLetters
	Traffic                Traffic
	Counts                 traffic.Totals
	Raft                   Raft
	Meters                 group.Meters
	Resent                 uint64 // commands to leaders, see stream.Table.Resent
	Process                Process
	Logins                 login.Tally
	Certificates           []Certificate
	Panics                 Panics
}

// Raft sums up the replicas of queues on the node.
type Raft struct {
	Term, Commit, Last, Applied uint64
	Snapshot                    int64 // of those that have one
	CommitLatency               time.Duration
	Members                     Members
}

// Members counts the replicas by what they are.
type Members struct{ Leaders, Followers, Candidates, Learners, Stopped int }

// Process is the process of the node.
type Process struct {
	Uptime          time.Duration
	Files, MaxFiles int // descriptors: open, and at most; 0: not known
}

// Lease is the right to route by the catalog, see replicated.Catalog.LeaseLeft.
type Lease struct {
	Left time.Duration
	Lost uint64
}

// Links are the links to other nodes.
type Links struct {
	Peers     []peer.PeerStatus
	Snapshots peer.SnapshotCounts
}

// Replicas are the replicas on this node.
type Replicas struct {
	Count        int
	Quarantined  int               // queues
	Unproven     int               // do not vote, see replica.Doubt
	Closed       int               // could not be opened
	Failures     uint64            // to open or drop one
	Stalled      int               // leaders that make no progress
	Resignations map[string]uint64 // of leaders, by reason
}

// Queues are the queues of the cluster. Messages are counted while this node leads their queues.
type Queues struct {
	Declared           int // in the catalog
	Led                Led
	TimedOut, LateAcks uint64 // messages
	QueuesEnded        uint64 // by themselves, while this node led them
	ExchangesExpired   uint64 // deleted by this node for being idle
	UnexpectedAnswers  uint64 // to commands that cannot get them
	RefusedCommands    uint64 // of clients
	// Declares of clients of this node with other arguments: how many changed nothing, and how many did.
	DeclaresTolerated, DeclaresAdopted uint64
}

// DeadLetters are those of the queues led by this node, since it started.
type DeadLetters struct {
	Deaths   group.Deaths
	LostOnce uint64 // see broker.LostOnce
}

// Panics counts the panics that ended the work in which they happened, and nothing else.
type Panics struct {
	Groups uint64 // in work for queues
	Peers  uint64 // in requests of other nodes
	Loops  uint64 // in the node's background work
	Broker uint64 // in work for clients and for queues led by others
}

// Certificate is one that the node presents, or that it checks others by.
type Certificate struct {
	Protocol  string
	Authority bool
	Ends      time.Time
}

// Led sums up the queues that this node leads.
type Led struct {
	queue.Stats       // as queue.Stats.Add adds; of the scheduled messages without those in stores of exchanges
	Queues            int
	Paused            int // of them: their consumers are handed nothing
	Redriving         int // of them: a redrive of their messages goes on
	ConsumersTimedOut int
	ByCredit          int // consumers that take by credit: those of AMQP 1.0
	// Ages of the oldest messages; 0: there is none.
	OldestReady, OldestUnacked, OldestScheduled fsm.Millis
	Delayed                                     []Delayed // led stores of delayed exchanges
	Times                                       Times
}

// Times compares the queues that this node leads with its clock.
type Times struct {
	NextExpiry fsm.Time   // of the first message that expires; 0: none does
	TickLag    fsm.Millis // how long the earliest deadline is overdue; 0: none is
	Ahead      fsm.Millis // of the log that is the furthest ahead of the clock; 0: none is
}

// Delayed describes what waits in the store of a delayed exchange.
type Delayed struct {
	VHost, Exchange string
	Messages        uint64
	NextDue         fsm.Time // 0: nothing waits
}

// Traffic counts what clients of this node open and close.
type Traffic struct {
	Connections                  [traffic.Protocols]Churn
	Channels                     [traffic.Protocols]Churn // sessions, of AMQP 1.0
	IncomingLinks, OutgoingLinks int
	Timeouts                     Timeouts
	Blocked                      int64 // connections, at present
	Panics                       uint64
	Listeners                    []limit.Status
	Held                         api.HeldMemory
	Requests                     map[Request]uint64
	Refused                      uint64 // messages that were settled, so that nobody was told
}

// Request is one kind of requests about entities: how it came, what it asked for, and how it was answered, as HTTP has it.
type Request struct {
	Protocol, Operation string
	Status              int
}

// Churn counts what was opened and closed.
type Churn struct{ Opened, Closed uint64 }

func (c Churn) open() uint64 { return c.Opened - c.Closed }

// sum is that of all protocols.
func sum(of [traffic.Protocols]Churn) (all Churn) {
	for _, c := range of {
		all.Opened, all.Closed = all.Opened+c.Opened, all.Closed+c.Closed
	}
	return all
}

// Timeouts counts the consumer timeouts reported to clients of this node.
type Timeouts struct{ Cancelled, Suspended, Closed, Gets uint64 }

// Metrics is a node's page.
type Metrics struct {
	gather   func() Stats
	objects  atomic.Pointer[func() Objects]
	traffic  atomic.Pointer[func() Traffic]
	registry *prometheus.Registry
	descs    []*prometheus.Desc // of the table's rows
	lateness *prometheus.HistogramVec
	sizes    *prometheus.Desc
	timings  []*prometheus.Desc
}

// New returns the page of a node; gather returns the node's stats.
func New(gather func() Stats) *Metrics {
	m := &Metrics{gather: gather, registry: prometheus.NewRegistry()}
	for i := range table {
		m.descs = append(m.descs, prometheus.NewDesc(table[i].name, table[i].help, table[i].labels, nil))
	}
	m.timings = timingDescs()
	m.sizes = prometheus.NewDesc(sizes.name, sizes.help, sizes.labels, nil)
	m.lateness = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: lateness.name, Help: lateness.help, Buckets: latenessBuckets,
	}, lateness.labels)
	m.registry.MustRegister(m, m.lateness, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// SetTraffic sets the source of the counts of what clients open and close.
func (m *Metrics) SetTraffic(f func() Traffic) { m.traffic.Store(&f) }

// Listeners returns the counts of the listeners; none: they are not known yet.
func (m *Metrics) Listeners() []limit.Status {
	if t := m.traffic.Load(); t != nil {
		return (*t)().Listeners
	}
	return nil
}

// Late records how late a timer was.
func (m *Metrics) Late(kind string, late time.Duration) {
	m.lateness.WithLabelValues(kind).Observe(late.Seconds())
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.sizes
	for _, d := range slices.Concat(m.descs, m.timings) {
		to <- d
	}
}

// sizesOf is the histogram of sizes of messages that came by a protocol.
func sizesOf(s *traffic.Sizes, desc *prometheus.Desc, p traffic.Protocol) prometheus.Metric {
	return histogramOf(desc, s.Counts[:], func(i int) float64 { return float64(traffic.SizeBounds[i]) }, float64(s.Bytes), p.String())
}

// histogramOf is a histogram of counts of which each but the last has an upper bound.
func histogramOf(desc *prometheus.Desc, counts []uint64, bound func(i int) float64, sum float64, labels ...string) prometheus.Metric {
	buckets, count := map[float64]uint64{}, uint64(0)
	for i, n := range counts {
		if count += n; i < len(counts)-1 {
			buckets[bound(i)] = count
		}
	}
	return prometheus.MustNewConstHistogram(desc, count, sum, buckets, labels...)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	f := m.gather()
	if t := m.traffic.Load(); t != nil {
		f.Traffic = (*t)()
	}
	for p := range f.Counts.By {
		to <- sizesOf(&f.Counts.By[p].Sizes, m.sizes, traffic.Protocol(p))
	}
	for i, t := range timings {
		to <- timed(t.read(&f), m.timings[i])
	}
	for i, row := range table {
		row.read(&f, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(m.descs[i], row.kind.prometheus(), value, labels...)
		})
	}
}

// Limits of the listener.
const (
	headerTimeout  = 10 * time.Second
	requestTimeout = 30 * time.Second // header and body
	answerTimeout  = time.Minute
	idleTimeout    = 2 * time.Minute
	maxHeader      = 16 << 10
	maxScrapes     = 4 // at a time
)

// Server serves the page at /metrics.
type Server struct{ http *http.Server }

// Access decides whose requests for the page are answered.
type Access struct {
	Guard *origin.Guard
	// Login reports whether a request may see the page; otherwise it answers the request.
	Login func(w http.ResponseWriter, r *http.Request) bool
}

// Server returns a server of the page.
func (m *Metrics) Server(logger *slog.Logger, access Access) *Server {
	mux := http.NewServeMux()
	errorLog := slog.NewLogLogger(logger.Handler(), slog.LevelDebug)
	scrapes := make(chan struct{}, maxScrapes)
	mux.Handle("GET /metrics/per-object", bounded(scrapes, m.perObject))
	mux.Handle("GET /metrics/detailed", bounded(scrapes, m.detailed))
	mux.Handle("GET /metrics/memory-breakdown", bounded(scrapes, m.memoryBreakdown))
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: errorLog, MaxRequestsInFlight: maxScrapes,
	}))
	return &Server{&http.Server{
		Handler: access.before(mux), ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: errorLog,
	}}
}

// before passes on to a handler only the requests that are allowed.
func (a Access) before(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin.SetHeaders(w.Header())
		if err := a.Guard.Check(r); err != nil {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintln(w, err)
			return
		}
		if a.Login(w, r) {
			page.ServeHTTP(w, r)
		}
	})
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
