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
	*peerpb.QueueStats
}

// Figures asks the leaders of queues how these stand; without ids, of all
// queues. Queues without a leader that answers are missing.
func (b *Broker) Figures(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]Figures {
	ctx, cancel := context.WithTimeout(ctx, figuresWait)
	defer cancel()
	all := map[fsm.QueueID]Figures{}
	var mu sync.Mutex
	note := func(node string, r *peerpb.QueueStatsReply) {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range r.Queues {
			all[fsm.QueueID(f.Queue)] = Figures{node, f}
		}
	}
	req := &peerpb.QueueStatsRequest{}
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
func (b *Broker) askFigures(ctx context.Context, node string, req *peerpb.QueueStatsRequest) *peerpb.QueueStatsReply {
	r, err := peer.Ask[peerpb.QueueStatsReply](ctx, b.mesh, node, kindQueueStats, req)
	if err != nil {
		b.slog.Debug("no figures from peer", "node", node, "error", err)
		return &peerpb.QueueStatsReply{}
	}
	return r
}

// figures reads the figures of queues that this node leads. What is due in
// them is done first, as far as the time allows.
func (b *Broker) figures(req *peerpb.QueueStatsRequest) *peerpb.QueueStatsReply {
	end := time.Now().Add(expireWait)
	r := &peerpb.QueueStatsReply{}
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
				f.NextDelayedAt, f.LastDelayedAt = int64(next), int64(last)
			}
			r.Queues = append(r.Queues, f)
		})
	}
	return r
}

// figured lists the groups that a request asks for.
func (b *Broker) figured(req *peerpb.QueueStatsRequest) []*group.Group {
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

func figuresOf(m *queue.Machine) *peerpb.QueueStats {
	s := m.Stats()
	late, _ := m.Lateness()
	var deaths []uint64
	for _, by := range s.Counters.Deaths {
		deaths = append(deaths, by[:]...)
	}
	active, inUse := m.Activity()
	return &peerpb.QueueStats{
		LastActive: int64(active), InUse: inUse,
		MessagesDlxWaiting: s.Waiting.Messages, DiedTotal: deaths, MessagesDeadLetteredConfirmedTotal: s.Counters.DeadConfirmed, DeadLettersRefusedTotal: s.Counters.DeadRefused,
		Queue: uint64(m.ID()), MessagesReady: s.Ready.Messages, MessageBytesReady: s.Ready.Bytes,
		MessagesUnacknowledged: s.Unacknowledged.Messages, MessageBytesUnacknowledged: s.Unacknowledged.Bytes,
		MessagesScheduled: s.Scheduled.Messages, MessageBytesScheduled: s.Scheduled.Bytes,
		MessagesDelayedRetry: s.Delayed.Messages, MessageBytesDelayedRetry: s.Delayed.Bytes,
		MessagesDlx: s.Outbox.Messages, MessageBytesDlx: s.Outbox.Bytes, Consumers: uint64(s.Consumers),
		MessagesExpiredTotal: s.Counters.Expired, MessagesTimedOutTotal: s.Counters.TimedOut,
		MessagesDeadLetteredTotal: s.Counters.DeadLettered, DeadLettersDroppedTotal: s.Counters.DeadDropped,
		ConsumerTimeoutLateAcksTotal: s.Counters.LateAcks, ConsumersTimedOut: uint64(late),
		ScheduledTotal: s.Counters.Scheduled, UnscheduledTotal: s.Counters.Unscheduled, UnroutableTotal: s.Counters.Unroutable,
		Revision: m.Config().GetRevision(), Gone: s.Phase != queue.Active,
	}
}
