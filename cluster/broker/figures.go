package broker

import (
	"context"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// figuresWait bounds how long other nodes may take to answer.
	figuresWait = 5 * time.Second
	// expireWait bounds how long a node waits for what is due in the queues
	// whose figures it gives.
	expireWait = 2 * time.Second
)

// Figures are how a queue stands, as its leader says.
type Figures struct {
	Leader string // node that leads
	*peerpb.QueueFigures
}

// Figures asks the leaders of queues how these stand; without ids, of all
// queues. Queues without a leader that answers are missing.
func (b *Broker) Figures(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]Figures {
	ctx, cancel := context.WithTimeout(ctx, figuresWait)
	defer cancel()
	all := map[fsm.QueueID]Figures{}
	var mu sync.Mutex
	note := func(node string, r *peerpb.FiguresReply) {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range r.Queues {
			all[fsm.QueueID(f.Queue)] = Figures{node, f}
		}
	}
	req := &peerpb.FiguresRequest{}
	for _, id := range ids {
		req.Queues = append(req.Queues, uint64(id))
	}
	var asked sync.WaitGroup
	for _, p := range b.mesh.Peers() {
		if b.mesh.Alive(p.Node) {
			b.inParallel(&asked, "read figures", func() { note(p.Node, b.askFigures(ctx, p.Node, req)) })
		}
	}
	note(b.config.Node, b.figures(req))
	asked.Wait()
	return all
}

// askFigures asks one node. Failure is a node that leads nothing.
func (b *Broker) askFigures(ctx context.Context, node string, req *peerpb.FiguresRequest) *peerpb.FiguresReply {
	r, err := peer.Ask[peerpb.FiguresReply](ctx, b.mesh, node, kindFigures, req)
	if err != nil {
		b.slog.Debug("no figures from peer", "node", node, "error", err)
		return &peerpb.FiguresReply{}
	}
	return r
}

// figures reads the figures of queues that this node leads. What is due in
// them is done first, as far as the time allows.
func (b *Broker) figures(req *peerpb.FiguresRequest) *peerpb.FiguresReply {
	end := time.Now().Add(expireWait)
	r := &peerpb.FiguresReply{}
	for _, g := range b.figured(req) {
		if g == nil || g.Leading() == 0 {
			continue
		}
		if left := time.Until(end); left > 0 {
			_ = g.Expire(left) // late figures are better than none
		}
		g.View(func(m *queue.Machine) {
			f := figuresOf(m)
			if len(req.Queues) > 0 {
				next, last := m.ScheduledSpan()
				f.NextDue, f.LastDue = int64(next), int64(last)
			}
			r.Queues = append(r.Queues, f)
		})
	}
	return r
}

// figured lists the groups that a request asks for.
func (b *Broker) figured(req *peerpb.FiguresRequest) []*group.Group {
	if len(req.Queues) == 0 {
		return b.host.Groups()
	}
	var groups []*group.Group
	for _, id := range req.Queues {
		if q, ok := b.view().QueueByID(fsm.QueueID(id)); ok {
			groups = append(groups, b.host.Group(q.Group))
		}
	}
	return groups
}

func figuresOf(m *queue.Machine) *peerpb.QueueFigures {
	s := m.Stats()
	late, _ := m.Lateness()
	var deaths []uint64
	for _, by := range s.Counters.Deaths {
		deaths = append(deaths, by[:]...)
	}
	active, inUse := m.Activity()
	return &peerpb.QueueFigures{
		LastActive: int64(active), InUse: inUse,
		Waiting: s.Waiting.Messages, Deaths: deaths, DeadConfirmed: s.Counters.DeadConfirmed, DeadRefused: s.Counters.DeadRefused,
		Queue: uint64(m.ID()), Ready: s.Ready.Messages, ReadyBytes: s.Ready.Bytes,
		Unacknowledged: s.Unacknowledged.Messages, UnacknowledgedBytes: s.Unacknowledged.Bytes,
		Scheduled: s.Scheduled.Messages, ScheduledBytes: s.Scheduled.Bytes,
		Delayed: s.Delayed.Messages, DelayedBytes: s.Delayed.Bytes,
		Outbox: s.Outbox.Messages, OutboxBytes: s.Outbox.Bytes, Consumers: uint64(s.Consumers),
		Expired: s.Counters.Expired, TimedOut: s.Counters.TimedOut,
		DeadLettered: s.Counters.DeadLettered, DeadDropped: s.Counters.DeadDropped,
		LateAcks: s.Counters.LateAcks, ConsumersTimedOut: uint64(late),
		EverScheduled: s.Counters.Scheduled, Unscheduled: s.Counters.Unscheduled, Unroutable: s.Counters.Unroutable,
		Revision: m.Config().GetRevision(), Gone: s.Phase != queue.Active,
	}
}
