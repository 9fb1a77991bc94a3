package catalog

import (
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// declareQueue creates a queue, or finds the one that is there.
//
// It performs DeclareQueue. The answer names the queue even if it existed and
// is equivalent. An exclusive queue of another owner is refused as locked.
// Permissions are not checked: the log does not record the user.
func (d *draft) declareQueue(m *logpb.DeclareQueue) (*logpb.CatalogResult, error) {
	q, err := d.checkDeclareQueue(noAccess, m, strings.HasPrefix(m.GetName(), GeneratedPrefix))
	if err != nil {
		return nil, err
	}
	if q != nil {
		return &logpb.CatalogResult{Queue: uint64(q.ID), Group: uint32(q.Group)}, nil
	}
	if m.GetStoreOf() != "" {
		return nil, refuse(fsm.Internal, "%s would be a store without its exchange", resource(kindQueue, m.GetVhost(), m.GetName()))
	}
	if err := d.checkPlacement(m); err != nil {
		return nil, err
	}
	if q = newQueue(m, fsm.QueueID(d.id()), d.newGroup()); d.FSMVersion() < declaredTypes {
		q.Classic, q.declared.Classic = false, false
	}
	d.addQueue(q, 0)
	return &logpb.CatalogResult{Changed: true, Queue: uint64(q.ID), Group: uint32(q.Group)}, nil
}

// checkPlacement refuses a queue on nodes that are not there, and one of a
// connection whose node has restarted since: nobody would ever delete it. Any
// members are accepted if they are nodes, each once, and for a local queue
// exactly one: Apply does not choose.
func (d *draft) checkPlacement(m *logpb.DeclareQueue) error {
	where := resource(kindQueue, m.GetVhost(), m.GetName())
	members := m.GetMembers()
	if len(members) == 0 || m.GetLocal() && len(members) != 1 {
		return refuse(fsm.Internal, "%s cannot have %d members", where, len(members))
	}
	for i, number := range members {
		if _, ok := d.Node(fsm.NodeID(number)); !ok || slices.Contains(members[:i], number) {
			return refuse(fsm.Internal, "%s cannot have node %d as a member", where, number)
		}
	}
	if !m.GetExclusive() {
		return nil
	}
	node, ok := d.Node(fsm.NodeID(m.GetOwner().GetNode()))
	if !ok || node.GetBoot() != m.GetOwner().GetBoot() || node.GetDead() {
		return refuse(fsm.Forced, "the node that owns %s has restarted, or was declared dead", where)
	}
	return nil
}

// addQueue takes up a queue and notes the policies that match it. revision is
// that of its settings.
func (d *draft) addQueue(q *Queue, revision uint64) {
	d.open(q.VHost).addQueue(q, revision)
	d.queueIndex.add(q)
}

// deleteQueue removes a queue. A queue that is gone, or has been declared
// again under another id, is left alone; so is one that was lost with its node
// if that has another boot by now.
//
// It performs DeleteQueue. With m.Id 0 the name alone identifies the queue,
// with an empty name the id alone; if both are given, they must agree.
// Conditions on messages and consumers were checked by the queue's machine, and
// the owner by the broker.
func (d *draft) deleteQueue(m *logpb.DeleteQueue) (*logpb.CatalogResult, error) {
	q, ok := d.Queue(m.GetVhost(), m.GetName())
	if m.GetId() != 0 && m.GetName() == "" {
		q, ok = d.QueueByID(fsm.QueueID(m.GetId()))
	}
	if !ok || m.GetId() != 0 && q.ID != fsm.QueueID(m.GetId()) {
		return &logpb.CatalogResult{}, nil
	}
	if home, _ := d.Node(q.Home()); m.GetLostBoot() != 0 && home.GetBoot() != m.GetLostBoot() {
		return &logpb.CatalogResult{}, nil
	}
	if err := q.checkOpen(); err != nil {
		return nil, err
	}
	return d.removeQueues([]*Queue{q}), nil
}

// deleteOwned removes the exclusive queues of a connection. It performs
// DeleteOwned, when a connection has ended. Without any, nothing changes.
func (d *draft) deleteOwned(m *logpb.DeleteOwned) (*logpb.CatalogResult, error) {
	return d.removeQueues(d.Owned(ownerFrom(m.GetOwner()))), nil
}

// removeQueues removes queues, which are ordered by id, and answers so.
// Requires: each is in the catalog, none is a store. r.Deleted ascends, the
// stores that went included.
func (d *draft) removeQueues(queues []*Queue) *logpb.CatalogResult {
	r := &logpb.CatalogResult{Changed: len(queues) > 0}
	for _, q := range queues {
		r.Deleted = append(r.Deleted, uint64(q.ID))
		d.removeQueue(q, r)
	}
	return r
}

// removeQueue removes a queue with its bindings, and the exchanges that end
// with these. r names the stores that went. The removal is a last use of the
// exchanges bound to it, noted before its bindings go.
func (d *draft) removeQueue(q *Queue, r *logpb.CatalogResult) {
	vh := d.open(q.VHost)
	vh.exchanges.touchSources(q.Name, d.clock)
	d.removeExchanges(vh, vh.exchanges.unbindAllTo(endpoint{name: q.Name}, destination{queue: q}), r)
	d.forgetQueue(vh, q)
}

// forgetQueue removes a queue that nothing is bound to. Requires: vh is open.
// All four that know the queue forget it: the vhost and its policies, the
// index, the placements.
func (d *draft) forgetQueue(vh *vhost, q *Queue) {
	vh.removeQueue(q)
	d.queueIndex.remove(q)
	d.placements.forget(q)
}
