package group

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/fsm"
)

// leadership records whether this node leads a group, and whether it serves: raft may make a
// replica leader that must not serve, and a leader serves only when it has caught up.
//
//	serving() ≠ 0 ⇔ term ≠ 0 ∧ ¬transferring ∧ ¬barred()
type leadership struct {
	changing     longLock      // one change at a time
	term         atomic.Uint64 // in which this node serves; 0: none
	transferring atomic.Bool   // it takes no commands, see Transfer. Set under the proposer's lock
	resigned     resignation

	guard     *guard
	withdrawn *atomic.Bool  // the node leads nothing, see Host.Withdraw; nil for a local queue, which it does not affect
	raftTerm  func() uint64 // the current one
}

// longLock is a mutex that may be held while raft is waited for. Under virtual time, whoever waits
// for it lets time pass, as whoever holds it must.
type longLock struct {
	once  sync.Once
	token chan struct{} // holds one as long as the lock is held
}

func (l *longLock) channel() chan struct{} {
	l.once.Do(func() { l.token = make(chan struct{}, 1) })
	return l.token
}

// Lock implements sync.Locker.
func (l *longLock) Lock() { l.channel() <- struct{}{} }

// Unlock implements sync.Locker.
func (l *longLock) Unlock() { <-l.channel() }

// TryLock locks it if nobody else has, and reports whether it did.
func (l *longLock) TryLock() bool {
	select {
	case l.channel() <- struct{}{}:
		return true
	default:
		return false
	}
}

// serving returns the term in which this node leads and takes commands, or 0.
func (l *leadership) serving() uint64 {
	if l.transferring.Load() || l.barred() {
		return 0
	}
	return l.term.Load()
}

// refuses says why this node takes no commands now; nil: it does.
func (l *leadership) refuses() error {
	switch {
	case l.term.Load() == 0 || l.barred():
		return ErrNotLeading
	case l.transferring.Load():
		return ErrTransferring
	}
	return nil
}

// barred reports whether the group must not lead on this node: it is
// quarantined, or has resigned, or the node has withdrawn.
func (l *leadership) barred() bool {
	return l.guard.quarantined.Load() != nil || l.withdrawn != nil && l.withdrawn.Load() || l.hasResigned()
}

// hasResigned reports whether the group has resigned here in the current term.
func (l *leadership) hasResigned() bool {
	term := l.resigned.term.Load()
	return term != 0 && term == l.raftTerm()
}

// end stops serving for good; a pending begin gives up.
func (l *leadership) end() {
	l.changing.Lock()
	defer l.changing.Unlock()
	l.term.Store(0)
}

// review brings the group's role in line with raft's state: a new leader begins to serve, a former
// one stops. A barred one does not begin, and searches for another leader.
func (g *Group) review() {
	defer g.guard.contain("change the leader")
	l := &g.leadership
	l.changing.Lock()
	defer l.changing.Unlock()
	if g.isClosed() {
		return
	}
	lead := g.order.leads()
	if had := l.term.Load(); had != 0 && (!lead || l.barred() || had != g.Term()) {
		g.leave()
	}
	switch {
	case !lead || l.term.Load() != 0:
	case !l.barred():
		g.enter()
	default:
		g.order.leaderless()
	}
}

// enter waits until everything earlier leaders committed has been applied,
// and then starts to serve.
func (g *Group) enter() {
	term := g.order.takeOver()
	if term == 0 {
		return // lost again; the next change of state leads here once more
	}
	deadline, ok := g.begin(term)
	if !ok {
		return
	}
	if g.IsLocal() && g.isClosed() { // meanwhile; the end of a replica waits for the change
		g.leave()
		return
	}
	g.order.led()
	if !g.IsLocal() {
		g.host.applying.meters.led.Add(1)
	}
	// The first entry of a new term has a tick, so that time that passed without a leader is accounted
	// for, the settings, and what has waited for a leader, as far as that is here in time.
	g.proposer.gather(deadline != 0, func() {
		g.settings.propose(true)
		g.announce(term)
	})
	if !g.wanted(time.Now()) {
		g.begun(term)
		return
	}
	g.spawn(func() {
		select {
		case <-time.After(firstEntryWait):
			g.begun(term)
		case <-g.ending:
		}
	})
}

// firstEntryWait is for how long a leader that somebody has waited for expects his commands.
const firstEntryWait = 5 * time.Millisecond

// begun proposes the tick of a new term if nothing has come that it could go with, and tells the other
// members what is committed if there is nothing to propose.
func (g *Group) begun(term uint64) {
	defer g.guard.contain("begin a term")
	g.proposer.goOn()
	g.order.tellCommitted(term)
}

// begin starts to serve in a term, unless raft has changed its mind.
func (g *Group) begin(term uint64) (deadline fsm.Time, ok bool) {
	return g.applier.begin(func() bool { return g.order.leads() && g.order.term() == term }, func(now fsm.Time) {
		g.proposer.begin(g.host.config.Clock, now)
		g.leadership.term.Store(term)
	})
}

// announce tells the Outside that this node leads, or that it no longer does (0).
func (g *Group) announce(term uint64) {
	defer g.guard.contain("announce the leader")
	g.host.config.Outside.Led(g, term)
}

// awaitClocks waits until a majority of the wall clocks has agreed, so that the first stamp of the
// term can take the leaderless time into account: a later one would take it from messages that were
// enqueued meanwhile. Usually a majority has agreed: votes and clocks come over the same links.
func awaitClocks(c *clock.Clock, ending <-chan struct{}) {
	select {
	case <-c.Agreed():
		return
	default:
	}
	limit := time.NewTimer(c.AgreementLeft())
	defer limit.Stop()
	select {
	case <-c.Agreed():
	case <-ending:
	case <-limit.C:
	}
}

// leave stops serving. The proposer reports what was proposed and not yet answered as undecided.
func (g *Group) leave() {
	g.leadership.term.Store(0)
	g.timer.stop()
	g.proposer.leadershipEnded()
	g.announce(0)
}

// barred reports whether the group must not lead on this node.
func (g *Group) barred() bool { return g.leadership.barred() }

// resignedLately reports whether the group has resigned here recently.
func (g *Group) resignedLately() bool {
	until := g.leadership.resigned.until.Load()
	return until != 0 && until > int64(g.host.watch.now())
}

// lastLed implements electable.
func (g *Group) lastLed() uint64 { return g.ledIn.Load() }

// want implements electable.
func (g *Group) want(now time.Time) { g.wantedAt.Store(now.UnixNano()) }

// wanted implements electable.
func (g *Group) wanted(now time.Time) bool {
	at := g.wantedAt.Load()
	return at != 0 && now.UnixNano()-at < int64(wantValid)
}

// patience implements electable: nothing is due sooner, nobody holds a message, and no letter is on its way.
func (g *Group) patience() time.Duration {
	if g.hasUnapplied() {
		return 0
	}
	return g.applier.patience(g.host.config.Clock.Now())
}
