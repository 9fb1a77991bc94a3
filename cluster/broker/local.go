package broker

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// removeAtOnce bounds how many queues one entry of the catalog removes.
const removeAtOnce = 1024

// upToDate asks the view, and once more a view that is up to date if the answer
// is that there is no such thing, or that a queue belongs to another connection:
// it may have come, or that one may have ended, at another node, which has told
// its client so before this node knew.
func (s *Session) upToDate(ctx context.Context, ask func() error) error {
	err := ask()
	if r := new(fsm.Refusal); !errors.As(err, &r) || r.Kind != fsm.Locked && r.Kind != fsm.NotFoundKind {
		return err
	}
	if s.Refresh(ctx) != nil {
		return err
	}
	return ask()
}

// newestKnown is the index of the newest entry of the catalog that this node
// knows of, whether or not it is in its view. It travels with messages: who
// answers one may rely on what had been defined when it was sent.
func (b *Broker) newestKnown() uint64 { return max(b.view().Index(), b.newest.Load()) }

// hear notes an index that another node knows of.
func (b *Broker) hear(index uint64) {
	for {
		was := b.newest.Load()
		if index <= was || b.newest.CompareAndSwap(was, index) {
			return
		}
	}
}

// Behind reports whether the view lacks what is known to be defined. Refresh
// brings it.
func (s *Session) Behind() bool {
	b := s.broker()
	return b.newest.Load() > b.view().Index()
}

// refreshWait bounds how long the catalog's leader is waited for.
const refreshWait = time.Second

// Refresh brings this node's view up to date: what a client of any node has
// been told is done shows in it.
func (s *Session) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, refreshWait)
	defer cancel()
	return s.broker().config.Catalog.Refresh(ctx)
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
		b.spawn(func() {
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
		if _, err := b.config.Catalog.Propose(ctx, commands[:n]...); err != nil {
			b.slog.Warn("local queues of lost nodes are not removed", "error", err) // the next look does it
			return
		}
		commands = commands[n:]
	}
}
