// Package peer carries everything that nodes say to each other: raft, the
// messages and calls of the broker, snapshots, and the signs of life from which
// the death of a node is concluded.
//
// A Mesh connects a node with every other one. Each node dials each other node;
// the stream it opened carries its requests out and their answers back, so
// between two nodes there are two streams, each owned by who dialled. Frames of
// all raft groups and all message kinds share them, in order. Snapshots have
// streams of their own.
//
// Promised: messages to one node arrive in order and at most once for as long
// as the epoch of the link does not change; a broken link fails everything
// pending on it at once; no group can block another one's frames; nothing
// queues without a bound; payloads are not copied on their way out and are
// allocated once per received gRPC message on their way in.
//
// Not promised: delivery. Whoever sends learns of a loss only from a new epoch.
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

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// Version of the frames. Nodes of different versions refuse each other.
const Version = 1

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

	PingInterval time.Duration // 0: 150 ms
	SilentAfter  time.Duration // 0: 2 s
	RefusedAfter time.Duration // 0: 300 ms
	// LazyDelay is how long heartbeats and the like wait for company, at most.
	// 0: pings are their company, so they wait for the next one.
	LazyDelay time.Duration
	// HoldUnknown is how long raft requests wait for their group to appear,
	// because the members of a new group start at slightly different times.
	// 0: 1 s. Negative: they are refused at once.
	HoldUnknown time.Duration
	// RequestTimeout fails a raft request that is not answered. 0: 10 s.
	RequestTimeout time.Duration
	// ReconnectWait is how long AppendEntries and InstallSnapshot wait for a
	// broken link before they fail. 0: 30 s. See DESIGN.md: each failure makes
	// raft itself wait longer, up to 10 s.
	ReconnectWait time.Duration

	// SnapshotSilent is how long the sender of a snapshot may send nothing. 0: 30 s.
	SnapshotSilent time.Duration

	// WallClock is this node's wall clock in milliseconds since the epoch,
	// which answers to pings carry. nil: they carry none.
	WallClock func() int64
	// HeardClock is told what the wall clock of a node showed between a ping
	// and its answer, which has just come. It must not block. nil: nobody.
	HeardClock func(node string, wall int64, roundTrip time.Duration)
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&c.PingInterval, 150 * time.Millisecond},
		{&c.SilentAfter, 2 * time.Second},
		{&c.RefusedAfter, 300 * time.Millisecond},
		{&c.HoldUnknown, time.Second},
		{&c.RequestTimeout, 10 * time.Second},
		{&c.ReconnectWait, 30 * time.Second},
		{&c.SnapshotSilent, 30 * time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	if c.LazyDelay == 0 {
		c.LazyDelay = 2 * c.PingInterval
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Kind says what a message is about. Kinds below FirstKind are the mesh's own.
type Kind uint8

// FirstKind is the smallest kind that Handle, Send, HandleCall and Call accept.
const FirstKind Kind = 16

// MessageHandler takes one message. Handlers run on the goroutine that receives
// from the sender, one at a time and in the order sent; they must not block.
// head and payload are the handler's, but share memory with what came in the
// same gRPC message: copy a small part that is to live long.
type MessageHandler func(from string, head, payload []byte)

// CallHandler answers a call. It runs on a goroutine of its own and may block;
// ctx ends when the caller's link does.
type CallHandler func(ctx context.Context, from string, req []byte) ([]byte, error)

// Mesh is this node's end of the links to all other nodes.
type Mesh struct {
	cfg    Config
	log    *slog.Logger
	server *grpc.Server

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	panics atomic.Uint64

	withdrawn atomic.Bool
	back      atomic.Pointer[chan struct{}] // closed when the node comes back
	refusals  refusals

	mu      sync.RWMutex
	started bool
	closed  bool
	peers   map[string]*peer
	groups  map[fsm.GroupID]*transport
	held    heldRequests

	holdings           holdings
	bounds             [256]Bounds
	sending, receiving snapshotSlots
	installs           installs
	inbound            atomic.Int64 // bytes of requests that groups have not answered
	inboundLimit       int64

	messages [256]atomic.Pointer[MessageHandler]
	calls    [256]atomic.Pointer[CallHandler]
	events   events
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
	m := &Mesh{
		cfg:    cfg,
		log:    cfg.Logger,
		peers:  make(map[string]*peer),
		groups: make(map[fsm.GroupID]*transport),
	}
	m.held.init(m)
	m.holdings.init()
	for k := range m.bounds {
		m.bounds[k] = defaultBounds
	}
	m.inboundLimit = inboundBudget
	m.sending.init()
	m.receiving.init()
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

// Start accepts and dials.
func (m *Mesh) Start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started || m.closed {
		return
	}
	m.started = true
	m.goFunc(m.events.run)
	m.goFunc(func() {
		l := &limitedListener{Listener: m.cfg.Listener, log: func(err error) { m.Complain("", "refused a connection", err) }}
		if err := m.server.Serve(l); err != nil && m.ctx.Err() == nil {
			m.log.Error("peer listener failed", slog.Any("error", err))
		}
	})
	for _, p := range m.peers {
		m.goFunc(p.run)
	}
}

// Close breaks all links, fails everything pending and waits for every
// goroutine of the mesh. Handlers are not called afterwards.
func (m *Mesh) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	started := m.started
	groups := m.groups
	m.groups = make(map[fsm.GroupID]*transport)
	m.held.clear()
	m.mu.Unlock()
	m.cancel()
	for _, t := range groups {
		t.shut()
	}
	m.server.Stop()
	if !started {
		m.cfg.Listener.Close()
	}
	m.events.close()
	m.wg.Wait()
	return nil
}

// Panics counts the panics in handlers since the mesh was made.
func (m *Mesh) Panics() uint64 { return m.panics.Load() }

// contain is deferred around what another node has asked for. A panic costs the
// message, or the stream, and not the process: the sender would send the same
// to the next node.
func (m *Mesh) contain(doing, node string) {
	if p := recover(); p != nil {
		m.panics.Add(1)
		if !m.refusals.first(node, "panic: "+doing) {
			return
		}
		m.log.Error("panic in what another node asked for", slog.String("node", node), slog.String("doing", doing),
			slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	}
}

// goFunc runs f on a goroutine that Close waits for.
func (m *Mesh) goFunc(f func()) {
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		f()
	}()
}

// AddPeer adds a node, or changes the addresses of a known one. It is looked
// for at each of them in turn, the first one first.
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
		m.goFunc(p.run)
	}
	return nil
}

