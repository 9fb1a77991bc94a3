package placement

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	changeWait   = 20 * time.Second // until a change of members is done
	changeAtOnce = 64               // queues that are changed at a time
	changePoll   = 50 * time.Millisecond
)

// Members changes the members of queues on behalf of operators. It changes the record and waits
// until the leaders' reconcilers have changed the groups accordingly.
type Members struct{ node *node }

// replicated finds a replicated queue.
func (m *Members) replicated(vhost, name string) (*catalog.Queue, error) {
	q, ok := m.node.view().Queue(vhost, name)
	if !ok {
		return nil, fsm.Refuse(fsm.NotFoundKind, "not_found: no queue '"+name+"' in vhost '"+vhost+"'")
	}
	if q.Local {
		return nil, fsm.Refuse(fsm.Precondition, "classic_queue_not_supported: "+q.String()+" is not replicated")
	}
	return q, nil
}

func (m *Members) number(name string) (fsm.NodeID, error) {
	if state, ok := m.node.view().NodeByName(name); ok {
		return fsm.NodeID(state.Number), nil
	}
	return 0, fsm.Refuse(fsm.NotFoundKind, "not_found: no node '"+name+"'")
}

// AddMember gives a queue a replica on a node and returns when it votes. It changes nothing if the
// node already has one.
func (m *Members) AddMember(ctx context.Context, vhost, name, node string) error {
	q, err := m.replicated(vhost, name)
	if err != nil {
		return err
	}
	id, err := m.number(node)
	if err != nil {
		return err
	}
	if !m.node.online(node) {
		return fsm.Refuse(fsm.Precondition, "node_not_running: node "+node)
	}
	return m.add(ctx, q, id, 0)
}

// add adds a member and sets the queue's size.
func (m *Members) add(ctx context.Context, q *catalog.Queue, id fsm.NodeID, size int) error {
	members := m.node.view().Members(q)
	if slices.Contains(members, id) {
		return m.await(ctx, q)
	}
	next := append(slices.Clone(members), id)
	return m.change(ctx, q, next, max(size, len(next)))
}

// DeleteMember removes a queue's replica from a node, with its data. It changes nothing if the node
// has none. The last member stays.
func (m *Members) DeleteMember(ctx context.Context, vhost, name, node string) error {
	q, err := m.replicated(vhost, name)
	if err != nil {
		return err
	}
	id, err := m.number(node)
	if err != nil {
		return err
	}
	return m.remove(ctx, q, id)
}

func (m *Members) remove(ctx context.Context, q *catalog.Queue, id fsm.NodeID) error {
	members := m.node.view().Members(q)
	if !slices.Contains(members, id) {
		return m.await(ctx, q)
	}
	next := slices.DeleteFunc(slices.Clone(members), func(x fsm.NodeID) bool { return x == id })
	return m.change(ctx, q, next, max(len(next), 1))
}

// change changes the record and waits until the queue's group follows.
func (m *Members) change(ctx context.Context, q *catalog.Queue, next []fsm.NodeID, size int) error {
	ctx, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	results, err := m.node.Catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_SetMembers{SetMembers: &logpb.SetMembers{
		Queue: uint64(q.ID), Members: numbers(next), Was: numbers(m.node.view().Members(q)), Size: uint32(size),
	}}})
	if err != nil {
		return err
	}
	if err := catalog.Refused(results[0]); err != nil {
		return err
	}
	return m.await(ctx, q)
}

// await returns when the members of a queue's group are those of its record.
func (m *Members) await(ctx context.Context, q *catalog.Queue) error {
	ctx, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	poll := time.NewTicker(changePoll)
	defer poll.Stop()
	for {
		if _, still := m.node.view().QueueByID(q.ID); !still {
			return fsm.Refuse(fsm.NotFoundKind, "not_found: "+q.String()+" has been deleted")
		}
		if m.agree(ctx, q) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("timeout: the members of %s are still changing", q)
		case <-poll.C:
		}
	}
}

// agree reports whether a queue has a leader and all of its members that are up vote.
func (m *Members) agree(ctx context.Context, q *catalog.Queue) bool {
	view := m.node.view()
	if len(view.Leaving(q)) > 0 {
		return false
	}
	s := m.node.Replicas.Status(ctx, q.Group)
	for _, name := range q.MemberNames(view) {
		if m.node.online(name) && !s.Votes(name, q.Group) {
			return false
		}
	}
	leader, _ := s.Leader(q.Group)
	return leader != ""
}

