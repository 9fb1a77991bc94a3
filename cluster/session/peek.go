package session

import (
	"context"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Bounds of what is shown at once, or taken at once for the HTTP API.
const (
	peekBytes = 1 << 20
	takeBytes = 16 << 20
)

// Peeked is a message as shown by Peek, with its position in the queue.
type Peeked struct {
	fsm.Message
	Number     uint64 // in the queue: messages are shown in this order
	Place      queue.Place
	ExpireAt   fsm.Time // 0: never
	DueAt      fsm.Time // scheduled, delayed or deferred only; 0: none
	Deadline   fsm.Time // checked out only; 0: none
	ScheduleID string
	Deferral   string // the token; deferred only
}

// Peek shows messages of a queue that are in a given place and have a number above after, without
// changing them. It never shows an expired message. more says that there may be others. A peek
// counts as use of a queue that expires when idle.
func (x *Inspector) Peek(ctx context.Context, q *catalog.Queue, in queue.Place, after uint64, limit int) (list []Peeked, more bool, err error) {
	req := &peerpb.PeekRequest{Group: uint32(q.Group), Queue: uint64(q.ID), Place: uint32(in), After: after, Limit: uint32(limit)}
	var r *peerpb.PeekReply
	gone, err := x.available.askLeader(ctx, q, func(leader string) bool {
		r = x.askPeek(ctx, leader, req)
		return r.Leader
	})
	switch {
	case err != nil:
		return nil, false, err
	case gone || r.Gone:
		return nil, false, noQueue(q)
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
			},
			Number: p.Number, Place: queue.Place(p.Place), ExpireAt: fsm.Time(p.ExpireAt), DueAt: fsm.Time(p.DueAt),
			Deadline: fsm.Time(p.Deadline), ScheduleID: p.ScheduleId, Deferral: p.Deferral,
		})
	}
	return list, nil
}

// askPeek asks one node. It fails if the node does not lead the queue.
func (x *Inspector) askPeek(ctx context.Context, node string, req *peerpb.PeekRequest) *peerpb.PeekReply {
	r, _ := ask(ctx, x.node, node, statsTimeout, kindPeek, req, func() *peerpb.PeekReply { return x.peek(req) })
	return r
}

// peek reads a led queue. The empty entry committed first ensures that this node does lead the
// queue and has applied what is due.
func (x *Inspector) peek(req *peerpb.PeekRequest) *peerpb.PeekReply {
	r := &peerpb.PeekReply{}
	g := x.ledGroup(fsm.GroupID(req.Group), fsm.QueueID(req.Queue))
	if g == nil || g.Barrier(statsTimeout) != nil || g.Expire(statsTimeout) != nil {
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
			Deferral: x.Deferral,
		}
		if len(x.Deaths) > 0 {
			p.Deaths = encodeDeaths(x.Deaths)
		}
		r.Messages = append(r.Messages, p)
	}
	x.touchPeeked(g)
	return r
}

// touchPeeked records a peek in a queue that expires when idle, at most once in a tenth of its
// expiry time or in half a minute.
func (x *Inspector) touchPeeked(g *group.Group) {
	if q, ok := x.view().QueueByID(g.Spec().Queue); ok {
		x.uses.sources(q)
	}
	var idle uint64
	g.View(func(m *queue.Machine) { idle = m.Config().GetAutoDeleteOnIdle() })
	if idle == 0 || !x.peeks.due(g.Spec().Queue, x.now(), int64(catalog.TouchEvery(fsm.Millis(min(idle, catalog.MaxTTL))))) {
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
