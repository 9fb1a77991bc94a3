package cluster

import (
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
)

// StandingStill lists the queues that this node leads and whose work makes no
// progress, the catalog before them.
func (n *Node) StandingStill() []api.Standstill {
	list := []api.Standstill{}
	if s := n.catalog.Stall(); s != nil {
		list = append(list, standstill(s))
	}
	for _, s := range n.host.Stalls() {
		list = append(list, standstill(&s))
	}
	return list
}

// describeProgress says what the watchdog has found and done.
func (n *Node) describeProgress(s *api.Status) {
	s.DiskWaitMS = n.watchdog.Stats().Waiting.Milliseconds()
	s.StandingStill, s.Resignations = n.StandingStill(), []api.Resignation{}
	count, last := n.host.Resignations()
	for _, c := range count {
		s.ResignationsTotal += c
	}
	for _, r := range last {
		s.Resignations = append(s.Resignations, api.Resignation{Standstill: standstill(&r.Stall), AtMS: int64(r.At)})
	}
}

func standstill(s *group.Stall) api.Standstill {
	var of group.Spec
	if s.Group != nil { // else it is the catalog
		of = s.Group.Spec()
	}
	return api.Standstill{
		VHost: of.VHost, Name: of.Name, Group: uint32(of.Group), Reason: s.Reason, ForMS: s.For.Milliseconds(), Keeps: s.Keeps,
		Term: s.Term, Last: s.Last, Commit: s.Commit, Applied: s.Applied,
	}
}
