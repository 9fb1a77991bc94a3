package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Clients is the number by which all clients of a cluster are identified in Links.
const Clients = 0

// Shape is how bytes flow from one node to another. The zero Shape disturbs nothing.
type Shape struct {
	Cut    bool          // nothing arrives until the way is healed
	Delay  time.Duration // everything arrives so much later,
	Jitter time.Duration // and by up to so much more, drawn anew each time
	Rate   int           // bytes a second; 0: no limit
	// Loss and Reorder are the shares of packets that are lost, and that others overtake.
	// Only links that carry packets have them; see Packets.
	Loss, Reorder float64
}

// Links are the links between the nodes of a cluster, and between clients and nodes. Each
// can be broken. Nodes are identified by their numbers. All methods can be called at any
// time.
//
// A link from one node to another is a connection that the first one has dialled;
// nodes have one in each direction, and on each of them bytes flow both ways. Refuse, Reset,
// Stall and HalfOpen concern the node that dials; Cut, Delay and Set concern the direction
// in which bytes flow, on both connections.
//
// Proxies carry byte streams. They differ from a network in one respect: when a node's
// process has ended, they still accept connections, so others find these closed, not
// refused.
type Links struct {
	nodes   int
	target  func(from, to int) string
	port    int
	mu      sync.Mutex
	carrier carrier
	packets *packets // the carrier, if it is one of packets
	ways    map[pair]*way
	closed  bool
	done    sync.WaitGroup
}

// carrier carries what flows between nodes, as the ways of the links say. Who dials whom is a
// pair.
type carrier interface {
	refuse(which pair)
	reset(which pair)
	stall(which pair, half bool)
	heal() error
	close()
}

// pair is an ordered pair of nodes.
type pair struct{ from, to int }

// newLinks opens the proxies for nodes that listen at target, for nodes and for clients.
// port must be free on all loopback addresses.
func newLinks(nodes, port int, target func(from, to int) string) (*Links, error) {
	l := newWays(nodes, port)
	l.target = target
	all := proxies{}
	l.carrier = all
	for p := range l.ways {
		if p.to != Clients {
			all[p] = &proxy{links: l, pair: p, conns: map[*passed]struct{}{}}
		}
	}
	if err := all.heal(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// newPacketLinks makes the links of nodes that have networks of their own, where they listen on
// port for each other, and on the other ports for clients.
func newPacketLinks(nodes, port int, clients ...uint16) (l *Links, err error) {
	l = newWays(nodes, port)
	if l.packets, err = newPackets(l, nodes, append(clients, uint16(port))...); err != nil {
		return nil, err
	}
	l.carrier = l.packets
	return l, nil
}

func newWays(nodes, port int) *Links {
	l := &Links{nodes: nodes, port: port, ways: map[pair]*way{}}
	for from := Clients; from <= nodes; from++ {
		for to := Clients; to <= nodes; to++ {
			if from != to {
				l.ways[pair{from, to}] = &way{}
			}
		}
	}
	return l
}

// address returns the address at which a node, or clients, reach another one. Each proxy has
// a loopback address of its own, so that its port cannot be taken while it is closed.
// The address that a node announces as its own has no listener, so other nodes cannot
// bypass their proxies.
func (l *Links) address(from, to int) string {
	if l.packets != nil {
		return fmt.Sprintf("%s:%d", hostAddress(to), l.port)
	}
	return fmt.Sprintf("127.1.%d.%d:%d", from, to, l.port)
}

// Refuse refuses the connections that one node dials to another, and resets those that
// are open.
func (l *Links) Refuse(from, to int) { l.carrier.refuse(pair{from, to}) }

// Reset resets the open connections that one node has dialled to another.
func (l *Links) Reset(from, to int) { l.carrier.reset(pair{from, to}) }

// Stall makes the open connections that one node has dialled to another carry nothing, both
// ways, until they are healed. New ones are not concerned.
func (l *Links) Stall(from, to int) { l.carrier.stall(pair{from, to}, false) }

// HalfOpen resets the open connections that one node has dialled to another, but only for
// the node that was dialled: the other one hears nothing of it until they are healed.
func (l *Links) HalfOpen(from, to int) { l.carrier.stall(pair{from, to}, true) }

// Set shapes the way from one node to another.
func (l *Links) Set(from, to int, s Shape) { l.ways[pair{from, to}].set(func(now *Shape) { *now = s }) }

// Cut blocks what flows from one node to another. Bytes of streams are not lost: they arrive
// when the cut has healed.
func (l *Links) Cut(from, to int) { l.ways[pair{from, to}].set(func(s *Shape) { s.Cut = true }) }

// Delay delays the bytes that flow from one node to another.
func (l *Links) Delay(from, to int, by time.Duration) {
	l.ways[pair{from, to}].set(func(s *Shape) { s.Delay = by })
}

// RefuseNode refuses all links of a node with others, in both directions.
func (l *Links) RefuseNode(node int) { l.each(node, l.Refuse) }

// Isolate cuts all links of a node with others, in both directions. Clients reach it.
func (l *Links) Isolate(node int) { l.each(node, l.Cut) }

func (l *Links) each(node int, do func(from, to int)) {
	for other := 1; other <= l.nodes; other++ {
		if other != node {
			do(node, other)
			do(other, node)
		}
	}
}

// Packets returns why the links cannot lose and reorder packets; nil: they can.
func (l *Links) Packets() error {
	if l.packets != nil {
		return nil
	}
	return errors.New("proxies carry byte streams: they lose and reorder nothing")
}

// Heal ends the effects of all other methods.
func (l *Links) Heal() error {
	for _, w := range l.ways {
		w.set(func(s *Shape) { *s = Shape{} })
	}
	return l.carrier.heal()
}

func (l *Links) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	for _, w := range l.ways {
		w.set(func(s *Shape) { *s = Shape{} })
	}
	l.carrier.close()
	l.done.Wait()
}

// start runs f on a goroutine that close waits for.
func (l *Links) start(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.done.Go(f)
	}
}

