// Package group runs queue groups: one raft group, with its machine, proposer and timer, for each
// queue that has a replica on this node.
//
// It promises: commands reach the machine in the order in which they were submitted while this
// node leads; every entry carries a stamp that never runs backwards; effects leave in log order
// and only while this node leads; a command whose outcome is unknown is reported as undecided,
// never as done. The package knows nothing of clients, routes or sessions: who submits commands
// and who consumes their effects is up to the Outside.
package group

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// Outside acts on the effects of leading groups. Its methods are called without holding any lock
// of the group and must not block for long.
type Outside interface {
	// Perform carries out effects, in log order, one call at a time per group. Ownership of w
	// returns to the group when Perform returns; payloads remain valid.
	Perform(g *Group, w *Work)
	// Undecided reports that commands submitted by node from (empty: this node) may or may not
	// have been applied. That node must submit them again.
	Undecided(g *Group, from string)
	// Led reports that this node has begun to lead g (term > 0) or has stopped leading it (0).
	Led(g *Group, term uint64)
}

// Spec says which group to open.
type Spec struct {
	Group   fsm.GroupID
	Queue   fsm.QueueID
	VHost   string
	Name    string
	Local   bool     // a queue of one node
	Members []string // initial node names, the preferred leader first; see Group.Voters
	// Joins: the group was founded without this replica, or has been founded anew since. The
	// replica starts empty, without members, and learns them from the leader.
	Joins  bool
	Config *QueueConfig
}

// Instance is a group that is awake. It connects its parts, each of which owns the state
// it guards, and changes this node's role in the group.
type Instance struct {
	*replica.Replica // raft; for a local queue, only its end

	shell *Group
	spec  Spec
	node  *Node
	slog  *slog.Logger

	attendant Attendant // the host's
	order     order
	store     *raftlog.Group // nil for a local queue

	applier    applier
	outgoing   outgoing
	demand     demand
	proposer   proposer
	timer      timer
	leadership leadership
	settings   settings
	guard      guard
	usage      Usage
	sharing    sharing
	began      int64         // when it was opened or woken, in ns
	resumes    *Record       // what it wakes from; nil: it is opened
	resumed    atomic.Uint64 // the term that its leader has slept in, until it serves again
	users      users         // calls that keep it awake
	ledIn      atomic.Uint64 // term of the last leader that was seen; 0: none was
	wish       wish          // for a leader

	snapshotting worker.LongLock // one snapshot is written at a time
}

// Open starts this node's replica of a group, for the first time or again.
func Open(n *Node, spec Spec, store *raftlog.Group) (*Group, error) {
	shell := &Group{spec: n.shared.spec(spec), node: n}
	g := newInstance(n, shell, store, n.newMachine(spec), groupLogger(n.config.Logger, &shell.spec))
	g.applier.log = store
	g.order = replicated{g}
	g.leadership.withdrawn = &n.withdrawn
	if err := g.openRaft(); err != nil {
		n.config.Mesh.DropGroup(spec.Group)
		return nil, err
	}
	shell.running.Store(g)
	g.attendant.Opened()
	g.Review()
	return shell, nil
}

// OpenLocal starts a local queue on this node, or returns the one that add has already: the same machine and
// proposer as a replica's, without raft and without anything on disk. It serves when OpenLocal
// returns.
func OpenLocal(n *Node, spec Spec, add func(g *Group) (have *Group, added bool)) *Group {
	spec.Local = true
	shell := &Group{spec: spec, node: n}
	g := newInstance(n, shell, nil, n.newMachine(spec), n.config.Logger)
	g.order = &local{
		replica: g.Replica, bytes: &n.localBytes, applier: &g.applier, proposer: &g.proposer,
		lead: &g.leadership, announce: g.announce,
	}
	shell.running.Store(g)
	g.proposer.begin(n.config.Clock, 0)
	g.leadership.term.Store(LocalTerm)
	if have, added := add(shell); !added {
		return have
	}
	g.settings.propose(true)
	g.announce(LocalTerm)
	return shell
}

