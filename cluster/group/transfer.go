package group

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// ErrNotHandedOver is returned for a leadership that its holder still has, or
// has lost to nobody in particular, after the time for its transfer.
var ErrNotHandedOver = errors.New("the leadership was not handed over")

// Parts of a transfer.
const (
	drainTime = time.Second // for what raft has taken
	// resignTime is how long a member may take to win the election it was told
	// to hold, which mostly takes a few milliseconds, and how long it may take
	// to resign.
	resignTime = 2 * time.Second
)

// Transfer makes another member the leader and returns when this replica no
// longer leads. First the entries that raft has taken are committed, at most
// maxPending. What is queued is kept: it goes on if the transfer fails, and back
// to the submitters if it succeeds. What comes meanwhile they keep.
//
// to must be up and its log must be as long as the others'. If it does not win
// in time, this replica resigns, and whoever can becomes the leader: raft takes
// no entries during a transfer, and would go on trying for as long as its
// election timeout, which is long.
func (g *Group) Transfer(to string) error {
	l := &g.leadership
	l.changing.Lock()
	defer l.changing.Unlock()
	term := l.term.Load()
	if term == 0 || l.barred() || g.IsLocal() || g.isClosed() {
		return ErrNotLeading
	}
	g.setTransferring(true)
	defer g.setTransferring(false)
	if !g.proposer.drained(drainTime) {
		g.announceAgain(term)
		return fmt.Errorf("%w: entries do not get committed", ErrNotHandedOver)
	}
	err := g.handOver(to)
	if now, leads := g.leadsIn(); !leads || now != term {
		g.leave()
		return err
	}
	g.announceAgain(term)
	return err
}

// handOver asks raft for a transfer, and resigns if that takes too long.
func (g *Group) handOver(to string) error {
	term := g.Term()
	f := endingWith(g.raft.Load().LeadershipTransferToServer(raft.ServerID(to), raft.ServerAddress(to)), g.ending)
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	limit := time.NewTimer(resignTime)
	defer limit.Stop()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotHandedOver, err)
		}
		return nil
	case <-limit.C:
	}
	g.slog.Warn("leadership transfer takes too long", "to", to)
	// If another one leads by now, that is not later than its term.
	g.mesh.Resign(g.spec.Group, term+1, to)
	limit.Reset(resignTime)
	select {
	case <-done:
	case <-limit.C:
	}
	return ErrNotHandedOver
}

// cedeTo hands the leadership to a member that reaches more of the others.
func (g *Group) cedeTo(node string) {
	defer g.guard.contain("hand the leadership over")
	err := g.Transfer(node)
	g.slog.Info("the leadership goes to a member that reaches all others", "to", node, "error", err)
}

// announceAgain goes on with a leadership that was not handed over. Nothing was
// proposed meanwhile: neither the ticks that were due nor settings that have
// changed. Everybody is told that this replica leads after all: those whose
// commands it has refused wait for that.
func (g *Group) announceAgain(term uint64) {
	g.setTransferring(false)
	defer g.spawn(g.review) // what was seen of raft meanwhile
	if g.barred() {
		return
	}
	g.applier.rearm()
	g.settings.propose(true)
	g.announce(term)
}

// setTransferring makes the group refuse commands and make no entries although it
// leads, or go on.
func (g *Group) setTransferring(yes bool) { g.proposer.transfer(yes) }
