// Package peer carries all communication between nodes: raft, the messages and calls of the
// broker, snapshots, and the signs of life from which the death of a node is concluded.
//
// A Mesh connects a node with every other one. Each node dials each other node; the stream it
// opened carries its requests out and their answers back, so between two nodes there are two
// streams, each owned by the node that dialled it. Frames of all raft groups and all message kinds
// share them, in order. Snapshots have streams of their own.
//
// Promised: messages to one node arrive in order and at most once for as long as the epoch of the
// link does not change; a broken link fails everything pending on it at once; no group can block
// another one's frames; every queue is bounded; payloads are not copied on their way out and are
// allocated once per received gRPC message on their way in.
//
// Not promised: delivery. A sender learns of a loss only from a new epoch.
package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/quorate/quorate/proto/peerpb"
)

// Version of the frames. Nodes of different versions refuse each other.
const Version = 1

// Mesh is this node's end of the links to all other nodes.
type Mesh struct {
	cfg    Config
	log    *slog.Logger
	server *grpc.Server

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   sync.WaitGroup // everything that Close waits for, also what begins while it does
	panics atomic.Uint64

	refuses    atomic.Bool // Refuse has closed the listener
	withdrawal withdrawal
	complaints complaints
	limits     inboundLimits
	groups     groups
	snapshots  snapshotTraffic
	handlers   handlers
	events     events

	// mu guards the fields below. closed is final; no peer is added once it is set.
	mu      sync.RWMutex
	started bool
	closed  bool
	peers   map[string]*peer
}

// New returns a mesh that is not connected yet. Handlers and transports may be
// set up before Start.
func New(cfg Config) (*Mesh, error) {
	switch {
	case cfg.Node == "":
		return nil, errors.New("peer: no node name")
	case cfg.Listener == nil:
		return nil, errors.New("peer: no listener")
	case cfg.Incarnation == [16]byte{}:
		return nil, errors.New("peer: no incarnation")
	}
	cfg.setDefaults()
	m := &Mesh{cfg: cfg, log: cfg.Logger, peers: make(map[string]*peer)}
	m.limits.init()
	m.groups.init(m)
	m.snapshots.init()
	m.handlers.init()
	m.events.init()
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.server = newServer(m)
	peerpb.RegisterPeerServer(m.server, &service{m: m})
	for name, addr := range cfg.Peers {
		if err := m.AddPeer(name, addr); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Start begins to accept connections and to dial peers.
func (m *Mesh) Start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started || m.closed {
		return
	}
	m.started = true
	m.done.Go(m.events.run)
	m.done.Go(m.accept)
	for _, p := range m.peers {
		m.done.Go(p.run)
	}
}

// accept takes other nodes' connections until the mesh is closed.
func (m *Mesh) accept() {
	l := &limitedListener{Listener: m.cfg.Listener, log: func(what string, err error) { m.Complain("", what, err) }, stop: m.ctx.Done()}
	if err := m.server.Serve(l); err != nil && m.ctx.Err() == nil && !m.refuses.Load() {
		m.log.Error("no other node can reach this one: its listener is gone", slog.Any("error", err))
		m.cfg.Failed(err)
	}
}

// Close breaks all links, fails everything pending and waits for every goroutine of the mesh. No
// handler is called afterwards.
func (m *Mesh) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	started := m.started
	m.mu.Unlock()
	m.cancel()
	m.groups.close()
	m.server.Stop()
	if !started {
		m.cfg.Listener.Close()
	}
	m.events.close()
	m.done.Wait()
	return nil
}

// Panics returns the number of panics in handlers since the mesh was created.
func (m *Mesh) Panics() uint64 { return m.panics.Load() }

