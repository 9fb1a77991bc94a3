package stats

import (
	"context"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// queuesWait bounds how long other nodes may take to answer.
	queuesWait = 5 * time.Second
	// expireWait bounds how long a node waits for what is due in the queues that are asked about.
	expireWait = 2 * time.Second
)

// Queues reports the state of queues and their consumers. Only the leader of a queue answers for
// it.
type Queues struct {
	nodes *Nodes
	c     QueuesConfig
	ahead counted
}

// QueuesConfig is what Queues needs of this node.
type QueuesConfig struct {
	Kind          peer.Kind // of requests for stats
	ConsumersKind peer.Kind // of requests for consumers
	TimeoutsKind  peer.Kind // of requests for the last consumer timeouts
	TimeKind      peer.Kind // of requests for what comes next
	Host          *group.Host
	Catalog       interface{ View() *catalog.View }
	Clock         func() fsm.Time // as queues are stamped, and runs while they are idle
	// Sessions lists the sessions of this node's clients that have consumers.
	Sessions func() []*peerpb.ConsumingSession
	// Timeouts lists the last consumer timeouts that this node knows of.
	Timeouts func() *peerpb.TimeoutsReply
}

// NewQueues returns the queues of a cluster, and answers other nodes for the queues that this node
// leads.
func NewQueues(n *Nodes, c QueuesConfig) *Queues {
	q := &Queues{nodes: n, c: c}
	peer.HandleAsk(n.Mesh, c.Kind, q.answer)
	peer.HandleAsk(n.Mesh, c.ConsumersKind, q.answerConsumers)
	peer.HandleAsk(n.Mesh, c.TimeKind, q.answerTime)
	peer.HandleAsk(n.Mesh, c.TimeoutsKind, func(*peerpb.TimeoutsRequest) *peerpb.TimeoutsReply { return c.Timeouts() })
	return q
}

// Stats asks the leaders of queues for their stats; without ids, of all queues. Queues that have
// ended, and those without a leader that answers, are missing.
func (q *Queues) Stats(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]Queue {
	replies, n := q.askAll(ctx, ids), 0
	for _, reply := range replies {
		n += len(reply.Queues)
	}
	all := make(map[fsm.QueueID]Queue, n)
	var one Queue
	for node, reply := range replies {
		for _, s := range reply.Queues {
			if !s.Gone {
				one.from(node, s)
				one.Expiring = expiringFrom(withinFor(ids), s.Expiring)
				all[fsm.QueueID(s.Queue)] = one
			}
		}
	}
	return all
}

// Activity returns the same as the leaders' raw answers, for callers that need to know when queues
// were last in use. It includes queues that have ended.
func (q *Queues) Activity(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]*peerpb.QueueStats {
	all := map[fsm.QueueID]*peerpb.QueueStats{}
	for _, reply := range q.askAll(ctx, ids) {
		for _, s := range reply.Queues {
			all[fsm.QueueID(s.Queue)] = s
		}
	}
	return all
}

func (q *Queues) askAll(ctx context.Context, ids []fsm.QueueID) map[string]*peerpb.QueueStatsReply {
	req := &peerpb.QueueStatsRequest{Queues: numbers(ids)}
	req.ExpiringWithin = withinFor(ids)
	return AskAll(ctx, q.nodes, Question[*peerpb.QueueStatsReply]{
		Doing: "read the stats of queues", Wait: queuesWait,
		Here: func() *peerpb.QueueStatsReply { return q.answer(req) },
		Ask: func(ctx context.Context, node string) (*peerpb.QueueStatsReply, error) {
			return peer.Ask[peerpb.QueueStatsReply](ctx, q.nodes.Mesh, node, q.c.Kind, req)
		},
	}).Of
}

func numbers(ids []fsm.QueueID) []uint64 {
	var all []uint64
	for _, id := range ids {
		all = append(all, uint64(id))
	}
	return all
}

// answer reads the stats of queues that this node leads. What is due in them is done first, as far
// as time allows.
func (q *Queues) answer(req *peerpb.QueueStatsRequest) *peerpb.QueueStatsReply {
	end := time.Now().Add(expireWait)
	r := &peerpb.QueueStatsReply{}
	for _, g := range q.led(req.Queues) {
		if left := time.Until(end); left > 0 {
			_ = g.Expire(left) // late stats are better than none
		}
		var s *peerpb.QueueStats
		g.View(func(m *queue.Machine) {
			if s = statsOf(m, q.c.Clock()); len(req.Queues) > 0 {
				first, last := m.ScheduledSpan()
				s.NextDelayedAt, s.LastDelayedAt = int64(first), int64(last)
			}
			if len(req.ExpiringWithin) > 0 {
				s.Expiring = expiring(m, max(q.c.Clock(), m.Clock()), req.ExpiringWithin)
			}
		})
		if !g.IsLocal() {
			s.Replica, s.LogBytes = queueReplica(g), g.LogBytes()
			s.Replica.Snapshot, s.Replica.Voters = g.SnapshotIndex(), nil
		}
		r.Queues = append(r.Queues, s)
	}
	return r
}

// led returns those of the queues with these ids that this node leads; without ids, of all queues.
func (q *Queues) led(ids []uint64) (groups []*group.Group) {
	add := func(g *group.Group) {
		if g != nil && g.Leading() != 0 {
			groups = append(groups, g)
		}
	}
	if len(ids) == 0 {
		for _, g := range q.c.Host.Groups() {
			add(g)
		}
		return groups
	}
	view := q.c.Catalog.View()
	for _, id := range ids {
		if record, ok := view.QueueByID(fsm.QueueID(id)); ok {
			add(q.c.Host.Group(record.Group))
		}
	}
	return groups
}
