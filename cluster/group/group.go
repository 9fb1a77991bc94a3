// Package group runs queue groups: for each queue with a replica on this node
// one raft group, its machine, its proposer and its timer.
//
// It promises: commands reach the machine in the order in which they were
// submitted while this node leads; every entry is stamped with a time that
// never runs back; effects leave in log order and only while this node leads;
// a command whose outcome is unknown is reported as undecided, never as done.
// It does not know clients, routes or sessions: who submits a command, and who
// wants its effects, is the business of the Outside.
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

// ErrNotLeading is returned for a submission to a replica that does not lead,
// or has not yet caught up with what its predecessor committed.
var ErrNotLeading = errors.New("this node does not lead the group")

// Outside acts on what leading groups do. The methods are called without any
// lock of the group and must not block for long.
type Outside interface {
	// Perform acts on effects, in log order, one call at a time per group.
	// w is the group's again on return; payloads stay valid.
	Perform(g *Group, w *Work)
	// Undecided: commands that node from (empty: this one) submitted may or
	// may not be applied. It must submit them again.
	Undecided(g *Group, from string)
	// Led: this node leads g from now on (term > 0), or has ceased to (0).
	Led(g *Group, term uint64)
}

// Spec says which group to open.
type Spec struct {
	Group   fsm.GroupID
	Queue   fsm.QueueID
	VHost   string
	Name    string
	Local   bool     // a queue of one node
	Members []string // node names at first, the preferred leader first; see Group.Voters
	// Joins: the group has been founded without this replica, or was founded
	// anew since: it starts empty, without members, and learns from the leader.
	Joins  bool
	Config *QueueConfig
}

// Group is this node's replica of one queue. It connects its parts, each of which
// owns what it guards, and changes what this node is in the group.
type Group struct {
	replica // raft; of a local queue, only its end

	spec  Spec
	host  *Host
	order order
	store *raftlog.Group // nil: a local queue's

	applier    applier
	outgoing   outgoing
	proposer   proposer
	timer      timer
	leadership leadership
	settings   settings
	guard      guard
	throttle   throttle
	usage      usage
	watched    atomic.Bool // see watch
}

// newGroup returns a group whose parts are connected. It does nothing before it
// has an order and, but for a local queue, raft.
func newGroup(h *Host, spec Spec, log *slog.Logger) *Group {
	g := &Group{
		replica: replica{
			id: spec.Group, node: h.config.Node, mesh: h.config.Mesh, slog: log, spawn: h.spawn,
			ending: make(chan struct{}),
		},
		spec: spec, host: h,
	}
	release := func(indexes []uint64) { g.order.release(indexes) }
	g.guard = guard{
		spec: &g.spec, slog: h.config.Logger, now: h.config.Clock.Now, panics: &h.panics,
		position: func() (term, index uint64, ok bool) {
			if ok = g.order.opened(); ok {
				term, index = g.order.position()
			}
			return term, index, ok
		},
		ended: func() { h.spawn(g.review) },
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
		outgoing: &g.outgoing, timer: &g.timer, guard: &g.guard, usage: &g.usage, started: make(chan struct{}),
		newMachine: func() *queue.Machine { return h.newMachine(spec) },
		machine:    h.newMachine(spec),
	}
	g.connectProposer()
	g.throttle = throttle{budget: &h.catchUp, needs: g.needs, last: g.lastIndex, ending: g.ending, stop: h.stop}
	return g
}

// connectProposer connects what proposes entries.
func (g *Group) connectProposer() {
	h := g.host
	g.proposer = proposer{
		lead: &g.leadership, admission: h.admission, version: h.config.Version, guard: &g.guard,
		commit:    func(l *raft.Log) raft.ApplyFuture { return g.order.commit(l) },
		active:    func() { h.watch.add(g) },
		undecided: func(from string) { h.config.Outside.Undecided(g, from) },
		lost: func() {
			g.timer.lost()
			g.settings.lost()
		},
	}
	g.proposer.changed.L = &g.proposer.mu
	g.timer = timer{ticker: h.ticker, applier: &g.applier, proposer: &g.proposer, lead: &g.leadership, guard: &g.guard}
	g.settings = settings{
		wanted: g.wantedSettings, view: g.View, submit: g.Submit, active: g.proposer.active, spawn: h.spawn,
		leads:  func() bool { return g.leadership.term.Load() != 0 },
		ending: g.ending, guard: &g.guard, slog: g.slog,
	}
}

// wantedSettings returns the settings that the queue should have. They are the
// caller's.
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

// Term returns the raft term this replica is in.
func (g *Group) Term() uint64 { return g.order.term() }

// Leader returns the name of the node that leads as far as this replica knows.
func (g *Group) Leader() string { return g.order.leader() }

// Progress says how far the replica is.
func (g *Group) Progress() Progress { return g.order.progress() }

// SnapshotIndex is the index of the newest snapshot; -1: there is none.
func (g *Group) SnapshotIndex() int64 { return g.order.snapshot() }

// Submit queues commands for the log.
func (g *Group) Submit(b Batch) error { return g.proposer.submit(b) }

// View runs f on the machine between two entries. f must be quick, must not
// change the machine and must not keep it. What f has set counts for nothing if
// the group is quarantined afterwards.
func (g *Group) View(f func(m *queue.Machine)) { g.applier.view(f) }

// Resync reads what a consumer holds after a delivery, as far as the bound of
// an answer allows, and passes it on in its place among the deliveries, with
// the notice of what was taken from it, or that it is cancelled. Only the leader answers.
func (g *Group) Resync(to fsm.ConsumerID, after uint64) {
	defer g.guard.contain("answer a resync")
	g.applier.resync(to, after, func() bool { return g.leadership.term.Load() != 0 })
}

// Payload reads one message's payload. It may be gone if the message is.
func (g *Group) Payload(ref fsm.Ref) ([]byte, error) { return g.order.payload(ref) }

// AppliedIndex is the index of the last entry the machine has seen.
func (g *Group) AppliedIndex() uint64 { return g.order.applied() }

// Now is what an entry would be stamped with. Only the leader knows.
func (g *Group) Now() fsm.Time { return g.proposer.now() }

// Barrier makes followers learn what is committed: it commits an entry without
// content. Only the leader can.
func (g *Group) Barrier(timeout time.Duration) error { return g.order.barrier(timeout) }

// Expire proposes ticks until nothing is due, so that counts read afterwards
// hold no message whose time has passed. It gives up after timeout.
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
			return errors.New("expire due messages: too many")
		}
	}
	return nil
}

// Remove makes a node cease to be a member. Only the leader can, and not
// itself: it hands the leadership over first.
func (g *Group) Remove(node string) error {
	if node == g.node {
		return errors.New("a leader does not remove itself")
	}
	return g.replica.Remove(node)
}

// founders are the members by the catalog.
func (g *Group) founders() []string { return g.spec.Members }

// votes is called when the replica is a learner no longer.
func (g *Group) votes() {
	g.slog.Info("replica has been brought up to date, and votes again")
	g.setTimers()
	if g.Leader() == "" {
		g.host.elections.begin(g)
	}
}

// close ends the replica and leaves its data.
func (g *Group) close() {
	g.order.end()
	g.proposer.wait()
	g.outgoing.wait()
}
