package placement

import (
	"context"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

const (
	reconcileAtOnce  = 8                     // groups whose members are being changed
	reconcilePoll    = 50 * time.Millisecond // between two steps for such a group
	reconcileTimeout = 20 * time.Second      // after which a group without progress gives way to others
	reconcileEvery   = 5 * time.Second       // between two checks of all groups, if there is a reason
)

// Reconciler changes the members of the groups that this node leads. The catalog's record says
// which nodes they should be; the reconciler changes raft's configuration step by step, and may
// stop after each step: the next leader continues. It also changes the record if a queue has fewer
// members than it should have and nodes are free.
type Reconciler struct {
	node  *node
	queue *worker.Queue[fsm.GroupID]
	loops *worker.Loops
	last  agreement
}

// agreement is by what all groups had the members that they should: the catalog, and which nodes are up. A
// new leader checks its group.
type agreement struct {
	view *catalog.View // nil: they had not
	up   []string
}

// renew has all groups checked if something has changed, or not all agreed.
func (a *agreement) renew(view *catalog.View, up []string, check func() (agree bool)) {
	if view == a.view && slices.Equal(up, a.up) {
		return
	}
	if *a = (agreement{}); check() {
		*a = agreement{view, up}
	}
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
	r.loops.Go("check the members of groups", func(ctx context.Context) { worker.Every(ctx.Done(), reconcileEvery, r.checkChanged) })
}

// Stop ends the work; a change in progress may be half done.
func (r *Reconciler) Stop() {
	r.loops.Stop()
	r.queue.Stop()
}

// Check schedules a comparison of groups' members with the catalog. Before Start they wait.
func (r *Reconciler) Check(ids ...fsm.GroupID) { r.queue.Add(ids...) }

// checkChanged is CheckAll if there is a reason.
func (r *Reconciler) checkChanged() {
	view, up := r.node.view(), []string(nil)
	for _, n := range view.Nodes() {
		if r.node.online(n.Name) {
			up = append(up, n.Name)
		}
	}
	r.last.renew(view, up, r.CheckAll)
}

// CheckAll checks all groups led by this node whose members differ from what they should be, and reports
// whether there are none.
func (r *Reconciler) CheckAll() (agree bool) {
	agree = true
	for _, g := range r.node.Host.Led() {
		agree = r.CheckGroup(g) && agree
	}
	return agree
}

// CheckGroup checks one group led by this node, if its members differ from what they should be.
func (r *Reconciler) CheckGroup(g *group.Group) (agree bool) {
	p, ok := r.Plan(g)
	if agree = !ok || p.converged(); !agree {
		r.Check(p.queue.Group)
	}
	return agree
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
