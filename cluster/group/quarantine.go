package group

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"

	"github.com/quorate/quorate/fsm"
)

// Errors of LiftQuarantine.
var (
	// ErrNotQuarantined is returned for a group that may lead on this node.
	ErrNotQuarantined = errors.New("the queue is not quarantined on this node")
	// ErrStopped is returned for a group whose machine has failed: it would
	// lead with a state that the other replicas do not have.
	ErrStopped = errors.New("the replica has stopped after a panic while applying an entry: restart the node to resume it")
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

// guard keeps a panic in work for one group from the rest of the node: the group
// is quarantined here.
type guard struct {
	spec   *Spec
	slog   *slog.Logger // of the node
	now    func() fsm.Time
	panics *atomic.Uint64 // of all groups of the node
	// position is the term and the last entry applied, whatever locks of the group
	// are held; ok: the group is open.
	position func() (term, index uint64, ok bool)
	// ended has the leadership end of a group that is open. It is called while the
	// panic is being recovered, perhaps under locks of the group.
	ended func()

	quarantined atomic.Pointer[Quarantine] // nil: the group may lead
}

// run is Group.Guard.
func (w *guard) run(doing string, f func()) (ok bool) {
	defer w.contain(doing)
	f()
	return true
}

// contain is run for a function that defers it.
func (w *guard) contain(doing string) {
	if p := recover(); p != nil {
		w.quarantine(doing, p, false)
	}
}

// quarantine notes that work for the group has panicked, and ends its leadership.
func (w *guard) quarantine(doing string, panicked any, stopped bool) {
	w.panics.Add(1)
	q := &Quarantine{Since: w.now(), Doing: doing, Panic: fmt.Sprint(panicked), Stopped: stopped}
	term, index, opened := w.position()
	if opened {
		q.Term, q.Index = term, index
	}
	w.slog.Error("panic in work for a queue, which is quarantined on this node", "queue", w.spec.Name, "vhost", w.spec.VHost,
		"group", w.spec.Group, "doing", doing, "panic", q.Panic, "term", q.Term, "index", q.Index, "stopped", stopped, "stack", string(debug.Stack()))
	first := w.quarantined.CompareAndSwap(nil, q)
	if !first && stopped {
		w.quarantined.Store(q) // it outweighs the first
	}
	if first && opened { // else Open does it
		w.ended()
	}
}

// Quarantined says why the group does not lead on this node; nil: it may.
func (g *Instance) Quarantined() *Quarantine { return g.guard.quarantined.Load() }

// LiftQuarantine lets the group lead on this node again.
func (g *Instance) LiftQuarantine() error {
	q := g.Quarantined()
	switch {
	case q == nil:
		return ErrNotQuarantined
	case g.applier.hasStopped():
		return ErrStopped
	case !g.guard.quarantined.CompareAndSwap(q, nil):
		return ErrNotQuarantined // somebody else was quicker, or it has happened again
	}
	g.node.config.Logger.Info("quarantine lifted", "queue", g.spec.Name, "vhost", g.spec.VHost, "group", g.spec.Group)
	g.Review()
	if g.Leader() == "" {
		g.order.leaderless()
	}
	return nil
}
