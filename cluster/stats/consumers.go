package stats

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// Consumer describes a consumer, as reported by its queue's leader, in the terms of the API.
type Consumer struct {
	Of         fsm.QueueID
	OwnTimeout bool // not inherited
	api.Consumer
}

// Consumers asks the leaders of queues for their consumers; without ids, of all queues. Queues
// without a leader that answers contribute none.
func (q *Queues) Consumers(ctx context.Context, ids ...fsm.QueueID) []Consumer {
	req := &peerpb.ConsumersRequest{Queues: numbers(ids)}
	answers := Everywhere(ctx, q.nodes, "list consumers", answerWait, q.c.ConsumersKind, req, q.answerConsumers).Of
	view := q.c.Catalog.View()
	sessions := map[fsm.SessionID]*peerpb.ConsumingSession{}
	for node, reply := range answers {
		if n, ok := view.NodeByName(node); ok {
			for _, s := range reply.Sessions {
				sessions[fsm.SessionID{Node: fsm.NodeID(n.Number), Boot: s.Boot, Num: s.Session}] = s
			}
		}
	}
	var all []Consumer
	for _, reply := range answers {
		for _, c := range reply.Consumers {
			all = append(all, consumerFrom(view, c, sessions[fsm.SessionID{Node: fsm.NodeID(c.Node), Boot: c.Boot, Num: c.Session}]))
		}
	}
	return all
}

// answerConsumers lists the consumers of the queues that this node leads, and the sessions of its
// own clients that have consumers.
func (q *Queues) answerConsumers(req *peerpb.ConsumersRequest) *peerpb.ConsumersReply {
	r := &peerpb.ConsumersReply{Sessions: q.c.Sessions()}
	for g := range q.led(req.Queues) {
		if g.Stats().Listed {
			r.Consumers = append(r.Consumers, consumersOf(g, q.c.Clock())...)
		}
	}
	return r
}

// consumerFrom combines the answers of a queue's leader and, unless at is nil, of the node of the
// consumer's client.
func consumerFrom(v *catalog.View, c *peerpb.QueueConsumer, at *peerpb.ConsumingSession) Consumer {
	q := Consumer{Of: fsm.QueueID(c.Queue), OwnTimeout: c.OwnTimeout, Consumer: api.Consumer{
		Tag: c.Tag, Active: c.Active, AckRequired: !c.NoAck, Exclusive: c.Exclusive, PrefetchCount: c.Prefetch, Priority: c.Priority,
		Status: c.Status, ActivityStatus: activityStatus(c), Unacknowledged: c.Held, TimedOut: c.TimedOut, LateAcksTotal: c.LateAcks,
		OldestUnackedAgeMS: c.OldestAge, Timeout: int64(c.TimeoutPlusOne) - 1, NextDeadline: c.NextDeadline, Channel: []any{},
		Lock: c.Lock, MaxLock: c.MaxLock, LockAutoRenew: c.LockAutoRenew, LockMode: lockMode(c), LockGrace: c.LockDetachGrace,
		LostLocks: c.LostLocks, LateSettlementsTotal: c.LateLocks,
	}}
	if c.CreditMode {
		q.LinkCredit = &c.Credit
	}
	if node, ok := v.Node(fsm.NodeID(c.Node)); ok {
		q.Node = node.Name
	}
	if at != nil {
		q.Channel = ChannelFrom(q.Node, at)
	}
	return q
}

// ChannelFrom describes the channel of a session at a node.
func ChannelFrom(node string, at *peerpb.ConsumingSession) api.ChannelDetails {
	return api.ChannelDetails{
		Name: fmt.Sprintf("%s (%d)", at.Connection, at.Channel), Number: at.Channel, ConnectionName: at.Connection,
		Node: node, PeerHost: at.PeerHost, PeerPort: at.PeerPort, User: at.User,
	}
}

// lockMode says which deliveries of a consumer are locked, in the words of the argument.
func lockMode(c *peerpb.QueueConsumer) string {
	switch {
	case c.Lock == 0:
		return ""
	case c.LockHead:
		return "head"
	}
	return "all"
}

// activityStatus is a consumer's status in the terms used by other brokers' tools.
func activityStatus(c *peerpb.QueueConsumer) string {
	switch {
	case c.Status == queue.Suspected.String():
		return "suspected_down"
	case c.TimedOut > 0:
		return "timeout"
	case !c.Active:
		return "waiting"
	case c.SingleActive:
		return "single_active"
	}
	return "up"
}

// listAtOnce is how many consumers are listed at a time while the queue is held up.
const listAtOnce = 512

