package sim

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// baseDelay is how long bytes take on a healthy link.
	baseDelay = 200 * time.Microsecond
	// socketBytes is how much may be under way in one direction of a connection
	// before its writer waits.
	socketBytes = 16 << 20
)

// network connects hosts by name. A connection is a pair of byte streams, each
// on the link of its direction. It keeps what TCP keeps: bytes come in order or
// not at all, and what a link swallows comes when the link is back.
type network struct {
	mu        sync.Mutex
	rng       *rand.Rand
	listeners map[string]*listener // by address
	hosts     map[string]*host     // as they are at present
	faults    map[link]fault
	conns     map[*conn]struct{}
	changed   chan struct{} // closed and replaced when links or hosts change
	ports     uint16
	moved     int64 // bytes
}

// link is one direction between two hosts.
type link struct{ from, to string }

// fault is what is wrong with a link. The zero value is a healthy one.
type fault struct {
	Drop   bool          `json:"drop,omitempty"`
	Delay  time.Duration `json:"delay,omitempty"`
	Jitter time.Duration `json:"jitter,omitempty"`
	Rate   int64         `json:"rate,omitempty"`   // bytes per second; 0: unlimited
	Refuse bool          `json:"refuse,omitempty"` // new connections are refused
}

// host is one run of a machine's process: what a process leaves behind stays
// with the old host when a new process starts.
type host struct {
	name string
	dead bool // the process is gone
	dark bool // and so is the machine: nobody answers
}

func newNetwork(seed uint64) *network {
	return &network{
		rng: rand.New(rand.NewPCG(seed, 1)), listeners: map[string]*listener{}, hosts: map[string]*host{},
		faults: map[link]fault{}, conns: map[*conn]struct{}{}, changed: make(chan struct{}), ports: 40000,
	}
}

// join puts a new process on the network, in place of the former one.
func (n *network) join(name string) *host {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := &host{name: name}
	n.hosts[name] = h
	n.announce()
	return h
}

// announce wakes whoever waits for links or hosts. n.mu is held.
func (n *network) announce() {
	close(n.changed)
	n.changed = make(chan struct{})
	for c := range n.conns {
		c.in.wake()
	}
}

// set changes a link.
func (n *network) set(l link, f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[l] = f
	for c := range n.conns {
		if !f.Drop && c.out.link == l && c.out.size > 0 {
			n.refuse(c)
		}
		if c.in.link == l {
			c.in.hasten(f)
		}
	}
	n.announce()
}

// reset breaks the connections between two hosts, for both sides at once.
func (n *network) reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if l := c.out.link; l == (link{a, b}) || l == (link{b, a}) {
			c.broken = true
			c.in.wake()
			c.out.wake()
		}
	}
}

// heal makes all links healthy.
func (n *network) heal() {
	n.mu.Lock()
	links := make([]link, 0, len(n.faults))
	for l := range n.faults {
		links = append(links, l)
	}
	n.mu.Unlock()
	for _, l := range links {
		n.set(l, fault{})
	}
}

// kill takes a process off the network. The machine says so to the others,
// unless it is gone too.
func (n *network) kill(h *host, dark bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h.dead, h.dark = true, dark
	for address, l := range n.listeners {
		if l.host == h {
			delete(n.listeners, address)
			l.shut()
		}
	}
	for c := range n.conns {
		if c.host == h {
			n.drop(c, !dark)
		}
	}
	n.announce()
}

// drop ends a connection at its side. n.mu is held.
func (n *network) drop(c *conn, tell bool) {
	if c.closed {
		return
	}
	c.closed = true
	delete(n.conns, c)
	c.in.deaf = true
	if tell {
		c.out.ended = true
	}
	c.in.wake()
	c.out.wake()
}

// refuse answers bytes on a connection whose other side is gone, if there is a
// machine that does. n.mu is held.
func (n *network) refuse(c *conn) {
	h := n.hosts[c.out.link.to]
	if c.out.deaf && h != nil && !h.dark && !n.faults[c.out.link].Drop && !n.faults[c.in.link].Drop {
		c.broken = true
		c.in.wake()
	}
}

// listen opens a listener of a process at host:port, or at host.
func (n *network) listen(h *host, address string) *listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{n: n, host: h, address: address, backlog: make(chan *conn, 1024), closed: make(chan struct{})}
	n.listeners[address] = l
	n.announce()
	return l
}

// dialTimeout is when a machine gives up a connection that nobody answers.
const dialTimeout = 2 * time.Minute

// dial connects a process to an address. While a link swallows bytes it waits.
func (n *network) dial(ctx context.Context, from *host, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	to, _, _ := strings.Cut(address, ":")
	for {
		n.mu.Lock()
		out, back := n.faults[link{from.name, to}], n.faults[link{to, from.name}]
		h, changed, dead := n.hosts[to], n.changed, from.dead
		up := h != nil && !h.dark
		n.mu.Unlock()
		if dead {
			return nil, net.ErrClosed
		}
		if !out.Drop && !back.Drop && up {
			if err := sleep(ctx, out.Delay+back.Delay+2*baseDelay); err != nil {
				return nil, err
			}
			if out.Refuse {
				return nil, syscall.ECONNREFUSED
			}
			return n.connect(from, to, address)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, os.ErrDeadlineExceeded
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *network) connect(from *host, to, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[address]
	if l == nil || from.dead {
		return nil, syscall.ECONNREFUSED
	}
	there, back := newStream(link{from.name, to}), newStream(link{to, from.name})
	n.ports++
	a, b := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(n.ports)}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5672}
	mine := &conn{n: n, host: from, in: back, out: there, local: a, remote: b}
	theirs := &conn{n: n, host: l.host, in: there, out: back, local: b, remote: a}
	select {
	case l.backlog <- theirs:
	default:
		return nil, syscall.ECONNREFUSED
	}
	n.conns[mine], n.conns[theirs] = struct{}{}, struct{}{}
	return mine, nil
}

