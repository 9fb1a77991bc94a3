package queues

import (
	"context"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// peekBytes bounds what is shown at once.
const peekBytes = 1 << 20

// Peeked is a message as shown by Peek, with its position in the queue.
type Peeked struct {
	fsm.Message
	Number     uint64 // in the queue: messages are shown in this order
	Place      queue.Place
	DueAt      fsm.Time // scheduled, delayed or deferred only; 0: none
	Deadline   fsm.Time // checked out only; 0: none
	ScheduleID string
	Deferral   string // the token; deferred only
}

// Peek shows messages of a queue that are in a given place and have a number above after, without
// changing them. It never shows an expired message. more says that there may be others. A peek
// counts as use of a queue that expires when idle.
func (x *Inspector) Peek(ctx context.Context, q *catalog.Queue, in queue.Place, after uint64, limit int) (list []Peeked, more bool, err error) {
	return x.peekFor(ctx, q, &peerpb.PeekRequest{Place: uint32(in), After: after, Limit: uint32(limit)})
}

// PeekAll is Peek for several places, and for messages of a group; empty: of any or none. It leaves out what consumers
// have that need not settle it.
func (x *Inspector) PeekAll(ctx context.Context, q *catalog.Queue, in []queue.Place, group string, after uint64, limit int) ([]Peeked, error) {
	req := &peerpb.PeekRequest{After: after, Limit: uint32(limit), OfGroup: group}
	for _, place := range in {
		req.Places = append(req.Places, uint32(place))
	}
	list, _, err := x.peekFor(ctx, q, req)
	return list, err
}

func (x *Inspector) peekFor(ctx context.Context, q *catalog.Queue, req *peerpb.PeekRequest) (list []Peeked, more bool, err error) {
	req.Group, req.Queue = uint32(q.Group), uint64(q.ID)
	r, err := askLeader(ctx, x.leaders, q, statsTimeout, self.KindPeek, req, func() *peerpb.PeekReply { return x.peek(req) })
	switch {
	case err != nil:
		return nil, false, err
	case r.Gone:
		return nil, false, NoQueue(q)
	}
	list, err = peekedFrom(q, r.Messages)
	return list, r.More, err
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
				Payload: fsm.Readable(p.Payload), Acquired: p.Acquired, Failed: p.Failed, Classic: q.Type() == catalog.ClassicType, Deaths: deaths, ScheduledFor: fsm.Time(p.ScheduledFor),
				Annotations: p.Annotations, Edit: p.Edit, ExpireAt: fsm.Time(p.ExpireAt), EnqueuedAt: fsm.Time(p.EnqueuedAt), Sequence: p.Number,
			},
			Number: p.Number, Place: queue.Place(p.Place), DueAt: fsm.Time(p.DueAt),
			Deadline: fsm.Time(p.Deadline), ScheduleID: p.ScheduleId, Deferral: p.Deferral,
		})
	}
	return list, nil
}

// peek reads a led queue. The empty entry committed first ensures that this node does lead the
// queue and has applied what is due.
func (x *Inspector) peek(req *peerpb.PeekRequest) *peerpb.PeekReply {
	r := &peerpb.PeekReply{}
	g := x.node.LedGroup(fsm.GroupID(req.Group), fsm.QueueID(req.Queue))
	if g == nil || g.Barrier(statsTimeout) != nil || g.Expire(statsTimeout) != nil {
		return r
	}
	var list []queue.Message
	now := g.Now()
	r.Leader = true
	places := []queue.Place{queue.Place(req.Place)}
	if len(req.Places) > 0 {
		places = places[:0]
		for _, place := range req.Places {
			places = append(places, queue.Place(place))
		}
	}
	p := queue.NewPeek(places, req.After, int(req.Limit), now)
	if p.OfGroup(req.OfGroup); len(req.Places) > 0 {
		p.OnlyOwed()
	}
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
		r.Messages = append(r.Messages, peeked(x, payload))
	}
	x.touchPeeked(g)
	return r
}

