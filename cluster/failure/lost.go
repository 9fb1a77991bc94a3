package failure

import (
	"bytes"
	"context"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// removeAtOnce bounds how many queues one entry of the catalog removes.
const removeAtOnce = 1024

// removeLost removes the local queues of nodes that nobody has heard for so long that their
// messages and the connections that own them count as lost. All nodes do so; a queue is removed
// once. The queues of a node that is declared dead are removed by that declaration.
func (d *Detector) removeLost() {
	var lost []*logpb.NodeState
	for _, n := range d.node.View().Nodes() {
		if d.givenUp(n) {
			lost = append(lost, n)
		}
	}
	if len(lost) > 0 && d.removing.CompareAndSwap(false, true) {
		d.node.Spawn("remove lost queues", func() {
			defer d.removing.Store(false)
			for _, n := range lost {
				d.removeLocal(n)
			}
		})
	}
}

// givenUp reports whether a node has been suspected for longer than its clients keep what they
// hold.
func (d *Detector) givenUp(n *logpb.NodeState) bool {
	s, suspected := d.suspects.get(n.Name)
	return suspected && bytes.Equal(s.incarnation[:], n.Incarnation) && d.node.Now()-s.since > int64(d.retention)
}

// removeLocal removes the local queues of a node that is given up, if the other nodes do not hear
// it either: the node that is cut off may be this one.
func (d *Detector) removeLocal(n *logpb.NodeState) {
	view := d.node.View()
	if d.emptied[n.Number] == view.Index() {
		return
	}
	var removals []*logpb.CatalogCommand
	for _, q := range view.EndingWith(fsm.NodeID(n.Number)) {
		if q.Local && uint32(q.Home()) == n.Number {
			removals = append(removals, self.Removal(q, n.Boot))
		}
	}
	if len(removals) == 0 {
		d.emptied[n.Number] = view.Index()
		return
	}
	if d.unheard(d.node.Life(), n) {
		d.removeAll(d.node.Life(), removals)
	}
}

// removeAll commits the removal of queues, as far as that is currently possible.
func (d *Detector) removeAll(ctx context.Context, commands []*logpb.CatalogCommand) {
	ctx, stop := context.WithTimeout(ctx, declareWait)
	defer stop()
	for len(commands) > 0 {
		n := min(len(commands), removeAtOnce)
		if _, err := d.node.Catalog.Note(ctx, commands[:n]...); err != nil {
			d.node.Logger.Warn("queues without replicas on lost nodes could not be removed", "error", err) // the next round does it
			return
		}
		commands = commands[n:]
	}
}
