package stats

import (
	"cmp"
	"context"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// Timeout is a consumer timeout in the terms of the API.
type Timeout struct {
	Of fsm.QueueID // which may be gone
	api.ConsumerTimeout
}

// Timeouts lists the last consumer timeouts that the nodes remember, the newest first.
func (q *Queues) Timeouts(ctx context.Context) []Timeout {
	return timeoutsFrom(q.c.Catalog.View(), AskAll(ctx, q.nodes, Question[*peerpb.TimeoutsReply]{
		Doing: "list consumer timeouts", Wait: queuesWait,
		Here: q.c.Timeouts,
		Ask: func(ctx context.Context, node string) (*peerpb.TimeoutsReply, error) {
			return peer.Ask[peerpb.TimeoutsReply](ctx, q.nodes.Mesh, node, q.c.TimeoutsKind, &peerpb.TimeoutsRequest{})
		},
	}).Of)
}

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
