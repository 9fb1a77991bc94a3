package catalog

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// placement says where the replicas of a queue are, if its declaration no
// longer does.
//
// Invariants: members is not empty; it and leaving have no node in common;
// founder ≠ 0 ⇒ members = {founder}. Further: no node is twice in members or in
// leaving; the members are nodes of the cluster, those leaving need not be any
// more. Slices are replaced, never changed, as earlier Views share them.
type placement struct {
	members []fsm.NodeID // the preferred leader first
	leaving []fsm.NodeID // ascending
	size    uint32       // how many members there should be; 0: by arguments and policies
	founder fsm.NodeID   // the only member, which has founded the group anew; 0: none has
}

// placements are the locations of the replicas of all queues.
//
// Invariant: moved has existing queues, none of them local: those whose members
// have ever been changed. For all others the declaration holds.
//
// A queue enters moved with the first SetMembers that changes its members or
// its size, when a member's node is removed, or with RecoverCluster, and stays
// there until it is deleted, even if its members are again those of its
// declaration.
type placements struct {
	// moved: by Queue.ID; a row without members does not exist
	moved route.Map[fsm.QueueID, placement]
	// replicas: how many queues have a node among their members; none is 0
	replicas route.Map[fsm.NodeID, int]
}

// add counts the members of a new queue, and addAll those of many.
func (ps *placements) add(q *Queue) { ps.count(q.declaredMembers, 1) }

func (ps *placements) addAll(all []*Queue) {
	count := map[fsm.NodeID]int{}
	for _, q := range all {
		for _, n := range q.declaredMembers {
			count[n]++
		}
	}
	for n, more := range count { // det: each is counted by itself
		ps.count([]fsm.NodeID{n}, more)
	}
}

// count notes that nodes have so many more replicas.
func (ps *placements) count(nodes []fsm.NodeID, more int) {
	for _, n := range nodes {
		if now := ps.replicas.At(n) + more; now != 0 {
			ps.replicas = ps.replicas.With(n, now)
		} else {
			ps.replicas = ps.replicas.Without(n)
		}
	}
}

// Replicas is how many replicas a node has, or is to have. Those of local queues count, those that are leaving do not.
func (ps *placements) Replicas(n fsm.NodeID) int { return ps.replicas.At(n) }

// Members returns the nodes that must hold the replicas of a queue, the
// preferred leader first. They are what the catalog wants; the raft group may
// still lag behind, see Leaving. The slice is shared: nobody may change it.
func (ps *placements) Members(q *Queue) []fsm.NodeID {
	if p, moved := ps.moved.Get(q.ID); moved {
		return p.members
	}
	return q.declaredMembers
}

// Home returns the node that a local queue lives on. Requires: q was declared
// with a member. For a replicated queue it is only the first leader that was
// preferred.
func (q *Queue) Home() fsm.NodeID { return q.declaredMembers[0] }

// Leaving returns the nodes that no longer hold a replica of a queue, but may
// still be members of its raft group. Ascending; shared, nobody may change it.
// While there are any, no member is added: so a raft group never changes in two
// ways at a time.
func (ps *placements) Leaving(q *Queue) []fsm.NodeID { return ps.moved.At(q.ID).leaving }

// HasMoved reports whether the members of a queue have ever been changed: then
// those named in its declaration must not found its group.
func (ps *placements) HasMoved(q *Queue) bool {
	_, moved := ps.moved.Get(q.ID)
	return moved
}

// Holds reports whether a node has a replica of a queue, or one that is removed
// only after it has left the group.
func (ps *placements) Holds(q *Queue, n fsm.NodeID) bool {
	return slices.Contains(ps.Members(q), n) || slices.Contains(ps.Leaving(q), n)
}

// Founder returns the node that has founded the group of a queue anew, empty,
// after all of its replicas were lost; 0: there is none, or others have had a
// replica since.
func (ps *placements) Founder(q *Queue) fsm.NodeID { return ps.moved.At(q.ID).founder }

// size is the number of members that a queue had after they were last changed
// on request; 0: never.
func (ps *placements) size(q *Queue) uint32 { return ps.moved.At(q.ID).size }

// put replaces the placement of a queue. Requires: q was added and is not local,
// p meets the invariants of placement.
func (ps *placements) put(q *Queue, p placement) {
	ps.count(ps.Members(q), -1)
	ps.moved = ps.moved.With(q.ID, p)
	ps.count(p.members, 1)
}

