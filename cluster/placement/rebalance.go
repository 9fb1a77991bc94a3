package placement

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
	// rebalanceAtOnce is how many leaderships a rebalance moves at a time; it is not urgent.
	rebalanceAtOnce = 8
	// maxRounds bounds how often a plan goes through all queues.
	maxRounds = 20
)

// errRebalancing is returned while another rebalance is in progress.
var errRebalancing = errors.New("a rebalance is under way")

// Rebalance moves leaderships of the queues whose vhost and name match until the number of these
// that each node leads differs by at most one. nil matches everything.
func (l *Leaderships) Rebalance(ctx context.Context, vhosts, queues *regexp.Regexp) (api.Rebalanced, error) {
	if !l.rebalancing.TryLock() {
		return api.Rebalanced{}, errRebalancing
	}
	defer l.rebalancing.Unlock()
	var chosen []*catalog.Queue
	for _, q := range l.node.view().Queues() {
		if len(l.node.view().Members(q)) > 1 && (vhosts == nil || vhosts.MatchString(q.VHost)) && (queues == nil || queues.MatchString(q.Name)) {
			chosen = append(chosen, q)
		}
	}
	plan, load := l.balance(chosen, l.node.Replicas.Status(ctx))
	r := api.Rebalanced{Moved: l.transferAll(ctx, plan, rebalanceAtOnce)}
	r.Left = len(plan) - r.Moved
	for node, leaders := range load {
		r.Nodes = append(r.Nodes, api.NodeLeaders{Node: node, Leaders: leaders})
	}
	slices.SortFunc(r.Nodes, func(a, b api.NodeLeaders) int { return strings.Compare(a.Node, b.Node) })
	l.node.Logger.Info("leaderships rebalanced", "moved", r.Moved, "left", r.Left)
	return r, ctx.Err()
}

// balance plans transfers, and returns the number of leaderships that each node will have after
// them.
func (l *Leaderships) balance(queues []*catalog.Queue, s stats.ReplicaStatus) (plan []move, load map[string]int) {
	load = map[string]int{}
	first, last := map[fsm.GroupID]string{}, map[fsm.GroupID]string{}
	members, view := map[fsm.GroupID][]string{}, l.node.view()
	for _, q := range queues {
		members[q.Group] = memberNames(view, q)
		if leader, _ := s.Leader(q.Group); leader != "" {
			first[q.Group], last[q.Group] = leader, leader
			load[leader]++
		}
	}
	for range maxRounds {
		changed := false
		for _, q := range queues {
			from := last[q.Group]
			to := l.transferee(q.Group, members[q.Group], from, s, load)
			if from != "" && to != "" && (load[from]-load[to] > 1 || l.node.draining(from)) {
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
			plan = append(plan, move{q.Group, first[q.Group], to})
		}
	}
	return plan, load
}
