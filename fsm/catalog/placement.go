package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// placement says where the replicas of a queue are, once that is no longer
// what its declaration says.
type placement struct {
	members []fsm.NodeID
	leaving []fsm.NodeID // ascending
	size    uint32       // how many members there should be; 0: by arguments and policies
	founder fsm.NodeID   // the only member, which has begun the group anew; 0: none has
}

// Members returns the nodes that are to hold the replicas of a queue, the
// preferred leader first.
func (v *View) Members(q *Queue) []fsm.NodeID {
	if p, moved := v.placed.Get(q.ID); moved {
		return p.members
	}
	return q.declaredMembers
}

// Home returns the node that a local queue lives on.
func (q *Queue) Home() fsm.NodeID { return q.declaredMembers[0] }

// Leaving returns the nodes that hold no replica of a queue any more, but may
// still be members of its raft group.
func (v *View) Leaving(q *Queue) []fsm.NodeID { return v.placed.At(q.ID).leaving }

// HasMoved reports whether the members of a queue were ever changed: then
// those that its declaration names are not to found its group.
func (v *View) HasMoved(q *Queue) bool {
	_, moved := v.placed.Get(q.ID)
	return moved
}

// Holds reports whether a node has a replica of a queue, or one that goes only
// when the others do without it.
func (v *View) Holds(q *Queue, n fsm.NodeID) bool {
	return slices.Contains(v.Members(q), n) || slices.Contains(v.Leaving(q), n)
}

// Replicas counts the members on each node.
func (v *View) Replicas() map[fsm.NodeID]int {
	count := map[fsm.NodeID]int{}
	for q := range v.EachQueue() {
		for _, n := range v.Members(q) {
			count[n]++
		}
	}
	return count
}

// IsNew reports whether a node's number is not given yet, as far as the view
// goes. A number that is neither new nor a node's is that of a node that has gone.
func (v *View) IsNew(n fsm.NodeID) bool { return uint32(n) > v.lastNode }

// Largest number of members of a group that anything asks for by itself.
const maxGroup = 7

// InitialSize is how many members a queue is to be declared with; base is the
// node's setting.
func InitialSize(args *fsm.Table, base int) int {
	return groupSize(lookup(args, "x-quorum-initial-group-size"), base)
}

func groupSize(v *logpb.Value, otherwise int) int {
	if n, ok := integer(v); ok {
		return int(min(n, maxGroup))
	}
	return otherwise
}

// GroupSize is how many members a queue should have: the larger of its target
// group sizes by policy and by argument; without any, what it was left with when
// its members were last changed on request, else its initial size. base is the
// node's setting. Local queues have one.
func (v *View) GroupSize(q *Queue, base int) int {
	if q.Local {
		return 1
	}
	target := max(groupSize(lookup(v.match(q).definition(), "target-group-size"), 0),
		groupSize(lookup(q.Arguments, "x-quorum-target-group-size"), 0))
	switch size := v.placed.At(q.ID).size; {
	case target > 0:
		return target
	case size > 0:
		return int(size)
	}
	return InitialSize(q.Arguments, base)
}

// Locator is the rule by which the leader of a new queue is chosen.
type Locator string

// What a locator can be. All other names that are accepted mean Balanced.
const (
	ClientLocal Locator = "client-local"
	Balanced    Locator = "balanced"
)

// LeaderLocator returns the locator of a queue that does not exist yet;
// otherwise is the node's setting.
func (v *View) LeaderLocator(m *logpb.DeclareQueue, otherwise Locator) Locator {
	q := newQueue(m, 0, 0)
	var f policyMatch
	if vh := v.vhosts.At(q.VHost); vh != nil {
		f = vh.matchQueue(q, 0)
	}
	name, given := text(effective{q.Arguments, f.definition()}.value("queue-leader-locator"))
	switch {
	case !given:
		return otherwise
	case name == string(ClientLocal):
		return ClientLocal
	}
	return Balanced
}

