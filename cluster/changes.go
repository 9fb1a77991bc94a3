package cluster

import (
	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// queueSettings returns the effective settings of a queue as this node knows
// them now; nil: it knows no such queue.
func (n *Node) queueSettings(id fsm.QueueID) *group.QueueConfig {
	v := n.catalog.View()
	if q, ok := v.QueueByID(id); ok {
		return v.Settings(q, n.config.Defaults)
	}
	return nil
}

// catalogChanged acts on what an entry of the catalog has changed.
func (n *Node) catalogChanged(c group.CatalogChange) {
	view := n.catalog.View()
	if c.Nodes || c.Everything {
		n.membership.Changed(view)
	}
	for _, id := range c.Added {
		if q, ok := view.QueueByID(id); ok {
			n.placement.Local.Added(q)
			n.broker.QueueAdded(q)
		}
	}
	for _, id := range c.Removed {
		n.broker.QueueGone(id)
		n.placement.Local.Removed(id)
	}
	var configured []fsm.GroupID
	for _, id := range c.Configured {
		if q, ok := view.QueueByID(id); ok {
			configured = append(configured, q.Group)
		}
	}
	if len(configured) > 0 {
		n.host.Reconfigure(configured)
	}
	for _, id := range c.Moved {
		if q, ok := view.QueueByID(id); ok {
			n.placement.Local.Check(q.Group)
			n.placement.Reconciler.Check(q.Group)
		}
	}
	if c.Everything {
		for _, q := range view.Queues() {
			n.placement.Local.Added(q)
			n.broker.QueueAdded(q)
		}
		n.host.ReconfigureAll()
		n.broker.DropMissing()
		n.placement.Local.CheckOpen()
		n.placement.Reconciler.CheckAll()
	}
	if c.Rights || c.Everything {
		n.broker.Departed(c.Users, c.VHosts)
		n.rights.Wake()
	}
	if n.clock.learn(view) {
		n.host.ReconfigureAll()
	}
	n.broker.CatalogChanged()
}

// outside is the broker, as groups see it; the reconciler checks what the node leads.
type outside struct {
	*broker.Broker
	node *Node
}

// Led implements group.Outside.
func (o outside) Led(g *group.Group, term uint64) {
	o.Broker.Led(g, term)
	if term != 0 {
		o.node.placement.Reconciler.CheckGroup(g)
	}
}

// served is the catalog, as the broker sees it.
type served struct {
	*group.Catalog
	node *Node
}

// Isolated implements broker.Catalog.
func (s served) Isolated() string { return s.node.Isolated() }