// consumersOf lists the consumers of a queue, in pieces. One that is over is listed as long as it
// has not settled what has gone back to the queue.
func consumersOf(g Group, now fsm.Time) (all []*peerpb.QueueConsumer) {
	var list []queue.Consumer
	for place, more := uint64(0), true; more; {
		var singleActive bool
		list, more = list[:0], false
		g.View(func(m *queue.Machine) {
			list, place = m.ConsumersAfter(place, listAtOnce, list)
			more, now, singleActive = place != 0, max(now, m.Clock()), m.Config().SingleActive
		})
		for i := range list {
			if list[i].Status != queue.Cancelled || list[i].TimedOut > 0 {
				all = append(all, describeConsumer(g.Spec().Queue, &list[i], now, singleActive))
			}
		}
	}
	return all
}

func describeConsumer(of fsm.QueueID, c *queue.Consumer, now fsm.Time, singleActive bool) *peerpb.QueueConsumer {
	d := &peerpb.QueueConsumer{
		Queue: uint64(of), Node: uint32(c.ID.Session.Node), Boot: c.ID.Session.Boot, Session: c.ID.Session.Num, Number: c.ID.Number,
		Tag: c.Tag, Prefetch: c.Prefetch, Priority: c.Priority, NoAck: c.NoAck, Exclusive: c.Exclusive, Status: c.Status.String(),
		Active: c.Active, SingleActive: singleActive,
		Held: uint64(c.Held), TimedOut: uint64(c.TimedOut), LateAcks: c.LateAcks,
		TimeoutPlusOne: uint64(c.Timeout + 1), OwnTimeout: c.OwnTimeout, NextDeadline: int64(c.FirstDeadline),
		Lock: uint64(c.Lock), MaxLock: uint64(c.MaxLock), LockAutoRenew: uint64(c.AutoRenew), LockHead: c.Head,
		LockDetachGrace: uint64(c.Grace), LostLocks: uint64(c.LostLocks), LateLocks: c.LateLocks,
		CreditMode: c.CreditMode, Credit: c.Credit,
	}
	if c.HeldSince != 0 {
		d.OldestAge = uint64(now - c.HeldSince)
	}
	return d
}

// Timeout is a consumer timeout in the terms of the API.
type Timeout struct {
	Of fsm.QueueID // which may be gone
	api.ConsumerTimeout
}

// Timeouts lists the last consumer timeouts that the nodes remember, the newest first.
func (q *Queues) Timeouts(ctx context.Context) []Timeout {
	return timeoutsFrom(q.c.Catalog.View(), Everywhere(ctx, q.nodes, "list consumer timeouts", answerWait, q.c.TimeoutsKind, &peerpb.TimeoutsRequest{}, q.answerTimeouts).Of)
}

func (q *Queues) answerTimeouts(*peerpb.TimeoutsRequest) *peerpb.TimeoutsReply { return q.c.Timeouts() }

// timeoutsFrom combines the answers of nodes: those that led the queues know of the timeouts, and those
// that served the clients know of the consumers.
func timeoutsFrom(v *catalog.View, answers map[string]*peerpb.TimeoutsReply) (all []Timeout) {
	late := map[fsm.ConsumerID]*peerpb.LateConsumer{}
	for node, reply := range answers {
		n, known := v.NodeByName(node)
		for _, x := range reply.Served {
			if s := x.Session; known && s != nil {
				late[fsm.ConsumerID{Session: fsm.SessionID{Node: fsm.NodeID(n.Number), Boot: s.Boot, Num: s.Session}, Number: x.Number}] = x
			}
		}
	}
	for leader, reply := range answers {
		for _, x := range reply.Led {
			t := Timeout{fsm.QueueID(x.Queue), api.ConsumerTimeout{
				At: x.At, Queue: api.QueueName{Name: x.Name, VHost: x.Vhost}, Tag: x.Tag, Channel: []any{}, Leader: leader,
				Messages: x.Messages, HeldMS: x.Held, Timeout: x.Timeout,
			}}
			if n, ok := v.Node(fsm.NodeID(x.Node)); ok {
				t.Node = n.Name
			}
			if of := late[fsm.ConsumerID{Session: fsm.SessionID{Node: fsm.NodeID(x.Node), Boot: x.Boot, Num: x.Session}, Number: x.Number}]; of != nil {
				t.Channel, t.Action = ChannelFrom(t.Node, of.Session), of.Action
			}
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b Timeout) int {
		return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(a.Of, b.Of), cmp.Compare(a.Tag, b.Tag))
	})
	return all
}
