package cluster

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// network connects the nodes of a test by their names over loopback, and
// breaks them apart.
type network struct {
	mu        sync.Mutex
	addresses map[string]string  // of nodes that listen
	muted     map[string]bool    // nodes whose bytes get lost
	refused   map[[2]string]bool // pairs, from and to, whose connections are refused
	conns     map[*conn]struct{}
	apart     map[pair]bool            // nodes that do not reach each other
	slow      map[string]time.Duration // how late bytes come to a node; nil: links cannot be slow
}

type pair struct{ from, to string }

// conn is a dialled connection between two nodes.
type conn struct {
	net.Conn
	n        *network
	from, to string
}

func newNetwork() *network {
	return &network{addresses: map[string]string{}, muted: map[string]bool{}, refused: map[[2]string]bool{}, conns: map[*conn]struct{}{}}
}

// listen opens a node's listener.
func (n *network) listen(t testing.TB, node string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses[node] = l.Addr().String()
	return l
}

// dialer is how from reaches the others.
func (n *network) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		n.mu.Lock()
		address, silent, refused := n.addresses[to], n.muted[from] || n.muted[to] || n.apart[pair{from, to}], n.refused[[2]string{from, to}]
		n.mu.Unlock()
		switch {
		case address == "" || refused:
			return nil, syscall.ECONNREFUSED
		case silent:
			return nil, os.ErrDeadlineExceeded
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		out := &conn{c, n, from, to}
		if n.slow != nil {
			out.Conn = newLateConn(c, func() time.Duration { return n.late(to) })
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.muted[from] || n.muted[to] || n.addresses[to] != address || n.refused[[2]string{from, to}] {
			c.Close()
			return nil, os.ErrDeadlineExceeded
		}
		n.conns[out] = struct{}{}
		return out, nil
	}
}

func (c *conn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	return c.Conn.Close()
}

// cut breaks all connections of a node.
func (n *network) cut(node string) {
	n.mu.Lock()
	var all []*conn
	for c := range n.conns {
		if c.from == node || c.to == node {
			all = append(all, c)
		}
	}
	n.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// crash makes a node unreachable as the end of its process does.
func (n *network) crash(node string) {
	n.mu.Lock()
	delete(n.addresses, node)
	n.mu.Unlock()
	n.cut(node)
}

// setMuted takes a node off the network, or puts it back.
func (n *network) setMuted(node string, muted bool) {
	n.mu.Lock()
	n.muted[node] = muted
	n.mu.Unlock()
	n.cut(node)
}

// separate keeps a node from reaching others, and them from reaching it.
func (n *network) separate(node string, others ...string) {
	n.mu.Lock()
	if n.apart == nil {
		n.apart = map[pair]bool{}
	}
	for _, o := range others {
		n.apart[pair{node, o}], n.apart[pair{o, node}] = true, true
	}
	n.mu.Unlock()
	n.cut(node)
}

// late is how late bytes come to a node.
func (n *network) late(node string) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.slow[node]
}

// setLate makes the bytes to a node late from now on. The cluster was started
// with slowLinks.
func (n *network) setLate(node string, by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.slow[node] = by
}

// slowLinks lets links be slow.
func slowLinks(c *nodes) { c.net.slow = map[string]time.Duration{} }

// setApart takes the link between two nodes away, or gives it back.
func (n *network) setApart(a, b string, apart bool) {
	n.mu.Lock()
	if n.apart == nil {
		n.apart = map[pair]bool{}
	}
	n.apart[pair{a, b}], n.apart[pair{b, a}] = apart, apart
	var all []*conn
	for c := range n.conns {
		if c.from == a && c.to == b || c.from == b && c.to == a {
			all = append(all, c)
		}
	}
	n.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// lateConn is a connection on which what is written arrives late.
type lateConn struct {
	net.Conn
	by     func() time.Duration
	out    chan lateBytes
	closed chan struct{}
	once   sync.Once
}

type lateBytes struct {
	at   time.Time
	data []byte
}

func newLateConn(c net.Conn, by func() time.Duration) *lateConn {
	l := &lateConn{Conn: c, by: by, out: make(chan lateBytes, 4096), closed: make(chan struct{})}
	go l.run()
	return l
}

func (l *lateConn) run() {
	for {
		select {
		case <-l.closed:
			return
		case b := <-l.out:
			select {
			case <-time.After(time.Until(b.at)):
			case <-l.closed:
				return
			}
			if _, err := l.Conn.Write(b.data); err != nil {
				l.Close()
				return
			}
		}
	}
}

func (l *lateConn) Write(data []byte) (int, error) {
	select {
	case l.out <- lateBytes{time.Now().Add(l.by()), append([]byte(nil), data...)}:
		return len(data), nil
	case <-l.closed:
		return 0, net.ErrClosed
	}
}

func (l *lateConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}
