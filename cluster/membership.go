package cluster

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	memberWait   = 20 * time.Second // until a change of members is done
	shrinkAtOnce = 64               // queues that are changed at a time
	memberLook   = 50 * time.Millisecond
)

// replicated finds a replicated queue.
func (n *Node) replicated(vhost, name string) (*catalog.Queue, error) {
	q, ok := n.View().Queue(vhost, name)
	if !ok {
		return nil, fsm.Refuse(fsm.NotFoundKind, "not_found: no queue '"+name+"' in vhost '"+vhost+"'")
	}
	if q.Local {
		return nil, fsm.Refuse(fsm.Precondition, "classic_queue_not_supported: "+q.String()+" is not replicated")
	}
	return q, nil
}

func (n *Node) memberNumber(name string) (fsm.NodeID, error) {
	if state, ok := n.View().NodeByName(name); ok {
		return fsm.NodeID(state.Number), nil
	}
	return 0, fsm.Refuse(fsm.NotFoundKind, "not_found: no node '"+name+"'")
}

// AddMember gives a queue a replica on a node and returns when it votes. On a
// node that has one already it changes nothing.
func (n *Node) AddMember(ctx context.Context, vhost, name, node string) error {
	q, err := n.replicated(vhost, name)
	if err != nil {
		return err
	}
	id, err := n.memberNumber(node)
	if err != nil {
		return err
	}
	if !n.Online(node) {
		return fsm.Refuse(fsm.Precondition, "node_not_running: node "+node)
	}
	return n.addMember(ctx, q, id, 0)
}

// addMember adds a member and makes that the queue's size.
func (n *Node) addMember(ctx context.Context, q *catalog.Queue, id fsm.NodeID, size int) error {
	members := n.View().Members(q)
	if slices.Contains(members, id) {
		return n.awaitMembers(ctx, q)
	}
	next := append(slices.Clone(members), id)
	return n.changeMembers(ctx, q, next, max(size, len(next)))
}

// DeleteMember removes a queue's replica from a node, with its data. On a node
// that has none it changes nothing. The last member stays.
func (n *Node) DeleteMember(ctx context.Context, vhost, name, node string) error {
	q, err := n.replicated(vhost, name)
	if err != nil {
		return err
	}
	id, err := n.memberNumber(node)
	if err != nil {
		return err
	}
	return n.deleteMember(ctx, q, id)
}

func (n *Node) deleteMember(ctx context.Context, q *catalog.Queue, id fsm.NodeID) error {
	members := n.View().Members(q)
	if !slices.Contains(members, id) {
		return n.awaitMembers(ctx, q)
	}
	next := slices.DeleteFunc(slices.Clone(members), func(m fsm.NodeID) bool { return m == id })
	return n.changeMembers(ctx, q, next, max(len(next), 1))
}

// changeMembers changes the record and waits until the queue's group follows.
func (n *Node) changeMembers(ctx context.Context, q *catalog.Queue, next []fsm.NodeID, size int) error {
	ctx, cancel := context.WithTimeout(ctx, memberWait)
	defer cancel()
	results, err := n.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_SetMembers{SetMembers: &logpb.SetMembers{
		Queue: uint64(q.ID), Members: numbers(next), Was: numbers(n.View().Members(q)), Size: uint32(size),
	}}})
	if err != nil {
		return err
	}
	if err := catalog.Refused(results[0]); err != nil {
		return err
	}
	return n.awaitMembers(ctx, q)
}

// awaitMembers returns when the members of a queue are those of its record.
func (n *Node) awaitMembers(ctx context.Context, q *catalog.Queue) error {
	ctx, cancel := context.WithTimeout(ctx, memberWait)
	defer cancel()
	look := time.NewTicker(memberLook)
	defer look.Stop()
	for {
		if _, still := n.View().QueueByID(q.ID); !still {
			return fsm.Refuse(fsm.NotFoundKind, "not_found: "+q.String()+" has been deleted")
		}
		if n.membersAgree(ctx, q) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("timeout: the members of %s are still being changed", q)
		case <-look.C:
		}
	}
}

// membersAgree reports whether a queue has a leader and the votes of all of its
// members that are up.
func (n *Node) membersAgree(ctx context.Context, q *catalog.Queue) bool {
	view := n.View()
	if len(view.Leaving(q)) > 0 {
		return false
	}
	s := n.replicas.Status(ctx, q.Group)
	for _, name := range membersOf(view, q) {
		if x := s[name][q.Group]; n.Online(name) && (x == nil || !x.Voter) {
			return false
		}
	}
	leader, _ := s.Leader(q.Group)
	return leader != ""
}

