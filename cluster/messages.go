package cluster

import (
	"context"

	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
)

// Take gets messages for a user and settles them, see broker.Take.
func (n *Node) Take(ctx context.Context, user, vhost, name string, count int, outcome fsm.Outcome) ([]mgmt.Message, error) {
	taken, err := n.broker.Take(ctx, user, vhost, name, count, outcome)
	list := make([]mgmt.Message, len(taken))
	for i := range taken {
		list[i] = mgmt.Message{Message: taken[i], Properties: n.properties(&taken[i])}
	}
	return list, err
}

// Peek shows messages of a queue, see broker.Peek.
func (n *Node) Peek(ctx context.Context, q *catalog.Queue, in queue.Place, after uint64, limit int) ([]mgmt.Message, bool, error) {
	peeked, more, err := n.broker.Peek(ctx, q, in, after, limit)
	list := make([]mgmt.Message, len(peeked))
	for i := range peeked {
		p := &peeked[i]
		list[i] = mgmt.Message{
			Message: p.Message, Properties: n.properties(&p.Message), Number: p.Number, Place: p.Place,
			ExpireAt: p.ExpireAt, DueAt: p.DueAt, Deadline: p.Deadline, ScheduleID: p.ScheduleID,
		}
	}
	return list, more, err
}

func (n *Node) properties(m *fsm.Message) *fsm.Table {
	return n.config.Properties.Describe(m.Payload.Properties(), m)
}
