package catalog

import (
	"bytes"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// registerNode gives a node its number, which it keeps, and its boot number,
// which is new for each process. What only an earlier process of the node
// could keep alive goes: the exclusive queues of its connections, and the
// local queues, whose messages were in its memory.
func (d *draft) registerNode(m *logpb.RegisterNode) (*logpb.CatalogResult, error) {
	if m.GetName() == "" || len(m.GetIncarnation()) == 0 {
		return nil, refuse(fsm.Internal, "a node needs a name and an incarnation")
	}
	node, known := d.NodeByName(m.GetName())
	switch {
	case known && len(node.Identity) > 0 && len(m.GetIdentity()) > 0 && !bytes.Equal(node.Identity, m.GetIdentity()):
		return nil, refuse(fsm.Internal, "node %s is known with another data folder", m.GetName())
	case known && bytes.Equal(node.Incarnation, m.GetIncarnation()):
		return &logpb.CatalogResult{Node: node.Number, Boot: node.Boot}, nil
	case known && node.Boot == d.index:
		return nil, refuse(fsm.Internal, "node %s started twice in one entry", m.GetName())
	}
	if err := d.CheckVersions(m.GetName(), fsm.Announced(m)); err != nil {
		return nil, err
	}
	next := &logpb.NodeState{
		Name: m.GetName(), PeerAddress: m.GetPeerAddress(), Incarnation: m.GetIncarnation(), Boot: d.index, Identity: m.GetIdentity(),
		OldestVersion: m.GetOldestVersion(), NewestVersion: m.GetNewestVersion(),
	}
	if known {
		next.Number = node.Number
		if len(next.Identity) == 0 {
			next.Identity = node.Identity
		}
	} else {
		d.lastNode++
		next.Number = d.lastNode
	}
	d.addNode(next)
	r := d.removeQueues(d.orphans(next))
	r.Changed, r.Node, r.Boot = true, next.Number, next.Boot
	return r, nil
}

// setDraining marks a node that is about to stop, or takes the mark away. A
// new process of the node begins without it.
func (d *draft) setDraining(m *logpb.SetDraining) (*logpb.CatalogResult, error) {
	node, known := d.NodeByName(m.GetName())
	switch {
	case !known:
		return nil, refuse(fsm.NotFoundKind, "no node '%s'", m.GetName())
	case node.GetDraining() == m.GetDraining():
		return &logpb.CatalogResult{}, nil
	}
	d.addNode(&logpb.NodeState{
		Number: node.Number, Name: node.Name, PeerAddress: node.PeerAddress,
		Incarnation: node.Incarnation, Boot: node.Boot, Draining: m.GetDraining(), Identity: node.Identity,
		OldestVersion: node.OldestVersion, NewestVersion: node.NewestVersion,
	})
	return &logpb.CatalogResult{Changed: true}, nil
}

func (d *draft) addNode(n *logpb.NodeState) {
	d.nodes = d.nodes.With(fsm.NodeID(n.Number), n)
	d.nodeNames = d.nodeNames.With(n.Name, n)
}

// orphans returns the queues that ended with earlier processes of a node.
func (d *draft) orphans(n *logpb.NodeState) []*Queue {
	var list []*Queue
	for _, q := range d.Queues() {
		owned := q.Exclusive && q.Owner.Node == fsm.NodeID(n.Number) && q.Owner.Boot < n.Boot
		if owned || q.Local && q.Home() == fsm.NodeID(n.Number) {
			list = append(list, q)
		}
	}
	return list
}