// setMembers changes where the replicas of a queue are to be.
func (d *draft) setMembers(m *logpb.SetMembers) (*logpb.CatalogResult, error) {
	q, ok := d.QueueByID(fsm.QueueID(m.GetQueue()))
	if !ok {
		return nil, refuse(fsm.NotFoundKind, "no queue with id %d", m.GetQueue())
	}
	if q.Local {
		return nil, refuse(fsm.Precondition, "%s is not replicated", q)
	}
	now, next, was := d.Members(q), nodeIDs(m.GetMembers()), nodeIDs(m.GetWas())
	if len(was) > 0 && !slices.Equal(was, now) {
		return nil, refuse(fsm.Precondition, "cluster_change_not_permitted: the members of %s have changed", q)
	}
	if len(next) == 0 {
		return nil, refuse(fsm.Precondition, "last_node: %s would have no member", q)
	}
	p := d.placed.At(q.ID)
	old := placement{members: now, leaving: p.leaving, size: p.size}
	if m.GetSize() != 0 {
		p.size = m.GetSize()
	}
	added := false
	for i, n := range next {
		if _, known := d.Node(n); !known || slices.Contains(next[:i], n) {
			return nil, refuse(fsm.Internal, "%s cannot have node %d as a member", q, n)
		}
		added = added || !slices.Contains(now, n)
	}
	if added && len(p.leaving) > 0 {
		return nil, refuse(fsm.Precondition, "cluster_change_not_permitted: a member is just being removed from %s", q)
	}
	p.members, p.leaving = next, left(now, next, p.leaving)
	if !slices.Equal(now, next) {
		p.founder = 0
	}
	if slices.Equal(old.members, p.members) && old.size == p.size {
		return &logpb.CatalogResult{}, nil
	}
	d.placed = d.placed.With(q.ID, p)
	return &logpb.CatalogResult{Changed: true, Moved: []uint64{uint64(q.ID)}}, nil
}

