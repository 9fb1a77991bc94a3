package group

import (
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/election"
)

// resumeLeading sees to it that the groups have leaders that slept when the process ended. Those that were led here elect
// this node again, which all others wait for, once enough of them are up. Of those whose leaders' nodes are not there,
// others are elected, as when a node dies.
func (s *sleepers) resumeLeading() {
	h := s.host
	self := h.config.Node
	own := h.groups.sleepers(func(_ *Group, r *record) bool { return r.leader == self && !r.leads })
	electable := func(g *Group) bool {
		r := g.asleep.Load()
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
	h.groups.sleepers(func(_ *Group, r *record) bool {
		if node := r.leader; !r.leads && node != "" && node != self && !slices.Contains(away, node) && !h.config.Mesh.Alive(node) {
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
func (s *sleepers) overdue(r *record, now time.Time) bool {
	due := r.stats.NextDeadline
	patience := s.patience
	if r.isUnborn() { // it takes up none of these
		patience = orphanAfter
	}
	return due != 0 && s.host.config.Clock.Now() > due ||
		r.leader != s.host.config.Node && now.Sub(s.process(r.leader).since) >= patience
}

// lacking are the members that may lack entries.
func (r *record) lacking() []string {
	if p := r.lacks.Load(); p != nil {
		return *p
	}
	return nil
}

func (r *record) setLacking(nodes []string) {
	if len(nodes) == 0 {
		r.lacks.Store(nil)
		return
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	r.lacks.Store(&nodes)
}

// mayLack reports whether a member may lack entries of a group that sleeps and is led here.
func (s *sleepers) mayLack(g *Group, node string) bool {
	r := g.asleep.Load()
	return r != nil && r.leads && slices.Contains(r.lacking(), node)
}

// level notes that a member lacks nothing.
func (s *sleepers) level(g *Group, node string, it election.Item) {
	r := g.asleep.Load()
	if r == nil || !r.leads || r.at != (recordedAt{it.Position, it.Term}) {
		return
	}
	for was := r.lacks.Load(); was != nil && slices.Contains(*was, node); was = r.lacks.Load() {
		left := slices.DeleteFunc(slices.Clone(*was), func(n string) bool { return n == node })
		if r.lacks.CompareAndSwap(was, &left) {
			return
		}
	}
}

// appendLed adds the word that this node leads, for who may not have heard it, if the group sleeps and it does.
func (s *sleepers) appendLed(items []byte, g *Group) []byte {
	r := g.asleep.Load()
	if r == nil || !r.leads || s.host.withdrawn.Load() {
		return items
	}
	return election.AppendItem(items, election.Item{Kind: election.ItemWon, Group: g.spec.Group, Term: r.at.raft, Position: r.at.Position})
}
