package stats

import (
	"iter"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// Group is a queue's group on this node, as lists read it: only what it answers whether or not anything runs for it.
type Group interface {
	Spec() group.Spec
	IsLocal() bool
	Stats() group.Stats
	Progress() replica.Progress
	SnapshotIndex() int64
	LogBytes() uint64
	Quarantined() *group.Quarantine
	// Expire is called if something may be due, and View if the queue has what is listed one by one.
	Expire(timeout time.Duration) error
	View(f func(m *queue.Machine))
}

// Groups are those of a node.
type Groups interface {
	// Led yields the groups that the node leads and serves, in any order.
	Led() iter.Seq[Group]
	// Leads returns one of them; nil: it is none.
	Leads(id fsm.GroupID) Group
}

// GroupsOf are the groups of a host.
func GroupsOf(h *host.Host) Groups { return hosted{h} }

type hosted struct{ host *host.Host }

func (h hosted) Led() iter.Seq[Group] {
	return func(yield func(Group) bool) {
		for _, g := range h.host.Led() {
			if !yield(g) {
				return
			}
		}
	}
}

func (h hosted) Leads(id fsm.GroupID) Group {
	if g := h.host.Group(id); g != nil && g.Leading() != 0 {
		return g
	}
	return nil
}