// left adds to leaving the nodes that are no longer members.
func left(now, next, leaving []fsm.NodeID) []fsm.NodeID {
	all := slices.Clone(leaving)
	for _, n := range now {
		if !slices.Contains(next, n) {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func nodeIDs(numbers []uint32) []fsm.NodeID {
	ids := make([]fsm.NodeID, len(numbers))
	for i, n := range numbers {
		ids[i] = fsm.NodeID(n)
	}
	return ids
}

// membersLeft notes that the raft group of a queue does without some nodes.
func (d *draft) membersLeft(m *logpb.MembersLeft) (*logpb.CatalogResult, error) {
	q, ok := d.QueueByID(fsm.QueueID(m.GetQueue()))
	if !ok {
		return &logpb.CatalogResult{}, nil
	}
	p, gone := d.placed.At(q.ID), nodeIDs(m.GetNodes())
	rest := slices.DeleteFunc(slices.Clone(p.leaving), func(n fsm.NodeID) bool { return slices.Contains(gone, n) })
	if len(rest) == len(p.leaving) {
		return &logpb.CatalogResult{}, nil
	}
	p.leaving = rest
	d.placed = d.placed.With(q.ID, p)
	return &logpb.CatalogResult{Changed: true, Moved: []uint64{uint64(q.ID)}}, nil
}

// admitNode makes a node a member of the cluster, or gives a node that has
// lost its disk a new number.
func (d *draft) admitNode(m *logpb.AdmitNode) (*logpb.CatalogResult, error) {
	if m.GetName() == "" || len(m.GetIdentity()) == 0 {
		return nil, refuse(fsm.Internal, "a node needs a name and an identity")
	}
	r := &logpb.CatalogResult{Changed: true}
	old, known := d.NodeByName(m.GetName())
	left, err := d.tokensAfter(m)
	if err != nil {
		return nil, err
	}
	if known && slices.Equal(old.GetIdentity(), m.GetIdentity()) {
		used := !slices.Equal(left, d.tokens)
		d.tokens = left
		return &logpb.CatalogResult{Changed: used, Node: old.GetNumber(), Boot: old.GetBoot()}, nil
	}
	if known {
		if r, err = d.removeNode(old); err != nil {
			return nil, err
		}
	}
	d.tokens = left
	d.lastNode++
	d.addNode(&logpb.NodeState{Number: d.lastNode, Name: m.GetName(), PeerAddress: m.GetPeerAddress(), Identity: m.GetIdentity()})
	r.Node = d.lastNode
	return r, nil
}

// forgetNode removes a node; one that is not there is fine.
func (d *draft) forgetNode(m *logpb.ForgetNode) (*logpb.CatalogResult, error) {
	n, ok := d.NodeByName(m.GetName())
	if !ok {
		return &logpb.CatalogResult{}, nil
	}
	return d.removeNode(n)
}

// CheckRemoval refuses the removal of a node that has the only replica of a
// queue.
func (v *View) CheckRemoval(node string) error {
	n, ok := v.NodeByName(node)
	if !ok {
		return nil
	}
	var alone []string
	for _, q := range v.Queues() {
		if !q.Local && slices.Equal(v.Members(q), []fsm.NodeID{fsm.NodeID(n.GetNumber())}) && !q.Exclusive {
			alone = append(alone, q.String())
		}
	}
	if len(alone) == 0 {
		return nil
	}
	return refuse(fsm.Precondition, "last_node: node %s has the only replica of %d queues: %s", node, len(alone),
		strings.Join(alone[:min(len(alone), 5)], ", "))
}

// removeNode removes a node's record, its replicas, and the queues that lived
// on it alone because they are local or belong to one of its connections.
func (d *draft) removeNode(n *logpb.NodeState) (*logpb.CatalogResult, error) {
	number := fsm.NodeID(n.GetNumber())
	if err := d.CheckRemoval(n.GetName()); err != nil {
		return nil, err
	}
	var ended, moved []*Queue
	for _, q := range d.Queues() {
		members := d.Members(q)
		switch {
		case q.Exclusive && q.Owner.Node == number || q.Local && q.Home() == number:
			ended = append(ended, q)
		case slices.Contains(members, number):
			moved = append(moved, q)
		}
	}
	d.nodes, d.nodeNames = d.nodes.Without(number), d.nodeNames.Without(n.GetName())
	r := d.removeQueues(ended)
	r.Changed = true
	for _, q := range moved {
		if _, still := d.QueueByID(q.ID); !still {
			continue // it has gone with an exchange that only queues which ended were bound to
		}
		now, p := d.Members(q), d.placed.At(q.ID)
		p.members = slices.DeleteFunc(slices.Clone(now), func(n fsm.NodeID) bool { return n == number })
		p.leaving = left(now, p.members, p.leaving)
		d.placed = d.placed.With(q.ID, p)
		r.Moved = append(r.Moved, uint64(q.ID))
	}
	return r, nil
}

// checkPlaced looks at a queue's members.
func (v *View) checkPlaced(q *Queue) error {
	members, leaving := v.Members(q), v.Leaving(q)
	if len(members) == 0 || q.Local && (len(members) != 1 || v.HasMoved(q)) || !slices.IsSorted(leaving) {
		return fmt.Errorf("%s has members %v, leaving %v", q, members, leaving)
	}
	if f := v.Founder(q); f != 0 && !slices.Equal(members, []fsm.NodeID{f}) {
		return fmt.Errorf("%s was begun anew by node %d, and has members %v", q, f, members)
	}
	for i, n := range members {
		if _, ok := v.Node(n); !ok || slices.Contains(leaving, n) || slices.Contains(members[:i], n) {
			return fmt.Errorf("%s has the unknown, leaving or repeated member %d", q, n)
		}
	}
	return nil
}

// restorePlacement takes up what a snapshot says of a queue's members.
func (d *draft) restorePlacement(s *logpb.QueueState) {
	if len(s.GetMembers()) == 0 {
		return
	}
	p := placement{members: nodeIDs(s.GetMembers()), size: s.GetSize(), founder: fsm.NodeID(s.GetFounder())}
	if len(s.GetLeaving()) > 0 {
		p.leaving = nodeIDs(s.GetLeaving())
	}
	d.placed = d.placed.With(fsm.QueueID(s.GetId()), p)
}

// storePlacement adds it to a snapshot.
func (v *View) storePlacement(q *Queue, s *logpb.QueueState) {
	p, moved := v.placed.Get(q.ID)
	if !moved {
		return
	}
	s.Size, s.Founder = p.size, uint32(p.founder)
	for _, n := range p.members {
		s.Members = append(s.Members, uint32(n))
	}
	for _, n := range p.leaving {
		s.Leaving = append(s.Leaving, uint32(n))
	}
}
