package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// transferWait bounds one transfer of a leadership at another node.
	transferWait = 10 * time.Second
	// transfereePause is the pause while waiting for members that are not caught up.
	transfereePause = 100 * time.Millisecond
	// transfersAtOnce is how many leaderships a node hands over at a time. With more, each transfer
	// takes longer and all together take the same time.
	transfersAtOnce = 32
	// maxTransfereeLag is how many entries a transferee's log may lag behind the leader's.
	maxTransfereeLag = 64
)

// Leaderships moves the leaderships of queues, and of the catalog, between nodes.
type Leaderships struct {
	node        *node
	rebalancing sync.Mutex
}

func newLeaderships(n *node) *Leaderships {
	l := &Leaderships{node: n}
	n.Mesh.HandleCall(n.KindTransfer, l.onTransfer)
	return l
}

// transfer makes the leader of a group hand its leadership to another node.
func (l *Leaderships) transfer(ctx context.Context, id fsm.GroupID, from, to string) error {
	if from == l.node.Node {
		return l.transferHere(id, to)
	}
	ctx, cancel := context.WithTimeout(ctx, transferWait)
	defer cancel()
	req, err := proto.Marshal(&peerpb.TransferRequest{Group: uint32(id), To: to})
	if err != nil {
		return err
	}
	answer, err := l.node.Mesh.Call(ctx, from, l.node.KindTransfer, req)
	if err != nil {
		return fmt.Errorf("ask %s to hand over: %w", from, err)
	}
	var r peerpb.TransferReply
	if err := proto.Unmarshal(answer, &r); err != nil {
		return err
	}
	if r.Error != "" {
		return fmt.Errorf("%s did not hand over the leadership: %s", from, r.Error)
	}
	return nil
}

func (l *Leaderships) transferHere(id fsm.GroupID, to string) error {
	if id == stats.CatalogGroup {
		return l.node.Catalog.Transfer(to)
	}
	g := l.node.Host.Group(id)
	if g == nil {
		return replica.ErrNotLeading
	}
	return g.Transfer(to)
}

func (l *Leaderships) onTransfer(_ context.Context, _ string, req []byte) ([]byte, error) {
	var m peerpb.TransferRequest
	if err := proto.Unmarshal(req, &m); err != nil {
		return nil, err
	}
	r := &peerpb.TransferReply{}
	if err := l.transferHere(fsm.GroupID(m.Group), m.To); err != nil {
		r.Error = err.Error()
	}
	return proto.Marshal(r)
}

// TransferLeadership makes a node the leader of a queue. An error that is a
// *fsm.Refusal is the caller's fault.
func (l *Leaderships) TransferLeadership(ctx context.Context, q *catalog.Queue, to string) error {
	s := l.node.Replicas.Status(ctx, q.Group)
	from, _ := s.Leader(q.Group)
	switch {
	case !slices.Contains(q.MemberNames(l.node.view()), to):
		return fsm.Refuse(fsm.Precondition, "node '"+to+"' is not a member of the queue")
	case from == to:
		return fsm.Refuse(fsm.Precondition, "already_leader")
	case l.node.draining(to):
		return fsm.Refuse(fsm.Precondition, "node '"+to+"' is in maintenance mode")
	case s[to][q.Group].GetQuarantined():
		return fsm.Refuse(fsm.Precondition, "the queue is quarantined on node '"+to+"'")
	case from == "":
		return errors.New("the queue has no leader")
	case !l.node.online(to) || !s.Current(to, q.Group, maxTransfereeLag):
		return errors.New("node '" + to + "' is down, or is not up to date")
	}
	return l.transfer(ctx, q.Group, from, to)
}

// move is a planned transfer.
type move struct {
	group    fsm.GroupID
	from, to string
}

