package nemesis

import (
	"context"
	"errors"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
)

// split is a way of disturbing the links of a cluster whose nodes all stay up.
type split struct {
	name, kind string
	do         func(l *cluster.Links, nodes, leader int)
}

// lossRate, slowRate and farAway are what splits do to links.
const (
	lossRate = 0.2
	slowRate = 256 << 10
	farAway  = 200 * time.Millisecond
)

// splits are all of them. Where links are proxies, bytes that are cut arrive once the split
// has healed.
var splits = []split{
	{"leader apart", Partition, func(l *cluster.Links, _, leader int) { l.Isolate(leader) }},
	{"leader refused", Refusal, func(l *cluster.Links, _, leader int) { l.RefuseNode(leader) }},
	{"leader not heard", OneWay, func(l *cluster.Links, nodes, leader int) {
		others(nodes, leader, func(other int) { l.Cut(leader, other) })
	}},
	{"leader hears nothing", OneWay, func(l *cluster.Links, nodes, leader int) {
		others(nodes, leader, func(other int) { l.Cut(other, leader) })
	}},
	{"halves, leader in the smaller one", Partition, func(l *cluster.Links, nodes, leader int) { halves(l, nodes, leader, (nodes-1)/2) }},
	{"halves, leader in the larger one", Partition, func(l *cluster.Links, nodes, leader int) { halves(l, nodes, leader, nodes/2+1) }},
	{"bridge", Partition, bridge},
	{"ring", Partition, ring},
	{"circle", OneWay, circle},
	{"all apart", Partition, func(l *cluster.Links, nodes, _ int) {
		for a := 1; a <= nodes; a++ {
			l.Isolate(a)
		}
	}},
	{"slow leader", Delay, func(l *cluster.Links, nodes, leader int) {
		others(nodes, leader, func(other int) { l.Delay(leader, other, farAway) })
	}},
	{"jitter", Delay, func(l *cluster.Links, nodes, _ int) {
		everywhere(l, nodes, cluster.Shape{Delay: farAway / 10, Jitter: farAway})
	}},
	{"little bandwidth", Bandwidth, func(l *cluster.Links, nodes, _ int) { everywhere(l, nodes, cluster.Shape{Rate: slowRate}) }},
	{"leader's connections stall", Stall, onLeader((*cluster.Links).Stall)},
	{"leader's connections half open", HalfOpen, onLeader((*cluster.Links).HalfOpen)},
	{"leader's connections reset", Reset, onLeader((*cluster.Links).Reset)},
	{"clients cannot reach the leader", Unreached, func(l *cluster.Links, _, leader int) { l.Refuse(cluster.Clients, leader) }},
	{"leader silent for clients", Unreached, func(l *cluster.Links, _, leader int) { l.Cut(leader, cluster.Clients) }},
	{"clients' connections half open", HalfOpen, func(l *cluster.Links, nodes, _ int) {
		others(nodes, cluster.Clients, func(node int) { l.HalfOpen(cluster.Clients, node) })
	}},
	{"clients' connections reset", Reset, func(l *cluster.Links, nodes, _ int) {
		others(nodes, cluster.Clients, func(node int) { l.Reset(cluster.Clients, node) })
	}},
	{"loss", Loss, func(l *cluster.Links, nodes, _ int) { everywhere(l, nodes, cluster.Shape{Loss: lossRate}) }},
	{"reorder", Reorder, func(l *cluster.Links, nodes, _ int) {
		everywhere(l, nodes, cluster.Shape{Reorder: lossRate, Delay: farAway / 20})
	}},
}

// onLeader does something to the connections of the leader with other nodes, whichever of
// them has dialled.
func onLeader(do func(l *cluster.Links, from, to int)) func(l *cluster.Links, nodes, leader int) {
	return func(l *cluster.Links, nodes, leader int) {
		others(nodes, leader, func(other int) {
			do(l, leader, other)
			do(l, other, leader)
		})
	}
}

// everywhere shapes all ways between nodes.
func everywhere(l *cluster.Links, nodes int, s cluster.Shape) {
	for a := 1; a <= nodes; a++ {
		others(nodes, a, func(b int) { l.Set(a, b, s) })
	}
}

// halves separates the leader, and those that follow it in number, from the others.
func halves(l *cluster.Links, nodes, leader, withLeader int) {
	side := func(node int) bool { return (node-leader+nodes)%nodes < withLeader }
	for a := 1; a <= nodes; a++ {
		others(nodes, a, func(b int) {
			if side(a) != side(b) {
				l.Cut(a, b)
			}
		})
	}
}

// bridge leaves the links of the leader, and cuts those between the two halves of the
// others.
func bridge(l *cluster.Links, nodes, leader int) {
	half := func(node int) int { return (node - leader + nodes) % nodes * 2 / nodes }
	for a := 1; a <= nodes; a++ {
		others(nodes, a, func(b int) {
			if a != leader && b != leader && half(a) != half(b) {
				l.Cut(a, b)
			}
		})
	}
}

// ring leaves each node only its two neighbours, so that of five each sees another majority.
// Of three, the leader loses one of its neighbours, which the third still reaches.
func ring(l *cluster.Links, nodes, leader int) {
	next := func(a, b int) bool { return (b-a+nodes)%nodes == 1 && (nodes > 3 || a != leader) }
	for a := 1; a <= nodes; a++ {
		others(nodes, a, func(b int) {
			if !next(a, b) && !next(b, a) {
				l.Cut(a, b)
			}
		})
	}
}

// circle leaves each node only the next one that hears it.
func circle(l *cluster.Links, nodes, _ int) {
	for a := 1; a <= nodes; a++ {
		others(nodes, a, func(b int) {
			if b != a%nodes+1 {
				l.Cut(a, b)
			}
		})
	}
}

func others(nodes, node int, do func(other int)) {
	for other := 1; other <= nodes; other++ {
		if other != node {
			do(other)
		}
	}
}

// hasLinks is the Available of faults that break links.
func hasLinks(c *cluster.Cluster) error {
	if c.Links == nil {
		return errors.New("the cluster was started without links that can be broken")
	}
	return nil
}

// hasPackets is the Available of faults that lose packets.
func hasPackets(c *cluster.Cluster) error {
	if err := hasLinks(c); err != nil {
		return err
	}
	return c.Links.Packets()
}

// Splits returns the faults that disturb the links of the node that leads a queue, or of
// all nodes, for a while.
func Splits(queue string, lasts time.Duration) (faults []Fault) {
	for _, s := range splits {
		available := hasLinks
		if s.kind == Loss || s.kind == Reorder {
			available = hasPackets
		}
		faults = append(faults, Fault{Name: s.name, Kind: s.kind, Available: available, alone: theLinks, Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
			leader, err := AwaitLeader(ctx, c, queue, nil)
			if err != nil {
				return err
			}
			defer h.Fault(s.kind, leader.Number)()
			s.do(c.Links, len(c.Nodes), leader.Number)
			pause(ctx, lasts)
			if err := c.Links.Heal(); err != nil {
				return err
			}
			return awaitAll(ctx, c)
		}})
	}
	return faults
}
