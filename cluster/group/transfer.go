package group

import (
	"errors"
	"fmt"
)

// ErrNotHandedOver is returned for a leadership that its holder still has, or
// has lost to nobody in particular, after the time for its transfer.
var ErrNotHandedOver = errors.New("the leadership was not handed over")

// Transfer makes another member the leader and returns when this replica no
// longer leads. First the entries that raft has taken are committed, maxPending
// and a few more if members are far. What is queued is kept: it goes on if the transfer fails, and back
// to the submitters if it succeeds. What comes meanwhile they keep.
//
// to must be up, and is given a second, and a round trip, to get what its log lacks. If it does not
// win in time, this replica goes on, and refuses the next attempts for a while:
// each of them stops the queue for a moment.
func (g *Group) Transfer(to string) error {
	l := &g.leadership
	l.changing.Lock()
	defer l.changing.Unlock()
	term := l.term.Load()
	if term == 0 || l.barred() || g.IsLocal() || g.isClosed() {
		return ErrNotLeading
	}
	if err := g.handover.refuses(&g.replica, to); err != nil {
		return err
	}
	g.proposer.transfer(true)
	defer g.proposer.transfer(false)
	err := fmt.Errorf("%w: entries are not being committed", ErrNotHandedOver)
	if g.proposer.drained(g.handover.patience(&g.replica, drainTime, to)) {
		err = g.handover.move(&g.replica, to, term)
	}
	g.handover.ended(err)
	if now, leads := g.leadsIn(); !leads || now != term {
		g.leave()
		return err
	}
	g.announceAgain(term)
	return err
}

// cedeTo hands the leadership to a member that reaches more of the others.
func (g *Group) cedeTo(node string) {
	defer g.guard.contain("hand the leadership over")
	err := g.Transfer(node)
	g.slog.Info("handing the leadership over to a member that reaches all others", "to", node, "error", err)
}

// announceAgain goes on with a leadership that was not handed over. Nothing was
// proposed meanwhile: neither the ticks that were due nor settings that have
// changed. Everybody is told that this replica leads after all: those whose
// commands it has refused wait for that.
func (g *Group) announceAgain(term uint64) {
	g.proposer.transfer(false)
	defer g.spawn(g.review) // what was seen of raft meanwhile
	if g.barred() {
		return
	}
	g.applier.rearm()
	g.settings.propose(true)
	g.announce(term)
}
