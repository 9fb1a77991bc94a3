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
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
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

// instance is a group that is awake. It connects its parts, each of which owns the state
// it guards, and changes this node's role in the group.
type instance struct {
	*replica.Replica // raft; for a local queue, only its end

	shell *Group
	spec  Spec
	host  *Host
	slog  *slog.Logger
	order order
	store *raftlog.Group // nil for a local queue

	applier    applier
	outgoing   outgoing
	demand     demand
	proposer   proposer
	timer      timer
	leadership leadership
	settings   settings
	guard      guard
	throttle   throttle
	usage      usage
	sharing    sharing
	complete   complete
	began      int64         // when it was opened or woken, in ns
	resumes    *record       // what it wakes from; nil: it is opened
	resumed    atomic.Uint64 // the term that its leader has slept in, until it serves again
	users      users         // calls that keep it awake
	watched    atomic.Bool   // see watch
	ledIn      atomic.Uint64 // term of the last leader that was seen; 0: none was
	wish       wish          // for a leader
}

// Open starts this node's replica of a group, for the first time or again.
func (h *Host) Open(spec Spec) (*Group, error) {
	store, err := h.storeOf(&spec)
	if err != nil {
		return nil, err
	}
	shell := &Group{spec: h.sleepers.shared.spec(spec), host: h}
	g := newInstance(h, shell, store, h.newMachine(spec), groupLogger(h.config.Logger, &shell.spec))
	g.applier.log = store
	g.order = replicated{g}
	g.leadership.withdrawn = &h.withdrawn
	if err := g.openRaft(); err != nil {
		h.config.Mesh.DropGroup(spec.Group)
		return nil, err
	}
	shell.running.Store(g)
	h.groups.add(g)
	g.Raft().RegisterObserver(raft.NewObserver(h.observed, true, wanted))
	if g.IsLearner() {
		h.learners.Begin(spec.Group, g)
	}
	h.elections.Begin(g)
	g.review()
	return shell, nil
}

// OpenLocal starts a local queue on this node, or returns the running one: the same machine and
// proposer as a replica's, without raft and without anything on disk. It serves when OpenLocal
// returns.
func (h *Host) OpenLocal(spec Spec) *Group {
	spec.Local = true
	shell := &Group{spec: spec, host: h}
	g := newInstance(h, shell, nil, h.newMachine(spec), h.config.Logger)
	g.order = &local{
		replica: g.Replica, bytes: &h.localBytes, applier: &g.applier, proposer: &g.proposer,
		lead: &g.leadership, announce: g.announce,
	}
	shell.running.Store(g)
	g.proposer.begin(h.config.Clock, 0)
	g.leadership.term.Store(LocalTerm)
	if have, added := h.groups.addLocal(shell); !added {
		return have
	}
	g.settings.propose(true)
	g.announce(LocalTerm)
	return shell
}

// storeOf returns the store of a group that is about to be opened. What was put aside is the group's again if it
// belongs to the same queue.
func (h *Host) storeOf(spec *Spec) (*raftlog.Group, error) {
	store, err := h.config.Store.Group(spec.Group)
	if err != nil {
		return nil, fmt.Errorf("open log of group %d: %w", spec.Group, err)
	}
	left, was, err := h.aside(store)
	if err != nil {
		return nil, err
	}
	owner := ownerOf(spec)
	switch {
	case left == 0:
	case was == owner:
		h.config.Logger.Warn("data that was set aside is in use again", "group", spec.Group, "queue", owner)
		err = store.SetUint64([]byte(raftlog.AsideKey), 0)
	case left > 0:
		err = fmt.Errorf("%w %d, for another %v: %s", ErrAside, spec.Group, left.Round(time.Minute), was)
	default:
		if err = h.config.Store.DropGroup(spec.Group); err == nil {
			return h.storeOf(spec)
		}
	}
	if err != nil {
		return nil, err
	}
	return store, store.SetOwner(owner)
}

