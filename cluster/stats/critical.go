package stats

import (
	"context"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// maxQuorumLag is how many entries a replica's log may end behind the longest for the replica to
// count when another one is about to stop.
const maxQuorumLag = 1000

// Online reports whether a node is up, as far as this one knows.
func (r *Replicas) Online(node string) bool { return r.nodes.Online(node) }

// QuorumCritical lists the queues with a replica on this node that would be
// left without a majority of caught-up replicas if the node stopped. The
// catalog is among them as a nil.
func (r *Replicas) QuorumCritical(ctx context.Context) []*catalog.Queue {
	var list []*catalog.Queue
	s := r.Status(ctx)
	if r.isCritical(CatalogGroup, r.c.Catalog.Voters(), s) {
		list = append(list, nil)
	}
	view := r.c.Catalog.View()
	for _, q := range view.Queues() {
		members := memberNames(view, q)
		if !q.Local && slices.Contains(members, r.nodes.Self) && r.isCritical(q.Group, members, s) {
			list = append(list, q)
		}
	}
	return list
}

func (r *Replicas) isCritical(id fsm.GroupID, members []string, s ReplicaStatus) bool {
	online := 0
	for _, m := range members {
		if r.nodes.Online(m) && s.Current(m, id, maxQuorumLag) {
			online++
		}
	}
	return online <= len(members)/2+1
}

// Leaderless lists the replicated queues that no node leads.
func (r *Replicas) Leaderless(ctx context.Context, queues []*catalog.Queue) []*catalog.Queue {
	s := r.Status(ctx)
	return slices.DeleteFunc(slices.Clone(queues), func(q *catalog.Queue) bool {
		leader, _ := s.Leader(q.Group)
		return q.Local || leader != ""
	})
}

// Members returns the status of each replica of a queue. For nodes that do not answer only the name
// is known.
func (r *Replicas) Members(ctx context.Context, q *catalog.Queue) []api.Member {
	s := r.Status(ctx, q.Group)
	var list []api.Member
	for _, name := range memberNames(r.c.Catalog.View(), q) {
		m := api.Member{Node: name, State: "noproc", Membership: "unknown", SnapshotIndex: -1}
		if x := s[name][q.Group]; x != nil {
			m.State, m.Term, m.LastLogIndex, m.LastWritten = x.Role, x.Term, x.Last, x.Last
			m.CommitIndex, m.LastApplied, m.SnapshotIndex = x.Commit, x.Applied, x.Snapshot
			m.Quarantined = x.Quarantined
			if m.Membership = "non_voter"; s.Votes(name, q.Group) {
				m.Membership = "voter"
			}
		}
		list = append(list, m)
	}
	return list
}

// memberNames returns the names of the nodes that hold a queue's replicas.
func memberNames(v *catalog.View, q *catalog.Queue) []string {
	var names []string
	for _, m := range v.Members(q) {
		if state, ok := v.Node(m); ok {
			names = append(names, state.Name)
		}
	}
	return names
}
