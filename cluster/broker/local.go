package broker

import (
	"bytes"
	"context"
	"time"

	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// removeAtOnce bounds how many queues one entry of the catalog removes.
const removeAtOnce = 1024

const (
	// refreshWait bounds how long a request waits for a view that is up to date.
	// The present one must do then.
	refreshWait = time.Second
	// agreeWait bounds how long an answer that only repeats what the view says
	// waits for the other nodes. Who has not seen it by then has lost its lease.
	agreeWait = 2 * time.Second
)

// Refresh brings this node's view up to date: what a client of any node has
// been told is done shows in it.
func (s *Session) Refresh(ctx context.Context) error { return s.broker().config.Catalog.Refresh(ctx) }

// freshView is the view after it has been brought up to date, as far as that is
// possible.
func (b *Broker) freshView(ctx context.Context) *catalog.View {
	if !b.config.Catalog.Fresh() {
		ctx, cancel := context.WithTimeout(ctx, refreshWait)
		defer cancel()
		if err := b.config.Catalog.Refresh(ctx); err != nil {
			b.slog.Debug("view not refreshed", "error", err)
		}
	}
	return b.view()
}

// agree returns when the other nodes hold what this one's view says: who is
// told that something is there, or gone, may rely on it at any node.
func (b *Broker) agree(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, agreeWait)
	defer cancel()
	if err := b.config.Catalog.Converge(ctx); err != nil {
		b.slog.Debug("other nodes may not hold what this one has answered", "error", err)
	}
}

// removeLost removes the local queues of nodes that nobody has heard for so long
// that what lives there only counts as lost: their messages, and the connections
// they belonged to. All nodes do so; a queue is removed once. Those of a node
// that is declared dead go with that.
func (b *Broker) removeLost() {
	var lost []*logpb.NodeState
	for _, n := range b.view().Nodes() {
		if b.givenUp(n) {
			lost = append(lost, n)
		}
	}
	if len(lost) > 0 && b.removing.CompareAndSwap(false, true) {
		b.spawn("remove lost queues", func() {
			defer b.removing.Store(false)
			for _, n := range lost {
				b.removeLocal(n)
			}
		})
	}
}

// givenUp reports whether a node has been silent for longer than what its
// clients hold stays with them.
func (b *Broker) givenUp(n *logpb.NodeState) bool {
	s, suspected := b.suspects.get(n.Name)
	return suspected && bytes.Equal(s.incarnation[:], n.Incarnation) && b.now()-s.since > int64(b.config.Defaults.DisconnectedTimeout)
}

// removeLocal removes the local queues of a node that is given up, if the other
// nodes do not hear it either: this one may be who is cut off.
func (b *Broker) removeLocal(n *logpb.NodeState) {
	var removals []*logpb.CatalogCommand
	for _, q := range b.view().Queues() {
		if q.Local && uint32(q.Home()) == n.Number {
			removals = append(removals, removal(q, n.Boot))
		}
	}
	if len(removals) == 0 {
		return
	}
	ctx, cancel := b.whileOpen()
	defer cancel()
	if b.unheard(ctx, n) {
		b.removeAll(ctx, removals)
	}
}

// removal is the command that removes a queue which was lost with a boot of its
// node.
func removal(q *catalog.Queue, boot uint64) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{
		Vhost: q.VHost, Name: q.Name, Id: uint64(q.ID), LostBoot: boot,
	}}}
}

// removeAll commits the removal of queues, as far as that is possible now.
func (b *Broker) removeAll(ctx context.Context, commands []*logpb.CatalogCommand) {
	ctx, stop := context.WithTimeout(ctx, declareWait)
	defer stop()
	for len(commands) > 0 {
		n := min(len(commands), removeAtOnce)
		if _, err := b.config.Catalog.Note(ctx, commands[:n]...); err != nil {
			b.slog.Warn("local queues of lost nodes are not removed", "error", err) // the next look does it
			return
		}
		commands = commands[n:]
	}
}
