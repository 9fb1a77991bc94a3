package group

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
)

// Pauses before a member that lacks entries, and is sent none, is sent some.
const (
	lagEvery = 500 * time.Millisecond // how often it is checked
	lagFirst = time.Second
	lagLast  = 30 * time.Second
)

// lagWatch watches members that lack entries and are sent none. Raft sends
// when it has something new, and goes on while that works; after a failure it
// waits for the next entry, which an idle group does not have.
type lagWatch struct {
	node   string
	alive  func(node string) bool
	behind map[groupMember]lag
}

// groupMember is a member of a group that this node leads.
type groupMember struct {
	group fsm.GroupID
	node  string
}

// lag is how far a member was when it was last checked.
type lag struct {
	index   uint64
	due     time.Time // when it is sent something, unless it has got further by then
	pause   time.Duration
	checked time.Time
}

// ledGroup is what a lagWatch needs of a group.
type ledGroup interface {
	Spec() Spec
	role() (raft.RaftState, uint64)
	lastIndex() uint64
	Configuration() []Member
	reached(node string, term uint64) peer.Reached
	nudge()
}

func newLagWatch(c *Config) *lagWatch {
	return &lagWatch{node: c.Node, alive: c.Mesh.Alive, behind: map[groupMember]lag{}}
}

// check sends something to those members of a group that have not got further
// for a while.
func (l *lagWatch) check(g ledGroup, now time.Time) {
	role, term := g.role()
	if role != raft.Leader {
		return
	}
	last, nudge := g.lastIndex(), false
	for _, m := range g.Configuration() {
		if m.Node == l.node || !l.alive(m.Node) {
			continue
		}
		r := g.reached(m.Node, term)
		if r.Busy || r.Index >= last {
			continue
		}
		key := groupMember{g.Spec().Group, m.Node}
		was, known := l.behind[key]
		switch {
		case !known || was.index != r.Index:
			was = lag{index: r.Index, due: now.Add(lagFirst), pause: lagFirst}
		case !now.Before(was.due):
			nudge = true
			was.pause = min(2*was.pause, lagLast)
			was.due = now.Add(was.pause)
		}
		was.checked = now
		l.behind[key] = was
	}
	if nudge {
		g.nudge()
	}
}

// forget drops those that were not behind when last checked.
func (l *lagWatch) forget(now time.Time) {
	for key, was := range l.behind {
		if was.checked != now {
			delete(l.behind, key)
		}
	}
}
