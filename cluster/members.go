package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Pace of changes of members.
const (
	placeAtOnce   = 8                     // groups whose members are being changed
	placeLook     = 50 * time.Millisecond // between two looks at such a group
	placePatience = 20 * time.Second      // after which a group that gets no further makes room for others
	placeEvery    = 5 * time.Second       // between two looks at all groups
	placeSlack    = 128                   // entries by which a member that gets a vote may lag
	placeCall     = 5 * time.Second       // bounds a question to a member, and a change of the catalog
)

// placer changes the members of the groups that this node leads. The catalog's
// record says which nodes they should be; the placer brings raft's
// configuration there step by step, and may stop after each: whoever leads
// next goes on. It also changes the record, where a queue has fewer members
// than it should have and nodes are free.
type placer struct {
	node *Node

	mu     sync.Mutex
	todo   []fsm.GroupID
	listed map[fsm.GroupID]bool      // in todo
	active map[fsm.GroupID]time.Time // since when
	again  map[fsm.GroupID]bool      // active, and to be looked at once more
	open   bool

	wake *worker.Worker
	quit context.Context
	end  context.CancelFunc
	done sync.WaitGroup
}

func newPlacer(n *Node) *placer {
	p := &placer{
		node: n, listed: map[fsm.GroupID]bool{}, active: map[fsm.GroupID]time.Time{}, again: map[fsm.GroupID]bool{},
		wake: worker.New(worker.Options{}),
	}
	p.quit, p.end = context.WithCancel(context.Background())
	return p
}

// start begins to work.
func (p *placer) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quit.Err() != nil {
		return
	}
	p.open = true
	p.done.Go(func() { p.node.guard.Loop(p.quit.Done(), "change members", p.run) })
}

// stop ends the work; what is under way may be half done.
func (p *placer) stop() {
	p.mu.Lock()
	p.open = false
	p.mu.Unlock()
	p.end()
	p.done.Wait()
}

// check looks at groups, soon.
func (p *placer) check(ids ...fsm.GroupID) {
	p.mu.Lock()
	for _, id := range ids {
		if _, active := p.active[id]; active {
			p.again[id] = true
		} else if !p.listed[id] {
			p.listed[id] = true
			p.todo = append(p.todo, id)
		}
	}
	p.mu.Unlock()
	p.wake.Wake()
}

// checkAll looks at all groups that this node leads and whose members are not
// what they should be.
func (p *placer) checkAll() {
	var ids []fsm.GroupID
	for _, g := range p.node.host.Groups() {
		if g.Leading() != 0 && !p.settled(g) {
			ids = append(ids, g.Spec().Group)
		}
	}
	p.check(ids...)
}

func (p *placer) run() {
	var all time.Time // when all groups were looked at
	p.wake.Run(p.quit.Done(), func(now time.Time) (again time.Duration) {
		if now.Sub(all) >= placeEvery {
			all = now
			p.checkAll()
		}
		p.launch()
		return placeEvery - now.Sub(all)
	})
}

// launch begins to work on groups while there is room.
func (p *placer) launch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.open && len(p.active) < placeAtOnce && len(p.todo) > 0 {
		id := p.todo[0]
		p.todo = p.todo[1:]
		delete(p.listed, id)
		p.active[id] = time.Now()
		p.done.Go(func() { p.node.guard.Try("change the members of a group", func() { p.work(id) }) })
	}
}

// work changes the members of one group until they are as they should be, or
// nothing has changed for too long.
func (p *placer) work(id fsm.GroupID) {
	defer func() {
		p.mu.Lock()
		delete(p.active, id)
		again := p.again[id]
		delete(p.again, id)
		p.mu.Unlock()
		if again {
			p.check(id)
		} else {
			p.check() // there is room for another one
		}
	}()
	end := time.NewTimer(placePatience)
	defer end.Stop()
	pause := time.NewTicker(placeLook)
	defer pause.Stop()
	for {
		g := p.node.host.Group(id)
		if g == nil || g.Leading() == 0 || p.step(g) {
			return
		}
		select {
		case <-p.quit.Done():
			return
		case <-end.C:
			return // the next look at all groups comes back to it
		case <-pause.C:
		}
	}
}

