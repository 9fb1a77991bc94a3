// Package limit bounds how many connections a listener has, so that clients never
// use up the file descriptors that the stores and the links need.
//
// It promises that at most the allowed number of connections is open; further ones
// are closed at once and never queued. Connections that have not logged in may use
// only part of the limit, and no host can exhaust that part: when it is full, the
// address with the most of these connections loses its newest. The package is
// independent of any protocol.
package limit

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Config describes a limiter.
type Config struct {
	Name string // of the listener, in the log and in metrics
	Max  int    // connections, at least 1
	// Logins says that clients of this listener log in. Connections that have not
	// logged in may then use half of Max.
	Logins bool
	// Answer is written to a client before its connection is refused; empty: nothing.
	Answer string
	Logger *slog.Logger
}

// Limiter counts the connections of a listener, even if the listener is reopened.
type Limiter struct {
	config     Config
	maxPending int

	mu       sync.Mutex
	open     int                      // ≤ config.Max; includes those in pending
	count    int                      // of those in pending, ≤ maxPending
	pending  map[netip.Prefix][]*conn // not logged in, by address, oldest first; no list is empty
	refused  uint64
	logged   time.Time // when a refusal was last logged
	unlogged int       // refusals since
}

// Status is a limiter's count of connections.
type Status struct {
	Name          string
	Open, Pending int
	Max           int
	Refused       uint64 // connections refused, and those closed in favour of others
}

const (
	// sampled is how many addresses are compared to find the most crowded one.
	sampled = 64
	// logEvery is the shortest time between two log lines about refused connections.
	logEvery = 10 * time.Second
	// answerTime bounds the writing of an answer, which fits into any socket buffer.
	answerTime = 100 * time.Millisecond
)

// New returns a limiter.
func New(c Config) *Limiter {
	c.Max = max(c.Max, 1)
	limit := c.Max
	if c.Logins {
		limit = max(1, limit/2)
	}
	return &Limiter{config: c, maxPending: limit, pending: map[netip.Prefix][]*conn{}}
}

// Status returns the counts.
func (c *Limiter) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Status{Name: c.config.Name, Open: c.open, Pending: c.count, Max: c.config.Max, Refused: c.refused}
}

// Listen returns a listener whose connections are counted.
func (c *Limiter) Listen(l net.Listener) net.Listener { return &listener{l, c} }

type listener struct {
	net.Listener
	limiter *Limiter
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		socket, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := socket.(*net.TCPConn)
		if !ok {
			return socket, nil // not a network client
		}
		if k := l.limiter.admit(tcp); k != nil {
			return k, nil
		}
	}
}

// conn is a connection that is counted until it is closed.
type conn struct {
	*net.TCPConn
	limiter *Limiter
	from    netip.Prefix
	gone    bool // guarded by limiter.mu, as is known
	known   bool // its client has logged in
}

// LoggedIn marks the connection as one whose client has logged in.
func (k *conn) LoggedIn() { k.limiter.loggedIn(k) }

// Close implements net.Conn.
func (k *conn) Close() error {
	k.limiter.leave(k)
	return k.TCPConn.Close()
}

func sourceOf(socket net.Conn) netip.Prefix {
	a, err := netip.ParseAddrPort(socket.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	ip := a.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64 // a host has at least a /64
	}
	p, _ := ip.Prefix(bits)
	return p
}

// admit counts a connection and returns it, or closes it and returns nil. It may
// close another connection to make space.
func (c *Limiter) admit(socket *net.TCPConn) *conn {
	k := &conn{TCPConn: socket, limiter: c, from: sourceOf(socket)}
	victim, ok := c.enter(k)
	if victim != nil {
		victim.TCPConn.Close()
	}
	if ok {
		return k
	}
	if c.config.Answer != "" {
		_ = socket.SetWriteDeadline(time.Now().Add(answerTime)) // best effort
		_, _ = socket.Write([]byte(c.config.Answer))
	}
	socket.Close()
	return nil
}

// enter counts a connection unless there are too many. victim, if not nil, is a
// connection that lost its place and must be closed.
func (c *Limiter) enter(k *conn) (victim *conn, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= c.config.Max || c.count >= c.maxPending {
		c.refuse(k)
		if victim = c.crowded(len(c.pending[k.from]) + 1); victim == nil {
			return nil, false
		}
		c.forget(victim)
	}
	c.open++
	c.count++
	c.pending[k.from] = append(c.pending[k.from], k)
	return victim, true
}

// crowded returns the newest connection of the address with the most connections
// that are not logged in, if it has more than least of them. The lock is held,
// here and in the methods below.
func (c *Limiter) crowded(least int) *conn {
	var longest []*conn
	n := 0
	for _, line := range c.pending {
		if len(line) > len(longest) {
			longest = line
		}
		if n++; n == sampled {
			break
		}
	}
	if len(longest) <= least {
		return nil
	}
	return longest[len(longest)-1]
}

// refuse counts a refused connection and logs refusals once in logEvery.
func (c *Limiter) refuse(k *conn) {
	c.refused++
	c.unlogged++
	if now := time.Now(); now.Sub(c.logged) >= logEvery {
		c.config.Logger.Warn("too many connections: new ones are closed", slog.String("listener", c.config.Name),
			slog.Int("most", c.config.Max), slog.Int("pending", c.count), slog.Int("closed", c.unlogged), slog.Any("last_from", k.from))
		c.logged, c.unlogged = now, 0
	}
}

// forget removes a connection from the count.
func (c *Limiter) forget(k *conn) {
	if k.gone {
		return
	}
	k.gone = true
	c.open--
	c.unpend(k)
}

// unpend removes a connection from those that have not logged in.
func (c *Limiter) unpend(k *conn) {
	if k.known {
		return
	}
	k.known = true
	c.count--
	line := c.pending[k.from]
	if at := slices.Index(line, k); len(line) > 1 {
		c.pending[k.from] = slices.Delete(line, at, at+1)
	} else {
		delete(c.pending, k.from)
	}
}

func (c *Limiter) leave(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(k)
}

func (c *Limiter) loggedIn(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !k.gone {
		c.unpend(k)
	}
}
