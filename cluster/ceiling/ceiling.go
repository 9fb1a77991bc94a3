// Package ceiling bounds how many connections a listener has, so that clients
// never take the file descriptors that the stores and the links need.
//
// It promises: no more connections than the limit are open; what is beyond is
// closed at once, never queued; those that have not logged in have a part of the
// limit, and one host cannot take it from the others: when it is full, the
// address with most of them loses its newest. It knows no protocol.
package ceiling

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Config describes a ceiling.
type Config struct {
	Name string // of the listener, in the log and in metrics
	Most int    // connections, at least 1
	// Logins says that connections are settled once somebody has logged in. Of
	// the others there are at most half as many then.
	Logins bool
	// Answer is written to who is turned away; empty: nothing.
	Answer string
	Logger *slog.Logger
}

// Ceiling counts the connections of a listener, which may be opened anew.
type Ceiling struct {
	config      Config
	mostPending int

	mu      sync.Mutex
	open    int                      // ≤ config.Most; those in pending are among them
	count   int                      // of those in pending, ≤ mostPending
	pending map[netip.Prefix][]*conn // not settled, by address, oldest first; no list is empty
	refused uint64
	said    time.Time // when that was last logged
	unsaid  int
}

// Status is how a ceiling stands.
type Status struct {
	Name          string
	Open, Pending int
	Most          int
	Refused       uint64 // connections turned away, and those closed in favour of others
}

const (
	// sampled is how many addresses are looked at for the most crowded one.
	sampled = 64
	// sayEvery is how often the log tells of connections that are turned away.
	sayEvery = 10 * time.Second
	// answerTime bounds the writing of an answer, which fits into any socket.
	answerTime = 100 * time.Millisecond
)

// New returns a ceiling.
func New(c Config) *Ceiling {
	c.Most = max(c.Most, 1)
	most := c.Most
	if c.Logins {
		most = max(1, most/2)
	}
	return &Ceiling{config: c, mostPending: most, pending: map[netip.Prefix][]*conn{}}
}

// Status says how the ceiling stands.
func (c *Ceiling) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Status{Name: c.config.Name, Open: c.open, Pending: c.count, Most: c.config.Most, Refused: c.refused}
}

// Listen returns a listener whose connections count.
func (c *Ceiling) Listen(l net.Listener) net.Listener { return &listener{l, c} }

type listener struct {
	net.Listener
	ceiling *Ceiling
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
			return socket, nil // not from outside
		}
		if k := l.ceiling.admit(tcp); k != nil {
			return k, nil
		}
	}
}

// conn is a connection that counts until it is closed.
type conn struct {
	*net.TCPConn
	ceiling *Ceiling
	from    netip.Prefix
	gone    bool // guarded by ceiling.mu, as is settled
	settled bool
}

// Settled marks the connection as one whose client has logged in.
func (k *conn) Settled() { k.ceiling.settle(k) }

// Close implements net.Conn.
func (k *conn) Close() error {
	k.ceiling.leave(k)
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
		bits = 64 // what a host has at least
	}
	p, _ := ip.Prefix(bits)
	return p
}

// admit lets a connection in, in place of another one if need be, or closes it
// and returns nil.
func (c *Ceiling) admit(socket *net.TCPConn) *conn {
	k := &conn{TCPConn: socket, ceiling: c, from: sourceOf(socket)}
	victim, ok := c.enter(k)
	if victim != nil {
		victim.TCPConn.Close()
	}
	if ok {
		return k
	}
	if c.config.Answer != "" {
		_ = socket.SetWriteDeadline(time.Now().Add(answerTime)) // as far as it goes
		_, _ = socket.Write([]byte(c.config.Answer))
	}
	socket.Close()
	return nil
}

// enter counts a connection, and may take another one out of the count.
func (c *Ceiling) enter(k *conn) (victim *conn, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= c.config.Most || c.count >= c.mostPending {
		c.turnAway(k)
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

// crowded returns the newest connection of the address with the most that are
// not settled, if these are more than so many. The lock is held, as by all that
// follow.
func (c *Ceiling) crowded(least int) *conn {
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

// turnAway counts a connection too many and says so now and then.
func (c *Ceiling) turnAway(k *conn) {
	c.refused++
	c.unsaid++
	if now := time.Now(); now.Sub(c.said) >= sayEvery {
		c.config.Logger.Warn("connections are closed, there are too many", slog.String("listener", c.config.Name),
			slog.Int("most", c.config.Most), slog.Int("pending", c.count), slog.Int("closed", c.unsaid), slog.Any("last_from", k.from))
		c.said, c.unsaid = now, 0
	}
}

// forget takes a connection out of the count.
func (c *Ceiling) forget(k *conn) {
	if k.gone {
		return
	}
	k.gone = true
	c.open--
	c.unpend(k)
}

// unpend takes a connection from those that are not settled.
func (c *Ceiling) unpend(k *conn) {
	if k.settled {
		return
	}
	k.settled = true
	c.count--
	line := c.pending[k.from]
	if at := slices.Index(line, k); len(line) > 1 {
		c.pending[k.from] = slices.Delete(line, at, at+1)
	} else {
		delete(c.pending, k.from)
	}
}

func (c *Ceiling) leave(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(k)
}

func (c *Ceiling) settle(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !k.gone {
		c.unpend(k)
	}
}
