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
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

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
	wg     sync.WaitGroup
	panics atomic.Uint64

	refuses    atomic.Bool // Refuse has closed the listener
	withdrawal withdrawal
	complaints complaints
	holdings   holdings
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
	m.holdings.init()
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
	m.goFunc(m.events.run)
	m.goFunc(m.accept)
	for _, p := range m.peers {
		m.goFunc(p.run)
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
	m.wg.Wait()
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

// goFunc runs f on a goroutine that Close waits for.
func (m *Mesh) goFunc(f func()) {
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		f()
	}()
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
		m.goFunc(p.run)
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
