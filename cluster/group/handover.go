package group

import (
	"fmt"

	"github.com/quorate/quorate/cluster/replica"
)

// Transfer makes another member the leader and returns when this replica no
// longer leads. First the entries that raft has taken are committed, maxPending
// and a few more if members are far. What is queued is kept: it goes on if the transfer fails, and back
// to the submitters if it succeeds. What comes meanwhile they keep.
//
// to must be up, and is given a second, and a round trip, to get what its log lacks. If it does not
// win in time, this replica goes on, and refuses the next attempts for a while:
// each of them stops the queue for a moment.
func (g *Instance) Transfer(to string) error {
	l := &g.leadership
	l.changing.Lock()
	defer l.changing.Unlock()
	term := l.term.Load()
	if term == 0 || l.barred() || g.IsLocal() || g.IsClosed() {
		return replica.ErrNotLeading
	}
	if err := g.RefusesMove(to); err != nil {
		return err
	}
	g.proposer.transfer(true)
	defer g.proposer.transfer(false)
	err := fmt.Errorf("%w: entries are not being committed", replica.ErrNotHandedOver)
	if g.proposer.drained(g.MovePatience(to)) {
		err = g.Move(to, term)
	}
	g.MoveEnded(err)
	if now, leads := g.LeadsIn(); !leads || now != term {
		g.leave()
		return err
	}
	g.announceAgain(term)
	return err
}

// CedeTo hands the leadership to a member that reaches more of the others.
func (g *Instance) CedeTo(node string) {
	defer g.guard.contain("hand the leadership over")
	err := g.Transfer(node)
	g.slog.Info("handing the leadership over to a member that reaches all others", "to", node, "error", err)
}

// announceAgain goes on with a leadership that was not handed over. Nothing was
// proposed meanwhile: neither the ticks that were due nor settings that have
// changed. Everybody is told that this replica leads after all: those whose
// commands it has refused wait for that.
func (g *Instance) announceAgain(term uint64) {
	g.proposer.transfer(false)
	defer g.node.Tasks.Go(g.Review) // what was seen of raft meanwhile
	if g.Barred() {
		return
	}
	g.applier.rearm()
	g.settings.propose(true)
	g.announce(term)
}
