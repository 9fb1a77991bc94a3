package cluster

import (
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// reconcileWorkers is how many replicas are started or dropped at a time.
const reconcileWorkers = 4

// reconciler brings the replicas on this node in line with the catalog: it
// starts those that should be here and drops those whose queue is gone.
type reconciler struct {
	node *Node

	mu      sync.Mutex
	todo    []fsm.GroupID
	queued  map[fsm.GroupID]bool
	busy    map[fsm.GroupID]bool
	self    fsm.NodeID // 0: not started
	stopped bool
	idle    sync.Cond
	workers sync.WaitGroup
	running int
	groups  map[fsm.QueueID]fsm.GroupID // of the replicas that are open
}

func newReconciler(n *Node) *reconciler {
	r := &reconciler{node: n, queued: map[fsm.GroupID]bool{}, busy: map[fsm.GroupID]bool{}, groups: map[fsm.QueueID]fsm.GroupID{}}
	r.idle.L = &r.mu
	return r
}

// start begins to work, on everything the catalog holds and everything the
// disk holds, and returns when that is done.
func (r *reconciler) start(self fsm.NodeID) error {
	onDisk, err := r.node.store.GroupIDs()
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.self = self
	r.mu.Unlock()
	groups := onDisk
	for _, q := range r.node.View().Queues() {
		if q.Local {
			r.openLocal(q)
		} else {
			groups = append(groups, q.Group)
		}
	}
	slices.Sort(groups)
	r.node.host.Expect(len(slices.Compact(slices.Clone(groups))))
	r.check(slices.Compact(groups)...)
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.todo) > 0 || r.running > 0 {
		r.idle.Wait()
	}
	r.node.host.Expect(0)
	return nil
}

// added is told that a queue is there. A local queue serves when it returns.
func (r *reconciler) added(q *catalog.Queue) {
	if q.Local {
		r.openLocal(q)
	} else {
		r.check(q.Group)
	}
}

// openLocal starts a local queue that lives on this node. Before the node has
// its number there is none: those of its former lives are gone by then.
func (r *reconciler) openLocal(q *catalog.Queue) {
	r.mu.Lock()
	here := r.self != 0 && q.Home() == r.self && !r.stopped
	if here {
		r.groups[q.ID] = q.Group
	}
	r.mu.Unlock()
	if here {
		r.node.host.OpenLocal(r.node.spec(q))
	}
}

// check looks at groups again, soon.
func (r *reconciler) check(ids ...fsm.GroupID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.self == 0 || r.stopped {
		return
	}
	for _, id := range ids {
		if !r.queued[id] {
			r.queued[id] = true
			r.todo = append(r.todo, id)
		}
	}
	for r.running < reconcileWorkers && r.running < len(r.todo) {
		r.running++
		r.workers.Go(r.work)
	}
}

func (r *reconciler) work() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		id, ok := r.next()
		if !ok {
			r.running--
			r.idle.Broadcast()
			return
		}
		r.mu.Unlock()
		if !r.node.guard.Try("start or drop a replica", func() { r.reconcile(id) }) {
			r.node.work.Go(func() { r.checkLater(id) })
		}
		r.mu.Lock()
		delete(r.busy, id)
	}
}

// checkLater looks at a group again after a panic.
func (r *reconciler) checkLater(id fsm.GroupID) {
	select {
	case <-r.node.life.Done():
	case <-time.After(worker.PanicPause):
		r.check(id)
	}
}

// next takes a group that nobody works on. The lock is held.
func (r *reconciler) next() (fsm.GroupID, bool) {
	if r.stopped {
		r.todo = nil
	}
	for i, id := range r.todo {
		if !r.busy[id] {
			r.todo = slices.Delete(r.todo, i, i+1)
			delete(r.queued, id)
			r.busy[id] = true
			return id, true
		}
	}
	return 0, false
}