// newInstance returns an instance whose parts are connected. It does nothing until it has an order and,
// unless the queue is local, raft.
func newInstance(n *Node, shell *Group, store *raftlog.Group, m *queue.Machine, log *slog.Logger) *Instance {
	spec := shell.spec
	g := &Instance{
		shell: shell, spec: spec, node: n, slog: log, store: store, began: time.Now().UnixNano(),
	}
	g.Replica = replica.New(replica.Config{
		Group: spec.Group, Node: n.config.Node, Preferred: spec.Members, Mesh: n.config.Mesh, Log: store, Logger: log, Spawn: n.Tasks.Go,
		TermChanged: func() { n.Elections.TermChanged(spec.Group) }, Unsettled: func() { g.attendant.Unsettled() },
	})
	release := func(indexes []uint64) { g.order.release(indexes) }
	g.guard = guard{
		spec: &g.spec, slog: n.config.Logger, now: n.config.Clock.Now, panics: &n.panics,
		position: func() (term, index uint64, ok bool) {
			if ok = g.order.opened(); ok {
				term, index = g.order.position()
			}
			return term, index, ok
		},
		ended: func() { n.Tasks.Go(g.Review) },
	}
	g.leadership = leadership{guard: &g.guard, raftTerm: g.Term}
	g.outgoing = outgoing{
		barred: g.Barred, release: release, guard: &g.guard,
		perform: func(w *Work) { n.config.Outside.Perform(shell, w) },
	}
	g.usage = Usage{note: func() { g.attendant.Applied() }, total: &n.replays}
	g.applier = applier{
		group: spec.Group, isLocal: spec.Local, node: &n.applying, release: release,
		serves:   func() bool { return g.leadership.term.Load() != 0 && !g.Barred() && g.order.leads() },
		outgoing: &g.outgoing, demand: &g.demand, timer: &g.timer, guard: &g.guard, usage: &g.usage, started: make(chan struct{}),
		doubt:      g.proposer.doubt,
		newMachine: func() *queue.Machine { return n.newMachine(spec) },
		machine:    m,
	}
	g.applier.probes = replica.Probes{Lock: &g.applier.mu, Index: g.applier.index, Freeze: g.applier.freeze}
	g.connectProposer()
	g.attendant = n.Attend(g)
	return g
}

// connectProposer connects the parts that propose entries.
func (g *Instance) connectProposer() {
	n := g.node
	g.proposer = proposer{
		lead: &g.leadership, admission: n.admission, version: n.config.Version, guard: &g.guard,
		commit:    func(l *raft.Log) raft.ApplyFuture { return g.order.commit(l) },
		active:    func() { g.attendant.Works() },
		committed: n.latency.observe,
		roundTrip: func() time.Duration { return n.config.Mesh.RoundTrip(g.Voters()...) },
		undecided: func(from string) { n.config.Outside.Undecided(g.shell, from) },
		lost: func() {
			g.timer.lost()
			g.settings.lost()
		},
		fromMachine: fromMachine{positions: g.positions, again: g.applier.again, answer: g.outgoing.answer, meters: &n.applying.meters},
	}
	g.proposer.changed.L = &g.proposer.mu
	g.proposer.queued.back = backpressure{demand: &g.demand, floor: &n.admission.floor, crowded: n.admission.crowded, check: g.proposer.checkHeld}
	g.timer = timer{ticker: n.Ticker, applier: &g.applier, proposer: &g.proposer, lead: &g.leadership, guard: &g.guard}
	g.settings = settings{
		wanted: func() *QueueConfig { return n.wantedSettings(&g.spec) }, view: g.View, submit: g.proposer.submit, active: g.proposer.active, spawn: n.Tasks.Go,
		leads:  func() bool { return g.leadership.term.Load() != 0 },
		ending: g.Ending(), guard: &g.guard, slog: g.slog,
	}
}

// leadership records whether this node leads a group, and whether it serves: raft may make a
// replica leader that must not serve, and a leader serves only when it has caught up.
//
//	serving() ≠ 0 ⇔ term ≠ 0 ∧ ¬pauses() ∧ ¬barred()
type leadership struct {
	changing     worker.LongLock // one change at a time
	term         atomic.Uint64   // in which this node serves; 0: none
	transferring atomic.Bool     // it takes no commands, see Transfer. Set under the proposer's lock
	dozing       atomic.Uint64   // the term in which it leads and is about to sleep, taking no commands; 0: it is not. Set under the same lock
	resigned     replica.Resigning

	guard     *guard
	withdrawn *atomic.Bool  // the node leads nothing, see Node.Withdraw; nil for a local queue, which it does not affect
	raftTerm  func() uint64 // the current one
}

// serving returns the term in which this node leads and takes commands, or 0.
func (l *leadership) serving() uint64 {
	if l.pauses() || l.barred() {
		return 0
	}
	return l.term.Load()
}

// pauses reports whether a leader takes no commands for a moment.
func (l *leadership) pauses() bool { return l.transferring.Load() || l.dozing.Load() != 0 }

