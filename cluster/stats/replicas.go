package stats

import (
	"context"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// CatalogGroup is the number of the catalog among groups.
const CatalogGroup = fsm.GroupID(0)

// Replicas reports the state of the replicas of queues and of the catalog, at this node and at the
// others.
type Replicas struct {
	nodes *Nodes
	c     ReplicasConfig
	began time.Time
}

// ReplicasConfig is what Replicas needs of this node.
type ReplicasConfig struct {
	Kind    peer.Kind // of requests to other nodes
	Catalog Catalog
	Host    *host.Host
	// Alarms are those in effect at this node, Resources its memory and disk.
	Alarms    func() []string
	Resources func() alarm.Resources
	// Draining reports whether a node is about to stop.
	Draining func(node string) bool
	// SyncLatency is how long durable writes to the queues' logs take; 0: not known.
	SyncLatency func() time.Duration
	// Rates are the changes in a second of Levels; nil: they are not known.
	Rates func() [traffic.LevelCount]float64
	Local *Local
}

// NewReplicas returns the replicas of a node, and answers other nodes for them.
func NewReplicas(n *Nodes, c ReplicasConfig) *Replicas {
	r := &Replicas{n, c, time.Now()}
	peer.HandleAsk(n.Mesh, c.Kind, r.answer)
	return r
}

// Catalog is the catalog of this node.
type Catalog interface {
	View() *catalog.View
	// Progress is the progress of this node's replica.
	Progress() replica.Progress
	// Voters are the names of the nodes that vote on it.
	Voters() []string
}

// ReplicaStatus is the status of replicas, by node and group. A node that did not answer is
// missing.
type ReplicaStatus map[string]map[fsm.GroupID]*peerpb.Replica

// Status asks all nodes that are up for their replicas of groups; without groups, of all.
func (r *Replicas) Status(ctx context.Context, groups ...fsm.GroupID) ReplicaStatus {
	all := ReplicaStatus{}
	for node, reply := range r.askAll(ctx, groups...).Of {
		all[node] = byGroup(reply)
	}
	return all
}

// Of asks one other node for its replica of a group; nil: it has none.
func (r *Replicas) Of(ctx context.Context, node string, id fsm.GroupID) (*peerpb.Replica, error) {
	reply, err := peer.Ask[peerpb.ReplicasReply](ctx, r.nodes.Mesh, node, r.c.Kind, &peerpb.ReplicasRequest{Groups: []uint32{uint32(id)}})
	if err != nil {
		return nil, err
	}
	return byGroup(reply)[id], nil
}

func (r *Replicas) askAll(ctx context.Context, groups ...fsm.GroupID) Answers[*peerpb.ReplicasReply] {
	req := &peerpb.ReplicasRequest{}
	for _, id := range groups {
		req.Groups = append(req.Groups, uint32(id))
	}
	return Everywhere(ctx, r.nodes, "read the status of replicas", answerWait, r.c.Kind, req, r.answer)
}

func byGroup(r *peerpb.ReplicasReply) map[fsm.GroupID]*peerpb.Replica {
	m := make(map[fsm.GroupID]*peerpb.Replica, len(r.Replicas))
	for _, x := range r.Replicas {
		m[fsm.GroupID(x.Group)] = x
	}
	return m
}

// answer is this node's answer about its replicas. Snapshots are read only for groups requested by
// number.
func (r *Replicas) answer(req *peerpb.ReplicasRequest) *peerpb.ReplicasReply {
	here := r.c.Resources()
	reply := &peerpb.ReplicasReply{Alarms: r.c.Alarms(), Resources: &peerpb.NodeResources{
		MemoryUsed: here.MemoryUsed, MemoryLimit: here.MemoryLimit, DiskFree: here.DiskFree, DiskLimit: here.DiskLimit,
	}}
	if len(req.Groups) == 1 && fsm.GroupID(req.Groups[0]) == CatalogGroup { // see Nodes
		r.describeProcess(reply.Resources)
		r.describeRaft(reply.Resources)
		held, f := r.c.Local.c.Held(), reply.Resources
		f.HeldChannels, f.HeldPublishes, f.HeldAnswers, f.HeldHttp = held.Channels, held.Publishes, held.Answers, held.HTTP
	}
	if len(req.Groups) == 0 {
		reply.Replicas = append(reply.Replicas, replicaOf(CatalogGroup, r.c.Catalog.Progress()))
		for _, g := range r.c.Host.Groups() {
			reply.Replicas = append(reply.Replicas, queueReplica(g))
		}
		return reply
	}
	for _, id := range req.Groups {
		if fsm.GroupID(id) == CatalogGroup {
			reply.Replicas = append(reply.Replicas, replicaOf(CatalogGroup, r.c.Catalog.Progress()))
		}
		if g := r.c.Host.Group(fsm.GroupID(id)); g != nil {
			x := queueReplica(g)
			x.Snapshot = g.SnapshotIndex()
			reply.Replicas = append(reply.Replicas, x)
		}
	}
	return reply
}

func queueReplica(g Group) *peerpb.Replica {
	r := replicaOf(g.Spec().Group, g.Progress())
	r.Quarantined = g.Quarantined() != nil
	return r
}

func replicaOf(id fsm.GroupID, p replica.Progress) *peerpb.Replica {
	return &peerpb.Replica{
		Group: uint32(id), Role: p.Role, Term: p.Term, Last: p.Last, Commit: p.Commit, Applied: p.Applied, Snapshot: -1, Voter: p.Voter, Voters: p.Voters,
	}
}

// Leader finds the serving leader of a group: among the nodes that say that they lead it, the one
// with the highest term, unless it is quarantined.
func (s ReplicaStatus) Leader(id fsm.GroupID) (node string, r *peerpb.Replica) {
	if node, r = s.raftLeader(id); r != nil && r.Quarantined {
		return "", nil
	}
	return node, r
}

// raftLeader finds the leader of a group from raft's point of view.
func (s ReplicaStatus) raftLeader(id fsm.GroupID) (node string, r *peerpb.Replica) {
	for name, replicas := range s {
		if x := replicas[id]; x != nil && x.Role == "leader" && (r == nil || x.Term > r.Term) {
			node, r = name, x
		}
	}
	return node, r
}

// last is the index at which the longest log of a group ends.
func (s ReplicaStatus) last(id fsm.GroupID) (last uint64) {
	for _, replicas := range s {
		if x := replicas[id]; x != nil {
			last = max(last, x.Last)
		}
	}
	return last
}

// Votes reports whether a node has a replica that votes: it believes so, and so does its
// leader, if there is one.
func (s ReplicaStatus) Votes(node string, id fsm.GroupID) bool {
	x := s[node][id]
	_, leader := s.raftLeader(id)
	return x != nil && x.Voter && (leader == nil || slices.Contains(leader.Voters, node))
}

// Current reports whether a node has a replica that votes in the leader's term and is at most lag
// entries behind the longest log. Its role does not matter: raft leaves a member that has lost an
// election it was asked to hold a candidate for some time, although it follows.
func (s ReplicaStatus) Current(node string, id fsm.GroupID, lag uint64) bool {
	x := s[node][id]
	_, leader := s.raftLeader(id)
	return leader != nil && s.Votes(node, id) && x.Term == leader.Term && x.Last+lag >= s.last(id)
}

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
		members := q.MemberNames(view)
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
	for _, name := range q.MemberNames(r.c.Catalog.View()) {
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
