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
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// ErrNotLeading is returned for a submission to a replica that does not lead or has not yet
// applied everything its predecessor committed.
var ErrNotLeading = errors.New("this node does not lead the group")

// ErrTransferring is returned for a submission to a leader that is handing its leadership over: either
// it goes on soon, and says so, or another one does.
var ErrTransferring = errors.New("the leadership is being transferred")

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

// Group is this node's replica of one queue. It connects its parts, each of which owns the state
// it guards, and changes this node's role in the group.
type Group struct {
	replica // raft; for a local queue, only its end

	spec  Spec
	host  *Host
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
	watched    atomic.Bool   // see watch
	ledIn      atomic.Uint64 // term of the last leader that was seen; 0: none was
	wantedAt   atomic.Int64  // when somebody last waited for a leader, in ns; 0: nobody has
}

// newGroup returns a group whose parts are connected. It does nothing until it has an order and,
// unless the queue is local, raft.
func newGroup(h *Host, spec Spec, log *slog.Logger) *Group {
	g := &Group{
		replica: replica{
			id: spec.Group, node: h.config.Node, mesh: h.config.Mesh, slog: log, spawn: h.tasks.Go,
			ending: make(chan struct{}), termChanged: func() { h.elections.termChanged(spec.Group) },
		},
		spec: spec, host: h,
	}
	g.unsettled = func() { h.lag.note(g) }
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
		barred: g.barred, release: release, guard: &g.guard,
		perform: func(w *Work) { h.config.Outside.Perform(g, w) },
	}
	g.usage = usage{note: func() { h.snapshots.note(g) }, total: &h.snapshots.replay}
	g.applier = applier{
		group: spec.Group, isLocal: spec.Local, node: &h.applying, release: release,
		serves:   func() bool { return g.leadership.term.Load() != 0 && !g.barred() && g.order.leads() },
		outgoing: &g.outgoing, demand: &g.demand, timer: &g.timer, guard: &g.guard, usage: &g.usage, started: make(chan struct{}),
		doubt:      g.proposer.doubt,
		newMachine: func() *queue.Machine { return h.newMachine(spec) },
		machine:    h.newMachine(spec),
	}
	g.applier.probes = probes{lock: &g.applier.mu, index: g.applier.index, freeze: g.applier.freeze}
	g.connectProposer()
	g.throttle = throttle{budget: &h.catchUp, needs: g.needs, last: g.lastIndex, ending: g.ending, stop: h.stop}
	return g
}

// connectProposer connects the parts that propose entries.
func (g *Group) connectProposer() {
	h := g.host
	g.proposer = proposer{
		lead: &g.leadership, admission: h.admission, version: h.config.Version, guard: &g.guard,
		commit:    func(l *raft.Log) raft.ApplyFuture { return g.order.commit(l) },
		active:    func() { h.watch.add(g) },
		committed: h.latency.observe,
		roundTrip: func() time.Duration { return h.config.Mesh.RoundTrip(g.Voters()...) },
		undecided: func(from string) { h.config.Outside.Undecided(g, from) },
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
		wanted: g.wantedSettings, view: g.View, submit: g.Submit, active: g.proposer.active, spawn: h.tasks.Go,
		leads:  func() bool { return g.leadership.term.Load() != 0 },
		ending: g.ending, guard: &g.guard, slog: g.slog,
	}
}

// wantedSettings returns the settings that the queue should have. The caller owns the result.
func (g *Group) wantedSettings() *QueueConfig {
	var want *QueueConfig
	if newest := g.host.config.Settings; newest != nil {
		want = newest(g.spec.Queue)
	}
	if want == nil {
		want = proto.Clone(g.spec.Config).(*QueueConfig)
	}
	want.LockCredit = uint64(g.host.config.LockCredit())
	return want
}

// Spec returns what the group was opened with.
func (g *Group) Spec() Spec { return g.spec }

// Leading returns the term in which this replica leads and serves, or 0.
func (g *Group) Leading() uint64 { return g.leadership.serving() }

// Term returns the raft term of this replica.
func (g *Group) Term() uint64 { return g.order.term() }

// Leader returns the name of the leading node, as far as this replica knows.
func (g *Group) Leader() string { return g.order.leader() }

// Progress reports the log position of the replica.
func (g *Group) Progress() Progress { return g.order.progress() }

// SnapshotIndex returns the index of the newest snapshot, or -1 if there is none.
func (g *Group) SnapshotIndex() int64 { return g.order.snapshot() }

// LogBytes returns the size of the payloads that the log keeps for live messages.
func (g *Group) LogBytes() uint64 {
	if g.store == nil {
		return 0
	}
	return uint64(g.store.LiveBytes())
}

// Submit queues commands for the log.
func (g *Group) Submit(b Batch) error { return g.proposer.submit(b) }

// View runs f on the machine between two entries. f must be quick, and must neither change nor
// retain the machine. If the group turns out to be quarantined afterwards, discard what f has set.
func (g *Group) View(f func(m *queue.Machine)) { g.applier.view(f) }