// leading is serving, but of a leader that falls asleep the term in which it leads on when it sleeps.
func (l *leadership) leading() uint64 {
	if l.transferring.Load() || l.barred() {
		return 0
	}
	if term := l.term.Load(); term != 0 { // first, since it ends with the instance
		return term
	}
	return l.dozing.Load()
}

// refuses says why this node takes no commands now; nil: it does.
func (l *leadership) refuses() error {
	switch {
	case l.term.Load() == 0 || l.barred():
		return replica.ErrNotLeading
	case l.pauses():
		return replica.ErrTransferring
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
	term := l.resigned.Term.Load()
	return term != 0 && term == l.raftTerm()
}

// end stops serving for good; a pending begin gives up.
func (l *leadership) end() {
	l.changing.Lock()
	defer l.changing.Unlock()
	l.term.Store(0)
}

// Review brings the group's role in line with raft's state: a new leader begins to serve, a former
// one stops. A barred one does not begin, and searches for another leader.
func (g *Instance) Review() {
	defer g.guard.contain("change the leader")
	l := &g.leadership
	l.changing.Lock()
	defer l.changing.Unlock()
	if g.IsClosed() {
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
func (g *Instance) enter() {
	term := g.order.takeOver()
	if term == 0 {
		return // lost again; the next change of state leads here once more
	}
	deadline, ok := g.begin(term)
	if !ok {
		return
	}
	if g.IsLocal() && g.IsClosed() { // meanwhile; the end of a replica waits for the change
		g.leave()
		return
	}
	g.order.led()
	if g.resumed.Swap(0) == term {
		g.proposer.gather(false, func() { g.settings.propose(true) })
		return // everybody knows
	}
	if !g.IsLocal() {
		g.node.applying.meters.led.Add(1)
	}
	// The first entry of a new term has a tick, so that time that passed without a leader is accounted
	// for, the settings, and what has waited for a leader, as far as that is here in time.
	g.proposer.gather(deadline != 0, func() {
		g.settings.propose(true)
		g.announce(term)
	})
	if !g.Wanted(time.Now()) {
		g.begun(term)
		return
	}
	g.node.Tasks.Go(func() {
		select {
		case <-time.After(firstEntryWait):
			g.begun(term)
		case <-g.Ending():
		}
	})
}

// firstEntryWait is for how long a leader that somebody has waited for expects his commands.
const firstEntryWait = 5 * time.Millisecond

// begun proposes the tick of a new term if nothing has come that it could go with, and tells the other
// members what is committed if there is nothing to propose.
func (g *Instance) begun(term uint64) {
	defer g.guard.contain("begin a term")
	g.proposer.goOn()
	g.order.tellCommitted(term)
}

// begin starts to serve in a term, unless raft has changed its mind.
func (g *Instance) begin(term uint64) (deadline fsm.Time, ok bool) {
	return g.applier.begin(func() bool { return g.order.leads() && g.order.term() == term }, func(now fsm.Time) {
		if g.resumes != nil && g.resumed.Load() == term {
			g.proposer.resume(g.resumes.stamper)
		} else {
			g.proposer.begin(g.node.config.Clock, now)
		}
		g.leadership.term.Store(term)
	})
}

// announce tells the Outside that this node leads, or that it no longer does (0).
func (g *Instance) announce(term uint64) {
	defer g.guard.contain("announce the leader")
	g.node.applying.roleChanged(&g.spec, g.leadership.term.Load() != 0)
	g.node.config.Outside.Led(g.shell, term)
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
func (g *Instance) leave() {
	g.leadership.term.Store(0)
	g.timer.stop()
	g.proposer.leadershipEnded()
	g.announce(0)
}

// Barred reports whether the group must not lead on this node.
func (g *Instance) Barred() bool { return g.leadership.barred() }

// ResignedLately reports whether the group has resigned here recently.
func (g *Instance) ResignedLately() bool {
	until := g.leadership.resigned.Until.Load()
	return until != 0 && until > int64(g.node.Awake())
}

// LastLed implements election.Electable.
func (g *Instance) LastLed() uint64 { return g.ledIn.Load() }

// Want implements election.Electable. A replica that has woken searches if the leader that it remembers is waited for in vain.
func (g *Instance) Want(now time.Time) {
	if g.wish.note(now) && g.resumes != nil && g.Leaderless() {
		g.Search()
	}
}

// Wanted implements election.Electable.
func (g *Instance) Wanted(now time.Time) bool {
	at := g.wish.last.Load()
	return at != 0 && now.UnixNano()-at < int64(election.WantValid)
}

// Patience implements election.Electable: nothing is due sooner, nobody holds a message, no letter is on its way, and no redrive goes on.
func (g *Instance) Patience() time.Duration {
	if hasUnapplied(g.Raft(), g.store) {
		return 0
	}
	return g.applier.patience(g.node.config.Clock.Now())
}

// LeaderSeen notes that there is a leader in the present term.
func (g *Instance) LeaderSeen() { g.ledIn.Store(g.Term()) }

// Serves reports whether this node leads the group and has caught up.
func (g *Instance) Serves() bool { return g.leadership.term.Load() != 0 }

// ServesOrLeads reports whether this node serves the group, or is raft's leader.
func (g *Instance) ServesOrLeads() bool {
	return g.order.opened() && (g.Serves() || g.order.leads())
}

// Stopped reports whether the machine has failed: nothing is applied, and no snapshot is written.
func (g *Instance) Stopped() bool { return g.applier.hasStopped() }

// Attendant returns what the host has of the instance.
func (g *Instance) Attendant() Attendant { return g.attendant }

// Shell returns the group whose instance it is.
func (g *Instance) Shell() *Group { return g.shell }

// Store returns the log; nil for a local queue.
func (g *Instance) Store() *raftlog.Group { return g.store }

// Usage returns what has been applied.
func (g *Instance) Usage() *Usage { return &g.usage }

// Logger logs for the group.
func (g *Instance) Logger() *slog.Logger { return g.slog }

// Slept returns the record from which the replica has woken; nil: it was opened.
func (g *Instance) Slept() *Record { return g.resumes }

// ID returns the number of the group.
func (g *Instance) ID() fsm.GroupID { return g.spec.Group }

// Term returns the raft term of this replica.
func (g *Instance) Term() uint64 { return g.order.term() }

// Leader returns the name of the leading node, as far as this replica knows.
func (g *Instance) Leader() string { return g.order.leader() }

// View runs f on the machine between two entries. f must be quick, and must neither change nor
// retain the machine. If the group turns out to be quarantined afterwards, discard what f has set.
func (g *Instance) View(f func(m *queue.Machine)) { g.applier.view(f) }

// positions asks the machine where sessions stand.
func (g *Instance) positions(runs []run) {
	g.View(func(m *queue.Machine) {
		for i := range runs {
			runs[i].position = queue.PositionOf(m, runs[i].session)
		}
		g.proposer.tidy(m)
	})
}

// Expire proposes ticks until nothing is due, so that counts read afterwards include no expired
// message. It gives up after timeout.
func (g *Instance) Expire(timeout time.Duration) error {
	end := time.Now().Add(timeout)
	for g.applier.due() {
		if g.leadership.term.Load() == 0 || g.Barred() {
			return replica.ErrNotLeading
		}
		g.proposer.proposeTick()
		if err := g.order.barrier(timeout); err != nil {
			return fmt.Errorf("expire due messages: %w", err)
		}
		if time.Now().After(end) {
			return errors.New("expire due messages: too many are due")
		}
	}
	return nil
}

// Remove removes a node from the members. Only the leader can do this, and it cannot remove
// itself: it has to transfer its leadership first.
func (g *Instance) Remove(node string) error {
	if node == g.Node() {
		return errors.New("a leader cannot remove itself")
	}
	return g.Replica.Remove(node)
}

// Founders returns the members according to the catalog.
func (g *Instance) Founders() []string { return g.spec.Members }

// Votes is called when the replica is no longer a learner.
func (g *Instance) Votes() {
	g.slog.Info("the replica is up to date again, and votes")
	g.standByTimers()
	if g.Leader() == "" {
		g.node.Elections.Begin(g)
	}
}

// Close stops the replica and keeps its data.
func (g *Group) Close() {
	g.ended.Store(true)
	g.changing.Lock()
	defer g.changing.Unlock()
	g.node.Ticker.Remove(g)
	if i := g.running.Load(); i != nil {
		i.close()
		i.attendant.Ended()
	}
	g.node.applying.roleChanged(&g.spec, false)
}

// close stops the instance.
func (g *Instance) close() {
	g.order.end()
	g.proposer.leadershipEnded()
	g.proposer.wait()
	g.outgoing.wait()
}

// Length is how many messages are ready and checked out in a queue that this node leads; 0: it does not.
func (g *Group) Length() (ready, held uint64) {
	i, r := g.read()
	switch {
	case r != nil && r.leads:
		return r.stats.Ready.Messages, r.stats.Unacknowledged.Messages
	case r != nil, i.leadership.term.Load() == 0:
		return 0, 0
	}
	return i.demand.ready.Load(), i.demand.held.Load()
}