// forget removes a queue.
func (ps *placements) forget(q *Queue) {
	ps.count(ps.Members(q), -1)
	ps.moved = ps.moved.Without(q.ID)
}

// change changes where the replicas of a queue must be.
//
// It performs SetMembers. Refused: local queues; Was, if given, other than the
// present members in their order; no member; a member that is no node or is
// named twice; another member while one is leaving. The order of members alone
// is a change, too: the first is the preferred leader. Size 0 keeps the size.
func (ps *placements) change(q *Queue, m *logpb.SetMembers, all *nodes) (*logpb.CatalogResult, error) {
	if q.Local {
		return nil, refuse(fsm.Precondition, "%s is not replicated", q)
	}
	now, next, was := ps.Members(q), nodeIDs(m.GetMembers()), nodeIDs(m.GetWas())
	if len(was) > 0 && !slices.Equal(was, now) {
		return nil, refuse(fsm.Precondition, "cluster_change_not_permitted: the members of %s have changed", q)
	}
	if len(next) == 0 {
		return nil, refuse(fsm.Precondition, "last_node: %s would have no member", q)
	}
	p := ps.moved.At(q.ID)
	old := placement{members: now, leaving: p.leaving, size: p.size}
	if m.GetSize() != 0 {
		p.size = m.GetSize()
	}
	added := false
	for i, n := range next {
		if _, known := all.Node(n); !known || slices.Contains(next[:i], n) {
			return nil, refuse(fsm.Internal, "%s cannot have node %d as a member", q, n)
		}
		added = added || !slices.Contains(now, n)
	}
	if added && len(p.leaving) > 0 {
		return nil, refuse(fsm.Precondition, "cluster_change_not_permitted: a member is already being removed from %s", q)
	}
	p.members, p.leaving = next, left(now, next, p.leaving)
	if !slices.Equal(now, next) {
		p.founder = 0
	}
	if slices.Equal(old.members, p.members) && old.size == p.size {
		return &logpb.CatalogResult{}, nil
	}
	ps.put(q, p)
	return &logpb.CatalogResult{Changed: true, Moved: []uint64{uint64(q.ID)}}, nil
}

// left adds to leaving the nodes that are no longer members. The result is new,
// ascends, and has no node twice.
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

// nodeIDs returns a new slice; nil becomes an empty one, not nil.
func nodeIDs(numbers []uint32) []fsm.NodeID {
	ids := make([]fsm.NodeID, len(numbers))
	for i, n := range numbers {
		ids[i] = fsm.NodeID(n)
	}
	return ids
}

// membersLeft records that some nodes have left the raft group of a queue. It
// performs MembersLeft. Nodes that are not leaving are ignored, so a repeat
// changes nothing. Members are not touched.
func (ps *placements) membersLeft(q *Queue, m *logpb.MembersLeft) *logpb.CatalogResult {
	p, gone := ps.moved.At(q.ID), nodeIDs(m.GetNodes())
	rest := slices.DeleteFunc(slices.Clone(p.leaving), func(n fsm.NodeID) bool { return slices.Contains(gone, n) })
	if len(rest) == len(p.leaving) {
		return &logpb.CatalogResult{}
	}
	p.leaving = rest
	ps.put(q, p)
	return &logpb.CatalogResult{Changed: true, Moved: []uint64{uint64(q.ID)}}
}

// leave removes a node from the members of a queue, which has others. Its group
// still counts it until it has been removed there. Requires: number is a member
// and not the only one. A leaving node may then be one that is no node of the
// cluster any more.
func (ps *placements) leave(q *Queue, number fsm.NodeID) {
	now, p := ps.Members(q), ps.moved.At(q.ID)
	p.members = slices.DeleteFunc(slices.Clone(now), func(n fsm.NodeID) bool { return n == number })
	p.leaving = left(now, p.members, p.leaving)
	ps.put(q, p)
}

// recoverOn makes a node the only member of a queue, and none leaves: no group
// counts another one. found: the node founds the group anew. Requires: q is not
// local, node is in the cluster. The size is kept, so the queue grows to it
// when nodes join.
func (ps *placements) recoverOn(q *Queue, node fsm.NodeID, found bool) {
	p := placement{members: []fsm.NodeID{node}, size: ps.size(q)}
	if found {
		p.founder = node
	}
	ps.put(q, p)
}

