package group

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
)

// foundedAt is where the log of every group begins: with an entry that says who its members are.
var foundedAt = RecordedAt{replica.Position{Term: FirstTerm, Index: 1}, FirstTerm}

// FirstTerm is the term in which a queue is led from its declaration on.
const FirstTerm = 1

// Leader is the process that leads a group in its first term, from its declaration on; zero: nobody does.
//
// It is that of the first member, and began before the queue was declared: so it is sure to have sent nothing in that
// term that it has forgotten.
type Leader struct {
	Node    string
	Process [16]byte
}

// Ends reports whether a queue ends by itself if nobody uses it.
func Ends(c *QueueConfig) bool { return c.GetExpires() != 0 || c.GetAutoDeleteOnIdle() != 0 }

// Unborn returns this node's replica of a new queue, of which nothing is stored. It sleeps.
func Unborn(n *Node, of Spec, first Leader) *Group {
	g := &Group{spec: n.shared.spec(of), node: n}
	spec := &g.spec
	now, at := time.Now(), n.config.Clock.Now()
	r := &Record{
		at: foundedAt, leads: first.Node == n.config.Node, leader: n.shared.name(first.Node), process: first.Process,
		config: founders(spec), configAt: foundedAt.Index, snapshot: -1, stats: Stats{Revision: spec.Config.GetRevision(), Clock: at, LastActive: at}, settings: spec.Config,
		since: now, noted: now, level: true,
	}
	n.shared.shrink(r)
	r.unborn.Store(true)
	if r.leads {
		r.stamper.Begin(n.config.Clock, 0)
	}
	g.asleep.Store(r)
	return g
}

// founders is the first configuration of a group.
func founders(spec *Spec) (c raft.Configuration) {
	for _, m := range spec.Members {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(m), Address: raft.ServerAddress(m)})
	}
	return c
}

// founding is what a group is founded with.
func founding(spec *Spec) raftlog.Founding {
	return raftlog.Founding{Owner: spec.Owner(), Members: founders(spec)}
}

// Owner names the queue that a group belongs to.
func (spec *Spec) Owner() string {
	return fmt.Sprintf("%q in vhost %q, number %d", spec.Name, spec.VHost, spec.Queue)
}

// Settle stores what a group was founded with, durably: its members are about to change, and afterwards its declaration
// no longer says.
func (g *Group) Settle() error {
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	if g.ended.Load() || r != nil && !r.IsUnborn() {
		return nil
	}
	store, err := g.node.config.Store.Group(g.spec.Group)
	if err != nil {
		return fmt.Errorf("open log of group %d: %w", g.spec.Group, err)
	}
	if r != nil {
		store.Found(founding(&g.spec))
	}
	store.Begin()
	if r != nil {
		r.unborn.Store(false)
		g.node.config.Store.Unload(g.spec.Group)
	}
	return nil
}

// expect takes up the settings that whoever uses the queue first will bring in.
func (g *Group) expect(want *QueueConfig) {
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	switch {
	case r == nil:
		if i := g.running.Load(); i != nil {
			i.settings.change()
		}
	case r.leads && r.stats.Applied == 0:
		n := r.in(r.at.Raft, r.leader)
		n.leads, n.elected, n.process, n.settings, n.stats.Revision = true, r.elected, r.process, want, want.GetRevision()
		n.stamper.Begin(g.node.config.Clock, 0)
		g.put(n)
	}
}

// Forsake notes that a group which nobody has used has no leader, and is about to be taken over. It reports whether it is that.
func (g *Group) Forsake() (unused bool) {
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	if unused = r.IsUnused(); unused && !r.leads && r.leader != "" {
		r = r.in(r.at.Raft, "")
		g.put(r)
	}
	if unused {
		r.stands.Add(1)
	}
	return unused
}

// maxStands is how often an unused group without a leader is taken over in vain, once a second, before it is woken.
const maxStands = 60

// IsUnused reports whether nothing has happened in a group that sleeps, as far as this replica knows, and it has not
// been taken over in vain too often: then it is not woken for want of a leader alone. It is unborn, or has voted.
func (r *Record) IsUnused() bool {
	return r.IsUnborn() || r != nil && r.at.Index == foundedAt.Index && r.level && !r.failed && r.stands.Load() < maxStands
}

// IsUnborn reports whether nothing of a replica that sleeps is stored.
func (r *Record) IsUnborn() bool { return r != nil && r.unborn.Load() }