// selected lists replicated queues by patterns of names.
func (m *Members) selected(s api.Selection) ([]*catalog.Queue, error) {
	vhost, err := pattern.Compile(s.VHostPattern)
	if err != nil {
		return nil, fsm.Refuse(fsm.Precondition, "vhost_pattern: "+err.Error())
	}
	name, err := pattern.Compile(s.QueuePattern)
	if err != nil {
		return nil, fsm.Refuse(fsm.Precondition, "queue_pattern: "+err.Error())
	}
	if s.Strategy != "" && s.Strategy != "all" && s.Strategy != "even" {
		return nil, fsm.Refuse(fsm.Precondition, "strategy: must be all or even, not "+s.Strategy)
	}
	var list []*catalog.Queue
	for _, q := range m.node.view().Queues() {
		if !q.Local && vhost.Match(q.VHost) && name.Match(q.Name) {
			list = append(list, q)
		}
	}
	return list, nil
}

// Grow gives queues that have no replica on a node one there; with strategy even only those with an
// even number of members.
func (m *Members) Grow(ctx context.Context, node string, s api.Selection) ([]api.MemberChange, error) {
	id, err := m.number(node)
	if err != nil {
		return nil, err
	}
	if !m.node.online(node) {
		return nil, fsm.Refuse(fsm.Precondition, "node_not_running: node "+node)
	}
	queues, err := m.selected(s)
	if err != nil {
		return nil, err
	}
	queues = slices.DeleteFunc(queues, func(q *catalog.Queue) bool {
		members := m.node.view().Members(q)
		return slices.Contains(members, id) || s.Strategy == "even" && len(members)%2 == 1
	})
	return m.eachQueue(ctx, queues, func(ctx context.Context, q *catalog.Queue) error { return m.add(ctx, q, id, 0) }), nil
}

// Shrink removes all replicas from a node, except those that are the only ones.
func (m *Members) Shrink(ctx context.Context, node string, s api.Selection) ([]api.MemberChange, error) {
	id, err := m.number(node)
	if err != nil {
		return nil, err
	}
	queues, err := m.selected(s)
	if err != nil {
		return nil, err
	}
	queues = slices.DeleteFunc(queues, func(q *catalog.Queue) bool { return !slices.Contains(m.node.view().Members(q), id) })
	return m.eachQueue(ctx, queues, func(ctx context.Context, q *catalog.Queue) error { return m.remove(ctx, q, id) }), nil
}

// GrowTo gives queues with fewer members than count more, as far as nodes are up.
func (m *Members) GrowTo(ctx context.Context, count int, s api.Selection) ([]api.MemberChange, error) {
	if count < 1 || count > 7 {
		return nil, fsm.Refuse(fsm.Precondition, "count: must be from 1 to 7")
	}
	queues, err := m.selected(s)
	if err != nil {
		return nil, err
	}
	queues = slices.DeleteFunc(queues, func(q *catalog.Queue) bool { return len(m.node.view().Members(q)) >= count })
	return m.eachQueue(ctx, queues, func(ctx context.Context, q *catalog.Queue) error {
		view := m.node.view()
		members := view.Members(q)
		free := m.node.candidates(view, q)
		next := slices.Clone(members)
		for _, id := range free[:min(len(free), max(count-len(members), 0))] {
			next = append(next, fsm.NodeID(id))
		}
		return m.change(ctx, q, next, len(next))
	}), nil
}

// eachQueue applies a function to many queues, several at a time, and reports the result of each.
func (m *Members) eachQueue(ctx context.Context, queues []*catalog.Queue, do func(context.Context, *catalog.Queue) error) []api.MemberChange {
	changes := make([]api.MemberChange, len(queues))
	worker.Each(changeAtOnce, queues, func(i int, q *catalog.Queue) {
		err := worker.ErrPanicked
		m.node.Guard.Try("change the members of a queue", func() { err = do(ctx, q) })
		changes[i] = api.MemberChange{VHost: q.VHost, Name: q.Name, Size: len(m.node.view().Members(q)), Result: "ok"}
		if err != nil {
			changes[i].Result = "error: " + err.Error()
		}
	})
	return changes
}
