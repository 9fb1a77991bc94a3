package placement

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// localWorkers is how many replicas are opened or dropped at a time. Each waits for several durable
// writes, which those of the others share.
const localWorkers = 8

// shortestRetry is when a replica is tried again that could not be opened or dropped. It doubles with
// each failure, up to longestRetry.
const (
	shortestRetry = 250 * time.Millisecond
	longestRetry  = 30 * time.Second
)

// asideEvery is how often it is checked whether data that is put aside can still be kept.
const asideEvery = time.Minute

// LocalReplicas brings the replicas on this node in line with the catalog: it
// opens those that should be here and drops those whose queue is gone.
type LocalReplicas struct {
	node  *node
	queue *worker.Queue[fsm.GroupID]

	mu      sync.Mutex
	self    fsm.NodeID // 0: not started
	stopped bool
	groups  map[fsm.QueueID]fsm.GroupID // of the replicas that are open, or will be
	removed map[fsm.GroupID]bool        // of queues that were seen to be deleted
	failing map[fsm.GroupID]*failing

	failures atomic.Uint64
}

// failing is a replica that could not be opened or dropped.
type failing struct {
	since    time.Time
	attempts int
	err      error
}

func newLocalReplicas(n *node) *LocalReplicas {
	r := &LocalReplicas{node: n, groups: map[fsm.QueueID]fsm.GroupID{}, removed: map[fsm.GroupID]bool{}, failing: map[fsm.GroupID]*failing{}}
	r.queue = worker.NewQueue(n.Guard, "open or drop a replica", localWorkers, r.converge)
	return r
}

// Start starts the work on everything in the catalog and on disk, and returns when that is done.
// self is the node's number.
func (r *LocalReplicas) Start(self fsm.NodeID) error {
	groups, err := r.node.Stored()
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.self = self
	r.mu.Unlock()
	view := r.node.view()
	r.takeUp(view)
	for _, q := range view.Queues() {
		switch {
		case q.Local:
			r.openLocal(q)
		case view.Holds(q, self):
			groups = append(groups, q.Group)
		}
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	r.queue.Add(slices.DeleteFunc(groups, func(id fsm.GroupID) bool { return r.node.Host.Group(id) != nil })...)
	r.queue.Start()
	r.queue.Wait()
	return nil
}

// takeUp has those replicas sleep on that slept when the node ended: they are not opened.
func (r *LocalReplicas) takeUp(view *catalog.View) {
	began := time.Now()
	n := r.node.Host.TakeUp(func(id fsm.GroupID) (s group.Spec, ok bool) {
		q, ok := view.QueueByGroup(id)
		if ok = ok && !q.Local && view.Holds(q, r.self); ok {
			r.mu.Lock()
			r.groups[q.ID] = id
			r.mu.Unlock()
			s = r.spec(q)
		}
		return s, ok
	})
	if n > 0 {
		r.node.Logger.Info("replicas sleep on", "groups", n, "took", time.Since(began).Round(time.Millisecond))
	}
}

// Stop ends the work.
func (r *LocalReplicas) Stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.queue.Stop()
}

// Added handles a queue that is in the catalog. A local queue serves when Added returns.
func (r *LocalReplicas) Added(q *catalog.Queue) {
	switch {
	case q.Local:
		r.openLocal(q)
	case !r.bear(q):
		r.Check(q.Group)
	}
}

// bear adds a replica of a new queue, which sleeps, and reports whether that was all there is to do.
func (r *LocalReplicas) bear(q *catalog.Queue) bool {
	v, host := r.node.view(), r.node.Host
	r.mu.Lock()
	here := r.self != 0 && !r.stopped && v.Holds(q, r.self)
	r.mu.Unlock()
	if !here || v.HasMoved(q) || host.Group(q.Group) != nil {
		return false
	}
	spec := r.spec(q)
	if !host.Bear(spec, r.first(q)) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups[q.ID] = q.Group
	return true
}

// first is who leads a queue from its declaration on: its first member, if the process of that had registered before.
// A later process may be the second one of the node that would lead in the term.
func (r *LocalReplicas) first(q *catalog.Queue) (l group.Leader) {
	v := r.node.view()
	n, ok := v.Node(v.Members(q)[0])
	if !ok || n.GetBoot() == 0 || n.GetBoot() >= uint64(q.ID)>>16 || !r.node.online(n.GetName()) {
		return l
	}
	if copy(l.Process[:], n.GetIncarnation()); n.GetName() == r.node.Node && l.Process != r.node.Incarnation {
		return group.Leader{}
	}
	l.Node = n.GetName()
	return l
}

// Leads returns the node that leads a new queue from its declaration on; empty: one has to be elected.
func (r *LocalReplicas) Leads(q *catalog.Queue) string {
	if v := r.node.view(); q.Local || v.HasMoved(q) || !r.node.Host.Bears(v.Settings(q, r.node.Defaults)) {
		return ""
	}
	return r.first(q).Node
}