// newInstance returns an instance whose parts are connected. It does nothing until it has an order and,
// unless the queue is local, raft.
func newInstance(h *Host, shell *Group, store *raftlog.Group, m *queue.Machine, log *slog.Logger) *instance {
	spec := shell.spec
	g := &instance{
		shell: shell, spec: spec, host: h, slog: log, store: store, began: time.Now().UnixNano(),
	}
	g.Replica = replica.New(replica.Config{
		Group: spec.Group, Node: h.config.Node, Preferred: spec.Members, Mesh: h.config.Mesh, Log: store, Logger: log, Spawn: h.tasks.Go,
		TermChanged: func() { h.elections.TermChanged(spec.Group) }, Unsettled: func() { h.lag.note(g) },
	})
	release := func(indexes []uint64) { g.order.release(indexes) }
	g.guard = guard{
		spec: &g.spec, slog: h.config.Logger, now: h.config.Clock.Now, panics: &h.panics,
		position: func() (term, index uint64, ok bool) {
			if ok = g.order.opened(); ok {
				term, index = g.order.position()
			}
			return term, index, ok
		},
		ended: func() { h.tasks.Go(g.review) },
	}
	g.leadership = leadership{guard: &g.guard, raftTerm: g.Term}
	g.outgoing = outgoing{
		barred: g.Barred, release: release, guard: &g.guard,
		perform: func(w *Work) { h.config.Outside.Perform(shell, w) },
	}
	g.usage = usage{note: func() { h.snapshots.note(g) }, total: &h.snapshots.replay}
	g.applier = applier{
		group: spec.Group, isLocal: spec.Local, node: &h.applying, release: release,
		serves:   func() bool { return g.leadership.term.Load() != 0 && !g.Barred() && g.order.leads() },
		outgoing: &g.outgoing, demand: &g.demand, timer: &g.timer, guard: &g.guard, usage: &g.usage, started: make(chan struct{}),
		doubt:      g.proposer.doubt,
		newMachine: func() *queue.Machine { return h.newMachine(spec) },
		machine:    m,
	}
	g.applier.probes = replica.Probes{Lock: &g.applier.mu, Index: g.applier.index, Freeze: g.applier.freeze}
	g.connectProposer()
	g.throttle = throttle{budget: &h.catchUp, needs: g.Needs, last: g.LastIndex, ending: g.Ending(), stop: h.stop}
	return g
}

// connectProposer connects the parts that propose entries.
func (g *instance) connectProposer() {
	h := g.host
	g.proposer = proposer{
		lead: &g.leadership, admission: h.admission, version: h.config.Version, guard: &g.guard,
		commit:    func(l *raft.Log) raft.ApplyFuture { return g.order.commit(l) },
		active:    func() { h.watch.add(g) },
		committed: h.latency.observe,
		roundTrip: func() time.Duration { return h.config.Mesh.RoundTrip(g.Voters()...) },
		undecided: func(from string) { h.config.Outside.Undecided(g.shell, from) },
		lost: func() {
			g.timer.lost()
			g.settings.lost()
		},
		fromMachine: fromMachine{positions: g.positions, again: g.applier.again, answer: g.outgoing.answer, meters: &h.applying.meters},
	}
	g.proposer.changed.L = &g.proposer.mu
	g.proposer.queued.back = backpressure{demand: &g.demand, floor: &h.admission.floor, crowded: h.admission.crowded, check: g.proposer.checkHeld}
	g.timer = timer{ticker: h.ticker, applier: &g.applier, proposer: &g.proposer, lead: &g.leadership, guard: &g.guard}
	g.settings = settings{
		wanted: func() *QueueConfig { return h.wantedSettings(&g.spec) }, view: g.View, submit: g.proposer.submit, active: g.proposer.active, spawn: h.tasks.Go,
		leads:  func() bool { return g.leadership.term.Load() != 0 },
		ending: g.Ending(), guard: &g.guard, slog: g.slog,
	}
}

// wantedSettings returns the settings that a queue should have. The caller owns the result.
func (h *Host) wantedSettings(spec *Spec) *QueueConfig {
	var want *QueueConfig
	if newest := h.config.Settings; newest != nil {
		want = newest(spec.Queue)
	}
	if want == nil {
		want = proto.Clone(spec.Config).(*QueueConfig)
	}
	want.LockCredit = uint64(h.config.LockCredit())
	return want
}

// wanted filters the observations that the host acts on.
func wanted(o *raft.Observation) bool {
	switch o.Data.(type) {
	case raft.RaftState, raft.LeaderObservation:
		return true
	}
	return false
}

// observe acts on changes of state and leader of all groups, until stop is closed.
func (h *Host) observe(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case o := <-h.observed:
			g := h.groups.ofRaft(o.Raft)
			if g == nil || g.IsClosed() {
				continue
			}
			switch data := o.Data.(type) {
			case raft.RaftState:
				g.TenureEnded()
				h.done.Go(g.review)
			case raft.LeaderObservation:
				h.leaderSeen(g, string(data.LeaderID))
			}
		}
	}
}

