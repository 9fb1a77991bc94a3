package peer

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxJoiners and maxJoinersHost bound the connections, in all and of one
	// address, of who has no certificate and asks to join.
	maxJoiners     = 16
	maxJoinersHost = 4
	// joinerWait is how long such a connection may be open: for one question.
	joinerWait = 30 * time.Second
)

// joiner is the connection of who asks to join. It is closed after a while.
type joiner struct {
	net.Conn
	once  sync.Once
	timer *time.Timer
	leave func()
}

// Close implements net.Conn.
func (g *joiner) Close() error {
	g.once.Do(func() {
		g.timer.Stop()
		g.leave()
	})
	return g.Conn.Close()
}

// receive counts a joiner in, unless there are too many.
func (e *serverCredentials) receive(conn net.Conn, host netip.Addr) (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := 0
	for _, n := range e.joiners {
		all += n
	}
	if all >= maxJoiners || e.joiners[host] >= maxJoinersHost {
		return nil, errCrowd
	}
	e.joiners[host]++
	g := &joiner{Conn: conn, leave: func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.joiners[host]--; e.joiners[host] == 0 {
			delete(e.joiners, host)
		}
	}}
	g.timer = time.AfterFunc(joinerWait, func() { _ = conn.Close() }) // whoever reads closes the joiner
	return g, nil
}