// HandOver hands this node's leaderships to others, and returns how many it has moved, and how many
// are left because no other node can take them or ctx has ended.
func (l *Leaderships) HandOver(ctx context.Context) (moved, left int) {
	for {
		led := l.here()
		if len(led) == 0 {
			return moved, 0
		}
		plan := l.transferees(led, l.node.Replicas.Status(ctx))
		done := l.transferAll(ctx, plan, transfersAtOnce)
		if moved += done; done > 0 {
			continue
		}
		if !l.mayFind(led) {
			return moved, len(led)
		}
		select {
		case <-ctx.Done():
			return moved, len(led)
		case <-time.After(transfereePause):
		}
	}
}

// mayFind reports whether a transferee for one of the groups may be found later: a member that is
// up and stays, with a majority to elect it.
func (l *Leaderships) mayFind(led map[fsm.GroupID][]string) bool {
	for _, members := range led {
		if l.node.Mesh.HasMajority(members) && slices.ContainsFunc(members, func(m string) bool { return l.node.online(m) && !l.node.draining(m) }) {
			return true
		}
	}
	return false
}

// here lists the groups led by this node that have other members, with those members.
func (l *Leaderships) here() map[fsm.GroupID][]string {
	led := map[fsm.GroupID][]string{}
	if l.node.Catalog.Leader() == l.node.Node && len(l.node.Catalog.Voters()) > 1 {
		led[stats.CatalogGroup] = l.node.Catalog.Voters()
	}
	for _, g := range l.node.Host.Groups() {
		if members := g.Voters(); len(members) > 1 && g.Leading() != 0 {
			led[g.Spec().Group] = members
		}
	}
	return led
}

// transferees plans the new leaders of groups led by this node, evenly distributed; the catalog
// comes first.
func (l *Leaderships) transferees(led map[fsm.GroupID][]string, s stats.ReplicaStatus) []move {
	load := map[string]int{}
	var plan []move
	for id, members := range led {
		if !l.mayMove(id) {
			continue
		}
		if to := l.transferee(id, members, l.node.Node, s, load); to != "" {
			load[to]++
			plan = append(plan, move{id, l.node.Node, to})
		}
	}
	slices.SortFunc(plan, func(a, b move) int { return int(a.group) - int(b.group) })
	return plan
}

// mayMove reports whether a group that this node leads would try a transfer.
func (l *Leaderships) mayMove(id fsm.GroupID) bool {
	if id == stats.CatalogGroup {
		return l.node.Catalog.MayMove()
	}
	g := l.node.Host.Group(id)
	return g != nil && g.MayMove()
}

// transferee chooses a new leader for a group: among the other members that are up, caught up and
// not about to stop, the one with the least load; empty: there is none.
func (l *Leaderships) transferee(id fsm.GroupID, members []string, leader string, s stats.ReplicaStatus, load map[string]int) string {
	best := ""
	for _, m := range members {
		if m == leader || l.node.draining(m) || !l.node.online(m) || !s.Current(m, id, maxTransfereeLag) || s[m][id].Role != "follower" || s[m][id].Quarantined {
			continue // a candidate ignores the request to campaign
		}
		if best == "" || load[m] < load[best] {
			best = m
		}
	}
	return best
}

// transferAll makes transfers, several at a time, until ctx ends, and returns how many have been
// made.
func (l *Leaderships) transferAll(ctx context.Context, plan []move, atOnce int) (done int) {
	var made atomic.Int64
	worker.Each(atOnce, plan, func(_ int, t move) {
		if ctx.Err() != nil {
			return
		}
		err := worker.ErrPanicked
		l.node.Guard.Try("hand a leadership over", func() { err = l.transfer(ctx, t.group, t.from, t.to) })
		if err == nil {
			made.Add(1)
		} else {
			l.node.Logger.Warn("leadership not handed over", "group", t.group, "from", t.from, "to", t.to, "error", err)
		}
	})
	return int(made.Load())
}

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
		members[q.Group] = q.MemberNames(view)
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