// openLocal opens a local queue that lives on this node. It does nothing before the node has its
// number: queues of its former boots are gone by then.
func (r *LocalReplicas) openLocal(q *catalog.Queue) {
	r.mu.Lock()
	here := r.self != 0 && q.Home() == r.self && !r.stopped
	if here {
		r.groups[q.ID] = q.Group
	}
	r.mu.Unlock()
	if here {
		r.node.Host.OpenLocal(r.spec(q))
	}
}

// Check schedules a comparison of groups with the catalog. Before Start all groups are due for it
// anyway.
func (r *LocalReplicas) Check(ids ...fsm.GroupID) {
	r.mu.Lock()
	started := r.self != 0
	r.mu.Unlock()
	if started {
		r.queue.Add(ids...)
	}
}

// Removed handles the removal of a queue.
func (r *LocalReplicas) Removed(id fsm.QueueID) {
	r.mu.Lock()
	group, open := r.groups[id]
	delete(r.groups, id)
	r.mu.Unlock()
	if open && !r.node.Host.DropLocal(group) {
		r.mu.Lock()
		r.removed[group] = true
		r.mu.Unlock()
		r.Check(group)
	}
}

// CheckOpen schedules putting aside every open replica whose queue is gone.
func (r *LocalReplicas) CheckOpen() {
	view := r.node.view()
	for _, g := range r.node.Host.Groups() {
		id := g.Spec().Group
		if _, ok := view.QueueByGroup(id); !ok && !r.node.Host.DropLocal(id) {
			r.Check(id)
		}
	}
}

// converge opens or drops one replica, as the catalog says. What fails is tried again after a pause.
func (r *LocalReplicas) converge(id fsm.GroupID) (again time.Duration) {
	err := worker.ErrPanicked
	r.node.Guard.Try("open or drop a replica", func() { again, err = r.attempt(id) })
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.failing[id]
	if err == nil {
		if delete(r.failing, id); f != nil {
			r.node.Logger.Info("a replica was finally opened or dropped", "group", id, "attempts", f.attempts+1, "after", time.Since(f.since).Round(time.Millisecond))
		}
		return again
	}
	if f == nil {
		f = &failing{since: time.Now()}
		r.failing[id] = f
	}
	r.failures.Add(1)
	again = min(shortestRetry<<min(f.attempts, 16), longestRetry)
	f.attempts, f.err = f.attempts+1, err
	r.node.Logger.Error("a replica cannot be opened or dropped", "group", id, "error", err, "attempts", f.attempts, "again", again)
	return again
}

// attempt returns when the replica is to be looked at again; 0: when something has changed.
func (r *LocalReplicas) attempt(id fsm.GroupID) (again time.Duration, err error) {
	host, view := r.node.Host, r.node.view()
	q, wanted := view.QueueByGroup(id)
	wanted = wanted && !q.Local && view.Holds(q, r.self)
	r.mu.Lock()
	known := q != nil || r.removed[id]
	if wanted {
		r.groups[q.ID] = id
		delete(r.removed, id)
	} else if q != nil {
		delete(r.groups, q.ID)
	}
	r.mu.Unlock()
	switch {
	case !wanted && known:
		if q != nil {
			host.Leave(id)
		}
		if err := host.Drop(id); err != nil {
			return 0, err
		}
		r.mu.Lock()
		delete(r.removed, id)
		r.mu.Unlock()
		return 0, nil
	case !wanted:
		left, err := host.PutAside(id, r.node.LowDisk())
		return min(left, asideEvery), err
	}
	switch g := host.Group(id); {
	case g == nil && !r.bear(q) && host.Group(id) == nil: // else it was born meanwhile
		if _, err := host.Open(r.spec(q)); err != nil {
			return 0, fmt.Errorf("open the replica of %s: %w", q, err)
		}
	case g != nil && view.HasMoved(q):
		if err := g.Settle(); err != nil {
			return 0, err
		}
	}
	if _, still := r.node.view().QueueByGroup(id); !still {
		r.Check(id) // removed while it was being opened
	}
	return 0, nil
}

// Closed lists the replicas that should be open on this node and could not be opened.
func (r *LocalReplicas) Closed() []api.Closed {
	view, list := r.node.view(), []api.Closed{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, f := range r.failing {
		if q, ok := view.QueueByGroup(id); ok && view.Holds(q, r.self) {
			list = append(list, api.Closed{
				VHost: q.VHost, Name: q.Name, Group: uint32(id), ForMS: time.Since(f.since).Milliseconds(), Attempts: f.attempts, Reason: f.err.Error(),
			})
		}
	}
	slices.SortFunc(list, func(a, b api.Closed) int { return int(a.Group) - int(b.Group) })
	return list
}

// Failures counts how often replicas could not be opened or dropped.
func (r *LocalReplicas) Failures() uint64 { return r.failures.Load() }

// spec describes a queue's group.
func (r *LocalReplicas) spec(q *catalog.Queue) group.Spec {
	v := r.node.view()
	return group.Spec{
		Group: q.Group, Queue: q.ID, VHost: q.VHost, Name: q.Name, Local: q.Local, Config: v.Settings(q, r.node.Defaults),
		Joins: v.HasMoved(q) && v.Founder(q) != r.self, Members: q.MemberNames(v),
	}
}
