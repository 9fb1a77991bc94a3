package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
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
