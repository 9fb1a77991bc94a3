package host

import (
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// registry holds the groups that are open on a node, and those of them that are awake.
//
//	closed ⇒ replicated, awake and local are empty
type registry struct {
	mu         sync.RWMutex
	closed     bool
	replicated map[fsm.GroupID]*group.Group
	local      map[fsm.GroupID]*group.Group
	awake      map[fsm.GroupID]*awake // of replicated
	byRaft     map[*raft.Raft]*awake
}

func newRegistry() registry {
	return registry{
		replicated: map[fsm.GroupID]*group.Group{}, local: map[fsm.GroupID]*group.Group{},
		awake: map[fsm.GroupID]*awake{}, byRaft: map[*raft.Raft]*awake{},
	}
}

// close empties the registry and returns what was in it.
func (r *registry) close() []*group.Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Collect(maps.Values(r.replicated))
	all = slices.AppendSeq(all, maps.Values(r.local))
	r.closed = true
	r.replicated, r.local, r.awake = map[fsm.GroupID]*group.Group{}, map[fsm.GroupID]*group.Group{}, map[fsm.GroupID]*awake{}
	return all
}

func (r *registry) get(id fsm.GroupID) *group.Group {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if g := r.replicated[id]; g != nil {
		return g
	}
	return r.local[id]
}

// replica returns the instance of a replica that is awake, or nil.
func (r *registry) replica(id fsm.GroupID) *awake {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.awake[id]
}

// sleeper returns a replica that sleeps, or nil.
func (r *registry) sleeper(id fsm.GroupID) *group.Group {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if g := r.replicated[id]; g != nil && g.Asleep() {
		return g
	}
	return nil
}

func (r *registry) ofRaft(is *raft.Raft) *awake {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byRaft[is]
}

// all returns the groups, ordered by number.
func (r *registry) all() []*group.Group {
	r.mu.RLock()
	all := slices.AppendSeq(make([]*group.Group, 0, len(r.replicated)+len(r.local)), maps.Values(r.replicated))
	all = slices.AppendSeq(all, maps.Values(r.local))
	r.mu.RUnlock()
	return sorted(all)
}

// sorted sorts groups by number.
func sorted(all []*group.Group) []*group.Group {
	slices.SortFunc(all, func(a, b *group.Group) int { return int(a.ID()) - int(b.ID()) })
	return all
}

// led returns the groups that serve, in any order, sleepers the replicas that sleep and for which f is true, and
// replicas the instances of those that are awake.
func (r *registry) led() []*group.Group {
	r.mu.RLock()
	defer r.mu.RUnlock()
	serves := func(g *group.Group) bool { return g.Leading() != 0 }
	return appendThose(appendThose(nil, r.replicated, serves), r.local, serves)
}

func (r *registry) sleepers(f func(g *group.Group, r *group.Record) bool) []*group.Group {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return appendThose(nil, r.replicated, func(g *group.Group) bool {
		asleep := g.Record()
		return asleep != nil && f(g, asleep)
	})
}

func (r *registry) replicas(f func(g *awake) bool) []*awake {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return appendThose(nil, r.awake, f)
}

func appendThose[T any](list []T, all map[fsm.GroupID]T, f func(g T) bool) []T {
	for _, g := range all {
		if f(g) {
			list = append(list, g)
		}
	}
	return list
}

// add adds a replica that is opened.
func (r *registry) add(g *awake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.replicated[g.ID()], r.awake[g.ID()] = g.Shell(), g
	}
	r.byRaft[g.Raft()] = g
}

// woken notes that a replica is awake, unless it has been removed meanwhile.
func (r *registry) woken(g *awake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replicated[g.ID()] == g.Shell() {
		r.awake[g.ID()] = g
	}
	r.byRaft[g.Raft()] = g
}

// addAsleep adds a replica that sleeps, and reports whether it has.
func (r *registry) addAsleep(g *group.Group) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.replicated[g.ID()] != nil {
		return false
	}
	r.replicated[g.ID()] = g
	return true
}

// addLocal adds a local queue, or returns the existing one; nil if the registry is closed.
func (r *registry) addLocal(g *group.Group) (have *group.Group, added bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if have = r.local[g.ID()]; have != nil || r.closed {
		return have, false
	}
	r.local[g.ID()] = g
	return g, true
}

// remove takes a replica out; raft's observations are still mapped to it.
func (r *registry) remove(id fsm.GroupID) *group.Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.replicated[id]
	delete(r.replicated, id)
	delete(r.awake, id)
	return g
}

// forget drops an instance whose raft has ended.
func (r *registry) forget(g *awake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byRaft, g.Raft())
	if r.awake[g.ID()] == g {
		delete(r.awake, g.ID())
	}
}

func (r *registry) removeLocal(id fsm.GroupID) *group.Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.local[id]
	delete(r.local, id)
	return g
}

// Those returns the groups for which f is true, in any order: Groups sorts. f must be quick; nil: all groups.
func (h *Host) Those(f func(g *group.Group) bool) []*group.Group {
	if f == nil {
		f = func(*group.Group) bool { return true }
	}
	r := &h.groups
	r.mu.RLock()
	defer r.mu.RUnlock()
	return appendThose(appendThose(nil, r.replicated, f), r.local, f)
}
