package catalog

import (
	"bytes"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// registerNode gives a node its number, which it keeps, and its boot number,
// which is new for each process, and for a process whose boot was declared
// dead. What only an earlier boot could keep alive goes: the exclusive queues of
// its connections, and after another process the local queues, whose messages
// were in its memory.
func (d *draft) registerNode(m *logpb.RegisterNode) (*logpb.CatalogResult, error) {
	if m.GetName() == "" || len(m.GetIncarnation()) == 0 {
		return nil, refuse(fsm.Internal, "a node needs a name and an incarnation")
	}
	node, known := d.NodeByName(m.GetName())
	switch {
	case known && len(node.Identity) > 0 && len(m.GetIdentity()) > 0 && !bytes.Equal(node.Identity, m.GetIdentity()):
		return nil, refuse(fsm.Internal, "node %s is known with another data folder", m.GetName())
	case known && bytes.Equal(node.Incarnation, m.GetIncarnation()) && !node.GetDead():
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
	again := known && bytes.Equal(node.Incarnation, m.GetIncarnation())
	next.Draining = again && node.GetDraining()
	d.addNode(next)
	r := d.removeQueues(d.orphans(next.Number, next.Boot-1, !again))
	r.Changed, r.Node, r.Boot = true, next.Number, next.Boot
	return r, nil
}

// declareDead ends the present boot of a node, and with it all that only that
// boot could keep alive: its connections' exclusive queues and its local queues.
func (d *draft) declareDead(m *logpb.DeclareDead) (*logpb.CatalogResult, error) {
	node, known := d.NodeByName(m.GetName())
	if !known || node.GetBoot() == 0 || node.GetBoot() != m.GetBoot() || node.GetDead() {
		return &logpb.CatalogResult{}, nil
	}
	next := copyNode(node)
	next.Dead = true
	d.addNode(next)
	r := d.removeQueues(d.orphans(node.GetNumber(), node.GetBoot(), true))
	r.Changed = true
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
	next := copyNode(node)
	next.Draining = m.GetDraining()
	d.addNode(next)
	return &logpb.CatalogResult{Changed: true}, nil
}

// copyNode returns a record that may be changed: the one in the catalog is
// shared with its views.
func copyNode(n *logpb.NodeState) *logpb.NodeState {
	return &logpb.NodeState{
		Number: n.Number, Name: n.Name, PeerAddress: n.PeerAddress, Incarnation: n.Incarnation, Boot: n.Boot,
		Draining: n.Draining, Identity: n.Identity, OldestVersion: n.OldestVersion, NewestVersion: n.NewestVersion, Dead: n.Dead,
	}
}

func (d *draft) addNode(n *logpb.NodeState) {
	d.nodes = d.nodes.With(fsm.NodeID(n.Number), n)
	d.nodeNames = d.nodeNames.With(n.Name, n)
}

// orphans returns the queues that end with the boots of a node up to boot: the
// exclusive ones of its connections, and if its memory is gone the local ones.
func (d *draft) orphans(number uint32, boot uint64, memory bool) []*Queue {
	var list []*Queue
	for _, q := range d.Queues() {
		owned := q.Exclusive && q.Owner.Node == fsm.NodeID(number) && q.Owner.Boot <= boot
		if owned || memory && q.Local && q.Home() == fsm.NodeID(number) {
			list = append(list, q)
		}
	}
	return list
}
