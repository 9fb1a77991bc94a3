package placement

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	reconcileAtOnce  = 8                     // groups whose members are being changed
	reconcilePoll    = 50 * time.Millisecond // after a step that failed, or while a member catches up
	reconcileTimeout = 20 * time.Second      // after which a group without progress gives way to others
	reconcileEvery   = 5 * time.Second       // between two checks of groups that have a reason
	reconcileSome    = 250                   // groups that are checked each time without one: of 70,000, all in 24 minutes
)

// Reconciler changes the members of the groups that this node leads. The catalog's record says
// which nodes they should be; the reconciler changes raft's configuration step by step, and may
// stop after each step: the next leader continues. It also changes the record if a queue has fewer
// members than it should have and nodes are free.
type Reconciler struct {
	node  *node
	queue *worker.Queue[fsm.GroupID]
	loops *worker.Tasks

	open  openGroups
	nodes []string      // all nodes and what is known of them, when groups were last checked because of that
	left  []fsm.GroupID // to be checked without a reason
}

// openGroups are the groups led here that have reason to be checked again: what is to be done for one is not done,
// or it has fewer members than it should have, and no node for another one. What else a group's members depend on is
// told when it changes: the catalog's record of the queue and its settings, and who leads.
type openGroups struct {
	mu     sync.Mutex
	groups map[fsm.GroupID]bool // true: something is to be done
}

// note records the result of a check.
func (o *openGroups) note(id fsm.GroupID, agrees, lacks bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if agrees && !lacks {
		delete(o.groups, id)
		return
	}
	if o.groups == nil {
		o.groups = map[fsm.GroupID]bool{}
	}
	o.groups[id] = !agrees
}

// due lists those that are to be checked: all if nodes have changed.
func (o *openGroups) due(nodes bool) (ids []fsm.GroupID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, todo := range o.groups {
		if todo || nodes {
			ids = append(ids, id)
		}
	}
	return ids
}

func newReconciler(n *node) *Reconciler {
	r := &Reconciler{node: n, loops: worker.NewTasks(n.Guard)}
	r.queue = worker.NewQueue(n.Guard, "change the members of a group", reconcileAtOnce, func(id fsm.GroupID) time.Duration {
		r.reconcile(id)
		return 0 // checkSome comes back to it
	})
	return r
}

// Start starts the work.
func (r *Reconciler) Start() {
	r.queue.Start()
	r.loops.Loop("check the members of groups", func(ctx context.Context) { worker.Every(ctx.Done(), reconcileEvery, r.checkSome) })
}

// Stop ends the work; a change in progress may be half done.
func (r *Reconciler) Stop() {
	r.loops.Stop()
	r.queue.Stop()
}

// Check schedules a comparison of groups' members with the catalog. Before Start they wait.
func (r *Reconciler) Check(ids ...fsm.GroupID) { r.queue.Add(ids...) }

// checkSome checks the groups that have a reason, and some others, in turn.
func (r *Reconciler) checkSome() {
	nodes := knownOf(r.node.view().Nodes(), r.node.online)
	due := r.open.due(!slices.Equal(nodes, r.nodes))
	r.nodes = nodes
	if len(r.left) == 0 {
		for _, g := range r.node.Host.Led() {
			r.left = append(r.left, g.Spec().Group)
		}
	}
	some := min(len(r.left), reconcileSome)
	for _, id := range append(due, r.left[:some]...) {
		if g := r.node.Host.Group(id); g != nil && g.Leading() != 0 {
			r.CheckGroup(g)
		} else {
			r.open.note(id, true, false) // its next leader checks it
		}
	}
	r.left = r.left[some:]
}

// knownOf says of nodes what matters for who may get a replica. One that has gone and come back meanwhile, as
// another boot or as another node of its name, is not the one that it was.
func knownOf(all []*logpb.NodeState, online func(string) bool) (list []string) {
	for _, n := range all {
		list = append(list, fmt.Sprint(n.Number, n.Boot, n.Draining, online(n.Name)))
	}
	return list
}

// CheckAll checks all groups led by this node.
func (r *Reconciler) CheckAll() {
	for _, g := range r.node.Host.Led() {
		r.CheckGroup(g)
	}
}

