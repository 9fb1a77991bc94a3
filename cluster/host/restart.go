package host

import (
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
)

// resumeLeading sees to it that the groups have leaders that slept when the process ended. Those that were led here elect
// this node again, which all others wait for, once enough of them are up. Of those whose leaders' nodes are not there,
// others are elected, as when a node dies.
func (s *sleepers) resumeLeading() {
	h := s.host
	self := h.config.Node
	own := h.groups.sleepers(func(_ *group.Group, r *group.Record) bool { return r.Leader() == self && !r.Leads() })
	electable := func(g *group.Group) bool {
		r := g.Record()
		return r == nil || s.voter.hasMajority(r)
	}
	for len(own) > 0 && !slices.ContainsFunc(own, electable) { // else all would be woken in vain
		if !h.sleepers.pause(takeoverWait) {
			return
		}
	}
	s.down(self, func() bool { return true })
	if !h.sleepers.pause(orphanAfter) {
		return
	}
	var away []string
	h.groups.sleepers(func(_ *group.Group, r *group.Record) bool {
		if node := r.Leader(); !r.Leads() && node != "" && node != self && !slices.Contains(away, node) && !h.config.Mesh.Alive(node) {
			away = append(away, node)
		}
		return false
	})
	for _, node := range away {
		s.down(node, func() bool { return !h.config.Mesh.Alive(node) })
	}
}

// overdue reports whether the node of a leader that was restarted has had the time to take up what it led, or something is
// due by now.
func (s *sleepers) overdue(r *group.Record, now time.Time) bool {
	due := r.Due()
	patience := s.patience
	if r.IsUnborn() { // it takes up none of these
		patience = orphanAfter
	}
	return due != 0 && s.host.config.Clock.Now() > due ||
		r.Leader() != s.host.config.Node && now.Sub(s.process(r.Leader()).since) >= patience
}

// mayLack reports whether a member may lack entries of a group that sleeps and is led here.
func (s *sleepers) mayLack(g *group.Group, node string) bool {
	r := g.Record()
	return r != nil && r.Leads() && r.MayLack(node)
}

// level notes that a member lacks nothing.
func (s *sleepers) level(g *group.Group, node string, it election.Item) {
	r := g.Record()
	if r == nil || !r.Leads() || r.At() != placeOf(it) {
		return
	}
	r.LacksNothing(node)
}

// appendLed adds the word that this node leads, for who may not have heard it, if the group sleeps and it does.
func (s *sleepers) appendLed(items []byte, g *group.Group) []byte {
	r := g.Record()
	if r == nil || !r.Leads() || s.host.node.Withdrawn() {
		return items
	}
	return election.AppendItem(items, election.Item{Kind: election.ItemWon, Group: g.ID(), Term: r.At().Raft, Position: r.At().Position})
}

// TakeUp has the groups sleep on that slept when the process ended, as far as their records are true and spec knows them.
// The others are to be opened. It returns how many those are that sleep, none of which has been read. It is called once,
// before any group is open.
//
// R4: nobody leads by a record. Those that led here are led again when this node has been elected.
func (h *Host) TakeUp(spec func(id fsm.GroupID) (s group.Spec, ok bool)) (n int) {
	if !h.sleepers.on() {
		return 0
	}
	now := time.Now()
	records := &raftlog.Records{Store: h.config.Store}
	records.All(func(a raftlog.Asleep) {
		sp, ok := spec(a.Group)
		if !ok {
			return
		}
		g, err := group.TakeUp(h.node, sp, &a, now)
		if g != nil && h.groups.addAsleep(g) {
			n++
		}
		if err != nil {
			h.config.Logger.Debug("a group that slept is opened", "group", a.Group, "error", err)
		}
	})
	if records.Void > 0 {
		h.config.Logger.Warn("records of groups that slept are not true any more", "groups", records.Void)
	}
	h.tasks.Go(h.sleepers.resumeLeading)
	return n
}

// placeOf is where the log ends of a group that sleeps, as an item says.
func placeOf(it election.Item) group.RecordedAt {
	return group.RecordedAt{Position: it.Position, Raft: it.Term}
}