// reconcile starts or drops one replica, whichever the catalog wants.
func (r *reconciler) reconcile(id fsm.GroupID) {
	n := r.node
	q, wanted := n.View().QueueByGroup(id)
	wanted = wanted && !q.Local && n.View().Holds(q, r.self)
	open := n.host.Group(id) != nil
	switch {
	case wanted && !open:
		if _, err := n.host.Open(n.spec(q)); err != nil {
			n.slog.Error("replica does not start", "queue", q.Name, "vhost", q.VHost, "error", err)
			return
		}
		r.mu.Lock()
		r.groups[q.ID] = id
		r.mu.Unlock()
		if _, still := n.View().QueueByGroup(id); !still {
			r.check(id) // removed while it was being opened
		}
	case !wanted:
		if q != nil {
			r.mu.Lock()
			delete(r.groups, q.ID)
			r.mu.Unlock()
		}
		if err := n.host.Drop(id); err != nil {
			n.slog.Error("replica is not dropped", "group", id, "error", err)
		}
	}
}

func (r *reconciler) stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.workers.Wait()
}

// spec describes a queue's group.
func (n *Node) spec(q *catalog.Queue) group.Spec {
	s := group.Spec{
		Group: q.Group, Queue: q.ID, VHost: q.VHost, Name: q.Name, Local: q.Local, Config: n.View().Settings(q, n.config.Defaults),
		Joins: n.View().HasMoved(q) && n.View().Founder(q) != n.self,
	}
	for _, m := range n.View().Members(q) {
		if state, ok := n.View().Node(m); ok {
			s.Members = append(s.Members, state.Name)
		}
	}
	return s
}

// queueSettings returns the effective settings of a queue as this node knows
// them now; nil: it knows no such queue.
func (n *Node) queueSettings(id fsm.QueueID) *group.QueueConfig {
	v := n.View()
	if q, ok := v.QueueByID(id); ok {
		return v.Settings(q, n.config.Defaults)
	}
	return nil
}

// catalogChanged acts on what an entry of the catalog has changed.
func (n *Node) catalogChanged(c group.CatalogChange) {
	view := n.View()
	if c.Nodes || c.Everything {
		n.membership.Changed(view)
		n.members.check()
	}
	for _, id := range c.Added {
		if q, ok := view.QueueByID(id); ok {
			n.replica.added(q)
			n.broker.QueueAdded(q)
		}
	}
	for _, id := range c.Removed {
		n.broker.QueueGone(id)
		n.replica.removed(id)
	}
	var configured []fsm.GroupID
	for _, id := range c.Configured {
		if q, ok := view.QueueByID(id); ok {
			configured = append(configured, q.Group)
		}
	}
	if len(configured) > 0 {
		n.host.Reconfigure(configured)
	}
	for _, id := range c.Moved {
		if q, ok := view.QueueByID(id); ok {
			n.replica.check(q.Group)
			n.members.check(q.Group)
		}
	}
	if c.Everything {
		for _, q := range view.Queues() {
			n.replica.added(q)
			n.broker.QueueAdded(q)
		}
		n.host.ReconfigureAll()
		n.broker.DropMissing()
		n.replica.checkOpen()
		n.members.checkAll()
	}
	if c.Rights || c.Everything {
		n.broker.Departed(c.Users, c.VHosts)
		n.rights.Wake()
	}
	n.settingsChanged(view)
	n.broker.CatalogChanged()
}

// removed is told that a queue is gone.
func (r *reconciler) removed(id fsm.QueueID) {
	r.mu.Lock()
	group, open := r.groups[id]
	delete(r.groups, id)
	r.mu.Unlock()
	if open && !r.node.host.DropLocal(group) {
		r.check(group)
	}
}

// checkOpen looks at every replica that is open: its queue may be gone.
func (r *reconciler) checkOpen() {
	view := r.node.View()
	var gone []fsm.GroupID
	for _, g := range r.node.host.Groups() {
		if _, ok := view.QueueByGroup(g.Spec().Group); !ok {
			if !r.node.host.DropLocal(g.Spec().Group) {
				gone = append(gone, g.Spec().Group)
			}
		}
	}
	r.check(gone...)
}