// CheckGroup has the members of a group led by this node changed if they differ from what they should be.
func (r *Reconciler) CheckGroup(g *group.Group) {
	if !r.note(g) {
		r.Check(g.Spec().Group)
	}
}

// note records whether there is reason to check a group again, and reports whether its members are as they should be.
func (r *Reconciler) note(g *group.Group) (agrees bool) {
	p, ok := r.Plan(g)
	agrees = !ok || p.converged()
	r.open.note(g.Spec().Group, agrees, ok && p.lacks())
	return agrees
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
		next := Done
		if p, ok := r.Plan(g); ok {
			next = p.Step(r.loops.Life())
		}
		if next == Done {
			r.note(g)
			return
		}
		if next == Again && r.loops.Life().Err() == nil {
			continue
		}
		select {
		case <-r.loops.Life().Done():
			return
		case <-end.C:
			r.note(g)
			return
		case <-poll.C:
		}
	}
}

// Next is what a group needs after a step.
type Next int

// The things that a group may need.
const (
	Done  Next = iota // nothing that can be done
	Again             // the next step: this one was taken
	Later             // the same step again: it failed, or waits for a member
)

// after says what comes after a step that ended with an error.
func after(err error) Next {
	if err != nil {
		return Later
	}
	return Again
}

const (
	maxVoterLag = 128             // entries by which a member may lag to get a vote
	stepTimeout = 5 * time.Second // for a request to a member, and for a change of the catalog
)

// Plan compares the members that a queue should have with those of its group. All of it is taken
// from one view: by a later one a member may be leaving that the plan still counts as staying.
type Plan struct {
	node     *node
	group    *group.Group
	view     *catalog.View
	queue    *catalog.Queue
	wanted   []string
	leaving  []fsm.NodeID // of the catalog's record
	surplus  []string     // in the group, but not wanted
	missing  []string     // wanted, but not in the group
	learners []string     // in the group, and wanted as voters
	voters   []string
}

// Plan makes a plan for a group that this node leads; false: its queue is gone.
func (r *Reconciler) Plan(g *group.Group) (*Plan, bool) {
	view := r.node.view()
	q, ok := view.QueueByGroup(g.Spec().Group)
	if !ok || q.Local {
		return nil, false
	}
	p := &Plan{node: r.node, group: g, view: view, queue: q, leaving: view.Leaving(q), wanted: q.MemberNames(view)}
	config := g.Configuration()
	for _, m := range config {
		switch {
		case m.Voter:
			p.voters = append(p.voters, m.Node)
		case slices.Contains(p.wanted, m.Node):
			p.learners = append(p.learners, m.Node)
		}
		if !slices.Contains(p.wanted, m.Node) {
			p.surplus = append(p.surplus, m.Node)
		}
	}
	for _, name := range p.wanted {
		if !slices.ContainsFunc(config, func(m replica.Member) bool { return m.Node == name }) {
			p.missing = append(p.missing, name)
		}
	}
	return p, true
}

// converged reports whether there is nothing to do for the group.
func (p *Plan) converged() bool {
	return len(p.surplus)+len(p.missing)+len(p.learners)+len(p.leaving) == 0 && p.grown() == nil
}

// Step takes the next step of the plan, if one can be taken. After a step the plan must not be used again.
func (p *Plan) Step(ctx context.Context) Next {
	if dead := p.first(p.surplus, false); dead != "" {
		if next := p.remove(ctx, dead); next != Done {
			return next
		}
	}
	if name := p.first(p.missing, true); name != "" {
		return p.report("member added", name, p.group.Add(name))
	}
	if len(p.learners) > 0 {
		if next := p.promote(ctx); next != Done {
			return next
		}
		if p.first(p.learners, true) != "" {
			return Later // it will catch up
		}
	}
	if len(p.surplus) > 0 {
		return p.remove(ctx, p.surplus[0])
	}
	if len(p.leaving) > 0 {
		if p.group.Barrier(stepTimeout) != nil {
			return Later // the configuration may yet be undone
		}
		return p.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_MembersLeft{MembersLeft: &logpb.MembersLeft{
			Queue: uint64(p.queue.ID), Nodes: numbers(p.leaving),
		}}})
	}
	if next := p.grown(); next != nil {
		p.node.Logger.Info("adding members to queue", "queue", p.queue.Name, "vhost", p.queue.VHost, "nodes", next)
		return p.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_SetMembers{SetMembers: &logpb.SetMembers{
			Queue: uint64(p.queue.ID), Members: next, Was: numbers(p.view.Members(p.queue)),
		}}})
	}
	return Done
}

