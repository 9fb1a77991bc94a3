package host

import (
	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/raftlog"
)

// Bear adds this node's replica of a new queue, which sleeps, and writes nothing: what its members have is known from
// its declaration. False: it has to be opened, because something of it is here already, or time runs for it.
func (h *Host) Bear(spec group.Spec, first group.Leader) bool {
	if !h.Bears(spec.Config) || spec.Joins || h.Group(spec.Group) != nil || (&raftlog.Records{Store: h.config.Store}).Has(spec.Group) {
		return false
	}
	g := group.Unborn(h.node, spec, first)
	r := g.Record()
	if !h.groups.addAsleep(g) {
		return false
	}
	if h.node.Orphaned(r) {
		h.sleepers.adopt([]*group.Group{g})
	}
	if h.config.Mesh.Waits(spec.Group) {
		g.Call()
	}
	return true
}

// Bears reports whether a queue with these settings is born asleep: all nodes can read what that leaves, and nothing
// happens in it before somebody uses it.
func (h *Host) Bears(c *group.QueueConfig) bool {
	return h.config.Version() >= group.Timerless && h.config.Heartbeat == 0 && !group.Ends(c)
}

// bear finds leaders for those that nobody has used of groups without one, asleep, and returns the others: the first member
// was not there when they were declared, has been restarted since, or has died. A hundred thousand of them may lose their
// leaders at once, and votes are lost on a busy machine; so none is woken for that, until it was in vain for long.
func (s *sleepers) bear(orphans []*group.Group) (used []*group.Group) {
	var unused []*group.Group
	for _, g := range orphans {
		switch r := g.Record(); {
		case !r.IsUnused():
			used = append(used, g)
		case s.voter.hasMajority(r):
			unused = append(unused, g)
		}
	}
	if len(unused) > 0 && s.bearing.CompareAndSwap(false, true) {
		s.host.tasks.Go(func() {
			defer s.bearing.Store(false)
			for _, g := range unused {
				g.Forsake()
			}
			if s.voter.inquire(unused); !s.pause(takeoverWait) {
				return
			}
			s.voter.takeOver(unused, "", func() bool { return true })
		})
	}
	return used
}

// inquire asks the other members who leads groups, by a request for votes in no term: this one may have been down, or out of
// reach, when they got their leader. Who leads answers, and nobody votes.
func (v *voter) inquire(groups []*group.Group) {
	h, ask := v.host, map[string][]byte{}
	for _, g := range groups {
		for _, m := range g.Configuration() {
			if m.Node != h.config.Node && h.node.Alive(m.Node) {
				ask[m.Node] = election.AppendItem(ask[m.Node], election.Item{Kind: election.ItemVote, Group: g.ID()})
			}
		}
	}
	for node, list := range ask {
		h.elections.Send(node, list)
	}
}

// hasMajority reports whether enough members are up to elect a leader.
func (v *voter) hasMajority(r *group.Record) bool {
	up := 0
	for _, m := range r.Members() {
		if v.host.node.Alive(m.Node) {
			up++
		}
	}
	return 2*up > len(r.Members())
}