func (h *Host) leaderSeen(g *instance, leader string) {
	if leader != "" {
		g.ledIn.Store(g.Term())
	}
	if g.IsLearner() && leader != "" {
		h.learners.Hasten(g.spec.Group)
	}
	switch {
	case leader == "", leader == h.config.Node && g.Barred(), !h.config.Mesh.Alive(leader):
		h.elections.Begin(g) // raft may report a leader late, when its node has already died
	default:
		h.elections.End(g.spec.Group)
	}
}

// leadership records whether this node leads a group, and whether it serves: raft may make a
// replica leader that must not serve, and a leader serves only when it has caught up.
//
//	serving() ≠ 0 ⇔ term ≠ 0 ∧ ¬pauses() ∧ ¬barred()
type leadership struct {
	changing     longLock      // one change at a time
	term         atomic.Uint64 // in which this node serves; 0: none
	transferring atomic.Bool   // it takes no commands, see Transfer. Set under the proposer's lock
	dozing       atomic.Uint64 // the term in which it leads and is about to sleep, taking no commands; 0: it is not. Set under the same lock
	resigned     replica.Resigning

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

// review brings the group's role in line with raft's state: a new leader begins to serve, a former
// one stops. A barred one does not begin, and searches for another leader.
func (g *instance) review() {
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
func (g *instance) enter() {
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
		g.host.applying.meters.led.Add(1)
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
	g.host.tasks.Go(func() {
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
func (g *instance) begun(term uint64) {
	defer g.guard.contain("begin a term")
	g.proposer.goOn()
	g.order.tellCommitted(term)
}

// begin starts to serve in a term, unless raft has changed its mind.
func (g *instance) begin(term uint64) (deadline fsm.Time, ok bool) {
	return g.applier.begin(func() bool { return g.order.leads() && g.order.term() == term }, func(now fsm.Time) {
		g.proposer.begin(g.host.config.Clock, now)
		g.leadership.term.Store(term)
	})
}

// announce tells the Outside that this node leads, or that it no longer does (0).
func (g *instance) announce(term uint64) {
	defer g.guard.contain("announce the leader")
	g.host.applying.roleChanged(&g.spec, g.leadership.term.Load() != 0)
	g.host.config.Outside.Led(g.shell, term)
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
func (g *instance) leave() {
	g.leadership.term.Store(0)
	g.timer.stop()
	g.proposer.leadershipEnded()
	g.announce(0)
}

// Barred reports whether the group must not lead on this node.
func (g *instance) Barred() bool { return g.leadership.barred() }

// ResignedLately reports whether the group has resigned here recently.
func (g *instance) ResignedLately() bool {
	until := g.leadership.resigned.Until.Load()
	return until != 0 && until > int64(g.host.watch.now())
}

// LastLed implements election.Electable.
func (g *instance) LastLed() uint64 { return g.ledIn.Load() }

// Want implements election.Electable. A replica that has woken searches if the leader that it remembers is waited for in vain.
func (g *instance) Want(now time.Time) {
	if g.wish.note(now) && g.resumes != nil && leaderless(g) {
		search(g)
	}
}

// Wanted implements election.Electable.
func (g *instance) Wanted(now time.Time) bool {
	at := g.wish.last.Load()
	return at != 0 && now.UnixNano()-at < int64(election.WantValid)
}

// Patience implements election.Electable: nothing is due sooner, nobody holds a message, and no letter is on its way.
func (g *instance) Patience() time.Duration {
	if hasUnapplied(g.Raft(), g.store) {
		return 0
	}
	return g.applier.patience(g.host.config.Clock.Now())
}

// ID returns the number of the group.
func (g *instance) ID() fsm.GroupID { return g.spec.Group }

// Term returns the raft term of this replica.
func (g *instance) Term() uint64 { return g.order.term() }

// Leader returns the name of the leading node, as far as this replica knows.
func (g *instance) Leader() string { return g.order.leader() }

// View runs f on the machine between two entries. f must be quick, and must neither change nor
// retain the machine. If the group turns out to be quarantined afterwards, discard what f has set.
func (g *instance) View(f func(m *queue.Machine)) { g.applier.view(f) }

// Replay gives a queue's history on this node to a reader, up to the last entry
// that was applied when it began. It may fail because a snapshot was replaced
// meanwhile; then it can be tried again, with a new reader.
func (g *instance) Replay(to Replayer) error {
	if g.store == nil {
		return ErrNoHistory
	}
	s, err := replay(g.store, g.order.applied(), to)
	return errors.Join(err, s.Failure())
}

// Resync reads the messages a consumer holds after a delivery, up to the size limit of an answer,
// and sends them in order among the deliveries, together with the notice of messages taken from
// the consumer or of its cancellation. Only the leader answers.
func (g *instance) Resync(to fsm.ConsumerID, after uint64) {
	defer g.guard.contain("answer a resync")
	g.applier.resync(to, after, func() bool { return g.leadership.term.Load() != 0 })
}

// Recall answers what has been applied of a session's commands from a number on, and first says which one
// is expected next (fsm.Gap), be it the first of these: what is before that is on its way to an answer.
// Only the leader does this.
func (g *instance) Recall(s fsm.SessionID, from uint64) {
	g.proposer.recall(func() {
		g.applier.recall(s, from, func(next uint64) uint64 { return g.proposer.expects(s, next) })
	})
}

// positions asks the machine where sessions stand.
func (g *instance) positions(runs []run) {
	g.View(func(m *queue.Machine) {
		for i := range runs {
			runs[i].position = queue.PositionOf(m, runs[i].session)
		}
		g.proposer.tidy(m)
	})
}

// Payload reads the payload of one message. It may be gone if the message is.
func (g *instance) Payload(ref fsm.Ref) ([]byte, error) {
	defer g.outgoing.steps.Add(1)
	return g.order.payload(ref)
}

// HeldBy says where a member finds a payload that this leader would send to it. It finds it if it has
// acknowledged the entry, or if the entry is ahead of what is sent now. What is in memory here should be
// there, too; if not, the member says so (Missed).
func (g *instance) HeldBy(node string, ref fsm.Ref) (at Shared, ok bool) {
	lead := g.leadership.serving()
	if g.store == nil || lead == 0 || g.sharing.since(node) >= ref.Index {
		return Shared{}, false
	}
	payloads, term := g.store.Recent(ref.Index)
	if payloads == nil || g.Reached(node, lead).Index < ref.Index && g.Transport().Sent(node, lead) < ref.Index {
		return Shared{}, false
	}
	return Shared{ref, term}, true
}

// Missed notes that a node has not found a payload where it was said to be: it may have begun after the
// entries that there are, or have let go of them. It is sent what they carried.
func (g *instance) Missed(node string) {
	if g.store != nil && g.order.opened() {
		g.sharing.miss(node, g.order.applied())
	}
}

// Stored returns a payload that a leader shares with this member; nil: it is not in memory. The entry may
// still be on its way into the log, where its arrival ends.
func (g *instance) Stored(at Shared) []byte {
	if g.store == nil {
		return nil
	}
	payloads := g.host.config.Mesh.Arriving(g.spec.Group, at.Index, at.Term)
	if payloads == nil {
		var term uint64
		if payloads, term = g.store.Recent(at.Index); term != at.Term {
			return nil
		}
	}
	end := uint64(at.Offset) + uint64(at.Size)
	if end > uint64(len(payloads)) {
		return nil
	}
	return payloads[at.Offset:end:end]
}

// Expire proposes ticks until nothing is due, so that counts read afterwards include no expired
// message. It gives up after timeout.
func (g *instance) Expire(timeout time.Duration) error {
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
func (g *instance) Remove(node string) error {
	if node == g.Node() {
		return errors.New("a leader cannot remove itself")
	}
	return g.Replica.Remove(node)
}

// Founders returns the members according to the catalog.
func (g *instance) Founders() []string { return g.spec.Members }

// Votes is called when the replica is no longer a learner.
func (g *instance) Votes() {
	g.slog.Info("the replica is up to date again, and votes")
	g.standByTimers()
	if g.Leader() == "" {
		g.host.elections.Begin(g)
	}
}

// close stops the replica and keeps its data.
func (g *Group) close() {
	g.ended.Store(true)
	g.changing.Lock()
	defer g.changing.Unlock()
	g.host.ticker.remove(g)
	if i := g.running.Load(); i != nil {
		i.close()
		g.host.groups.forget(i)
	}
	g.host.applying.roleChanged(&g.spec, false)
}

// close stops the instance.
func (g *instance) close() {
	g.order.end()
	g.proposer.leadershipEnded()
	g.proposer.wait()
	g.outgoing.wait()
}

// length is how many messages are ready and checked out in a queue that this node leads; 0: it does not.
func (g *Group) length() (ready, held uint64) {
	i, r := g.read()
	switch {
	case r != nil && r.leads:
		return r.stats.Ready.Messages, r.stats.Unacknowledged.Messages
	case r != nil, i.leadership.term.Load() == 0:
		return 0, 0
	}
	return i.demand.ready.Load(), i.demand.held.Load()
}
