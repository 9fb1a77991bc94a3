package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// askWait bounds how long the other nodes may take to say how they stand.
	askWait = 5 * time.Second
	// transferWait bounds one transfer of a leadership at another node.
	transferWait = 10 * time.Second
	// catalogGroup is the number under which the catalog stands among groups.
	catalogGroup = fsm.GroupID(0)
)

// standings are the replicas of groups, the catalog among them, by node. A
// node that did not answer is missing.
type standings map[string]map[fsm.GroupID]*peerpb.Replica

// listen registers for what other nodes ask.
func (n *Node) listen() {
	peer.HandleAsk(n.mesh, broker.KindReplicas, n.replicas)
	n.mesh.Handle(broker.KindShortage, n.shortages.hear)
	n.mesh.HandleCall(broker.KindTransfer, n.onTransfer)
	n.mesh.HandleCall(broker.KindNodes, n.onNodes)
	n.mesh.HandleCall(broker.KindAdmit, n.onAdmit)
	n.handleClients()
}

// standings asks all nodes that are up how their replicas stand; without
// groups, all of them.
func (n *Node) standings(ctx context.Context, groups ...fsm.GroupID) standings {
	req := &peerpb.ReplicasRequest{}
	for _, id := range groups {
		req.Groups = append(req.Groups, uint32(id))
	}
	all := standings{}
	for node, r := range n.askAll(ctx, req) {
		all[node] = byGroup(r)
	}
	return all
}

// Alarms lists the alarms in effect at the nodes that are up.
func (n *Node) Alarms(ctx context.Context) []api.Alarm {
	var list []api.Alarm
	// It is the alarms that are asked for; the catalog's replica is the cheapest.
	for node, r := range n.askAll(ctx, &peerpb.ReplicasRequest{Groups: []uint32{uint32(catalogGroup)}}) {
		for _, a := range r.Alarms {
			list = append(list, api.Alarm{Node: node, Resource: a})
		}
	}
	slices.SortFunc(list, func(a, b api.Alarm) int { return strings.Compare(a.Node, b.Node) })
	return list
}

