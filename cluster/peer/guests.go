package peer

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxGuests and maxGuestsHost bound the connections, in all and of one
	// address, of who has no certificate and asks to join.
	maxGuests     = 16
	maxGuestsHost = 4
	// guestWait is how long such a connection may be open: for one question.
	guestWait = 30 * time.Second
)

// guest is the connection of who asks to join. It is closed after a while.
type guest struct {
	net.Conn
	once  sync.Once
	timer *time.Timer
	leave func()
}

// Close implements net.Conn.
func (g *guest) Close() error {
	g.once.Do(func() {
		g.timer.Stop()
		g.leave()
	})
	return g.Conn.Close()
}

// receive counts a guest in, unless there are too many.
func (e *entrance) receive(conn net.Conn, host netip.Addr) (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := 0
	for _, n := range e.guests {
		all += n
	}
	if all >= maxGuests || e.guests[host] >= maxGuestsHost {
		return nil, errCrowd
	}
	e.guests[host]++
	g := &guest{Conn: conn, leave: func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.guests[host]--; e.guests[host] == 0 {
			delete(e.guests, host)
		}
	}}
	g.timer = time.AfterFunc(guestWait, func() { _ = conn.Close() }) // whoever reads closes the guest
	return g, nil
}
