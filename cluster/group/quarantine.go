package group

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// Errors of LiftQuarantine.
var (
	// ErrNotQuarantined is returned for a group that may lead on this node.
	ErrNotQuarantined = errors.New("the queue is not quarantined on this node")
	// ErrStopped is returned for a group whose machine has failed: it would
	// lead with a state that the other replicas do not have.
	ErrStopped = errors.New("the replica's machine has stopped: it goes on when the node is started again")
)

// Quarantine says why a group does not lead on this node: work for it has
// panicked here.
type Quarantine struct {
	Since fsm.Time
	Doing string // what panicked
	Panic string
	Term  uint64
	Index uint64 // of the last entry applied by then
	// Stopped: it was the machine that failed. The replica stores entries and
	// votes, and applies nothing.
	Stopped bool
}

// Quarantined says why the group does not lead on this node; nil: it may.
func (g *Group) Quarantined() *Quarantine { return g.quarantined.Load() }

// Quarantined returns the groups that do not lead on this node because work
// for them has panicked, in order of their numbers.
func (h *Host) Quarantined() (list []*Group) {
	for _, g := range h.Groups() {
		if g.Quarantined() != nil {
			list = append(list, g)
		}
	}
	return list
}

// Panics counts the panics in work for groups since the node started.
func (h *Host) Panics() uint64 { return h.panics.Load() }

// Guard does something for this group alone. A panic goes no further: it
// quarantines the group on this node. Guard reports whether there was none.
//
// The locks that f takes must be released by defer, or hold nothing that can
// panic: what has the lock after a panic keeps it for ever.
func (g *Group) Guard(doing string, f func()) (ok bool) {
	defer g.contain(doing)
	f()
	return true
}

// contain is Guard for a function that defers it.
func (g *Group) contain(doing string) {
	if p := recover(); p != nil {
		g.quarantine(doing, p, false)
	}
}

// stop takes the machine out of use, which has failed: nothing can be said
// about its state. An empty one stands in for it, so that readers find nothing
// rather than half of something. The caller holds g.mu, and recovers.
func (g *Group) stop(doing string, panicked any) {
	g.stopped = true
	g.host.snapshots.captured(g) // there is nothing to write
	g.machine = g.host.newMachine(g.spec)
	g.effects.Reset()
	g.quarantine(doing, panicked, true)
}

// quarantine notes that work for the group has panicked, and ends its office.
// It is called while the panic is being recovered, perhaps under locks of the
// group.
func (g *Group) quarantine(doing string, panicked any, stopped bool) {
	h := g.host
	h.panics.Add(1)
	q := &Quarantine{Since: h.clock.Now(), Doing: doing, Panic: fmt.Sprint(panicked), Stopped: stopped}
	opened := g.order.opened()
	if opened {
		q.Term, q.Index = g.order.position()
	}
	h.slog.Error("panic in work for a queue, which is quarantined on this node", "queue", g.spec.Name, "vhost", g.spec.VHost,
		"group", g.spec.Group, "doing", doing, "panic", q.Panic, "term", q.Term, "index", q.Index, "stopped", stopped, "stack", string(debug.Stack()))
	first := g.quarantined.CompareAndSwap(nil, q)
	if !first && stopped {
		g.quarantined.Store(q) // it outweighs the first
	}
	if first && opened { // else Open does it
		h.spawn(g.review)
	}
}

// LiftQuarantine lets the group lead on this node again.
func (g *Group) LiftQuarantine() error {
	q := g.quarantined.Load()
	switch {
	case q == nil:
		return ErrNotQuarantined
	case g.hasStopped():
		return ErrStopped
	case !g.quarantined.CompareAndSwap(q, nil):
		return ErrNotQuarantined // somebody else was quicker, or it has happened again
	}
	g.host.slog.Info("quarantine lifted", "queue", g.spec.Name, "vhost", g.spec.VHost, "group", g.spec.Group)
	g.review()
	if g.Leader() == "" {
		g.order.vacant()
	}
	return nil
}

func (g *Group) hasStopped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopped
}

// barred reports whether the group must not lead on this node: it is
// quarantined, or has resigned, or the node has withdrawn.
func (g *Group) barred() bool {
	return g.quarantined.Load() != nil || g.order.withdrawn()
}

// yieldTo makes another member the leader in raft's eyes. This replica is, and
// must not serve.
func (g *Group) yieldTo(node string, wins bool) {
	g.host.spawn(func() {
		if g.resigned() && g.Quarantined() == nil {
			g.giveWay(node, wins) // without the office: who enters it may hang there
			return
		}
		g.office.Lock()
		defer g.office.Unlock()
		if g.closed.Load() || !g.barred() || g.raft.State() != raft.Leader {
			return
		}
		if err := g.handOver(node); err != nil {
			g.slog.Warn("a quarantined leader does not hand over", "to", node, "error", err)
		}
	})
}
