package session

import (
	"context"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// maxScheduled bounds a page of scheduled messages.
const maxScheduled = 1000

// Scheduled asks a queue's leader for a page of its scheduled messages, those due next first.
func (x *Inspector) Scheduled(ctx context.Context, q *catalog.Queue, m *peerpb.ScheduledRequest) ([]*peerpb.ScheduledMessage, error) {
	m.Queue = uint64(q.ID)
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	if err := x.available.awaitLeader(ctx, q); err != nil {
		return nil, err
	}
	leader, _, _ := x.routes.Route(q).Leader()
	if leader == x.name {
		if r := x.scheduled(m); r.Leader {
			return r.Messages, nil
		}
		return nil, leaderless(q)
	}
	r, err := peer.Ask[peerpb.ScheduledReply](ctx, x.mesh, leader, kindScheduled, m)
	if err != nil || !r.Leader {
		x.slog.Debug("no scheduled messages from peer", "node", leader, "error", err)
		return nil, leaderless(q)
	}
	return r.Messages, nil
}

// scheduled reads a page if this node leads the queue, once nothing in it is due.
func (x *Inspector) scheduled(m *peerpb.ScheduledRequest) *peerpb.ScheduledReply {
	q, ok := x.view().QueueByID(fsm.QueueID(m.Queue))
	if !ok {
		return &peerpb.ScheduledReply{}
	}
	g := x.ledGroup(q.Group, q.ID)
	if g == nil || g.Expire(statsTimeout) != nil {
		return &peerpb.ScheduledReply{}
	}
	var page []queue.Message
	g.View(func(machine *queue.Machine) {
		page = machine.ScheduledAfter(fsm.Time(m.AfterAt), m.AfterMessage, min(int(m.Limit), maxScheduled))
	})
	r := &peerpb.ScheduledReply{Leader: true}
	for i := range page {
		waiting := &page[i]
		raw, err := g.Payload(waiting.Ref)
		if err != nil {
			continue // it has gone meanwhile
		}
		p := fsm.Readable(raw)
		s := &peerpb.ScheduledMessage{
			Message: waiting.Seq, Id: waiting.ScheduleID, DueAt: int64(waiting.DueAt), Bytes: uint64(len(p.Body())),
			RoutingKey: string(p.RoutingKey()), MessageId: string(x.properties.Property(p.Properties(), catalog.PropertyMessageID)),
		}
		if m.Headers {
			s.Headers, _ = logpb.Marshal(x.properties.Headers(p.Properties(), nil)) // it always encodes
		}
		r.Messages = append(r.Messages, s)
	}
	return r
}
