package group

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
)

// Pauses before a member that lacks entries, and is sent none, is sent some.
const (
	lagLook  = 500 * time.Millisecond
	lagFirst = time.Second
	lagLast  = 30 * time.Second
)

// laggards looks after members that lack entries and are sent none. Raft sends
// when it has something new, and goes on while that works; after a failure it
// waits for the next entry, which an idle group does not have.
type laggards struct {
	node   string
	alive  func(node string) bool
	behind map[laggard]lag
}

// laggard is a member of a group that this node leads.
type laggard struct {
	group fsm.GroupID
	node  string
}

// lag is how far it was when it was last looked at.
type lag struct {
	index uint64
	due   time.Time // when it is sent something, unless it has got further by then
	pause time.Duration
	seen  time.Time
}

// led is what laggards need of a group.
type led interface {
	Spec() Spec
	role() (raft.RaftState, uint64)
	last() uint64
	members() []Member
	reached(node string, term uint64) peer.Reached
	nudge()
}

func newLaggards(h *Host) *laggards {
	return &laggards{node: h.config.Node, alive: h.config.Mesh.Alive, behind: map[laggard]lag{}}
}

func (h *Host) watchLaggards() {
	t := time.NewTicker(lagLook)
	defer t.Stop()
	for {
		select {
		case <-h.stop:
			return
		case now := <-t.C:
			for _, g := range h.leaders() {
				h.laggards.look(g, now)
			}
			h.laggards.forget(now)
		}
	}
}

// leaders lists the groups that raft makes this node lead.
func (h *Host) leaders() []*Group {
	h.mu.RLock()
	defer h.mu.RUnlock()
	var list []*Group
	for _, g := range h.groups {
		if !g.closed.Load() && g.raft.State() == raft.Leader {
			list = append(list, g)
		}
	}
	return list
}

// look sends something to those members of a group that have not got further
// for a while.
func (l *laggards) look(g led, now time.Time) {
	role, term := g.role()
	if role != raft.Leader {
		return
	}
	last, nudge := g.last(), false
	for _, m := range g.members() {
		if m.Node == l.node || !l.alive(m.Node) {
			continue
		}
		r := g.reached(m.Node, term)
		if r.Busy || r.Index >= last {
			continue
		}
		key := laggard{g.Spec().Group, m.Node}
		was, known := l.behind[key]
		switch {
		case !known || was.index != r.Index:
			was = lag{index: r.Index, due: now.Add(lagFirst), pause: lagFirst}
		case !now.Before(was.due):
			nudge = true
			was.pause = min(2*was.pause, lagLast)
			was.due = now.Add(was.pause)
		}
		was.seen = now
		l.behind[key] = was
	}
	if nudge {
		g.nudge()
	}
}

// forget drops those that were not behind when last looked at.
func (l *laggards) forget(now time.Time) {
	for key, was := range l.behind {
		if was.seen != now {
			delete(l.behind, key)
		}
	}
}

func (g *Group) last() uint64 { return g.raft.LastIndex() }

func (g *Group) members() []Member { return g.Configuration() }

func (g *Group) reached(node string, term uint64) peer.Reached {
	return g.transport.Reached(node, term)
}

// nudge makes raft send to all members, by an entry without content. It does
// not wait until that is committed: the one who lacks entries may be needed.
func (g *Group) nudge() { g.raft.Barrier(nudgeWait) }

// nudgeWait bounds how long raft may take to accept such an entry.
const nudgeWait = time.Second

// nudgeSoon is nudge for who must not wait. What comes before a nudge has begun
// needs no second one.
func (g *Group) nudgeSoon() {
	if g.nudging.CompareAndSwap(false, true) {
		g.host.spawn(func() {
			g.nudging.Store(false)
			g.nudge()
		})
	}
}

// asked has raft send to a member that knows no leader: it has just opened,
// for example, and what was sent before is lost.
func (g *Group) asked(node string, end uint64) {
	role, term := g.role()
	if role != raft.Leader || g.reached(node, term).Busy {
		return
	}
	g.transport.Lacks(node, term, end)
	g.nudgeSoon()
}
