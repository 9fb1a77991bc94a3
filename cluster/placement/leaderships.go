package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
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
		return group.ErrNotLeading
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
	case !slices.Contains(memberNames(l.node.view(), q), to):
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
	var work errgroup.Group
	work.SetLimit(atOnce)
	for _, t := range plan {
		work.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			err := worker.ErrPanicked
			l.node.Guard.Try("hand a leadership over", func() { err = l.transfer(ctx, t.group, t.from, t.to) })
			if err == nil {
				made.Add(1)
			} else {
				l.node.Logger.Warn("leadership not handed over", "group", t.group, "from", t.from, "to", t.to, "error", err)
			}
			return nil
		})
	}
	_ = work.Wait() // each transfer logs its own errors
	return int(made.Load())
}