// RemovePeer breaks the links with a node and forgets it. Watchers see it go
// down with reason Removed if it was up.
func (m *Mesh) RemovePeer(name string) {
	m.mu.Lock()
	p := m.peers[name]
	delete(m.peers, name)
	m.mu.Unlock()
	if p != nil {
		p.remove()
	}
}

func (m *Mesh) peer(name string) *peer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.peers[name]
}

// Prompt makes the heartbeats of a group urgent: its timers are too short to
// let them wait for company. The group's transport must exist.
func (m *Mesh) Prompt(group fsm.GroupID) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if t := m.groups[group]; t != nil {
		t.prompt.Store(true)
	}
}

// Withhold keeps from the local member of a group, while yes says so, what
// would make it a candidate, whoever asks for that, and answers for it whoever
// asks whether it would vote. Raft sees what asks for a vote: it learns the
// term from it, and must find out by its store that it has none to give. The
// group's transport must exist.
func (m *Mesh) Withhold(group fsm.GroupID, yes func() bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if t := m.groups[group]; t != nil {
		t.withheld.Store(&yes)
	}
}

// DropGroup forgets a group's transport: everything it has pending fails, and
// requests for the group are those for an unknown one.
func (m *Mesh) DropGroup(group fsm.GroupID) {
	m.mu.Lock()
	t := m.groups[group]
	delete(m.groups, group)
	m.mu.Unlock()
	if t != nil {
		t.shut()
	}
}

// Campaign makes the local member of group stand for election at once, as if
// its leader had sent TimeoutNow. It does nothing if the group is unknown or
// does not keep up with its requests.
func (m *Mesh) Campaign(group fsm.GroupID) {
	m.mu.RLock()
	t := m.groups[group]
	m.mu.RUnlock()
	if t != nil {
		t.campaign()
	}
}

// StepDown makes the local member of group, if it is a candidate in an earlier
// term, a follower in this one: it injects a request for a vote for another
// member whose log is said to be empty, so that no vote is given. It does
// nothing if the group is unknown or does not keep up with its requests.
func (m *Mesh) StepDown(group fsm.GroupID, term uint64, other string) {
	m.stepDown(group, term, other, false)
}

// Resign makes the local member of group, if it leads in an earlier term, a
// follower in this one: as StepDown, but a vote that is asked for as if the
// leader had agreed, so that it counts with members that know a leader.
func (m *Mesh) Resign(group fsm.GroupID, term uint64, other string) {
	m.stepDown(group, term, other, true)
}