// askAll asks all nodes that are up, this one included.
func (n *Node) askAll(ctx context.Context, req *peerpb.ReplicasRequest) map[string]*peerpb.ReplicasReply {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	all := map[string]*peerpb.ReplicasReply{n.config.Name: n.replicas(req)}
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, p := range n.mesh.Peers() {
		if !p.Alive {
			continue
		}
		asked.Go(func() {
			r, err := n.askReplicas(ctx, p.Node, req)
			if err != nil {
				n.slog.Debug("peer does not say how its replicas stand", "node", p.Node, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all[p.Node] = r
		})
	}
	asked.Wait()
	return all
}

func byGroup(r *peerpb.ReplicasReply) map[fsm.GroupID]*peerpb.Replica {
	m := make(map[fsm.GroupID]*peerpb.Replica, len(r.Replicas))
	for _, x := range r.Replicas {
		m[fsm.GroupID(x.Group)] = x
	}
	return m
}

func (n *Node) askReplicas(ctx context.Context, node string, req *peerpb.ReplicasRequest) (*peerpb.ReplicasReply, error) {
	return peer.Ask[peerpb.ReplicasReply](ctx, n.mesh, node, broker.KindReplicas, req)
}

// replicas says how the replicas on this node stand. Snapshots are looked up
// only for groups that are asked for by number.
func (n *Node) replicas(req *peerpb.ReplicasRequest) *peerpb.ReplicasReply {
	r := &peerpb.ReplicasReply{Alarms: n.alarms(), Figures: n.nodeFigures()}
	if len(req.Groups) == 0 {
		r.Replicas = append(r.Replicas, replicaOf(catalogGroup, n.catalog.Progress()))
		for _, g := range n.host.Groups() {
			r.Replicas = append(r.Replicas, queueReplica(g))
		}
		return r
	}
	for _, id := range req.Groups {
		if fsm.GroupID(id) == catalogGroup {
			r.Replicas = append(r.Replicas, replicaOf(catalogGroup, n.catalog.Progress()))
		}
		if g := n.host.Group(fsm.GroupID(id)); g != nil {
			x := queueReplica(g)
			x.Snapshot = g.SnapshotIndex()
			r.Replicas = append(r.Replicas, x)
		}
	}
	return r
}

func queueReplica(g *group.Group) *peerpb.Replica {
	r := replicaOf(g.Spec().Group, g.Progress())
	r.Quarantined = g.Quarantined() != nil
	return r
}

func replicaOf(id fsm.GroupID, p group.Progress) *peerpb.Replica {
	return &peerpb.Replica{
		Group: uint32(id), Role: p.Role, Term: p.Term, Last: p.Last, Commit: p.Commit, Applied: p.Applied, Snapshot: -1, Voter: p.Voter,
	}
}

// leader finds who leads a group, if somebody serves: of those that say that
// they lead the one with the highest term, unless it is quarantined.
func (s standings) leader(id fsm.GroupID) (node string, r *peerpb.Replica) {
	if node, r = s.raftLeader(id); r != nil && r.Quarantined {
		return "", nil
	}
	return node, r
}

// raftLeader finds who leads a group in raft's eyes.
func (s standings) raftLeader(id fsm.GroupID) (node string, r *peerpb.Replica) {
	for name, replicas := range s {
		if x := replicas[id]; x != nil && x.Role == "leader" && (r == nil || x.Term > r.Term) {
			node, r = name, x
		}
	}
	return node, r
}

// reach is how far the longest log of a group reaches.
func (s standings) reach(id fsm.GroupID) (last uint64) {
	for _, replicas := range s {
		if x := replicas[id]; x != nil {
			last = max(last, x.Last)
		}
	}
	return last
}

// current reports whether a node has a replica that votes in the leader's term
// and is at most lag entries behind the longest log. Its role does not matter:
// raft leaves a member that has lost an election which it was told to hold a
// candidate for some time, and has it follow all the same.
func (s standings) current(node string, id fsm.GroupID, lag uint64) bool {
	x := s[node][id]
	_, leader := s.raftLeader(id)
	return x != nil && leader != nil && x.Voter && x.Term == leader.Term && x.Last+lag >= s.reach(id)
}

// transfer has the leader of a group hand its leadership to another node.
func (n *Node) transfer(ctx context.Context, id fsm.GroupID, from, to string) error {
	if from == n.config.Name {
		return n.transferHere(id, to)
	}
	ctx, cancel := context.WithTimeout(ctx, transferWait)
	defer cancel()
	req, err := (&peerpb.TransferRequest{Group: uint32(id), To: to}).MarshalVT()
	if err != nil {
		return err
	}
	answer, err := n.mesh.Call(ctx, from, broker.KindTransfer, req)
	if err != nil {
		return fmt.Errorf("ask %s to hand over: %w", from, err)
	}
	var r peerpb.TransferReply
	if err := r.UnmarshalVT(answer); err != nil {
		return err
	}
	if r.Error != "" {
		return fmt.Errorf("%s does not hand over: %s", from, r.Error)
	}
	return nil
}

func (n *Node) transferHere(id fsm.GroupID, to string) error {
	if id == catalogGroup {
		return n.catalog.Transfer(to)
	}
	g := n.host.Group(id)
	if g == nil {
		return group.ErrNotLeading
	}
	return g.Transfer(to)
}

func (n *Node) onTransfer(_ context.Context, _ string, req []byte) ([]byte, error) {
	var m peerpb.TransferRequest
	if err := m.UnmarshalVT(req); err != nil {
		return nil, err
	}
	r := &peerpb.TransferReply{}
	if err := n.transferHere(fsm.GroupID(m.Group), m.To); err != nil {
		r.Error = err.Error()
	}
	return r.MarshalVT()
}