// peeked is a message as it travels to the node that asked.
func peeked(x *queue.Message, payload []byte) *peerpb.Peeked {
	p := &peerpb.Peeked{
		Number: x.Seq, Place: uint32(x.Place), Payload: payload, Acquired: x.Acquired, Failed: x.Failed,
		ScheduledFor: int64(x.ScheduledFor), ExpireAt: int64(x.ExpireAt), DueAt: int64(x.DueAt), Deadline: int64(x.Deadline), ScheduleId: x.ScheduleID,
		Deferral: x.Deferral, Annotations: fsm.AnnotationMap(x.Annotations), Edit: fsm.EditOf(x.Annotations), EnqueuedAt: int64(x.EnqueuedAt),
	}
	if len(x.Deaths) > 0 {
		p.Deaths = encodeDeaths(x.Deaths)
	}
	return p
}

// touchPeeked records a peek in a queue that expires when idle, at most once in a tenth of its
// expiry time or in half a minute.
func (x *Inspector) touchPeeked(g *group.Group) {
	if q, ok := x.node.View().QueueByID(g.Spec().Queue); ok {
		x.uses.Sources(q)
	}
	var idle uint64
	g.View(func(m *queue.Machine) { idle = m.Config().GetAutoDeleteOnIdle() })
	if idle == 0 || !x.peeks.due(g.Spec().Queue, x.node.Now(), int64(catalog.TouchEvery(fsm.Millis(min(idle, catalog.MaxTTL))))) {
		return
	}
	c := group.BatchOf(&logpb.Command{Kind: logpb.Command_TOUCH, Touch: &logpb.Touch{IdleOnly: true}})
	c.Light = true
	_ = g.Submit(c) // another leader records the next peek
}

// peeks holds when a peek was last recorded in each queue that expires when idle, ms. Queues that
// are gone are dropped.
type peeks struct {
	mu sync.Mutex
	at map[fsm.QueueID]int64
}

// due reports whether a peek is to be recorded, at most once in every milliseconds, and notes it if
// so.
func (p *peeks) due(id fsm.QueueID, now, every int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, known := p.at[id]; known && now >= at && now-at < every {
		return false
	}
	p.at[id] = now
	return true
}

// drop forgets a queue.
func (p *peeks) drop(id fsm.QueueID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.at, id)
}

// maxScheduled bounds a page of scheduled messages.
const maxScheduled = 1000

// Scheduled asks a queue's leader for a page of its scheduled messages, those due next first.
func (x *Inspector) Scheduled(ctx context.Context, q *catalog.Queue, m *peerpb.ScheduledRequest) ([]*peerpb.ScheduledMessage, error) {
	m.Queue = uint64(q.ID)
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	if err := x.leaders.Await(ctx, q); err != nil {
		return nil, err
	}
	leader, _, _ := x.routes.Route(q).Leader()
	if leader == x.node.Name() {
		if r := x.scheduled(m); r.Leader {
			return r.Messages, nil
		}
		return nil, Leaderless(q)
	}
	r, err := peer.Ask[peerpb.ScheduledReply](ctx, x.node.Mesh, leader, self.KindScheduled, m)
	if err != nil || !r.Leader {
		x.node.Logger.Debug("no scheduled messages from peer", "node", leader, "error", err)
		return nil, Leaderless(q)
	}
	return r.Messages, nil
}

// scheduled reads a page if this node leads the queue, once nothing in it is due.
func (x *Inspector) scheduled(m *peerpb.ScheduledRequest) *peerpb.ScheduledReply {
	q, ok := x.node.View().QueueByID(fsm.QueueID(m.Queue))
	if !ok {
		return &peerpb.ScheduledReply{}
	}
	g := x.node.LedGroup(q.Group, q.ID)
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
			RoutingKey: string(p.RoutingKey()), MessageId: string(x.properties.Property(p, catalog.PropertyMessageID)),
		}
		if m.Headers {
			s.Headers, _ = logpb.Marshal(x.properties.Headers(p, nil)) // it always encodes
		}
		r.Messages = append(r.Messages, s)
	}
	return r
}
