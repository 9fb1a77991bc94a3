package cluster

import (
	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// queueSettings returns the effective settings of a queue as this node currently knows them; nil if
// it knows no such queue.
func (n *Node) queueSettings(id fsm.QueueID) *group.QueueConfig {
	v := n.catalog.View()
	if q, ok := v.QueueByID(id); ok {
		return v.Settings(q, n.config.Defaults)
	}
	return nil
}

// segmentsSince is the fsm_version since which programs read segments.
const segmentsSince = 2

// catalogChanged acts on the changes made by an entry of the catalog.
func (n *Node) catalogChanged(c replicated.Change) {
	view := n.catalog.View()
	if view.FSMVersion() >= segmentsSince {
		n.stores.queues.UseSegments()
	}
	if c.Nodes || c.Everything {
		n.membership.Changed(view)
	}
	for _, id := range c.Added {
		if q, ok := view.QueueByID(id); ok {
			n.queueAdded(q)
			n.queueLed(q)
		}
	}
	for _, id := range c.Removed {
		n.queues.QueueGone(id)
		n.sessions.QueueGone(id)
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
		n.placement.Reconciler.Check(configured...) // a policy may say how many members they have
	}
	for _, id := range c.Moved {
		if q, ok := view.QueueByID(id); ok {
			n.placement.Local.Check(q.Group)
			n.placement.Reconciler.Check(q.Group)
		}
	}
	if c.Everything {
		for _, q := range view.Queues() {
			n.queueAdded(q)
		}
		n.host.ReconfigureAll()
		n.queues.DropMissing()
		n.sessions.DropMissing()
		n.placement.Local.CheckOpen()
		n.placement.Reconciler.CheckAll()
	}
	if c.Rights || c.Everything {
		n.sessions.Departed(c.Users, c.VHosts)
		n.rights.Wake()
	}
	if n.clock.learn(view) {
		n.host.ReconfigureAll()
	}
	n.failures.CatalogChanged()
}

// queueAdded passes on that the catalog holds a queue.
func (n *Node) queueAdded(q *catalog.Queue) {
	n.placement.Local.Added(q)
	n.queues.Routes.QueueAdded(q)
	n.sessions.QueueAdded(q)
}

// queueLed passes on who leads a new queue from its declaration on. Nobody says so.
func (n *Node) queueLed(q *catalog.Queue) {
	leader := n.placement.Local.Leads(q)
	if leader == "" {
		return
	}
	n.queues.Routes.Lead(q.ID, leader, group.FirstTerm)
	if g := n.host.Group(q.Group); g != nil && g.Leading() != 0 {
		n.placement.Reconciler.CheckGroup(g)
	}
}

// outside is what groups see of the node; the reconciler checks the groups that the node leads.
type outside struct {
	*queues.Queues
	node *Node
}

// Led implements group.Outside.
func (o outside) Led(g *group.Group, term uint64) {
	o.Queues.Led(g, term)
	if term != 0 {
		o.node.placement.Reconciler.CheckGroup(g)
	}
}