// listener implements net.Listener.
type listener struct {
	n       *network
	host    *host
	address string
	backlog chan *conn
	closed  chan struct{}
	once    sync.Once
}

func (l *listener) shut() { l.once.Do(func() { close(l.closed) }) }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.backlog:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if l.n.listeners[l.address] == l {
		delete(l.n.listeners, l.address)
	}
	l.shut()
	for {
		select {
		case c := <-l.backlog:
			l.n.drop(c, true)
		default:
			return nil
		}
	}
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5672} }

// stream is one direction of a connection. The network's mutex guards it.
type stream struct {
	link    link
	chunks  []chunk
	size    int
	last    time.Time // when the last chunk arrives
	ended   bool      // nothing follows
	deaf    bool      // nobody reads any more
	changed chan struct{}
}

// chunk is what was written at once.
type chunk struct {
	at   time.Time // when it arrives
	data []byte
}

func newStream(l link) *stream { return &stream{link: l, changed: make(chan struct{})} }

func (s *stream) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// hasten has what is under way arrive as if it were sent now, if that is earlier: what
// a slow link has yet to bring is not slow any more when the link is well.
func (s *stream) hasten(f fault) {
	at := time.Now().Add(baseDelay + f.Delay)
	for i := range s.chunks {
		c := &s.chunks[i]
		at = at.Add(f.takes(len(c.data)))
		if c.at.After(at) {
			c.at = at
		}
		s.last = c.at
	}
}

// takes is how long so many bytes take beyond the delay.
func (f *fault) takes(bytes int) time.Duration {
	if f.Rate == 0 {
		return 0
	}
	return time.Duration(int64(bytes) * int64(time.Second) / f.Rate)
}

// conn is one side of a connection. It implements net.Conn.
type conn struct {
	n             *network
	host          *host
	in, out       *stream
	local, remote net.Addr

	// Guarded by the network's mutex.
	closed      bool
	broken      bool // the other side has refused what came
	read, write time.Time
}

// await waits for a stream to change, at most until the earliest of some times.
func (c *conn) await(changed <-chan struct{}, times ...time.Time) {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	if first.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(first))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, changed, next, deadline, err := c.tryRead(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		c.await(changed, next, deadline)
	}
}

func (c *conn) tryRead(p []byte) (n int, changed <-chan struct{}, next, deadline time.Time, err error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	s, now := c.in, time.Now()
	up := !c.n.faults[s.link].Drop
	switch {
	case c.closed:
		return 0, nil, next, deadline, net.ErrClosed
	case !c.read.IsZero() && !now.Before(c.read):
		return 0, nil, next, deadline, os.ErrDeadlineExceeded
	case up && len(s.chunks) > 0:
		if next = s.chunks[0].at; now.Before(next) {
			break
		}
		for len(s.chunks) > 0 && n < len(p) && !now.Before(s.chunks[0].at) {
			k := copy(p[n:], s.chunks[0].data)
			n += k
			if s.chunks[0].data = s.chunks[0].data[k:]; len(s.chunks[0].data) == 0 {
				s.chunks = s.chunks[1:]
			}
		}
		full := s.size >= socketBytes
		s.size -= n
		c.n.moved += int64(n)
		if full {
			s.wake()
		}
	case c.broken:
		err = syscall.ECONNRESET
	case up && s.ended:
		err = io.EOF
	}
	return n, s.changed, next, c.read, err
}

func (c *conn) Write(p []byte) (int, error) {
	for {
		changed, deadline, err := c.tryWrite(p)
		if err != nil {
			return 0, err
		}
		if changed == nil {
			return len(p), nil
		}
		c.await(changed, deadline)
	}
}

// tryWrite sends p, or says for what to wait.
func (c *conn) tryWrite(p []byte) (changed <-chan struct{}, deadline time.Time, err error) {
	n := c.n
	n.mu.Lock()
	defer n.mu.Unlock()
	s, now := c.out, time.Now()
	switch {
	case c.closed:
		return nil, deadline, net.ErrClosed
	case c.broken:
		return nil, deadline, syscall.EPIPE
	case !c.write.IsZero() && !now.Before(c.write):
		return nil, deadline, os.ErrDeadlineExceeded
	case s.size >= socketBytes:
		return s.changed, c.write, nil
	}
	f := n.faults[s.link]
	at := now.Add(baseDelay + f.Delay)
	if f.Jitter > 0 {
		at = at.Add(time.Duration(n.rng.Int64N(int64(f.Jitter))))
	}
	if at.Before(s.last) {
		at = s.last
	}
	at = at.Add(f.takes(len(p)))
	s.last = at
	s.chunks = append(s.chunks, chunk{at, append([]byte(nil), p...)})
	s.size += len(p)
	s.wake()
	n.refuse(c)
	return nil, deadline, nil
}

func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.n.drop(c, true)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(&t, &t)
}
func (c *conn) SetReadDeadline(t time.Time) error  { return c.setDeadlines(&t, nil) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(nil, &t) }

func (c *conn) setDeadlines(read, write *time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if read != nil {
		c.read = *read
		c.in.wake()
	}
	if write != nil {
		c.write = *write
		if c.out.size >= socketBytes {
			c.out.wake()
		}
	}
	return nil
}