// first returns the first node that is up, or the first that is down; empty: there is none.
func (p *Plan) first(names []string, up bool) string {
	for _, n := range names {
		if p.node.online(n) == up {
			return n
		}
	}
	return ""
}

// remove removes a member from the group, if the remaining members can commit that. A leader that
// has to go hands its leadership over; the next leader removes it.
func (p *Plan) remove(ctx context.Context, name string) Next {
	var stay []string
	for _, v := range p.voters {
		if v != name {
			stay = append(stay, v)
		}
	}
	if len(stay) == 0 || !p.node.Mesh.HasMajority(stay) {
		return Done
	}
	if name != p.node.Node {
		return p.report("member removed", name, p.group.Remove(name))
	}
	for _, next := range stay {
		if slices.Contains(p.wanted, next) && p.caughtUp(ctx, next) {
			p.report("leadership handed over", next, p.group.Transfer(next))
			return Later
		}
	}
	return Done
}

// promote gives a vote to a member that has caught up. It does not stop at an even number of voters
// if the next learner is about to be ready, too.
func (p *Plan) promote(ctx context.Context) Next {
	var ready []string
	for _, name := range p.learners {
		if p.node.online(name) && p.caughtUp(ctx, name) {
			ready = append(ready, name)
		}
	}
	if len(ready) == 0 || len(ready) == 1 && len(p.voters)%2 == 1 && len(p.learners) > 1 {
		return Done
	}
	return p.report("member is now a voter", ready[0], p.group.Promote(ready[0]))
}

// caughtUp reports whether a member's log reaches about as far as the leader's.
func (p *Plan) caughtUp(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return replica.Follows(p.group.Progress, maxVoterLag, func() (uint64, bool) {
		r, err := p.node.Replicas.Of(ctx, name, p.queue.Group)
		return r.GetLast(), err == nil && r != nil
	})
}

// lacks reports whether the queue has fewer members than it should have.
func (p *Plan) lacks() bool {
	return len(p.view.Members(p.queue)) < p.view.GroupSize(p.queue, p.node.GroupSize)
}

// grown returns the members that the queue should get because it has too few; nil if no more nodes
// are up. It does not stop at an even number unless that is configured.
func (p *Plan) grown() []uint32 {
	members := p.view.Members(p.queue)
	size, want := len(members), p.view.GroupSize(p.queue, p.node.GroupSize)
	if size >= want {
		return nil
	}
	free := 0
	for _, n := range p.view.Nodes() {
		if p.node.free(p.view, p.queue, n) {
			free++
		}
	}
	next := min(want, size+free)
	if next < want && next%2 == 0 {
		next--
	}
	if next <= size {
		return nil
	}
	more := p.node.candidates(p.view, p.queue)
	return append(numbers(members), more[:min(len(more), next-size)]...)
}

// propose changes the record. If that fails, the leader at that time tries again.
func (p *Plan) propose(ctx context.Context, c *logpb.CatalogCommand) Next {
	limited, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	results, err := p.node.Catalog.Note(limited, c)
	if err == nil {
		err = catalog.Refused(results[0])
	}
	if err != nil && ctx.Err() == nil {
		p.node.Logger.Warn("record of members not changed", "queue", p.queue.Name, "vhost", p.queue.VHost, "error", err)
	}
	return after(err)
}

func (p *Plan) report(what, node string, err error) Next {
	log := p.node.Logger.With("queue", p.queue.Name, "vhost", p.queue.VHost, "member", node)
	if err != nil {
		log.Debug(what+": failed", "error", err)
	} else {
		log.Info(what)
	}
	return after(err)
}
