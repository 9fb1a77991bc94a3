package broker

import (
	"context"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Bounds of what is shown, or taken for the HTTP API, at once.
const (
	peekBytes = 1 << 20
	takeBytes = 16 << 20
)

// Peeked is a message that was looked at, and where it is in its queue.
type Peeked struct {
	fsm.Message
	Number     uint64 // in the queue: messages are shown in this order
	Place      queue.Place
	ExpireAt   fsm.Time // 0: never
	DueAt      fsm.Time // scheduled or delayed only
	Deadline   fsm.Time // checked out only; 0: none
	ScheduleID string
}

// Peek shows messages of a queue, of those in a place whose number is above
// after, without any effect on them. It never shows one that has expired. more
// says that there may be others. It is use that keeps an idle queue.
func (b *Broker) Peek(ctx context.Context, q *catalog.Queue, in queue.Place, after uint64, limit int) (list []Peeked, more bool, err error) {
	req := &peerpb.PeekRequest{Group: uint32(q.Group), Queue: uint64(q.ID), Place: uint32(in), After: after, Limit: uint32(limit)}
	to := b.routes.Route(q)
	wait, cancel := context.WithTimeout(ctx, b.config.LeaderlessGrace)
	defer cancel()
	for {
		leader, _, led := to.Leader()
		if leader != "" {
			if r := b.askPeek(ctx, leader, req); r.Leader {
				if r.Gone {
					return nil, false, noQueue(q)
				}
				list, err := peekedFrom(q, r.Messages)
				return list, r.More, err
			}
		}
		if stream.IsOver(b.view(), q.ID) {
			return nil, false, noQueue(q)
		}
		select {
		case <-wait.Done():
			return nil, false, b.leaderless(q)
		case <-led:
		case <-time.After(countRetry):
		}
	}
}

func peekedFrom(q *catalog.Queue, messages []*peerpb.Peeked) ([]Peeked, error) {
	var list []Peeked
	for _, p := range messages {
		deaths, err := decodeDeaths(p.Deaths)
		if err != nil {
			return nil, err
		}
		list = append(list, Peeked{
			Message: fsm.Message{
				Payload: fsm.Readable(p.Payload), Acquired: p.Acquired, Failed: p.Failed, Local: q.Local, Deaths: deaths, ScheduledFor: fsm.Time(p.ScheduledFor),
			},
			Number: p.Number, Place: queue.Place(p.Place), ExpireAt: fsm.Time(p.ExpireAt), DueAt: fsm.Time(p.DueAt),
			Deadline: fsm.Time(p.Deadline), ScheduleID: p.ScheduleId,
		})
	}
	return list, nil
}

// askPeek asks one node. Failure is a node that does not lead.
func (b *Broker) askPeek(ctx context.Context, node string, req *peerpb.PeekRequest) *peerpb.PeekReply {
	if node == b.config.Node {
		return b.peek(req)
	}
	if !b.mesh.Alive(node) {
		return &peerpb.PeekReply{}
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	r, err := peer.Ask[peerpb.PeekReply](ctx, b.mesh, node, kindPeek, req)
	if err != nil {
		return &peerpb.PeekReply{}
	}
	return r
}

// peek reads a led queue. The empty entry that goes before makes sure that this
// node does lead it, and has done what is due.
func (b *Broker) peek(req *peerpb.PeekRequest) *peerpb.PeekReply {
	r := &peerpb.PeekReply{}
	g := b.host.Group(fsm.GroupID(req.Group))
	if g == nil || g.Spec().Queue != fsm.QueueID(req.Queue) || g.Leading() == 0 || g.Barrier(statsTimeout) != nil || g.Expire(statsTimeout) != nil {
		return r
	}
	var list []queue.Message
	now := g.Now()
	r.Leader = true
	p := queue.NewPeek(queue.Place(req.Place), req.After, int(req.Limit), now)
	for done := false; !done; {
		done = true // unless the machine says otherwise
		g.View(func(m *queue.Machine) {
			r.Gone = m.Stats().Phase != queue.Active
			done = p.Step(m)
		})
	}
	list, r.More = p.Result()
	bytes := 0
	for i := range list {
		x := &list[i]
		if bytes += int(x.Ref.Size); bytes > peekBytes && i > 0 {
			r.More = true
			break
		}
		payload, err := g.Payload(x.Ref)
		if err != nil {
			continue // it has gone meanwhile
		}
		p := &peerpb.Peeked{
			Number: x.Seq, Place: uint32(x.Place), Payload: payload, Acquired: x.Acquired, Failed: x.Failed,
			ScheduledFor: int64(x.ScheduledFor), ExpireAt: int64(x.ExpireAt), DueAt: int64(x.DueAt), Deadline: int64(x.Deadline), ScheduleId: x.ScheduleID,
		}
		if len(x.Deaths) > 0 {
			p.Deaths = encodeDeaths(x.Deaths)
		}
		r.Messages = append(r.Messages, p)
	}
	b.touchPeeked(g)
	return r
}

// touchPeeked tells a queue that ends when idle that somebody has looked at it:
// at most once in a tenth of its time, or in half a minute.
func (b *Broker) touchPeeked(g *group.Group) {
	if q, ok := b.view().QueueByID(g.Spec().Queue); ok {
		b.usedSources(q)
	}
	var idle uint64
	g.View(func(m *queue.Machine) { idle = m.Config().GetAutoDeleteOnIdle() })
	to := b.routes.Find(g.Spec().Queue)
	if idle == 0 || to == nil || !to.Peeked(b.now(), int64(catalog.TouchEvery(fsm.Millis(min(idle, catalog.MaxTTL))))) {
		return
	}
	c := group.BatchOf(&logpb.Command{Kind: logpb.Command_TOUCH, Touch: &logpb.Touch{IdleOnly: true}})
	c.Light = true
	_ = g.Submit(c) // another leader hears of the next look
}

// Take gets up to count messages for a user, and then settles all of them at
// once. It is what basic.get is: it fails the same way, and is use.
func (b *Broker) Take(ctx context.Context, user, vhost, name string, count int, outcome fsm.Outcome) ([]fsm.Message, error) {
	c, err := b.Connect(ctx, user, vhost)
	if err != nil {
		return nil, err
	}
	s, err := c.OpenSession(noEvents{})
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	var list []fsm.Message
	for bytes := 0; len(list) < count && bytes < takeBytes; {
		m, ok, err := s.Get(ctx, name, false)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		list = append(list, m)
		bytes += len(m.Payload)
	}
	ids := make([]uint64, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	if len(ids) > 0 {
		s.Settle(list[0].Consumer, ids, outcome)
	}
	return list, nil
}

// noEvents is the client of a session that only waits for answers.
type noEvents struct{}

func (noEvents) Confirmed(uint64, uint64, bool)        {}
func (noEvents) Refused(fsm.Payload, *fsm.Refusal)     {}
func (noEvents) Returned(fsm.Payload)                  {}
func (noEvents) Deliver([]fsm.Message)                 {}
func (noEvents) Cancelled(uint64)                      {}
func (noEvents) Revoked(uint64, error)                 {}
func (noEvents) TimedOut(uint64, []uint64, fsm.Millis) {}
func (noEvents) Lost(error)                            {}