// HashAt returns the hash of the machine's state at an entry, and the index of that
// entry. at 0 stands for the newest one. If at is above the newest one, it waits for
// the first entry from there on. Replicas that are asked for the same entry before
// they have applied it return the same index and, if they are equal, the same hash.
//
// The state is frozen between two entries, in the time that a snapshot takes, and
// hashed outside of the lock.
func (g *Group) HashAt(at uint64, wait time.Duration) (index uint64, hash string, err error) {
	return g.applier.probes.hashAt(at, wait, g.ending)
}

// Replay gives a queue's history on this node to a reader, up to the last entry
// that was applied when it began. It may fail because a snapshot was replaced
// meanwhile; then it can be tried again, with a new reader.
func (g *Group) Replay(to Replayer) error {
	if g.store == nil {
		return ErrNoHistory
	}
	s, err := replay(g.store, g.Progress().Applied, to)
	return errors.Join(err, s.failure())
}

// Resync reads the messages a consumer holds after a delivery, up to the size limit of an answer,
// and sends them in order among the deliveries, together with the notice of messages taken from
// the consumer or of its cancellation. Only the leader answers.
func (g *Group) Resync(to fsm.ConsumerID, after uint64) {
	defer g.guard.contain("answer a resync")
	g.applier.resync(to, after, func() bool { return g.leadership.term.Load() != 0 })
}

// Recall answers what has been applied of a session's commands from a number on, and first says which one
// is expected next (fsm.Gap), be it the first of these: what is before that is on its way to an answer.
// Only the leader does this.
func (g *Group) Recall(s fsm.SessionID, from uint64) {
	g.proposer.recall(func() {
		g.applier.recall(s, from, func(next uint64) uint64 { return g.proposer.expects(s, next) })
	})
}

// positions asks the machine where sessions stand.
func (g *Group) positions(runs []run) {
	g.View(func(m *queue.Machine) {
		for i := range runs {
			runs[i].position = queue.PositionOf(m, runs[i].session)
		}
		g.proposer.tidy(m)
	})
}

// Payload reads the payload of one message. It may be gone if the message is.
func (g *Group) Payload(ref fsm.Ref) ([]byte, error) {
	defer g.outgoing.steps.Add(1)
	return g.order.payload(ref)
}

// HeldBy says where a member finds a payload that this leader would send to it. It finds it if it has
// acknowledged the entry, or if the entry is ahead of what is sent now. What is in memory here should be
// there, too; if not, the member says so (Missed).
func (g *Group) HeldBy(node string, ref fsm.Ref) (at Shared, ok bool) {
	lead := g.leadership.serving()
	if g.store == nil || lead == 0 || g.sharing.since(node) >= ref.Index {
		return Shared{}, false
	}
	payloads, term := g.store.Recent(ref.Index)
	if payloads == nil || g.reached(node, lead).Index < ref.Index && g.transport.Sent(node, lead) < ref.Index {
		return Shared{}, false
	}
	return Shared{ref, term}, true
}

// Missed notes that a node has not found a payload where it was said to be: it may have begun after the
// entries that there are, or have let go of them. It is sent what they carried.
func (g *Group) Missed(node string) {
	if g.store != nil && g.order.opened() {
		g.sharing.miss(node, g.order.applied())
	}
}

// Stored returns a payload that a leader shares with this member; nil: it is not in memory. The entry may
// still be on its way into the log, where its arrival ends.
func (g *Group) Stored(at Shared) []byte {
	if g.store == nil {
		return nil
	}
	payloads := g.mesh.Arriving(g.id, at.Index, at.Term)
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

// AppliedIndex returns the index of the last entry applied to the machine.
func (g *Group) AppliedIndex() uint64 { return g.order.applied() }

// Now returns the stamp an entry would get. Only the leader knows it.
func (g *Group) Now() fsm.Time { return g.proposer.now() }

// Barrier lets followers learn what is committed, by committing an entry without content. Only the
// leader can do this.
func (g *Group) Barrier(timeout time.Duration) error { return g.order.barrier(timeout) }

// Expire proposes ticks until nothing is due, so that counts read afterwards include no expired
// message. It gives up after timeout.
func (g *Group) Expire(timeout time.Duration) error {
	end := time.Now().Add(timeout)
	for g.applier.due() {
		if g.leadership.term.Load() == 0 || g.barred() {
			return ErrNotLeading
		}
		g.proposer.proposeTick()
		if err := g.Barrier(timeout); err != nil {
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
func (g *Group) Remove(node string) error {
	if node == g.node {
		return errors.New("a leader cannot remove itself")
	}
	return g.replica.Remove(node)
}

// founders returns the members according to the catalog.
func (g *Group) founders() []string { return g.spec.Members }

// votes is called when the replica is no longer a learner.
func (g *Group) votes() {
	g.slog.Info("the replica is up to date again, and votes")
	g.standByTimers()
	if g.Leader() == "" {
		g.host.elections.begin(g)
	}
}

// close stops the replica and keeps its data.
func (g *Group) close() {
	g.order.end()
	g.proposer.leadershipEnded()
	g.proposer.wait()
	g.outgoing.wait()
}
