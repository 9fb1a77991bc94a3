package host

import (
	"maps"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// boots says which of the groups that this node leads have sessions of a node's boot, and which of them suspect
// it, so that what becomes of a node concerns only those that know it. A group that sleeps stays in it.
//
// Invariant: byBoot[b] has g, exactly while byGroup[g] lists b; no set in byBoot is empty.
type boots struct {
	mu      sync.Mutex
	byGroup map[fsm.GroupID][]knownBoot
	byBoot  map[knownBoot]map[fsm.GroupID]struct{}
}

// knownBoot is a boot that a group suspects, or of which it has sessions.
type knownBoot struct {
	queue.Boot
	suspected bool
}

// set replaces what a group knows.
func (b *boots) set(g fsm.GroupID, sessions, suspected []queue.Boot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.byGroup[g] {
		if delete(b.byBoot[k], g); len(b.byBoot[k]) == 0 {
			delete(b.byBoot, k)
		}
	}
	if len(sessions)+len(suspected) == 0 {
		delete(b.byGroup, g)
		return
	}
	if b.byGroup == nil {
		b.byGroup, b.byBoot = map[fsm.GroupID][]knownBoot{}, map[knownBoot]map[fsm.GroupID]struct{}{}
	}
	now := make([]knownBoot, 0, len(sessions)+len(suspected))
	for _, at := range sessions {
		now = append(now, knownBoot{at, false})
	}
	for _, at := range suspected {
		now = append(now, knownBoot{at, true})
	}
	for _, k := range now {
		if b.byBoot[k] == nil {
			b.byBoot[k] = map[fsm.GroupID]struct{}{}
		}
		b.byBoot[k][g] = struct{}{}
	}
	b.byGroup[g] = now
}

// Boots lists the boots of nodes that groups led here have sessions of, or suspect.
func (h *Host) Boots() []queue.Boot {
	b := &h.boots
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[queue.Boot]bool{}
	for k := range b.byBoot {
		all[k.Boot] = true
	}
	return slices.Collect(maps.Keys(all))
}

// Knowing lists the groups led here that suspect a boot, or else those that have sessions of it and do not.
func (h *Host) Knowing(of queue.Boot, suspected bool) (list []*group.Group) {
	b := &h.boots
	b.mu.Lock()
	ids, but := slices.Collect(maps.Keys(b.byBoot[knownBoot{of, suspected}])), map[fsm.GroupID]struct{}(nil)
	if !suspected {
		but = b.byBoot[knownBoot{of, true}]
	}
	ids = slices.DeleteFunc(ids, func(id fsm.GroupID) bool { _, yes := but[id]; return yes })
	b.mu.Unlock()
	for _, id := range ids {
		if g := h.Group(id); g != nil && g.Leading() != 0 {
			list = append(list, g)
		}
	}
	return list
}
