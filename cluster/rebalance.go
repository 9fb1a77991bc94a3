package cluster

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

const (
	// rebalanceAtOnce is how many leaderships a rebalance moves at a time: it
	// is in no hurry.
	rebalanceAtOnce = 8
	// maxSwaps bounds how often a plan looks at all queues again.
	maxSwaps = 20
)

// errRebalancing is returned while another rebalance is under way.
var errRebalancing = errors.New("a rebalance is under way")

// Rebalance moves leaderships of those queues whose name and vhost match until
// the nodes lead as many of them each, or one more. nil matches everything.
func (n *Node) Rebalance(ctx context.Context, vhosts, queues *regexp.Regexp) (api.Rebalanced, error) {
	if !n.rebalancing.TryLock() {
		return api.Rebalanced{}, errRebalancing
	}
	defer n.rebalancing.Unlock()
	var chosen []*catalog.Queue
	for _, q := range n.View().Queues() {
		if len(n.View().Members(q)) > 1 && (vhosts == nil || vhosts.MatchString(q.VHost)) && (queues == nil || queues.MatchString(q.Name)) {
			chosen = append(chosen, q)
		}
	}
	plan, load := n.balance(chosen, n.replicas.Status(ctx))
	r := api.Rebalanced{Moved: n.transferAll(ctx, plan, rebalanceAtOnce)}
	r.Left = len(plan) - r.Moved
	for node, leaders := range load {
		r.Nodes = append(r.Nodes, api.NodeLeaders{Node: node, Leaders: leaders})
	}
	slices.SortFunc(r.Nodes, func(a, b api.NodeLeaders) int { return strings.Compare(a.Node, b.Node) })
	n.slog.Info("leaderships rebalanced", "moved", r.Moved, "left", r.Left)
	return r, ctx.Err()
}

// balance plans transfers, and says how many leaderships each node has when
// they are made.
func (n *Node) balance(queues []*catalog.Queue, s stats.ReplicaStatus) (plan []transfer, load map[string]int) {
	load = map[string]int{}
	first, last := map[fsm.GroupID]string{}, map[fsm.GroupID]string{}
	members := map[fsm.GroupID][]string{}
	for _, q := range queues {
		members[q.Group] = n.memberNames(q)
		if leader, _ := s.Leader(q.Group); leader != "" {
			first[q.Group], last[q.Group] = leader, leader
			load[leader]++
		}
	}
	for range maxSwaps {
		changed := false
		for _, q := range queues {
			from := last[q.Group]
			to := n.heir(q.Group, members[q.Group], from, s, load)
			if from != "" && to != "" && (load[from]-load[to] > 1 || n.drains(from)) {
				last[q.Group], changed = to, true
				load[from], load[to] = load[from]-1, load[to]+1
			}
		}
		if !changed {
			break
		}
	}
	for _, q := range queues {
		if to := last[q.Group]; to != first[q.Group] {
			plan = append(plan, transfer{q.Group, first[q.Group], to})
		}
	}
	return plan, load
}

// memberNames are the names of the nodes that hold a queue's replicas.
func (n *Node) memberNames(q *catalog.Queue) []string { return membersOf(n.View(), q) }

func membersOf(v *catalog.View, q *catalog.Queue) []string {
	var names []string
	for _, m := range v.Members(q) {
		if state, ok := v.Node(m); ok {
			names = append(names, state.Name)
		}
	}
	return names
}

// TransferLeadership makes a node the leader of a queue. An error that is a
// *fsm.Refusal is the caller's fault.
func (n *Node) TransferLeadership(ctx context.Context, q *catalog.Queue, to string) error {
	s := n.replicas.Status(ctx, q.Group)
	from, _ := s.Leader(q.Group)
	switch {
	case !slices.Contains(n.memberNames(q), to):
		return fsm.Refuse(fsm.Precondition, "node '"+to+"' is not a member of the queue")
	case from == to:
		return fsm.Refuse(fsm.Precondition, "already_leader")
	case n.drains(to):
		return fsm.Refuse(fsm.Precondition, "node '"+to+"' is in maintenance mode")
	case s[to][q.Group].GetQuarantined():
		return fsm.Refuse(fsm.Precondition, "the queue is quarantined on node '"+to+"'")
	case from == "":
		return errors.New("the queue has no leader")
	case !n.Online(to) || !s.Current(to, q.Group, maxHeirLag):
		return errors.New("node '" + to + "' is not up, or is not caught up")
	}
	return n.transfer(ctx, q.Group, from, to)
}