func (m *Mesh) stepDown(group fsm.GroupID, term uint64, other string, agreed bool) {
	m.mu.RLock()
	t := m.groups[group]
	m.mu.RUnlock()
	if t != nil {
		t.stepDown(term, other, agreed)
	}
}

// Handle sets the handler of a message kind. Messages without one are dropped.
func (m *Mesh) Handle(k Kind, h func(from string, head []byte, payload []byte)) {
	mustApplicationKind(k)
	mh := MessageHandler(h)
	m.messages[k].Store(&mh)
}

// HandleCall sets the handler of a call kind. Calls without one are refused.
func (m *Mesh) HandleCall(k Kind, h func(ctx context.Context, from string, req []byte) ([]byte, error)) {
	mustApplicationKind(k)
	ch := CallHandler(h)
	m.calls[k].Store(&ch)
}

func mustApplicationKind(k Kind) {
	if k < FirstKind {
		panic(fmt.Sprintf("peer: kind %d is reserved", k))
	}
}

// Send queues a message for node and returns. Messages to a node keep their
// order. head is copied; payloads may be kept by reference until they are sent
// and must never change. An error (ErrDown, ErrBacklog, ErrTooLarge,
// ErrUnknownNode) means that the message will not be sent; nil promises
// nothing. The own node is an unknown one.
func (m *Mesh) Send(node string, k Kind, head []byte, payloads ...[]byte) error {
	mustApplicationKind(k)
	l, err := m.link(node)
	if err != nil {
		return err
	}
	return l.out.pushMessage(k, head, payloads)
}

// SendWait is Send for who can wait: while too much is waiting for the link
// (ErrBacklog), it waits with it.
func (m *Mesh) SendWait(node string, k Kind, head []byte, payloads ...[]byte) error {
	mustApplicationKind(k)
	for {
		l, err := m.link(node)
		if err != nil {
			return err
		}
		if err = l.out.pushMessage(k, head, payloads); !errors.Is(err, ErrBacklog) {
			return err
		}
		if room := l.out.waitRoom(classApp); room != nil {
			<-room // closed with the link at the latest
		}
	}
}

func (m *Mesh) link(node string) (*link, error) {
	p := m.peer(node)
	if p == nil {
		return nil, ErrUnknownNode
	}
	if l := p.link.Load(); l != nil {
		return l, nil
	}
	return nil, ErrDown
}

// Call sends a request and waits for the answer of node's call handler, for
// the end of ctx, or for the link to break. req may be kept by reference, even
// after Call has returned: it must never change; so must a handler's reply.
// A *RemoteError is the handler's own error; after any other one except ErrDown, ErrBacklog, ErrTooLarge and
// ErrUnknownNode the handler may have run.
func (m *Mesh) Call(ctx context.Context, node string, k Kind, req []byte) ([]byte, error) {
	mustApplicationKind(k)
	l, err := m.link(node)
	if err != nil {
		return nil, err
	}
	f, err := l.exchange(ctx.Done(), header{kind: kindCall, arg: uint32(k)}, rawBody(req), classApp, urgent)
	if err == errAbandoned {
		return nil, ctx.Err()
	}
	return f.body, err
}

// Watch has f called for every change of a peer, one call at a time and in
// order, beginning with an Up for each peer that is up already. f must not
// block.
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

// Alive reports whether node is up. This node always is. A peer whose link has
// just broken is alive until there is evidence of its death.
func (m *Mesh) Alive(node string) bool {
	if node == m.cfg.Node {
		return true
	}
	p := m.peer(node)
	return p != nil && p.isAlive()
}

// RefusedFor is for how long the host of a node has refused every connection.
// The Down event comes much earlier: what cannot be reached cannot be used. That
// the process has ended is certain only if this goes on and nobody hears it.
func (m *Mesh) RefusedFor(node string) time.Duration {
	if p := m.peer(node); p != nil {
		return p.refusedFor()
	}
	return 0
}

// Hears reports whether the process of another node that has this incarnation
// gives signs of life here, on a link in either direction.
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

// PeerStatus is what is known about another node.
type PeerStatus struct {
	Node    string
	Address string
	// Alive as in Mesh.Alive; Linked: messages can be sent now.
	Alive, Linked bool
	Incarnation   [16]byte
	Epoch         uint64
	// Backlog is the number of bytes waiting to be sent.
	Backlog int
	// RoundTrip of the last answered ping; 0: none yet.
	RoundTrip time.Duration
}

// Peers returns the status of all other nodes, by name.
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
