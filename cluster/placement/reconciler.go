package placement

import (
	"context"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

const (
	reconcileAtOnce  = 8                     // groups whose members are being changed
	reconcilePoll    = 50 * time.Millisecond // between two steps for such a group
	reconcileTimeout = 20 * time.Second      // after which a group without progress gives way to others
	reconcileEvery   = 5 * time.Second       // between two checks of all groups
)

// Reconciler changes the members of the groups that this node leads. The catalog's record says
// which nodes they should be; the reconciler changes raft's configuration step by step, and may
// stop after each step: the next leader continues. It also changes the record if a queue has fewer
// members than it should have and nodes are free.
type Reconciler struct {
	node  *node
	queue *worker.Queue[fsm.GroupID]
	loops *worker.Loops
}

func newReconciler(n *node) *Reconciler {
	r := &Reconciler{node: n, loops: worker.NewLoops(n.Guard)}
	r.queue = worker.NewQueue(n.Guard, "change the members of a group", reconcileAtOnce, func(id fsm.GroupID) time.Duration {
		r.reconcile(id)
		return 0 // CheckAll comes back to it
	})
	return r
}

// Start starts the work.
func (r *Reconciler) Start() {
	r.queue.Start()
	r.loops.Go("check the members of groups", func(ctx context.Context) { worker.Every(ctx.Done(), reconcileEvery, r.CheckAll) })
}

// Stop ends the work; a change in progress may be half done.
func (r *Reconciler) Stop() {
	r.loops.Stop()
	r.queue.Stop()
}

// Check schedules a comparison of groups' members with the catalog. Before Start they wait.
func (r *Reconciler) Check(ids ...fsm.GroupID) { r.queue.Add(ids...) }

// CheckAll checks all groups led by this node whose members differ from what they should be.
func (r *Reconciler) CheckAll() {
	for _, g := range r.node.Host.Groups() {
		if g.Leading() != 0 {
			r.CheckGroup(g)
		}
	}
}

// CheckGroup checks one group led by this node, if its members differ from what they should be.
func (r *Reconciler) CheckGroup(g *group.Group) {
	if p, ok := r.Plan(g); ok && !p.converged() {
		r.Check(p.queue.Group)
	}
}

// reconcile changes the members of one group until they are as they should be, or nothing has
// changed for too long.
func (r *Reconciler) reconcile(id fsm.GroupID) {
	end := time.NewTimer(reconcileTimeout)
	defer end.Stop()
	poll := time.NewTicker(reconcilePoll)
	defer poll.Stop()
	for {
		g := r.node.Host.Group(id)
		if g == nil || g.Leading() == 0 {
			return
		}
		if p, ok := r.Plan(g); !ok || p.Step(r.loops.Life()) {
			return
		}
		select {
		case <-r.loops.Life().Done():
			return
		case <-end.C:
			return // the next check of all groups comes back to it
		case <-poll.C:
		}
	}
}