// contain is deferred around work that another node has requested. A panic costs the message or
// the stream, not the process: otherwise the sender would send the same to the next node.
func (m *Mesh) contain(doing, node string) {
	if p := recover(); p != nil {
		m.panics.Add(1)
		if !m.complaints.first(node, "panic: "+doing) {
			return
		}
		m.log.Error("panic while serving a request of another node", slog.String("node", node), slog.String("doing", doing),
			slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	}
}

// AddPeer adds a node, or changes the addresses of a known one. The addresses are tried in order.
func (m *Mesh) AddPeer(name string, addrs ...string) error {
	if name == "" || name == m.cfg.Node {
		return fmt.Errorf("peer: %q cannot be a peer of %q", name, m.cfg.Node)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	if p := m.peers[name]; p != nil {
		p.setAddresses(addrs)
		return nil
	}
	p := newPeer(m, name, addrs)
	m.peers[name] = p
	if m.started {
		m.done.Go(p.run)
	}
	return nil
}

// RemovePeer breaks the links with a node and forgets it. If it was up, watchers see it go down
// with reason Removed.
func (m *Mesh) RemovePeer(name string) {
	m.mu.Lock()
	p := m.peers[name]
	delete(m.peers, name)
	m.mu.Unlock()
	if p != nil {
		p.remove()
		m.groups.forget(name)
	}
}

func (m *Mesh) peer(name string) *peer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.peers[name]
}

// Watch makes f be called for every change of a peer, one call at a time and in order, beginning
// with an Up for each peer that is up already. f must not block.
func (m *Mesh) Watch(f func(Event)) { m.events.watch(f, m.upEvents) }

func (m *Mesh) upEvents() []Event {
	var evs []Event
	for _, p := range m.sortedPeers() {
		if ev, ok := p.upEvent(); ok {
			evs = append(evs, ev)
		}
	}
	return evs
}

// Alive reports whether node is up. This node always is. A peer whose link has just broken is
// alive until there is evidence of its death.
func (m *Mesh) Alive(node string) bool {
	if node == m.cfg.Node {
		return true
	}
	p := m.peer(node)
	return p != nil && p.isAlive()
}

// RefusedFor returns for how long the host of a node has refused every connection. The Down event
// comes much earlier: a node that cannot be reached cannot be used. It is certain that the process
// has ended only if this continues and no other node hears it.
func (m *Mesh) RefusedFor(node string) time.Duration {
	if p := m.peer(node); p != nil {
		return p.refusedFor()
	}
	return 0
}

// Hears reports whether the process of another node with this incarnation gives signs of life
// here, on a link in either direction.
func (m *Mesh) Hears(node string, incarnation []byte) bool {
	p := m.peer(node)
	return p != nil && p.hears(incarnation)
}

// HasMajority reports whether more than half of these nodes are alive.
func (m *Mesh) HasMajority(of []string) bool {
	n := 0
	for _, node := range of {
		if m.Alive(node) {
			n++
		}
	}
	return n > len(of)/2
}

// Slack returns by how much a bound on what a majority of these nodes do has to be longer than among near
// nodes on a machine that has time for them: the round trip of the links to the nearest ones, up to
// maxRoundTrip, and the lateness of this process's timers as often as lateWeight, up to SuspectAfter.
// It is about 0 where all is well. A node without a link counts as it was when it had the last one.
func (m *Mesh) Slack(of ...string) time.Duration {
	return m.majority(of, func(p *peer) *atomic.Int64 { return &p.slack })
}

// RoundTrip returns that of the links to the nearest nodes that are a majority of these, up to maxRoundTrip.
// A node without a link counts as it was when it had the last one.
func (m *Mesh) RoundTrip(of ...string) time.Duration {
	return m.majority(of, func(p *peer) *atomic.Int64 { return &p.roundTrip })
}

// majority returns the least time within which more than half of the nodes are; this one is at 0.
func (m *Mesh) majority(of []string, within func(*peer) *atomic.Int64) time.Duration {
	all := make([]time.Duration, len(of))
	for i, node := range of {
		if p := m.peer(node); p != nil {
			all[i] = time.Duration(within(p).Load())
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// PeerStatus describes another node.
type PeerStatus struct {
	Node    string
	Address string
	// Alive as in Mesh.Alive; Linked: messages can be sent now.
	Alive, Linked bool
	Incarnation   [16]byte
	Epoch         uint64
	// Backlog is the number of bytes waiting to be sent.
	Backlog int
	// Sent counts the frames sent to it: messages, requests, answers and pings, each piece of a long one.
	Sent uint64
	// RoundTrip of the last answered ping, or of the hello; 0: there is no link.
	RoundTrip time.Duration
}

// Peers returns the status of all other nodes, ordered by name.
func (m *Mesh) Peers() []PeerStatus {
	var all []PeerStatus
	for _, p := range m.sortedPeers() {
		all = append(all, p.status())
	}
	return all
}

func (m *Mesh) sortedPeers() []*peer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make([]*peer, 0, len(m.peers))
	for _, p := range m.peers {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *peer) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return all
}

// Config says who this node is and how it reaches the others.
type Config struct {
	// Node is the name of this node, Cluster that of the cluster; peers with
	// another cluster name are refused.
	Node    string
	Cluster string
	// Incarnation differs from that of every earlier run of this node.
	Incarnation [16]byte
	// Identity is that of the node's data folder; nil: none.
	Identity []byte
	// Admit says whether a node with this identity may have a link; nil: all
	// nodes that are peers may. It must not block.
	Admit func(node string, identity []byte) error
	// Introduce answers nodes that have no link, see Introduce. nil: they are
	// refused.
	Introduce func(ctx context.Context, who Caller, ask []byte) ([]byte, error)
	// Listener accepts the other nodes' connections. The Mesh closes it.
	Listener net.Listener
	// Failed is called if the listener is gone: no other node will reach this one
	// again. nil: that is only logged.
	Failed func(error)
	// Dial connects to an address out of Peers. An error that wraps
	// syscall.ECONNREFUSED counts as evidence that no process listens there.
	// nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Peers maps the names of the other nodes to their addresses.
	Peers map[string]string
	// Security has nodes prove their names, and hides what they say. nil: links
	// are plain, and whoever reaches the listener is believed.
	Security *Security
	Logger   *slog.Logger // nil: discarded

	Timing

	// WallClock is this node's wall clock in milliseconds since the epoch,
	// which answers to pings carry. nil: they carry none.
	WallClock func() int64
	// HeardClock is called with what the wall clock of a node showed between a ping,
	// sent at asked, and its answer, which has come. It must not block. nil: nothing is called.
	HeardClock func(node string, wall int64, asked time.Time)
}

// Timing says how long a Mesh waits for what.
type Timing struct {
	// PingInterval is the time between pings on a link that is young or does not
	// answer, at most half of SuspectAfter. 0: 150 ms.
	PingInterval time.Duration
	// RestInterval is the time between pings on any other link, at most two fifths
	// of SuspectAfter. 0: 500 ms, or PingInterval if that is given.
	RestInterval time.Duration
	// SuspectAfter is after how long without a sign of life a node is down; later by
	// the round trip of its link, and up to twice as late where this process itself
	// gets a processor late. 0: 1.3 s.
	SuspectAfter time.Duration
	// RefusedAfter is after how long without a link, while the node's host refuses
	// connections, it is down. 0: 150 ms.
	RefusedAfter time.Duration
	// LazyDelay is how long heartbeats and the like wait for company, at most.
	// 0: pings are their company, so they wait for the next one.
	LazyDelay time.Duration
	// EarlyWait is how long raft requests wait for their group to appear,
	// because the members of a new group start at slightly different times.
	// 0: 1 s. Negative: they are refused at once.
	EarlyWait time.Duration
	// RequestTimeout fails a raft request that is not answered. 0: 10 s.
	RequestTimeout time.Duration
	// ReconnectWait is how long AppendEntries and InstallSnapshot wait for a
	// broken link before they fail. 0: 30 s. See DESIGN.md: each failure makes
	// raft itself wait longer, up to 10 s.
	ReconnectWait time.Duration
	// SnapshotStall is how long the sender of a snapshot may send nothing. 0: 30 s.
	SnapshotStall time.Duration
}

func (c *Config) setDefaults() {
	if c.RestInterval == 0 && c.PingInterval == 0 {
		c.RestInterval = 500 * time.Millisecond
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&c.PingInterval, 150 * time.Millisecond},
		{&c.SuspectAfter, 1300 * time.Millisecond},
		{&c.RefusedAfter, 150 * time.Millisecond},
		{&c.EarlyWait, time.Second},
		{&c.RequestTimeout, 10 * time.Second},
		{&c.ReconnectWait, 30 * time.Second},
		{&c.SnapshotStall, 30 * time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	c.PingInterval = min(c.PingInterval, c.SuspectAfter/2)
	c.RestInterval = max(min(c.RestInterval, c.SuspectAfter*2/5), c.PingInterval)
	if c.LazyDelay == 0 {
		c.LazyDelay = 2 * c.RestInterval
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if c.Failed == nil {
		c.Failed = func(error) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

const (
	streamWindow = 8 << 20
	connWindow   = 32 << 20
	socketBuffer = 128 << 10
	// maxReceive is what one message of a stream comes to, and what gRPC counts
	// beside the frames; a snapshot's receiver may have more to say.
	maxReceive = longMessage + headerSize + 1<<10
	maxOffer   = 32<<20 + 1<<10
	// maxHeaders bounds the metadata of a stream.
	maxHeaders = 8 << 10
	// idleConnection is for how long a connection may have no stream.
	idleConnection = time.Minute
	// pingsEvery is how often the other side may send HTTP/2 pings: no node does.
	pingsEvery = 10 * time.Second
)

// newServer returns a server whose handlers run within a boundary: gRPC has none.
func newServer(m *Mesh) *grpc.Server {
	contain := m.contain
	return grpc.NewServer(
		grpc.Creds(newServerCredentials(m.cfg.Security, m.Complain)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsEvery}),
		grpc.InTapHandle((&service{m: m}).tap),
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ReadBufferSize(0), // connections read ahead themselves
		grpc.WriteBufferSize(socketBuffer),
		experimental.BufferPool(frames),
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxSendMsgSize(maxOffer),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(helloWait),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleConnection}),
		grpc.WaitForHandlers(true),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			err = status.Error(codes.Internal, errPanic.Error())
			defer contain(info.FullMethod, "")
			return next(srv, s)
		}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
			err = status.Error(codes.Internal, errPanic.Error())
			defer contain(info.FullMethod, "")
			return next(ctx, req)
		}),
	)
}

var errConnUsed = errors.New("peer: the link's connection is gone")

// newClientConn speaks gRPC over conn and only over conn: when it breaks, so
// does the client. Redialling is the business of the peer, which draws
// conclusions from it. What the other side has to prove it has proved on conn.
func newClientConn(conn net.Conn) (*grpc.ClientConn, error) {
	var used atomic.Bool
	return grpc.NewClient("passthrough:///peer",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errConnUsed
			}
			return conn, nil
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithReadBufferSize(0),
		grpc.WithWriteBufferSize(socketBuffer),
		experimental.WithBufferPool(frames),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rawCodec{}),
			grpc.MaxCallRecvMsgSize(maxReceive),
			grpc.MaxCallSendMsgSize(maxReceive),
		),
	)
}

// tap refuses streams before anything is kept for them: only questions without
// a link may come from who is no member.
func (s *service) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	p := proofOf(ctx)
	if p.plain || info.FullMethodName == peerpb.Peer_Introduce_FullMethodName {
		return ctx, nil
	}
	for _, name := range p.names {
		if s.m.peer(name) != nil {
			return ctx, nil
		}
	}
	if s.m.cfg.Admit != nil {
		for _, name := range p.names {
			_ = s.m.cfg.Admit(name, nil) // whoever answers it may find out that this node is behind
		}
	}
	err := fmt.Errorf("%w: %q", ErrUnknownNode, p.names)
	s.m.Complain(host(ctx), "refused a link", err)
	return nil, status.Error(codes.PermissionDenied, err.Error())
}
