package group

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
)

// foundedAt is where the log of every group begins: with an entry that says who its members are.
var foundedAt = recordedAt{replica.Position{Term: FirstTerm, Index: 1}, FirstTerm}

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

// Bear adds this node's replica of a new queue, which sleeps, and writes nothing: what its members have is known from
// its declaration. False: it has to be opened, because something of it is here already, or time runs for it.
func (h *Host) Bear(spec Spec, first Leader) bool {
	if !h.Bears(spec.Config) || spec.Joins || h.Group(spec.Group) != nil || (&raftlog.Records{Store: h.config.Store}).Has(spec.Group) {
		return false
	}
	g := &Group{spec: h.sleepers.shared.spec(spec), host: h}
	r := h.sleepers.unborn(&g.spec, first)
	if g.asleep.Store(r); !h.groups.addAsleep(g) {
		return false
	}
	if h.sleepers.orphaned(r) {
		h.sleepers.adopt([]*Group{g})
	}
	if h.config.Mesh.Waits(spec.Group) {
		g.call()
	}
	return true
}

// Bears reports whether a queue with these settings is born asleep: all nodes can read what that leaves, and nothing
// happens in it before somebody uses it.
func (h *Host) Bears(c *QueueConfig) bool {
	return h.config.Version() >= timerless && h.config.Heartbeat == 0 && !ends(c)
}

// ends reports whether a queue ends by itself if nobody uses it.
func ends(c *QueueConfig) bool { return c.GetExpires() != 0 || c.GetAutoDeleteOnIdle() != 0 }

// unborn is the record of a replica of which nothing is stored.
func (s *sleepers) unborn(spec *Spec, first Leader) *record {
	h := s.host
	now, at := time.Now(), h.config.Clock.Now()
	r := &record{
		at: foundedAt, leads: first.Node == h.config.Node, leader: s.shared.name(first.Node), process: first.Process,
		config: founders(spec), configAt: foundedAt.Index, snapshot: -1, stats: Stats{Revision: spec.Config.GetRevision(), Clock: at, LastActive: at}, settings: spec.Config,
		since: now, noted: now, level: true,
	}
	s.shared.shrink(r)
	r.unborn.Store(true)
	if r.leads {
		r.stamper.Begin(h.config.Clock, 0)
	}
	return r
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
	return raftlog.Founding{Owner: ownerOf(spec), Members: founders(spec)}
}

// ownerOf names the queue that a group belongs to.
func ownerOf(spec *Spec) string {
	return fmt.Sprintf("%q in vhost %q, number %d", spec.Name, spec.VHost, spec.Queue)
}

// Settle stores what a group was founded with, durably: its members are about to change, and afterwards its declaration
// no longer says.
func (g *Group) Settle() error {
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	if g.ended.Load() || r != nil && !r.isUnborn() {
		return nil
	}
	store, err := g.host.config.Store.Group(g.spec.Group)
	if err != nil {
		return fmt.Errorf("open log of group %d: %w", g.spec.Group, err)
	}
	if r != nil {
		store.Found(founding(&g.spec))
	}
	store.Begin()
	if r != nil {
		r.unborn.Store(false)
		g.host.config.Store.Unload(g.spec.Group)
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
		n := r.in(r.at.raft, r.leader)
		n.leads, n.elected, n.process, n.settings, n.stats.Revision = true, r.elected, r.process, want, want.GetRevision()
		n.stamper.Begin(g.host.config.Clock, 0)
		g.put(n)
	}
}

// bear finds leaders for those that are unborn of groups without one, asleep, and returns the others: the first member was
// not there when they were declared, has been restarted since, or has died.
func (s *sleepers) bear(orphans []*Group) (born []*Group) {
	var unborn []*Group
	for _, g := range orphans {
		switch r := g.asleep.Load(); {
		case !r.isUnborn():
			born = append(born, g)
		case s.voter.hasMajority(r):
			unborn = append(unborn, g)
		}
	}
	if len(unborn) > 0 && s.bearing.CompareAndSwap(false, true) {
		s.host.tasks.Go(func() {
			defer s.bearing.Store(false)
			for _, g := range unborn {
				g.forsake()
			}
			if s.voter.inquire(unborn); !s.pause(takeoverWait) {
				return
			}
			s.voter.takeOver(unborn, "", func() bool { return true })
		})
	}
	return born
}

// inquire asks the other members who leads groups, by a request for votes in no term: this one may have been down, or out of
// reach, when they got their leader. Who leads answers, and nobody votes.
func (v *voter) inquire(groups []*Group) {
	h, ask := v.host, map[string][]byte{}
	for _, g := range groups {
		for _, m := range g.Configuration() {
			if m.Node != h.config.Node && v.alive(m.Node) {
				ask[m.Node] = election.AppendItem(ask[m.Node], election.Item{Kind: election.ItemVote, Group: g.spec.Group})
			}
		}
	}
	for node, list := range ask {
		h.elections.Send(node, list)
	}
}

// hasMajority reports whether enough members are up to elect a leader.
func (v *voter) hasMajority(r *record) bool {
	up := 0
	for _, m := range r.members {
		if v.alive(m.Node) {
			up++
		}
	}
	return 2*up > len(r.members)
}

// forsake notes that a group which is unborn has no leader, and reports whether it is that.
func (g *Group) forsake() (unborn bool) {
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	if unborn = r.isUnborn(); unborn && !r.leads && r.leader != "" {
		g.put(r.in(r.at.raft, ""))
	}
	return unborn
}

// isUnborn reports whether nothing of a replica that sleeps is stored.
func (r *record) isUnborn() bool { return r != nil && r.unborn.Load() }
