package catalog

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Founder returns the node that has begun the group of a queue anew, with
// nothing in it, when all of its replicas were lost; 0: there is none, or others
// have had a replica since.
func (v *View) Founder(q *Queue) fsm.NodeID { return v.placed.At(q.ID).founder }

// NeedsOther reports whether a queue ends when one node is all that is left: it
// belongs to a connection to another one, or lives there alone.
func (q *Queue) NeedsOther(node fsm.NodeID) bool {
	return q.Exclusive && q.Owner.Node != node || q.Local && q.Home() != node
}

// recoverCluster makes one node the whole cluster. The other nodes go, and
// with them the queues that are on them alone because they are local, or belong
// to one of their connections. Every replicated queue has one member then, and
// grows again when nodes join: nobody is leaving, since no raft group holds any
// of them.
func (d *draft) recoverCluster(m *logpb.RecoverCluster) (*logpb.CatalogResult, error) {
	survivor, known := d.NodeByName(m.GetName())
	if !known {
		return nil, refuse(fsm.NotFoundKind, "no node '%s'", m.GetName())
	}
	self := fsm.NodeID(survivor.GetNumber())
	var ended []*Queue
	for _, q := range d.Queues() {
		if q.NeedsOther(self) {
			ended = append(ended, q)
		}
	}
	for _, n := range d.Nodes() {
		if n.GetNumber() != survivor.GetNumber() {
			d.nodes, d.nodeNames = d.nodes.Without(fsm.NodeID(n.GetNumber())), d.nodeNames.Without(n.GetName())
		}
	}
	r := d.removeQueues(ended)
	r.Changed = true
	for _, q := range d.Queues() {
		if q.Local {
			continue
		}
		p := placement{members: []fsm.NodeID{self}, size: d.placed.At(q.ID).size}
		if slices.Contains(m.GetEmpty(), uint64(q.ID)) {
			p.founder = self
		}
		d.placed = d.placed.With(q.ID, p)
		r.Moved = append(r.Moved, uint64(q.ID))
	}
	return r, nil
}
