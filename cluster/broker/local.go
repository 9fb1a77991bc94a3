package broker

import (
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

// removeLost removes the local queues of lost nodes: their messages are gone,
// and so are the connections they belonged to. All nodes do so; a queue is
// removed once.
func (b *Broker) removeLost() {
	var lost []*logpb.CatalogCommand
	v := b.view()
	over := map[fsm.NodeID]bool{}
	for _, n := range v.Nodes() {
		if b.givenUp(n) {
			over[fsm.NodeID(n.Number)] = true
		}
	}
	if len(over) == 0 {
		return
	}
	for _, q := range v.Queues() {
		if q.Local && over[q.Home()] {
			lost = append(lost, removal(q))
		}
	}
	if len(lost) > 0 && b.removing.CompareAndSwap(false, true) {
		b.spawn(func() {
			b.removeAll(lost)
			b.removing.Store(false)
		})
	}
}

// givenUp reports whether a node is dead, or has been silent for so long that
// what lives there only counts as lost.
func (b *Broker) givenUp(n *logpb.NodeState) bool {
	switch b.stateOf(n, n.Boot) {
	case nodeOver:
		return true
	case nodeSilent:
		b.mu.RLock()
		defer b.mu.RUnlock()
		return b.now()-b.dead[n.Name].since > int64(b.config.Defaults.DisconnectedTimeout)
	}
	return false
}

func removal(q *catalog.Queue) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{
		Vhost: q.VHost, Name: q.Name, Id: uint64(q.ID),
	}}}
}

// removeAll commits the removal of queues, as far as that is possible now.
func (b *Broker) removeAll(commands []*logpb.CatalogCommand) {
	ctx, cancel := b.whileOpen()
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, leaderWait)
	defer stop()
	for len(commands) > 0 {
		n := min(len(commands), removeAtOnce)
		if _, err := b.config.Catalog.Propose(ctx, commands[:n]...); err != nil {
			b.slog.Warn("local queues of dead nodes are not removed", "error", err) // the next look does it
			return
		}
		commands = commands[n:]
	}
}
