package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// statsTimeout bounds how long the leader of a queue may take to answer.
const statsTimeout = 5 * time.Second

// Inspector reports on queues: how many messages they have, and which. It asks their leaders, and
// answers for the queues that this node leads. It changes nothing, except that a peek counts as use
// of a queue that expires when idle.
type Inspector struct {
	*node
	routes     *stream.Table
	available  *availability
	uses       *uses
	properties Properties
	peeks      peeks
	explaining sync.Mutex // one at a time: it replays a log
	backups    *Backups
}

// Backups reads queues for backups, and brings back what is in one.
func (x *Inspector) Backups() *Backups { return x.backups }

// listen registers the handlers.
func (x *Inspector) listen() {
	peer.HandleAsk(x.mesh, kindStats, x.stats)
	peer.HandleAsk(x.mesh, kindLeads, x.led)
	peer.HandleAsk(x.mesh, kindPeek, x.peek)
	peer.HandleAsk(x.mesh, kindScheduled, x.scheduled)
	peer.HandleAsk(x.mesh, kindEnds, x.ends)
	peer.HandleAsk(x.mesh, kindExplain, x.explain)
	peer.HandleAsk(x.mesh, kindHash, x.hash)
	peer.HandleAsk(x.mesh, kindGroups, x.messageGroups)
	x.backups.listen()
}

// count asks the leader for the number of messages and consumers of a queue. gone: the queue has
// ended.
func (x *Inspector) count(ctx context.Context, q *catalog.Queue) (info fsm.QueueInfo, gone bool, err error) {
	ended := false
	gone, err = x.available.askLeader(ctx, q, func(leader string) bool {
		r := x.askStats(x.routes.Route(q), leader)
		if r.Leader {
			info, ended = fsm.QueueInfo{Name: q.Name, Ready: r.Ready, Consumers: r.Consumers}, r.State == stateGone
		}
		return r.Leader
	})
	return info, gone || ended, err
}

// ExpireDue has the leader of a queue propose ticks until nothing in it is due.
func (x *Inspector) ExpireDue(ctx context.Context, q *catalog.Queue) error {
	_, gone, err := x.count(ctx, q)
	if gone && err == nil {
		return noQueue(q)
	}
	return err
}

// askStats asks one node for a queue's stats. It fails if the node does not lead the queue.
func (x *Inspector) askStats(of *stream.Route, node string) *peerpb.StatsReply {
	req := &peerpb.StatsRequest{Group: uint32(of.Group()), Queue: uint64(of.Queue())}
	r, _ := ask(context.Background(), x.node, node, statsTimeout, kindStats, req, func() *peerpb.StatsReply { return x.stats(req) })
	return r
}

// stateGone is the value of StatsReply.State for a queue that has ended.
const stateGone = "gone"

// stats reads the stats of a led queue once nothing in it is due.
func (x *Inspector) stats(m *peerpb.StatsRequest) *peerpb.StatsReply {
	g := x.ledGroup(fsm.GroupID(m.Group), fsm.QueueID(m.Queue))
	if g == nil || g.Expire(statsTimeout) != nil {
		return &peerpb.StatsReply{}
	}
	r := &peerpb.StatsReply{Leader: true, Index: g.Leading()}
	g.View(func(m *queue.Machine) {
		s := m.Stats()
		r.Ready, r.Unacknowledged = s.Ready.Messages, s.Unacknowledged.Messages
		r.Consumers, r.Outbox = uint64(s.Consumers), s.Outbox.Messages
		if s.Phase != queue.Active {
			r.State = stateGone
		}
	})
	if g.Leading() == 0 {
		return &peerpb.StatsReply{} // it could not be read
	}
	return r
}

// leads asks a node which queues it leads, and returns the term of each; 0: it does not lead it.
func (x *Inspector) leads(of []*stream.Route, node string) (terms []uint64) {
	req := &peerpb.LeadsRequest{}
	for _, r := range of {
		req.Queues = append(req.Queues, uint64(r.Queue()))
	}
	answer, err := ask(context.Background(), x.node, node, statsTimeout, kindLeads, req, func() *peerpb.LeadsReply { return x.led(req) })
	if !errors.Is(err, peer.ErrNoHandler) {
		return answer.Terms[:min(len(of), len(answer.Terms))]
	}
	for _, r := range of { // a node of an earlier version
		terms = append(terms, x.askStats(r, node).Index)
	}
	return terms
}

// led says in which terms this node leads queues.
func (x *Inspector) led(m *peerpb.LeadsRequest) *peerpb.LeadsReply {
	answer := &peerpb.LeadsReply{Terms: make([]uint64, len(m.Queues))}
	for i, id := range m.Queues {
		q, ok := x.view().QueueByID(fsm.QueueID(id))
		if !ok {
			continue
		}
		if g := x.ledGroup(q.Group, q.ID); g != nil {
			answer.Terms[i] = g.Leading()
		}
	}
	return answer
}
