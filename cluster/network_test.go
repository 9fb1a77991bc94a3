package cluster

import (
	"net"
	"sync"
	"time"
)

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
