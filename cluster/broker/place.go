package broker

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// countedQueues is up to how many queues nodes are compared by what they hold:
// with more, chance is as good and costs nothing.
const countedQueues = 1000

// place chooses the nodes of a new queue: this one always, nodes that run
// before others, and of these the ones with the fewest replicas. The first is
// to be the leader: this one, or with a balanced locator the one that leads
// the fewest. A local queue lives here only.
func (b *Broker) place(d *logpb.DeclareQueue) []uint32 {
	self := b.self.Load()
	if d.Local {
		return []uint32{self}
	}
	v := b.view()
	size := catalog.InitialSize(d.Arguments, b.config.GroupSize)
	members := append([]uint32{self}, b.Candidates(v, func(n fsm.NodeID) bool { return b.isSelf(n) })...)
	members = members[:min(len(members), max(size, 1))]
	if v.LeaderLocator(d, b.config.LeaderLocator) != catalog.ClientLocal {
		b.leadFirst(members)
	}
	return members
}

// Candidates returns the nodes that may get another replica, best first,
// without those that are left out.
func (b *Broker) Candidates(v *catalog.View, out func(fsm.NodeID) bool) []uint32 {
	var nodes []*logpb.NodeState
	for _, n := range v.Nodes() {
		if n.Boot != 0 && !out(fsm.NodeID(n.Number)) { // it has started once
			nodes = append(nodes, n)
		}
	}
	rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	var holds map[fsm.NodeID]int
	if v.QueueCount() <= countedQueues {
		holds = v.Replicas()
	}
	slices.SortStableFunc(nodes, func(x, y *logpb.NodeState) int {
		if x.Draining != y.Draining {
			if x.Draining {
				return 1
			}
			return -1
		}
		if up := b.mesh.Alive(x.Name); up != b.mesh.Alive(y.Name) {
			if up {
				return -1
			}
			return 1
		}
		return cmp.Compare(holds[fsm.NodeID(x.Number)], holds[fsm.NodeID(y.Number)])
	})
	numbers := make([]uint32, len(nodes))
	for i, n := range nodes {
		numbers[i] = n.Number
	}
	return numbers
}

// mayLead reports whether a node is up and stays so.
func (b *Broker) mayLead(number uint32, name string) bool {
	n, ok := b.view().Node(fsm.NodeID(number))
	return ok && !n.Draining && b.mesh.Alive(name)
}

// leadFirst puts the running member that leads the fewest queues first.
func (b *Broker) leadFirst(members []uint32) {
	leads := map[string]int{}
	if b.view().QueueCount() <= countedQueues {
		for _, r := range b.routes.All() {
			leader, _, _ := r.Leader()
			leads[leader]++
		}
	}
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	best := slices.MinFunc(members, func(x, y uint32) int {
		m, n := b.nodeName(fsm.NodeID(x)), b.nodeName(fsm.NodeID(y))
		if may := b.mayLead(x, m); may != b.mayLead(y, n) {
			if may {
				return -1
			}
			return 1
		}
		return cmp.Compare(leads[m], leads[n])
	})
	i := slices.Index(members, best)
	members[0], members[i] = members[i], members[0]
}
