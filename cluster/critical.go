package cluster

import (
	"context"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// maxQuorumLag is how many entries behind the others' a log may end for its
// replica to count when another one is about to stop.
const maxQuorumLag = 1000

// QuorumCritical lists the queues with a replica on this node that would be
// left without a majority of caught-up replicas if the node stopped. The
// catalog is among them as a nil.
func (n *Node) QuorumCritical(ctx context.Context) []*catalog.Queue {
	var list []*catalog.Queue
	s := n.standings(ctx)
	if n.isCritical(catalogGroup, n.catalog.Voters(), s) {
		list = append(list, nil)
	}
	for _, q := range n.View().Queues() {
		members := n.memberNames(q)
		if !q.Local && slices.Contains(members, n.config.Name) && n.isCritical(q.Group, members, s) {
			list = append(list, q)
		}
	}
	return list
}

func (n *Node) isCritical(id fsm.GroupID, members []string, s standings) bool {
	online := 0
	for _, m := range members {
		if n.Online(m) && s.current(m, id, maxQuorumLag) {
			online++
		}
	}
	return online <= len(members)/2+1
}

// Leaderless lists the replicated queues that no node leads.
func (n *Node) Leaderless(ctx context.Context, queues []*catalog.Queue) []*catalog.Queue {
	s := n.standings(ctx)
	return slices.DeleteFunc(slices.Clone(queues), func(q *catalog.Queue) bool {
		leader, _ := s.leader(q.Group)
		return q.Local || leader != ""
	})
}

// Members says how each replica of a queue stands. Of nodes that do not answer
// only the name is known.
func (n *Node) Members(ctx context.Context, q *catalog.Queue) []api.Member {
	s := n.standings(ctx, q.Group)
	var list []api.Member
	for _, name := range n.memberNames(q) {
		m := api.Member{Node: name, State: "noproc", Membership: "unknown", SnapshotIndex: -1}
		if x := s[name][q.Group]; x != nil {
			m.State, m.Term, m.LastLogIndex, m.LastWritten = x.Role, x.Term, x.Last, x.Last
			m.CommitIndex, m.LastApplied, m.SnapshotIndex = x.Commit, x.Applied, x.Snapshot
			m.Quarantined = x.Quarantined
			if m.Membership = "non_voter"; x.Voter {
				m.Membership = "voter"
			}
		}
		list = append(list, m)
	}
	return list
}
