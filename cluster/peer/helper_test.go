package peer

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// network connects meshes in memory or over loopback, and breaks them apart.
type network struct {
	tcp bool

	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	conns     map[*testConn]struct{}
	deaf      map[string]bool // addresses whose connections lose everything
	full      bool            // a deaf connection takes nothing instead
}

func newNetwork(tcp bool) *network {
	return &network{
		tcp: tcp, listeners: make(map[string]*bufconn.Listener),
		conns: make(map[*testConn]struct{}), deaf: make(map[string]bool),
	}
}

func (n *network) listen(t testing.TB, addr string) (net.Listener, string) {
	t.Helper()
	if n.tcp {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l, l.Addr().String()
	}
	l := bufconn.Listen(256 << 10)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[addr] = l
	return &testListener{l, n, addr}, addr
}

// testListener refuses connections once it is closed, as a kernel does.
type testListener struct {
	*bufconn.Listener
	n    *network
	addr string
}

func (l *testListener) Close() error {
	l.n.mu.Lock()
	if l.n.listeners[l.addr] == l.Listener {
		delete(l.n.listeners, l.addr)
	}
	l.n.mu.Unlock()
	return l.Listener.Close()
}

func (n *network) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := n.dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		c := &testConn{Conn: conn, n: n, from: from, addr: addr, closed: make(chan struct{})}
		n.mu.Lock()
		defer n.mu.Unlock()
		c.deaf.Store(n.deaf[addr])
		n.conns[c] = struct{}{}
		return c, nil
	}
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	if n.tcp {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	return l.DialContext(ctx)
}

// cut closes all connections between two addresses' nodes.
func (n *network) cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.from == from && c.addr == to {
			c.Conn.Close()
		}
	}
}

// setDeaf makes connections to addr, old and new ones, lose what is sent.
func (n *network) setDeaf(addr string, deaf bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deaf[addr] = deaf
	for c := range n.conns {
		if c.addr == addr {
			c.deaf.Store(deaf)
		}
	}
}

// testConn is a dialled connection that can go deaf.
type testConn struct {
	net.Conn
	n          *network
	from, addr string
	deaf       atomic.Bool
	closed     chan struct{}
	once       sync.Once
}

func (c *testConn) Write(p []byte) (int, error) {
	switch {
	case c.deaf.Load() && c.n.full:
		<-c.closed
		return 0, net.ErrClosed
	case c.deaf.Load():
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *testConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}

func (c *testConn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// member is a mesh under test with the events it reported.
type member struct {
	*Mesh
	name   string
	addr   string
	events chan Event
}

var incarnations atomic.Uint32

func nextIncarnation() (id [16]byte) {
	n := incarnations.Add(1)
	id[0], id[1], id[2] = 1, byte(n), byte(n>>8)
	return id
}

// cluster is a set of meshes that know each other.
type cluster struct {
	t       testing.TB
	net     *network
	configs map[string]Config
	addrs   map[string]string
	members map[string]*member
}

// newCluster prepares nodes n1 … nk; tune may change their settings.
func newCluster(t testing.TB, tcp bool, k int, tune func(*Config)) *cluster {
	t.Helper()
	c := &cluster{
		t: t, net: newNetwork(tcp), configs: make(map[string]Config),
		addrs: make(map[string]string), members: make(map[string]*member),
	}
	for i := 1; i <= k; i++ {
		name := fmt.Sprintf("n%d", i)
		l, addr := c.net.listen(t, name)
		c.addrs[name] = addr
		cfg := Config{Node: name, Cluster: "test", Incarnation: nextIncarnation(), Listener: l, Dial: c.net.dialer(name)}
		cfg.SuspectAfter = patience / 2 // a busy machine is silent for longer than nodes may be
		if tune != nil {
			tune(&cfg)
		}
		c.configs[name] = cfg
	}
	return c
}

// create makes a node's mesh without starting it.
func (c *cluster) create(name string) *member {
	c.t.Helper()
	cfg := c.configs[name]
	cfg.Peers = make(map[string]string)
	for peer, addr := range c.addrs {
		if peer != name {
			cfg.Peers[peer] = addr
		}
	}
	mesh, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	m := &member{Mesh: mesh, name: name, addr: c.addrs[name], events: make(chan Event, 1000)}
	mesh.Watch(func(ev Event) { m.events <- ev })
	c.members[name] = m
	c.t.Cleanup(func() { mesh.Close() })
	return m
}

// startAll starts all nodes and waits until everybody sees everybody.
func (c *cluster) startAll(setup func(*member)) {
	c.t.Helper()
	for name := range c.configs {
		m := c.create(name)
		if setup != nil {
			setup(m)
		}
	}
	for _, m := range c.members {
		m.Start()
	}
	for _, m := range c.members {
		for name := range c.configs {
			if name != m.name {
				c.mustUp(m, name)
			}
		}
	}
}

// restart brings a closed node back under a new incarnation.
func (c *cluster) restart(name string, setup func(*member)) *member {
	c.t.Helper()
	cfg := c.configs[name]
	if c.net.tcp {
		l, err := net.Listen("tcp", c.addrs[name])
		if err != nil {
			c.t.Fatal(err)
		}
		cfg.Listener = l
	} else {
		cfg.Listener, _ = c.net.listen(c.t, name)
	}
	cfg.Incarnation = nextIncarnation()
	c.configs[name] = cfg
	m := c.create(name)
	if setup != nil {
		setup(m)
	}
	m.Start()
	return m
}

// mustUp waits until m sees node up.
func (c *cluster) mustUp(m *member, node string) {
	c.t.Helper()
	mustWait(c.t, func() bool {
		for _, s := range m.Peers() {
			if s.Node == node {
				return s.Alive && s.Linked
			}
		}
		return false
	}, "%s does not see %s", m.name, node)
}

// mustWait waits for a condition that nothing announces.
func mustWait(t testing.TB, cond func() bool, format string, args ...any) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf(format, args...)
		}
	}
}

// mustEvent returns the next event that fits.
func mustEvent(t testing.TB, m *member, fits func(Event) bool, what string) Event {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		select {
		case ev := <-m.events:
			if fits(ev) {
				return ev
			}
		case <-deadline.C:
			t.Fatalf("%s: no event: %s", m.name, what)
		}
	}
}

func isUp(node string) func(Event) bool {
	return func(ev Event) bool { return ev.Node == node && ev.Up }
}

func isDown(node string) func(Event) bool {
	return func(ev Event) bool { return ev.Node == node && !ev.Up }
}

// mustReceive takes one value.
func mustReceive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("nothing came: %s", what)
		panic("unreachable")
	}
}