// save adds the placement of a queue to its row in a snapshot. Queues that have
// not moved have no members in their row.
func (ps *placements) save(q *Queue, to *logpb.QueueState) {
	p, moved := ps.moved.Get(q.ID)
	if !moved {
		return
	}
	to.Size, to.Founder = p.size, uint32(p.founder)
	for _, n := range p.members {
		to.Members = append(to.Members, uint32(n))
	}
	for _, n := range p.leaving {
		to.Leaving = append(to.Leaving, uint32(n))
	}
}

// restore is the inverse of save. Requires: q was added before.
func (ps *placements) restore(q *Queue, from *logpb.QueueState) {
	if len(from.GetMembers()) == 0 {
		return
	}
	p := placement{members: nodeIDs(from.GetMembers()), size: from.GetSize(), founder: fsm.NodeID(from.GetFounder())}
	if len(from.GetLeaving()) > 0 {
		p.leaving = nodeIDs(from.GetLeaving())
	}
	ps.put(q, p)
}

// line is printed after that of a queue. It is empty while the members are
// those of the declaration.
func (ps *placements) line(q *Queue) string {
	p, moved := ps.moved.Get(q.ID)
	if !moved {
		return ""
	}
	line := fmt.Sprintf(" now=%v leaving=%v size=%d", p.members, p.leaving, p.size)
	if p.founder != 0 {
		line += fmt.Sprintf(" founder=%d", p.founder)
	}
	return line
}

// check searches for queues that do not exist, and counts the replicas.
func (ps *placements) check(all *queueIndex) error {
	count := map[fsm.NodeID]int{}
	for q := range all.EachQueue() {
		for _, n := range ps.Members(q) {
			count[n]++
		}
	}
	for n, replicas := range ps.replicas.All() {
		if count[n] != replicas {
			return fmt.Errorf("node %d has %d replicas, and not %d", n, count[n], replicas)
		}
		delete(count, n)
	}
	if len(count) > 0 {
		return fmt.Errorf("the replicas of %d nodes are not counted", len(count))
	}
	for id := range ps.moved.All() {
		if _, ok := all.QueueByID(id); !ok {
			return fmt.Errorf("members of queue %d, which is not there", id)
		}
	}
	return nil
}

// checkQueue checks a queue's members.
func (ps *placements) checkQueue(q *Queue, all *nodes) error {
	members, leaving := ps.Members(q), ps.Leaving(q)
	if len(members) == 0 || q.Local && (len(members) != 1 || ps.HasMoved(q)) || !slices.IsSorted(leaving) {
		return fmt.Errorf("%s has members %v, leaving %v", q, members, leaving)
	}
	if f := ps.Founder(q); f != 0 && !slices.Equal(members, []fsm.NodeID{f}) {
		return fmt.Errorf("%s was begun anew by node %d, and has members %v", q, f, members)
	}
	for i, n := range members {
		if _, ok := all.Node(n); !ok || slices.Contains(leaving, n) || slices.Contains(members[:i], n) {
			return fmt.Errorf("%s has the unknown, leaving or repeated member %d", q, n)
		}
	}
	return nil
}

// Largest number of members of a group that anything asks for by itself.
const maxGroup = 7

// InitialSize is how many members a queue is to be declared with; base is the
// node's setting. At most maxGroup if an argument says so; base is taken as it
// is. Requires: args were checked, so the argument is at least 1.
func InitialSize(args *fsm.Table, base int) int {
	return groupSize(lookup(args, "x-quorum-initial-group-size"), base)
}

// groupSize reads a number of members; otherwise is for values that are none.
func groupSize(v *logpb.Value, otherwise int) int {
	if n, ok := integer(v); ok {
		return int(min(n, maxGroup))
	}
	return otherwise
}

// Locator is the rule by which the leader of a new queue is chosen.
type Locator string

// What a locator can be. All other names that are accepted mean Balanced.
const (
	ClientLocal Locator = "client-local"
	Balanced    Locator = "balanced"
)

// LeaderLocator returns the locator of a queue that does not exist yet;
// otherwise is the node's setting. It matches policies against a temporary
// queue, which has no id and no members. The proposer calls it; the log holds
// the outcome as the order of the members.
func (vs *vhosts) LeaderLocator(m *logpb.DeclareQueue, otherwise Locator) Locator {
	q := newQueue(m, 0, 0)
	var f policyMatch
	if vh := vs.vhost(q.VHost); vh != nil {
		f = vh.policies.matchQueue(q, policyMatch{})
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