const (
	// pieceBytes is how much a proxy reads at a time, and pieces how many reads it
	// buffers while they are delayed; then the sender must wait.
	pieceBytes, pieces = 64 << 10, 256
	// proxyDial bounds how long a proxy takes to reach a node.
	proxyDial = time.Second
)

// proxies carry the connections between nodes, and from clients, by who dials whom.
type proxies map[pair]*proxy

func (all proxies) refuse(which pair)           { all[which].shut() }
func (all proxies) reset(which pair)            { all[which].resetAll() }
func (all proxies) stall(which pair, half bool) { all[which].stall(half) }

func (all proxies) heal() error {
	var errs []error
	for _, p := range all {
		p.flow()
		errs = append(errs, p.open())
	}
	return errors.Join(errs...)
}

func (all proxies) close() {
	for _, p := range all {
		p.flow()
		p.shut()
	}
}

// proxy passes on the connections that one node dials to another.
type proxy struct {
	links *Links
	pair

	mu       sync.Mutex
	listener net.Listener // nil: connections are refused
	conns    map[*passed]struct{}
}

// passed is a connection that a proxy passes on.
type passed struct {
	dialled, target net.Conn
	gate            way // of both directions
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

// shut refuses connections and resets those that are open.
func (p *proxy) shut() {
	p.mu.Lock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.mu.Unlock()
	p.resetAll()
}

func (p *proxy) resetAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c.dialled)
		reset(c.target)
		c.gate.set(func(s *Shape) { s.Cut = false })
	}
	clear(p.conns)
}

// stall makes the open connections silent. If they are half open, those who were dialled
// find them reset.
func (p *proxy) stall(half bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.gate.set(func(s *Shape) { s.Cut = true })
		if half {
			reset(c.target)
		}
	}
}

