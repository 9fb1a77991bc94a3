package broker

import (
	"context"
	"net/netip"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// Consumer is a consumer as its queue's leader describes it, with what its own
// node says of its channel; nil: that has not answered.
type Consumer struct {
	*peerpb.QueueConsumer
	Channel *peerpb.ConsumingSession
}

// located is a channel that says where its client is: the name of its
// connection, its number there, and the client's address.
type located interface {
	Where() (connection string, channel uint16, client netip.AddrPort)
}

// Consumers asks the leaders of queues for their consumers; without ids, of all
// queues. Queues without a leader that answers have none.
func (b *Broker) Consumers(ctx context.Context, ids ...fsm.QueueID) []Consumer {
	ctx, cancel := context.WithTimeout(ctx, figuresWait)
	defer cancel()
	req := &peerpb.ConsumersRequest{}
	for _, id := range ids {
		req.Queues = append(req.Queues, uint64(id))
	}
	var mu sync.Mutex
	var all []Consumer
	channels := map[fsm.SessionID]*peerpb.ConsumingSession{}
	note := func(node string, r *peerpb.ConsumersReply) {
		n, ok := b.view().NodeByName(node)
		mu.Lock()
		defer mu.Unlock()
		for _, c := range r.Consumers {
			all = append(all, Consumer{QueueConsumer: c})
		}
		for _, s := range r.Sessions {
			if ok {
				channels[fsm.SessionID{Node: fsm.NodeID(n.Number), Boot: s.Boot, Num: s.Session}] = s
			}
		}
	}
	var asked sync.WaitGroup
	for _, p := range b.mesh.Peers() {
		if b.mesh.Alive(p.Node) {
			b.inParallel(&asked, "list consumers", func() { note(p.Node, b.askConsumers(ctx, p.Node, req)) })
		}
	}
	note(b.config.Node, b.consumers(req))
	asked.Wait()
	for i, c := range all {
		all[i].Channel = channels[fsm.SessionID{Node: fsm.NodeID(c.Node), Boot: c.Boot, Num: c.Session}]
	}
	return all
}

// askConsumers asks one node. Failure is a node that knows of none.
func (b *Broker) askConsumers(ctx context.Context, node string, req *peerpb.ConsumersRequest) *peerpb.ConsumersReply {
	r, err := peer.Ask[peerpb.ConsumersReply](ctx, b.mesh, node, kindConsumers, req)
	if err != nil {
		b.slog.Debug("no consumers from peer", "node", node, "error", err)
		return &peerpb.ConsumersReply{}
	}
	return r
}

// consumers lists the consumers of the queues that this node leads, and the
// sessions of its own clients that have consumers.
func (b *Broker) consumers(req *peerpb.ConsumersRequest) *peerpb.ConsumersReply {
	r := &peerpb.ConsumersReply{}
	for _, g := range b.figured(&peerpb.QueueStatsRequest{Queues: req.Queues}) {
		if g == nil || g.Leading() == 0 {
			continue
		}
		r.Consumers = append(r.Consumers, consumersOf(g, b.config.Clock())...)
	}
	for _, s := range b.allSessions() {
		if d := s.describe(); d != nil {
			r.Sessions = append(r.Sessions, d)
		}
	}
	return r
}

// listAtOnce is how many consumers are listed while a queue waits.
const listAtOnce = 512

// consumersOf lists the consumers of a queue, piece by piece.
func consumersOf(g *group.Group, now fsm.Time) (all []*peerpb.QueueConsumer) {
	var list []queue.Consumer
	for place, more := uint64(0), true; more; {
		var singleActive bool
		list, more = list[:0], false
		g.View(func(m *queue.Machine) {
			list, place = m.ConsumersAfter(place, listAtOnce, list)
			more, now, singleActive = place != 0, max(now, m.Clock()), m.Config().SingleActive
		})
		for i := range list {
			if list[i].Status != queue.Cancelled {
				all = append(all, describeConsumer(g.Spec().Queue, &list[i], now, singleActive))
			}
		}
	}
	return all
}

func describeConsumer(of fsm.QueueID, c *queue.Consumer, now fsm.Time, singleActive bool) *peerpb.QueueConsumer {
	d := &peerpb.QueueConsumer{
		Queue: uint64(of), Node: uint32(c.ID.Session.Node), Boot: c.ID.Session.Boot, Session: c.ID.Session.Num, Number: c.ID.Number,
		Tag: c.Tag, Prefetch: c.Prefetch, Priority: c.Priority, NoAck: c.NoAck, Exclusive: c.Exclusive, Status: c.Status.String(),
		Active: c.Active, SingleActive: singleActive,
		Held: uint64(c.Held), TimedOut: uint64(c.TimedOut), LateAcks: c.LateAcks,
		TimeoutPlusOne: uint64(c.Timeout + 1), OwnTimeout: c.OwnTimeout, NextDeadline: int64(c.FirstDeadline),
	}
	if c.HeldSince != 0 {
		d.OldestAge = uint64(now - c.HeldSince)
	}
	return d
}

// describe says where a session's client is; nil: it has no consumers.
func (s *Session) describe() *peerpb.ConsumingSession {
	s.mu.Lock()
	consuming := len(s.consumers) > 0 // also if some of them are only owed settlements
	s.mu.Unlock()
	at, ok := s.client.(located)
	if !consuming || !ok {
		return nil
	}
	name, channel, client := at.Where()
	return &peerpb.ConsumingSession{
		Boot: s.id.Boot, Session: s.id.Num, User: s.conn.user, Connection: name, Channel: uint32(channel),
		PeerHost: client.Addr().Unmap().String(), PeerPort: uint32(client.Port()),
	}
}
