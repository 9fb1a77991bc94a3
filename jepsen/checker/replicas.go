package checker

import (
	"cmp"
	"slices"
)

// Replica is the state of a queue's replica at some moment.
type Replica struct {
	Queue   string // vhost and name
	ID      uint64 // distinguishes a queue from an earlier one of the same name
	Node    string
	Leader  bool
	Applied uint64
	Hash    string
}

// Disagreement finds queues that lack replicas, or whose replicas are not on
// distinct nodes, led by exactly one, and at the same index with the same state.
func Disagreement(replicas []Replica, members int) Verdict {
	p := problems{name: "replicas"}
	slices.SortFunc(replicas, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Node, b.Node))
	})
	for len(replicas) > 0 {
		n := 1
		for n < len(replicas) && replicas[n].Queue == replicas[0].Queue && replicas[n].ID == replicas[0].ID {
			n++
		}
		disagreement(&p, replicas[:n], members)
		replicas = replicas[n:]
	}
	return p.found()
}

func disagreement(p *problems, of []Replica, members int) {
	first := of[0]
	if len(of) != members {
		p.add("queue %s (id %d) has %d replicas, not %d", first.Queue, first.ID, len(of), members)
	}
	leaders := 0
	for i, r := range of {
		if r.Leader {
			leaders++
		}
		if i > 0 && r.Node == of[i-1].Node {
			p.add("queue %s (id %d) has two replicas on node %s", first.Queue, first.ID, r.Node)
		}
		if r.Applied != first.Applied {
			p.add("queue %s (id %d): node %s has applied %d, node %s %d", first.Queue, first.ID, r.Node, r.Applied, first.Node, first.Applied)
		} else if r.Hash != first.Hash || r.Hash == "" {
			p.add("queue %s (id %d) at index %d: state %q on node %s, %q on node %s", first.Queue, first.ID, r.Applied, r.Hash, r.Node, first.Hash, first.Node)
		}
	}
	if leaders != 1 {
		p.add("queue %s (id %d) has %d leaders", first.Queue, first.ID, leaders)
	}
}
