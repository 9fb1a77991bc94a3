// Package peertest cuts the links between the nodes of a test.
package peertest

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/peer"
)

// Valve lets the links between nodes through, or not.
type Valve struct {
	mu    sync.Mutex
	shut  map[string]bool // nodes without links
	conns map[*valveConn]bool
}

// valveConn is a connection that a node has made.
type valveConn struct {
	net.Conn
	ends [2]string
}

var errShut = errors.New("the valve is shut")

// NewValve returns a valve that lets all links through.
func NewValve() *Valve {
	return &Valve{shut: map[string]bool{}, conns: map[*valveConn]bool{}}
}

// Tune makes the links of a node go through the valve.
func (v *Valve) Tune(c *peer.Config) {
	from, nodes := c.Node, map[string]string{}
	for name, addr := range c.Peers {
		nodes[addr] = name
	}
	c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		v.mu.Lock()
		defer v.mu.Unlock()
		to := nodes[addr]
		if v.shut[from] || v.shut[to] {
			return nil, errShut
		}
		n, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		conn := &valveConn{n, [2]string{from, to}}
		v.conns[conn] = true
		return conn, nil
	}
}

// Set cuts a node off, or lets it have links again.
func (v *Valve) Set(node string, shut bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shut[node] = shut
	for conn := range v.conns {
		if shut && slices.Contains(conn.ends[:], node) {
			_ = conn.Close() // both ends see it
			delete(v.conns, conn)
		}
	}
}