// plan compares the members that a queue should have with those of its group.
// All of it is of one view: by a later one a member may be leaving that the plan
// still counts among those that stay.
type plan struct {
	view    *catalog.View
	queue   *catalog.Queue
	wish    []string
	leaving []fsm.NodeID
	config  []group.Member
	surplus []string // in the group, and should not be
	missing []string // should be in the group
	silent  []string // in the group without a vote, and should vote
	voters  []string
}

func (p *placer) plan(g *group.Group) (*plan, bool) {
	view := p.node.View()
	q, ok := view.QueueByGroup(g.Spec().Group)
	if !ok || q.Local {
		return nil, false
	}
	x := &plan{view: view, queue: q, leaving: view.Leaving(q), config: g.Configuration()}
	for _, number := range view.Members(q) {
		if n, known := view.Node(number); known {
			x.wish = append(x.wish, n.Name)
		}
	}
	for _, m := range x.config {
		switch {
		case m.Voter:
			x.voters = append(x.voters, m.Node)
		case slices.Contains(x.wish, m.Node):
			x.silent = append(x.silent, m.Node)
		}
		if !slices.Contains(x.wish, m.Node) {
			x.surplus = append(x.surplus, m.Node)
		}
	}
	for _, name := range x.wish {
		if !slices.ContainsFunc(x.config, func(m group.Member) bool { return m.Node == name }) {
			x.missing = append(x.missing, name)
		}
	}
	return x, true
}

// settled reports whether there is nothing to do for a group.
func (p *placer) settled(g *group.Group) bool {
	x, ok := p.plan(g)
	if !ok {
		return true
	}
	return len(x.surplus)+len(x.missing)+len(x.silent)+len(x.leaving) == 0 && p.grown(x) == nil
}

// step takes the next step for a group, and reports whether none is left that
// can be taken.
func (p *placer) step(g *group.Group) (done bool) {
	x, ok := p.plan(g)
	return !ok || p.take(g, x)
}

// take takes the next step of a plan, and reports whether there is none.
func (p *placer) take(g *group.Group, x *plan) (done bool) {
	if dead := p.first(x.surplus, false); dead != "" && p.remove(g, x, dead) {
		return false
	}
	if name := p.first(x.missing, true); name != "" {
		p.report(x, "member added", name, g.Add(name))
		return false
	}
	if len(x.silent) > 0 && p.promote(g, x) {
		return false
	}
	if len(x.silent) > 0 && p.first(x.silent, true) != "" {
		return false // it will catch up
	}
	if len(x.surplus) > 0 {
		return !p.remove(g, x, x.surplus[0])
	}
	if len(x.leaving) > 0 {
		if g.Barrier(placeCall) != nil {
			return false // what the configuration says may yet be undone
		}
		p.propose(x, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_MembersLeft{MembersLeft: &logpb.MembersLeft{
			Queue: uint64(x.queue.ID), Nodes: numbers(x.leaving),
		}}})
		return false
	}
	if next := p.grown(x); next != nil {
		p.node.slog.Info("queue gets members", "queue", x.queue.Name, "vhost", x.queue.VHost, "nodes", next)
		p.propose(x, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_SetMembers{SetMembers: &logpb.SetMembers{
			Queue: uint64(x.queue.ID), Members: next, Was: numbers(x.view.Members(x.queue)),
		}}})
		return false
	}
	return true
}

// first returns the first node that is up, or down; empty: there is none.
func (p *placer) first(names []string, up bool) string {
	for _, n := range names {
		if p.node.Online(n) == up {
			return n
		}
	}
	return ""
}