// Selection says which queues an operation on many is about.
type Selection = api.Selection

// selected lists replicated queues by the patterns of their names.
func (n *Node) selected(s Selection) ([]*catalog.Queue, error) {
	vhost, err := regexp.Compile(s.VHostPattern)
	if err != nil {
		return nil, fsm.Refuse(fsm.Precondition, "vhost_pattern: "+err.Error())
	}
	name, err := regexp.Compile(s.QueuePattern)
	if err != nil {
		return nil, fsm.Refuse(fsm.Precondition, "queue_pattern: "+err.Error())
	}
	if s.Strategy != "" && s.Strategy != "all" && s.Strategy != "even" {
		return nil, fsm.Refuse(fsm.Precondition, "strategy: all or even, not "+s.Strategy)
	}
	var list []*catalog.Queue
	for _, q := range n.View().Queues() {
		if !q.Local && vhost.MatchString(q.VHost) && name.MatchString(q.Name) {
			list = append(list, q)
		}
	}
	return list, nil
}

// Grow gives queues without a replica on a node one there; with strategy even
// only those with an even number of members.
func (n *Node) Grow(ctx context.Context, node string, s Selection) ([]api.MemberChange, error) {
	id, err := n.memberNumber(node)
	if err != nil {
		return nil, err
	}
	if !n.Online(node) {
		return nil, fsm.Refuse(fsm.Precondition, "node_not_running: node "+node)
	}
	queues, err := n.selected(s)
	if err != nil {
		return nil, err
	}
	queues = slices.DeleteFunc(queues, func(q *catalog.Queue) bool {
		members := n.View().Members(q)
		return slices.Contains(members, id) || s.Strategy == "even" && len(members)%2 == 1
	})
	return n.eachQueue(ctx, queues, func(ctx context.Context, q *catalog.Queue) error { return n.addMember(ctx, q, id, 0) }), nil
}

// Shrink removes all replicas from a node, except those that are the only ones.
func (n *Node) Shrink(ctx context.Context, node string, s Selection) ([]api.MemberChange, error) {
	id, err := n.memberNumber(node)
	if err != nil {
		return nil, err
	}
	queues, err := n.selected(s)
	if err != nil {
		return nil, err
	}
	queues = slices.DeleteFunc(queues, func(q *catalog.Queue) bool { return !slices.Contains(n.View().Members(q), id) })
	return n.eachQueue(ctx, queues, func(ctx context.Context, q *catalog.Queue) error { return n.deleteMember(ctx, q, id) }), nil
}

// GrowTo gives queues with fewer members than count more, as far as nodes are up.
func (n *Node) GrowTo(ctx context.Context, count int, s Selection) ([]api.MemberChange, error) {
	if count < 1 || count > 7 {
		return nil, fsm.Refuse(fsm.Precondition, "count: 1 to 7 members")
	}
	queues, err := n.selected(s)
	if err != nil {
		return nil, err
	}
	queues = slices.DeleteFunc(queues, func(q *catalog.Queue) bool { return len(n.View().Members(q)) >= count })
	return n.eachQueue(ctx, queues, func(ctx context.Context, q *catalog.Queue) error {
		view := n.View()
		members := view.Members(q)
		free := n.broker.Candidates(view, func(id fsm.NodeID) bool {
			state, _ := view.Node(id)
			return !n.members.free(view, q, state)
		})
		next := slices.Clone(members)
		for _, id := range free[:min(len(free), max(count-len(members), 0))] {
			next = append(next, fsm.NodeID(id))
		}
		return n.changeMembers(ctx, q, next, len(next))
	}), nil
}

// eachQueue does one thing with many queues, some at a time, and says how each
// went.
func (n *Node) eachQueue(ctx context.Context, queues []*catalog.Queue, do func(context.Context, *catalog.Queue) error) []api.MemberChange {
	changes := make([]api.MemberChange, len(queues))
	var work errgroup.Group
	work.SetLimit(shrinkAtOnce)
	for i, q := range queues {
		work.Go(func() error {
			err := worker.ErrPanicked
			n.guard.Try("change the members of a queue", func() { err = do(ctx, q) })
			changes[i] = api.MemberChange{VHost: q.VHost, Name: q.Name, Size: len(n.View().Members(q)), Result: "ok"}
			if err != nil {
				changes[i].Result = "error: " + err.Error()
			}
			return nil
		})
	}
	_ = work.Wait() // the changes say what went wrong
	return changes
}
