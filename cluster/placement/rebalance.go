package placement

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/pattern"
)

const (
	// rebalanceAtOnce is how many leaderships a rebalance moves at a time; it is not urgent.
	rebalanceAtOnce = 8
	// maxPlans bounds how often a rebalance plans: whoever gets a leadership may lose the election,
	// to a member that the plan did not mean.
	maxPlans = 3
	// maxRounds bounds how often a plan goes through all queues.
	maxRounds = 20
)

// errRebalancing is returned while another rebalance is in progress.
var errRebalancing = errors.New("a rebalance is already running")

// Rebalance moves leaderships of the queues whose vhost and name match until the number of these
// that each node leads differs by at most one. nil matches everything.
func (l *Leaderships) Rebalance(ctx context.Context, vhosts, queues *pattern.Pattern) (api.Rebalanced, error) {
	if !l.rebalancing.TryLock() {
		return api.Rebalanced{}, errRebalancing
	}
	defer l.rebalancing.Unlock()
	var chosen []*catalog.Queue
	for _, q := range l.node.view().Queues() {
		if len(l.node.view().Members(q)) > 1 && (vhosts == nil || vhosts.Match(q.VHost)) && (queues == nil || queues.Match(q.Name)) {
			chosen = append(chosen, q)
		}
	}
	s := l.node.Replicas.Status(ctx)
	first := leaders(chosen, s)
	plan, load := l.balance(chosen, s)
	for range maxPlans {
		if l.transferAll(ctx, plan, rebalanceAtOnce) == 0 {
			break
		}
		s = l.elected(ctx, plan)
		plan, load = l.balance(chosen, s)
	}
	r := api.Rebalanced{Left: len(plan)}
	for id, leader := range leaders(chosen, s) {
		if was := first[id]; was != "" && was != leader {
			r.Moved++
		}
	}
	for node, leaders := range load {
		r.Nodes = append(r.Nodes, api.NodeLeaders{Node: node, Leaders: leaders})
	}
	slices.SortFunc(r.Nodes, func(a, b api.NodeLeaders) int { return strings.Compare(a.Node, b.Node) })
	l.node.Logger.Info("leaderships rebalanced", "moved", r.Moved, "left", r.Left)
	return r, ctx.Err()
}

// leaders lists who leads which of the queues that have a leader.
func leaders(queues []*catalog.Queue, s stats.ReplicaStatus) map[fsm.GroupID]string {
	all := map[fsm.GroupID]string{}
	for _, q := range queues {
		if leader, _ := s.Leader(q.Group); leader != "" {
			all[q.Group] = leader
		}
	}
	return all
}

// elected waits until the groups of a plan that has been carried out have leaders.
func (l *Leaderships) elected(ctx context.Context, plan []move) stats.ReplicaStatus {
	ctx, cancel := context.WithTimeout(ctx, transferWait)
	defer cancel()
	for {
		s := l.node.Replicas.Status(ctx)
		if !slices.ContainsFunc(plan, func(m move) bool { leader, _ := s.Leader(m.group); return leader == "" }) {
			return s
		}
		select {
		case <-ctx.Done():
			return s
		case <-time.After(transfereePause):
		}
	}
}

// balance plans transfers, and returns the number of leaderships that each node will have after
// them.
func (l *Leaderships) balance(queues []*catalog.Queue, s stats.ReplicaStatus) (plan []move, load map[string]int) {
	load = map[string]int{}
	first, last := leaders(queues, s), leaders(queues, s)
	members, view := map[fsm.GroupID][]string{}, l.node.view()
	for _, q := range queues {
		members[q.Group] = memberNames(view, q)
	}
	for _, leader := range first {
		load[leader]++
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
