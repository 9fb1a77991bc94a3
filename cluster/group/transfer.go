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
	landingTime = time.Second // for what has been proposed
	// resignTime is how long a member may take to win the election it was told
	// to hold, which mostly takes a few milliseconds, and how long it may take
	// to resign.
	resignTime = 2 * time.Second
)

// Transfer makes another member the leader and returns when this replica no
// longer leads. First it lets everything land that it has taken: the submitters
// get their answers, and what comes from now on they keep for the new leader.
//
// to must be up and its log must be as long as the others'. If it does not win
// in time, this replica resigns, and whoever can becomes the leader: raft takes
// no entries during a transfer, and would go on trying for as long as its
// election timeout, which is long.
func (g *Group) Transfer(to string) error {
	g.office.Lock()
	defer g.office.Unlock()
	term := g.leading.Load()
	if term == 0 || g.barred() || g.IsLocal() || g.closed.Load() {
		return ErrNotLeading
	}
	g.setYielding(true)
	defer g.setYielding(false)
	if !g.proposer.landed(landingTime) {
		g.announceAgain(term)
		return fmt.Errorf("%w: entries do not get committed", ErrNotHandedOver)
	}
	err := g.handOver(to)
	if g.raft.State() != raft.Leader || g.raft.CurrentTerm() != term {
		g.leave()
		return err
	}
	g.announceAgain(term)
	return err
}

// handOver asks raft for a transfer, and resigns if that takes too long.
func (g *Group) handOver(to string) error {
	term := g.raft.CurrentTerm()
	f := endingWith(g.raft.LeadershipTransferToServer(raft.ServerID(to), raft.ServerAddress(to)), g.ending)
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
	g.host.config.Mesh.Resign(g.spec.Group, term+1, to)
	limit.Reset(resignTime)
	select {
	case <-done:
	case <-limit.C:
	}
	return ErrNotHandedOver
}

// announceAgain goes on with an office that was not handed over. Nothing was
// proposed meanwhile: neither the ticks that were due nor settings that have
// changed. Everybody is told that this replica leads after all: those whose
// commands it has refused have taken it for one that does not.
func (g *Group) announceAgain(term uint64) {
	g.setYielding(false)
	defer g.host.spawn(g.review) // what was seen of raft meanwhile
	if g.barred() {
		return
	}
	g.rearm()
	g.configure(true)
	g.announce(term)
}

// rearm has the ticker look at the deadline anew.
func (g *Group) rearm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer.begin(g, g.machine.NextDeadline()) // under the lock, as in begin
}

// setYielding makes the group refuse commands although it leads, or take them
// again.
func (g *Group) setYielding(yes bool) {
	g.proposer.mu.Lock()
	defer g.proposer.mu.Unlock()
	g.yielding.Store(yes)
}

// landed waits until everything that was submitted has been committed and
// answered, and reports whether it was in time. Nothing is submitted meanwhile.
func (p *proposer) landed(limit time.Duration) bool {
	p.mu.Lock()
	if !p.running && !p.waiting {
		p.mu.Unlock()
		return true
	}
	idle := make(chan struct{})
	p.idle = idle
	p.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}

// rested tells who waits for it that nothing is under way. The caller holds mu.
func (p *proposer) rested() {
	if p.idle != nil && !p.running && !p.waiting {
		close(p.idle)
		p.idle = nil
	}
}
