package session

import (
	"bytes"
	"context"

	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// removeAtOnce bounds how many queues one entry of the catalog removes.
const removeAtOnce = 1024

// removeLost removes the local queues of nodes that nobody has heard for so long that their
// messages and the connections that own them count as lost. All nodes do so; a queue is removed
// once. The queues of a node that is declared dead are removed by that declaration.
func (d *detector) removeLost() {
	var lost []*logpb.NodeState
	for _, n := range d.view().Nodes() {
		if d.givenUp(n) {
			lost = append(lost, n)
		}
	}
	if len(lost) > 0 && d.removing.CompareAndSwap(false, true) {
		d.spawn("remove lost queues", func() {
			defer d.removing.Store(false)
			for _, n := range lost {
				d.removeLocal(n)
			}
		})
	}
}

// givenUp reports whether a node has been suspected for longer than its clients keep what they
// hold.
func (d *detector) givenUp(n *logpb.NodeState) bool {
	s, suspected := d.suspects.get(n.Name)
	return suspected && bytes.Equal(s.incarnation[:], n.Incarnation) && d.now()-s.since > int64(d.retention)
}

// removeLocal removes the local queues of a node that is given up, if the other nodes do not hear
// it either: the node that is cut off may be this one.
func (d *detector) removeLocal(n *logpb.NodeState) {
	var removals []*logpb.CatalogCommand
	for _, q := range d.view().Queues() {
		if q.Local && uint32(q.Home()) == n.Number {
			removals = append(removals, removal(q, n.Boot))
		}
	}
	if len(removals) == 0 {
		return
	}
	ctx, cancel := d.whileOpen()
	defer cancel()
	if d.unheard(ctx, n) {
		d.removeAll(ctx, removals)
	}
}

// removal is the command that removes a queue lost with a boot of its node.
func removal(q *catalog.Queue, boot uint64) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{
		Vhost: q.VHost, Name: q.Name, Id: uint64(q.ID), LostBoot: boot,
	}}}
}

// removeAll commits the removal of queues, as far as that is currently possible.
func (d *detector) removeAll(ctx context.Context, commands []*logpb.CatalogCommand) {
	ctx, stop := context.WithTimeout(ctx, declareWait)
	defer stop()
	for len(commands) > 0 {
		n := min(len(commands), removeAtOnce)
		if _, err := d.catalog.Note(ctx, commands[:n]...); err != nil {
			d.slog.Warn("queues without replicas on lost nodes could not be removed", "error", err) // the next round does it
			return
		}
		commands = commands[n:]
	}
}