// flow ends what stall did.
func (p *proxy) flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.gate.set(func(s *Shape) { s.Cut = false })
	}
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
func (p *proxy) pass(from net.Listener, dialled net.Conn) {
	target, err := net.DialTimeout("tcp", p.links.target(p.from, p.to), proxyDial)
	if err != nil {
		reset(dialled)
		return
	}
	c := &passed{dialled: dialled, target: target}
	p.mu.Lock()
	if p.listener != from {
		p.mu.Unlock()
		reset(dialled)
		reset(target)
		return
	}
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	there, back := p.links.ways[p.pair], p.links.ways[pair{p.to, p.from}]
	var both sync.WaitGroup
	both.Go(func() { c.carry(target, dialled, there, back) })
	both.Go(func() { c.carry(dialled, target, back, there) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	_, _ = dialled.Close(), target.Close()
}

// piece is the result of one read; without bytes it is the end of the stream.
type piece struct {
	bytes []byte
	due   time.Time
}

// carry passes on the bytes of one direction of a connection, and its end. No end learns
// that the other one is gone while bytes from there would not arrive.
func (c *passed) carry(to, from net.Conn, there, back *way) {
	queue := make(chan piece, pieces)
	gone := make(chan struct{}) // closed when pieces are no longer read
	var reader sync.WaitGroup
	reader.Go(func() { there.read(from, queue, gone) })
	for p := range queue {
		there.wait(p.due)
		c.gate.wait(time.Time{})
		if p.bytes == nil {
			break
		}
		if _, err := to.Write(p.bytes); err != nil {
			c.gate.wait(time.Time{})
			back.wait(time.Time{})
			break
		}
	}
	close(gone)
	_, _ = to.Close(), from.Close() // one direction alone is useless to a node
	reader.Wait()
}

// way is a direction in which bytes flow, on all connections between two nodes.
type way struct {
	mu      sync.Mutex
	shape   Shape
	changed chan struct{} // closed when the shape changes; nil: nobody waits for it
	free    time.Time     // when bytes may be sent again, at the rate
}

func (w *way) set(change func(*Shape)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.shape)
	if w.free = (time.Time{}); w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// state returns the shape, and a channel that is closed when it has changed.
func (w *way) state() (Shape, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.shape, w.changed
}

// reserve returns when bytes will have been sent at the way's rate; zero: at once.
func (w *way) reserve(bytes int) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shape.Rate == 0 {
		return time.Time{}
	}
	if now := time.Now(); w.free.Before(now) {
		w.free = now
	}
	w.free = w.free.Add(time.Duration(bytes) * time.Second / time.Duration(w.shape.Rate))
	return w.free
}

// backlog is how long it takes to send what waits already.
func (w *way) backlog() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Until(w.free)
}

// late draws how much later something arrives.
func (s Shape) late() time.Duration {
	if s.Jitter > 0 {
		return s.Delay + rand.N(s.Jitter)
	}
	return s.Delay
}

func (w *way) read(from net.Conn, queue chan<- piece, gone <-chan struct{}) {
	defer close(queue)
	for {
		bytes := make([]byte, pieceBytes)
		n, err := from.Read(bytes)
		if sent := w.reserve(n); !sent.IsZero() {
			w.until(sent, func(s Shape) bool { return s.Rate > 0 })
		}
		shape, _ := w.state()
		p := piece{bytes[:n], time.Now().Add(shape.late())}
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
func (w *way) wait(due time.Time) {
	w.until(due, func(s Shape) bool { return s.Delay+s.Jitter > 0 })
	for {
		shape, changed := w.state()
		if !shape.Cut {
			return
		}
		<-changed
	}
}

// until returns at an instant, or before if the shape is no longer such that it matters.
func (w *way) until(due time.Time, matters func(Shape) bool) {
	for {
		left := time.Until(due)
		shape, changed := w.state()
		if left <= 0 || !matters(shape) {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-changed:
		}
		timer.Stop()
	}
}
