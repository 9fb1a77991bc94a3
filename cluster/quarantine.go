package cluster

import (
	"errors"
	"fmt"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// Quarantined lists the queues that do not lead on this node because work for
// them has panicked here.
func (n *Node) Quarantined() []api.Quarantine {
	list := []api.Quarantine{}
	for _, g := range n.host.Quarantined() {
		if q := g.Quarantined(); q != nil {
			list = append(list, api.Quarantine{
				VHost: g.Spec().VHost, Name: g.Spec().Name, Group: uint32(g.Spec().Group), SinceMS: int64(q.Since),
				Doing: q.Doing, Panic: q.Panic, Term: q.Term, Index: q.Index, Stopped: q.Stopped,
			})
		}
	}
	return list
}

// Unproven lists the replicas on this node that do not vote, because they cannot
// prove what they acknowledged. The catalog's has no name.
func (n *Node) Unproven() []api.Unproven {
	list := []api.Unproven{}
	add := func(x api.Unproven, d *group.Doubt) {
		if d != nil {
			x.SinceMS, x.Reason, x.Stuck = int64(d.Since), d.Why, d.Stuck
			list = append(list, x)
		}
	}
	add(api.Unproven{}, n.catalog.Doubt())
	for _, g := range n.host.Learners() {
		s := g.Spec()
		add(api.Unproven{VHost: s.VHost, Name: s.Name, Group: uint32(s.Group)}, g.Doubt())
	}
	return list
}

// LiftQuarantine lets a queue be led by this node again. An error that is a
// *fsm.Refusal is the caller's fault.
func (n *Node) LiftQuarantine(q *catalog.Queue) error {
	g := n.host.Group(q.Group)
	if g == nil {
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s has no replica on node '%s'", q, n.config.Name))
	}
	err := g.LiftQuarantine()
	if errors.Is(err, group.ErrNotQuarantined) || errors.Is(err, group.ErrStopped) {
		return fsm.Refuse(fsm.Precondition, err.Error())
	}
	return err
}
