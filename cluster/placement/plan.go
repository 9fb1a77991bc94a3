package placement

import (
	"context"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

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
	p := &Plan{node: r.node, group: g, view: view, queue: q, leaving: view.Leaving(q), wanted: memberNames(view, q)}
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
		if !slices.ContainsFunc(config, func(m group.Member) bool { return m.Node == name }) {
			p.missing = append(p.missing, name)
		}
	}
	return p, true
}

// converged reports whether there is nothing to do for the group.
func (p *Plan) converged() bool {
	return len(p.surplus)+len(p.missing)+len(p.learners)+len(p.leaving) == 0 && p.grown() == nil
}

// Step takes the next step of the plan, and reports whether there is none that can be taken. After
// a step the plan must not be used again.
func (p *Plan) Step(ctx context.Context) (done bool) {
	if dead := p.first(p.surplus, false); dead != "" && p.remove(ctx, dead) {
		return false
	}
	if name := p.first(p.missing, true); name != "" {
		p.report("member added", name, p.group.Add(name))
		return false
	}
	if len(p.learners) > 0 && p.promote(ctx) {
		return false
	}
	if len(p.learners) > 0 && p.first(p.learners, true) != "" {
		return false // it will catch up
	}
	if len(p.surplus) > 0 {
		return !p.remove(ctx, p.surplus[0])
	}
	if len(p.leaving) > 0 {
		if p.group.Barrier(stepTimeout) != nil {
			return false // the configuration may yet be undone
		}
		p.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_MembersLeft{MembersLeft: &logpb.MembersLeft{
			Queue: uint64(p.queue.ID), Nodes: numbers(p.leaving),
		}}})
		return false
	}
	if next := p.grown(); next != nil {
		p.node.Logger.Info("adding members to queue", "queue", p.queue.Name, "vhost", p.queue.VHost, "nodes", next)
		p.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_SetMembers{SetMembers: &logpb.SetMembers{
			Queue: uint64(p.queue.ID), Members: next, Was: numbers(p.view.Members(p.queue)),
		}}})
		return false
	}
	return true
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
func (p *Plan) remove(ctx context.Context, name string) bool {
	var stay []string
	for _, v := range p.voters {
		if v != name {
			stay = append(stay, v)
		}
	}
	if len(stay) == 0 || !p.node.Mesh.HasMajority(stay) {
		return false
	}
	if name != p.node.Node {
		p.report("member removed", name, p.group.Remove(name))
		return true
	}
	for _, next := range stay {
		if slices.Contains(p.wanted, next) && p.caughtUp(ctx, next) {
			p.report("leadership handed over", next, p.group.Transfer(next))
			return true
		}
	}
	return false
}

// promote gives a vote to a member that has caught up. It does not stop at an even number of voters
// if the next learner is about to be ready, too.
func (p *Plan) promote(ctx context.Context) bool {
	var ready []string
	for _, name := range p.learners {
		if p.node.online(name) && p.caughtUp(ctx, name) {
			ready = append(ready, name)
		}
	}
	if len(ready) == 0 || len(ready) == 1 && len(p.voters)%2 == 1 && len(p.learners) > 1 {
		return false
	}
	err := p.group.Promote(ready[0])
	p.report("member is now a voter", ready[0], err)
	return err == nil
}

// caughtUp reports whether a member's log reaches about as far as the leader's.
func (p *Plan) caughtUp(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	r, err := p.node.Replicas.Of(ctx, name, p.queue.Group)
	return err == nil && r != nil && r.Last+maxVoterLag >= p.group.Progress().Commit
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
func (p *Plan) propose(ctx context.Context, c *logpb.CatalogCommand) {
	limited, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	results, err := p.node.Catalog.Note(limited, c)
	if err == nil {
		err = catalog.Refused(results[0])
	}
	if err != nil && ctx.Err() == nil {
		p.node.Logger.Warn("record of members not changed", "queue", p.queue.Name, "vhost", p.queue.VHost, "error", err)
	}
}

func (p *Plan) report(what, node string, err error) {
	log := p.node.Logger.With("queue", p.queue.Name, "vhost", p.queue.VHost, "member", node)
	if err != nil {
		log.Debug(what+": failed", "error", err)
		return
	}
	log.Info(what)
}
