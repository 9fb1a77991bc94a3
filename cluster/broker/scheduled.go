package broker

import (
	"context"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// maxScheduled bounds a page of scheduled messages.
const maxScheduled = 1000

// Scheduled asks a queue's leader for a page of its scheduled messages, those
// due next first.
func (b *Broker) Scheduled(ctx context.Context, q *catalog.Queue, m *peerpb.ScheduledRequest) ([]*peerpb.ScheduledMessage, error) {
	m.Queue = uint64(q.ID)
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	if err := b.awaitLeader(ctx, q); err != nil {
		return nil, err
	}
	leader, _, _ := b.routes.Route(q).Leader()
	if leader == b.config.Node {
		if r := b.scheduled(m); r.Leader {
			return r.Messages, nil
		}
		return nil, b.leaderless(q)
	}
	r, err := peer.Ask[peerpb.ScheduledReply](ctx, b.mesh, leader, kindScheduled, m)
	if err != nil || !r.Leader {
		b.slog.Debug("no scheduled messages from peer", "node", leader, "error", err)
		return nil, b.leaderless(q)
	}
	return r.Messages, nil
}

// scheduled reads a page if this node leads the queue, once nothing is due in
// it any more.
func (b *Broker) scheduled(m *peerpb.ScheduledRequest) *peerpb.ScheduledReply {
	q, ok := b.view().QueueByID(fsm.QueueID(m.Queue))
	if !ok {
		return &peerpb.ScheduledReply{}
	}
	g := b.host.Group(q.Group)
	if g == nil || g.Spec().Queue != q.ID || g.Leading() == 0 || g.Expire(statsTimeout) != nil {
		return &peerpb.ScheduledReply{}
	}
	var page []queue.Message
	g.View(func(machine *queue.Machine) {
		page = machine.ScheduledAfter(fsm.Time(m.AfterAt), m.AfterMessage, min(int(m.Limit), maxScheduled))
	})
	r := &peerpb.ScheduledReply{Leader: true}
	for i := range page {
		x := &page[i]
		raw, err := g.Payload(x.Ref)
		if err != nil {
			continue // it has gone meanwhile
		}
		p := fsm.Readable(raw)
		s := &peerpb.ScheduledMessage{
			Message: x.Seq, Id: x.ScheduleID, DueAt: int64(x.DueAt), Bytes: uint64(len(p.Body())),
			RoutingKey: string(p.RoutingKey()), MessageId: string(b.config.Properties.Property(p.Properties(), catalog.PropertyMessageID)),
		}
		if m.Headers {
			s.Headers, _ = logpb.Marshal(b.config.Properties.Headers(p.Properties(), nil)) // it always encodes
		}
		r.Messages = append(r.Messages, s)
	}
	return r
}

// Command performs commands at a queue as a session of its own would, one after
// the other, and returns their answers: OK, or NotFound if what the command is
// about is not there. Any other is an error.
func (b *Broker) Command(ctx context.Context, q *catalog.Queue, commands ...*logpb.Command) ([]fsm.Result, error) {
	conn := &Connection{broker: b, vhost: q.VHost, number: b.connNumber.Add(1)}
	s, err := conn.OpenSession(noEvents{})
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	s.mu.Lock()
	to := s.queue(q).stream
	calls := make([]*stream.Call, len(commands))
	for i, c := range commands {
		calls[i] = to.Request(c)
	}
	s.mu.Unlock()
	results := make([]fsm.Result, len(calls))
	for i, k := range calls {
		if err := b.await(ctx, q, to.Route(), k); err != nil {
			return nil, err
		}
		if k.Refused != nil && k.Result.Code != fsm.NotFound {
			return nil, k.Refused
		}
		results[i] = k.Result
	}
	return results, nil
}