// remove takes a member out of the group, if those that stay are able to
// commit that. A leader that has to go hands its office over; the next one
// removes it.
func (p *placer) remove(g *group.Group, x *plan, name string) bool {
	var stay []string
	for _, v := range x.voters {
		if v != name {
			stay = append(stay, v)
		}
	}
	if len(stay) == 0 || !p.node.mesh.HasMajority(stay) {
		return false
	}
	if name != p.node.config.Name {
		p.report(x, "member removed", name, g.Remove(name))
		return true
	}
	for _, next := range stay {
		if slices.Contains(x.wish, next) && p.current(g, next) {
			p.report(x, "leadership handed over", next, g.Transfer(next))
			return true
		}
	}
	return false
}

// promote gives a vote to a member that has caught up. A group does not stop
// at an even number of voters if the next one is about to be ready, too.
func (p *placer) promote(g *group.Group, x *plan) bool {
	var ready []string
	for _, name := range x.silent {
		if p.node.Online(name) && p.current(g, name) {
			ready = append(ready, name)
		}
	}
	if len(ready) == 0 || len(ready) == 1 && len(x.voters)%2 == 1 && len(x.silent) > 1 {
		return false
	}
	err := g.Promote(ready[0])
	p.report(x, "member votes", ready[0], err)
	return err == nil
}

// current reports whether a member's log reaches about as far as the leader's.
func (p *placer) current(g *group.Group, name string) bool {
	ctx, cancel := context.WithTimeout(p.quit, placeCall)
	defer cancel()
	r, err := p.node.replicas.Of(ctx, name, g.Spec().Group)
	return err == nil && r != nil && r.Last+placeSlack >= g.Progress().Commit
}

// grown returns the members that a queue should get as it has too few, nil if
// there are no more nodes that are up. It does not stop at an even number
// unless that is wanted.
func (p *placer) grown(x *plan) []uint32 {
	view := x.view
	members := view.Members(x.queue)
	size, target := len(members), view.GroupSize(x.queue, p.node.config.GroupSize)
	if size >= target {
		return nil
	}
	free := 0
	for _, n := range view.Nodes() {
		if p.free(view, x.queue, n) {
			free++
		}
	}
	next := min(target, size+free)
	if next < target && next%2 == 0 {
		next--
	}
	if next <= size {
		return nil
	}
	more := p.node.broker.Candidates(view, func(id fsm.NodeID) bool {
		n, _ := view.Node(id)
		return !p.free(view, x.queue, n)
	})
	return append(numbers(members), more[:min(len(more), next-size)]...)
}

// free reports whether a node can get a replica of a queue.
func (p *placer) free(v *catalog.View, q *catalog.Queue, n *logpb.NodeState) bool {
	return n.GetBoot() != 0 && p.node.Online(n.GetName()) && !v.Holds(q, fsm.NodeID(n.GetNumber()))
}

func numbers(ids []fsm.NodeID) []uint32 {
	list := make([]uint32, len(ids))
	for i, n := range ids {
		list[i] = uint32(n)
	}
	return list
}

// propose changes the record. If that fails it is tried again, by whoever
// leads then.
func (p *placer) propose(x *plan, c *logpb.CatalogCommand) {
	ctx, cancel := context.WithTimeout(p.quit, placeCall)
	defer cancel()
	results, err := p.node.Note(ctx, c)
	if err == nil {
		err = catalog.Refused(results[0])
	}
	if err != nil && p.quit.Err() == nil {
		p.node.slog.Warn("record of members not changed", "queue", x.queue.Name, "vhost", x.queue.VHost, "error", err)
	}
}

func (p *placer) report(x *plan, what, node string, err error) {
	log := p.node.slog.With("queue", x.queue.Name, "vhost", x.queue.VHost, "member", node)
	if err != nil {
		log.Debug(what+": failed", "error", err)
		return
	}
	log.Info(what)
}

// outside is the broker, as groups see it; the placer hears what the node leads.
type outside struct {
	*broker.Broker
	node *Node
}

// Led implements group.Outside.
func (o outside) Led(g *group.Group, term uint64) {
	o.Broker.Led(g, term)
	if term != 0 && !o.node.members.settled(g) {
		o.node.members.check(g.Spec().Group)
	}
}
