package cluster

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	// pieceBytes is how much a proxy reads at a time, and pieces how many reads it
	// buffers while they are delayed; then the sender must wait.
	pieceBytes, pieces = 64 << 10, 256
	// proxyDial bounds how long a proxy takes to reach a node.
	proxyDial = time.Second
)

// Links are the links between the nodes of a cluster. Each passes through a proxy of
// its own and can be broken. Nodes are identified by their numbers. All methods can be
// called at any time.
//
// A link from one node to another is a connection that the first one has dialled;
// nodes have one in each direction, and on each of them bytes flow both ways. Refuse
// concerns the node that dials; Cut and Delay concern the direction in which bytes
// flow, on both connections.
//
// This differs from a network in one respect: when a node's process has ended, its
// proxies still accept connections, so others find these closed, not refused.
type Links struct {
	nodes   int
	target  func(node int) string
	port    int
	mu      sync.Mutex
	proxies map[pair]*proxy
	ways    map[pair]*direction
	closed  bool
	done    sync.WaitGroup
}

// pair is an ordered pair of nodes.
type pair struct{ from, to int }

// newLinks opens the proxies for nodes whose peer listeners are at target. port must
// be free on all loopback addresses.
func newLinks(nodes, port int, target func(node int) string) (*Links, error) {
	l := &Links{nodes: nodes, target: target, port: port, proxies: map[pair]*proxy{}, ways: map[pair]*direction{}}
	for from := 1; from <= nodes; from++ {
		for to := 1; to <= nodes; to++ {
			if from != to {
				p := pair{from, to}
				l.proxies[p] = &proxy{links: l, pair: p, conns: map[net.Conn]struct{}{}}
				l.ways[p] = &direction{}
			}
		}
	}
	for _, p := range l.proxies {
		if err := p.open(); err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

// address returns the address at which a node reaches another one. Each proxy has a
// loopback address of its own, so that its port cannot be taken while it is closed.
// The address that a node announces as its own has no listener, so other nodes cannot
// bypass their proxies.
func (l *Links) address(from, to int) string { return fmt.Sprintf("127.1.%d.%d:%d", from, to, l.port) }

// Refuse refuses the connections that one node dials to another, and resets those that
// are open.
func (l *Links) Refuse(from, to int) { l.proxies[pair{from, to}].shut() }

// Cut blocks the bytes that flow from one node to another. None are lost: they arrive
// when the cut has healed, as with TCP retransmission.
func (l *Links) Cut(from, to int) { l.ways[pair{from, to}].hold() }

// Delay delays the bytes that flow from one node to another.
func (l *Links) Delay(from, to int, by time.Duration) { l.ways[pair{from, to}].delay(by) }

// RefuseNode refuses all links of a node, in both directions.
func (l *Links) RefuseNode(node int) { l.each(node, l.Refuse) }

// Isolate cuts all links of a node, in both directions.
func (l *Links) Isolate(node int) { l.each(node, l.Cut) }

func (l *Links) each(node int, do func(from, to int)) {
	for other := 1; other <= l.nodes; other++ {
		if other != node {
			do(node, other)
			do(other, node)
		}
	}
}

// Heal ends the effects of Refuse, Cut and Delay.
func (l *Links) Heal() error {
	for _, w := range l.ways {
		w.flow()
	}
	var errs []error
	for _, p := range l.proxies {
		errs = append(errs, p.open())
	}
	return errors.Join(errs...)
}

func (l *Links) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	for _, p := range l.proxies {
		p.shut()
	}
	for _, w := range l.ways {
		w.flow()
	}
	l.done.Wait()
}

// proxy passes on the connections that one node dials to another.
type proxy struct {
	links *Links
	pair

	mu       sync.Mutex
	listener net.Listener // nil: connections are refused
	conns    map[net.Conn]struct{}
}

// open starts accepting connections, unless it already does.
func (p *proxy) open() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.links.address(p.from, p.to))
	if err != nil {
		return fmt.Errorf("proxy from node %d to node %d: %w", p.from, p.to, err)
	}
	p.listener = listener
	p.links.start(func() { p.accept(listener) })
	return nil
}

// start runs f on a goroutine that close waits for.
func (l *Links) start(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.done.Go(f)
	}
}

// shut refuses connections and resets those that are open.
func (p *proxy) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for c := range p.conns {
		reset(c)
	}
	clear(p.conns)
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

func (p *proxy) accept(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		p.links.start(func() { p.pass(listener, c) })
	}
}

// pass connects a connection with one to its destination node.
func (p *proxy) pass(from net.Listener, c net.Conn) {
	to, err := net.DialTimeout("tcp", p.links.target(p.to), proxyDial)
	if err != nil {
		reset(c)
		return
	}
	p.mu.Lock()
	if p.listener != from {
		p.mu.Unlock()
		reset(c)
		reset(to)
		return
	}
	p.conns[c], p.conns[to] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.links.ways[p.pair].carry(to, c) })
	both.Go(func() { p.links.ways[pair{p.to, p.from}].carry(c, to) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	delete(p.conns, to)
	p.mu.Unlock()
	_, _ = c.Close(), to.Close()
}

// direction controls how bytes flow from one node to another, on all connections.
type direction struct {
	mu     sync.Mutex
	healed chan struct{} // closed when bytes flow again; nil: they flow
	by     time.Duration
}

func (w *direction) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.healed == nil {
		w.healed = make(chan struct{})
	}
}

func (w *direction) delay(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by = by
}

func (w *direction) flow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by = 0
	if w.healed != nil {
		close(w.healed)
		w.healed = nil
	}
}

// state returns by how much bytes are delayed, and the channel that is closed when
// they flow again; nil: they flow.
func (w *direction) state() (time.Duration, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by, w.healed
}

// piece is the result of one read; without bytes it is the end of the stream.
type piece struct {
	bytes []byte
	due   time.Time
}

// carry passes on the bytes of one direction of a connection, and its end.
func (w *direction) carry(to, from net.Conn) {
	queue := make(chan piece, pieces)
	gone := make(chan struct{}) // closed when pieces are no longer read
	var reader sync.WaitGroup
	reader.Go(func() { w.read(from, queue, gone) })
	for p := range queue {
		w.wait(p.due)
		if p.bytes == nil {
			break
		}
		if _, err := to.Write(p.bytes); err != nil {
			break
		}
	}
	close(gone)
	_, _ = to.Close(), from.Close() // one direction alone is useless to a node
	reader.Wait()
}

func (w *direction) read(from net.Conn, queue chan<- piece, gone <-chan struct{}) {
	defer close(queue)
	for {
		bytes := make([]byte, pieceBytes)
		n, err := from.Read(bytes)
		by, _ := w.state()
		p := piece{bytes[:n], time.Now().Add(by)}
		if n == 0 {
			p.bytes = nil
		}
		select {
		case queue <- p:
		case <-gone:
			return
		}
		if err != nil {
			return
		}
	}
}

// wait returns when a piece that is due may be passed on.
func (w *direction) wait(due time.Time) {
	if left := time.Until(due); left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		<-timer.C
	}
	for {
		_, healed := w.state()
		if healed == nil {
			return
		}
		<-healed
	}
}
