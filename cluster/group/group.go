// Package group runs queue groups: for each queue with a replica on this node
// one raft group, its machine, its proposer and its timer.
//
// It promises: commands reach the machine in the order in which they were
// submitted while this node leads; every entry is stamped with a time that
// never runs back; effects leave in log order and only while this node leads;
// a command whose fate is unknown is reported as undecided, never as done.
// It does not know clients, routes or sessions: who submits a command, and who
// wants its effects, is the business of the Outside.
package group

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// ErrNotLeading is returned for a submission to a replica that does not lead,
// or has not yet caught up with what its predecessor committed.
var ErrNotLeading = errors.New("this node does not lead the group")

// Outside is told what leading groups do. The methods are called without any
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

// Group is this node's replica of one queue.
type Group struct {
	spec  Spec
	host  *Host
	order order
	// A replica has these; a local queue does not.
	raft      *raft.Raft
	log       *raftlog.Group
	transport transport
	started   chan struct{} // closed once raft is set

	slog *slog.Logger

	ending chan struct{} // closed when close begins

	mu      sync.Mutex // guards machine, effects and stopped
	machine *queue.Machine
	effects fsm.Effects
	stopped bool   // the machine has failed: an empty one stands in for it
	origin  uint64 // of the machine, see raftlog.Group.Origin

	quarantined atomic.Pointer[Quarantine] // nil: it may lead
	trust       trust

	// term in which this replica serves as leader; 0: it does not.
	leading  atomic.Uint64
	yielding atomic.Bool // it leads, and takes no commands: see Transfer. Set under the proposer's lock
	office   sync.Mutex  // one change of office at a time

	settings  settings
	resigning resigning
	watched   atomic.Bool // see watch

	proposer proposer
	outgoing outgoing
	timer    timer

	reloading sync.Mutex // one change of raft's settings at a time

	pursuits       pursuits
	nudging        atomic.Bool   // a nudge is about to begin
	applied        atomic.Uint64 // entries since the snapshot scheduler looked
	entries, bytes atomic.Uint64 // applied since the last snapshot
	replay         atomic.Int64  // bytes of headers applied since then
	refreshing     atomic.Bool   // a member's refusal has it write a snapshot
	closed         atomic.Bool
}

// Spec returns what the group was opened with.
func (g *Group) Spec() Spec { return g.spec }

// Leading returns the term in which this replica leads and serves, or 0.
func (g *Group) Leading() uint64 {
	if g.yielding.Load() || g.barred() {
		return 0
	}
	return g.leading.Load()
}

// Term returns the raft term this replica is in.
func (g *Group) Term() uint64 { return g.order.term() }

// Leader returns the name of the node that leads as far as this replica knows.
func (g *Group) Leader() string { return g.order.leader() }

// View runs f on the machine between two entries. f must be quick, must not
// change the machine and must not keep it. What f has set counts for nothing if
// the group is quarantined afterwards.
func (g *Group) View(f func(m *queue.Machine)) {
	defer g.contain("read the machine")
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g.machine)
}

// Payload reads one message's payload. It may be gone if the message is.
func (g *Group) Payload(ref fsm.Ref) ([]byte, error) { return g.order.payload(ref) }

// AppliedIndex is the index of the last entry the machine has seen.
func (g *Group) AppliedIndex() uint64 { return g.order.applied() }

// Now is what an entry would be stamped with. Only the leader knows.
func (g *Group) Now() fsm.Time {
	g.proposer.mu.Lock()
	defer g.proposer.mu.Unlock()
	return g.proposer.stamper.Peek()
}

// Barrier makes followers learn what is committed: it commits an entry without
// content. Only the leader can.
func (g *Group) Barrier(timeout time.Duration) error { return g.order.barrier(timeout) }

// Expire proposes ticks until nothing is due, so that counts read afterwards
// hold no message whose time has passed. It gives up after timeout.
func (g *Group) Expire(timeout time.Duration) error {
	end := time.Now().Add(timeout)
	for g.due() {
		if g.leading.Load() == 0 || g.barred() {
			return ErrNotLeading
		}
		g.proposeTick()
		if err := g.Barrier(timeout); err != nil {
			return fmt.Errorf("expire due messages: %w", err)
		}
		if time.Now().After(end) {
			return errors.New("expire due messages: too many")
		}
	}
	return nil
}

func (g *Group) due() bool {
	defer g.contain("look for what is due")
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.machine.NextDeadline()
	return d != 0 && g.proposer.until(d) == 0
}

// close ends the replica and leaves its data.
func (g *Group) close() {
	g.order.end()
	g.proposer.wait()
	g.outgoing.wait()
}
