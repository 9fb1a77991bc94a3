package cluster

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Clients is the number by which all clients of a cluster are identified in Links.
const Clients = 0

// Shape is how bytes flow from one node to another. The zero Shape disturbs nothing.
type Shape struct {
	Cut    bool          // nothing arrives until the way is healed
	Delay  time.Duration // everything arrives so much later,
	Jitter time.Duration // and by up to so much more, drawn anew each time
	Rate   int           // bytes a second; 0: no limit
	// Loss and Reorder are the shares of packets that are lost, and that others overtake.
	// Only links that carry packets have them; see Packets.
	Loss, Reorder float64
}

// Links are the links between the nodes of a cluster, and between clients and nodes. Each
// can be broken. Nodes are identified by their numbers. All methods can be called at any
// time.
//
// A link from one node to another is a connection that the first one has dialled;
// nodes have one in each direction, and on each of them bytes flow both ways. Refuse, Reset,
// Stall and HalfOpen concern the node that dials; Cut, Delay and Set concern the direction
// in which bytes flow, on both connections.
//
// Proxies carry byte streams. They differ from a network in one respect: when a node's
// process has ended, they still accept connections, so others find these closed, not
// refused.
type Links struct {
	nodes   int
	target  func(from, to int) string
	port    int
	mu      sync.Mutex
	carrier carrier
	packets *packets // the carrier, if it is one of packets
	ways    map[pair]*way
	closed  bool
	done    sync.WaitGroup
}

// carrier carries what flows between nodes, as the ways of the links say. Who dials whom is a
// pair.
type carrier interface {
	refuse(which pair)
	reset(which pair)
	stall(which pair, half bool)
	heal() error
	close()
}

// pair is an ordered pair of nodes.
type pair struct{ from, to int }

// newLinks opens the proxies for nodes that listen at target, for nodes and for clients.
// port must be free on all loopback addresses.
func newLinks(nodes, port int, target func(from, to int) string) (*Links, error) {
	l := newWays(nodes, port)
	l.target = target
	all := proxies{}
	l.carrier = all
	for p := range l.ways {
		if p.to != Clients {
			all[p] = &proxy{links: l, pair: p, conns: map[*passed]struct{}{}}
		}
	}
	if err := all.heal(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// newPacketLinks makes the links of nodes that have networks of their own, where they listen on
// port for each other, and on the other ports for clients.
func newPacketLinks(nodes, port int, clients ...uint16) (l *Links, err error) {
	l = newWays(nodes, port)
	if l.packets, err = newPackets(l, nodes, append(clients, uint16(port))...); err != nil {
		return nil, err
	}
	l.carrier = l.packets
	return l, nil
}

func newWays(nodes, port int) *Links {
	l := &Links{nodes: nodes, port: port, ways: map[pair]*way{}}
	for from := Clients; from <= nodes; from++ {
		for to := Clients; to <= nodes; to++ {
			if from != to {
				l.ways[pair{from, to}] = &way{}
			}
		}
	}
	return l
}

// address returns the address at which a node, or clients, reach another one. Each proxy has
// a loopback address of its own, so that its port cannot be taken while it is closed.
// The address that a node announces as its own has no listener, so other nodes cannot
// bypass their proxies.
func (l *Links) address(from, to int) string {
	if l.packets != nil {
		return fmt.Sprintf("%s:%d", hostAddress(to), l.port)
	}
	return fmt.Sprintf("127.1.%d.%d:%d", from, to, l.port)
}

// Refuse refuses the connections that one node dials to another, and resets those that
// are open.
func (l *Links) Refuse(from, to int) { l.carrier.refuse(pair{from, to}) }

// Reset resets the open connections that one node has dialled to another.
func (l *Links) Reset(from, to int) { l.carrier.reset(pair{from, to}) }

// Stall makes the open connections that one node has dialled to another carry nothing, both
// ways, until they are healed. New ones are not concerned.
func (l *Links) Stall(from, to int) { l.carrier.stall(pair{from, to}, false) }

// HalfOpen resets the open connections that one node has dialled to another, but only for
// the node that was dialled: the other one hears nothing of it until they are healed.
func (l *Links) HalfOpen(from, to int) { l.carrier.stall(pair{from, to}, true) }

// Set shapes the way from one node to another.
func (l *Links) Set(from, to int, s Shape) { l.ways[pair{from, to}].set(func(now *Shape) { *now = s }) }

// Cut blocks what flows from one node to another. Bytes of streams are not lost: they arrive
// when the cut has healed.
func (l *Links) Cut(from, to int) { l.ways[pair{from, to}].set(func(s *Shape) { s.Cut = true }) }

// Delay delays the bytes that flow from one node to another.
func (l *Links) Delay(from, to int, by time.Duration) {
	l.ways[pair{from, to}].set(func(s *Shape) { s.Delay = by })
}

// RefuseNode refuses all links of a node with others, in both directions.
func (l *Links) RefuseNode(node int) { l.each(node, l.Refuse) }

// Isolate cuts all links of a node with others, in both directions. Clients reach it.
func (l *Links) Isolate(node int) { l.each(node, l.Cut) }

func (l *Links) each(node int, do func(from, to int)) {
	for other := 1; other <= l.nodes; other++ {
		if other != node {
			do(node, other)
			do(other, node)
		}
	}
}

// Packets returns why the links cannot lose and reorder packets; nil: they can.
func (l *Links) Packets() error {
	if l.packets != nil {
		return nil
	}
	return errors.New("proxies carry byte streams: they lose and reorder nothing")
}

// Heal ends the effects of all other methods.
func (l *Links) Heal() error {
	for _, w := range l.ways {
		w.set(func(s *Shape) { *s = Shape{} })
	}
	return l.carrier.heal()
}

func (l *Links) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	for _, w := range l.ways {
		w.set(func(s *Shape) { *s = Shape{} })
	}
	l.carrier.close()
	l.done.Wait()
}

// start runs f on a goroutine that close waits for.
func (l *Links) start(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.done.Go(f)
	}
}
