package placement

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// countedQueues is the number of queues up to which nodes are compared by what they hold: with more
// queues, random choice is as good and costs nothing.
const countedQueues = 1000

// Placer chooses nodes for replicas.
type Placer struct {
	Node    *self.Node
	Routes  *stream.Table
	Size    int             // of a group unless its queue says otherwise
	Locator catalog.Locator // of leaders unless a queue says otherwise
}

// Place chooses the nodes of a new queue: always this one, then running nodes before others, and
// among these the ones with the fewest replicas. The first is to be the leader: this node, or with
// a balanced locator the one that leads the fewest queues. A local queue lives on this node only.
func (p *Placer) Place(d *logpb.DeclareQueue) []uint32 {
	self := p.Node.Number.Load()
	if d.Local {
		return []uint32{self}
	}
	v := p.Node.View()
	size := catalog.InitialSize(d.Arguments, p.Size)
	members := append([]uint32{self}, p.candidates(v, func(n fsm.NodeID) bool { return p.Node.Is(n) })...)
	members = members[:min(len(members), max(size, 1))]
	if v.LeaderLocator(d, p.Locator) != catalog.ClientLocal {
		p.leadFirst(members)
	}
	return members
}

// candidates returns the nodes that may get another replica, best first, except those for which out
// returns true.
func (p *Placer) candidates(v *catalog.View, out func(fsm.NodeID) bool) []uint32 {
	var nodes []*logpb.NodeState
	for _, n := range v.Nodes() {
		if n.Boot != 0 && !out(fsm.NodeID(n.Number)) { // it has started at least once
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
		if up := p.Node.Mesh.Alive(x.Name); up != p.Node.Mesh.Alive(y.Name) {
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

// mayLead reports whether a node is up and not about to stop.
func (p *Placer) mayLead(number uint32, name string) bool {
	n, ok := p.Node.View().Node(fsm.NodeID(number))
	return ok && !n.Draining && p.Node.Mesh.Alive(name)
}

// leadFirst puts the running member that leads the fewest queues first.
func (p *Placer) leadFirst(members []uint32) {
	leads := map[string]int{}
	if p.Node.View().QueueCount() <= countedQueues {
		for _, r := range p.Routes.All() {
			leader, _, _ := r.Leader()
			leads[leader]++
		}
	}
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	best := slices.MinFunc(members, func(x, y uint32) int {
		m, n := p.Node.NodeName(fsm.NodeID(x)), p.Node.NodeName(fsm.NodeID(y))
		if may := p.mayLead(x, m); may != p.mayLead(y, n) {
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
