package broker

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

type kind = peer.Kind

// bad logs a message of another node that makes no sense.
func (b *Broker) bad(from, what string, err error) {
	b.mesh.Complain(from, "bad message from peer: "+what, err)
}

// decode reads a message of which there may be many things in a list.
func decode(head []byte, m interface{ UnmarshalVT(b []byte) error }) error {
	if err := peer.Tame(head); err != nil {
		return err
	}
	return m.UnmarshalVT(head)
}

// onSubmit takes commands for a queue that this node should lead.
func (b *Broker) onSubmit(from string, head, payload []byte) {
	var m peerpb.Submit
	if err := m.UnmarshalVT(head); err != nil {
		b.bad(from, "submit", err)
		return
	}
	if err := admit(&m, payload); err != nil {
		b.bad(from, "submit", err)
		return
	}
	g := b.host.Group(fsm.GroupID(m.Group))
	if g != nil && g.Spec().Queue == fsm.QueueID(m.Queue) {
		batch := group.Batch{Commands: m.Commands, Count: int(m.Count), Bytes: len(payload), From: from, Light: m.Light}
		if len(payload) > 0 {
			batch.Payloads = [][]byte{payload}
		}
		if g.Submit(batch) == nil {
			return
		}
	}
	b.send(from, kindNotice, &peerpb.Notice{Kind: peerpb.Notice_NOT_LEADER, Queue: m.Queue, Group: m.Group})
}

// admit says why what another node has submitted must not enter the log: an entry
// that cannot be decoded ends every replica that applies it, after each restart
// again, and a payload that is none, or lies elsewhere, all who read it. Nobody
// submits more than makes a batch.
func admit(m *peerpb.Submit, payload []byte) error {
	count, err := group.Measure(m.Commands, payload)
	switch {
	case err != nil:
		return err
	case count != int(m.Count):
		return fmt.Errorf("%d commands where %d are announced", count, m.Count)
	case count > stream.MaxBatchCommands:
		return fmt.Errorf("%d commands at once", count)
	}
	return nil
}

// onOutcomes takes answers for a session of this node.
func (b *Broker) onOutcomes(from string, head, _ []byte) {
	var m peerpb.Outcomes
	if err := decode(head, &m); err != nil {
		b.bad(from, "outcomes", err)
		return
	}
	outcomes := make([]group.Outcome, len(m.Outcomes))
	for i, o := range m.Outcomes {
		outcomes[i] = group.Outcome{First: o.First, Run: o.Run, Result: fsm.Result{
			Code: fsm.Code(o.Code), Count: o.Count, Consumers: o.Consumers, Next: o.Next,
		}}
	}
	b.answer(from, fsm.QueueID(m.Queue), b.sessionID(m.Session, m.Boot), outcomes)
}

// sessionID restores a session id from what a peer sends: sessions of this
// node carry its boot; number 0 is a queue that forwards dead letters.
func (b *Broker) sessionID(num, boot uint64) fsm.SessionID {
	if num == 0 {
		return fsm.SessionID{Boot: boot}
	}
	return fsm.SessionID{Node: fsm.NodeID(b.self.Load()), Boot: boot, Num: num}
}

// onDeliveries takes messages for a session of this node.
func (b *Broker) onDeliveries(from string, head, payload []byte) {
	var m peerpb.Deliveries
	if err := decode(head, &m); err != nil {
		b.bad(from, "deliveries", err)
		return
	}
	d := stream.DeliveryBatch{Resync: m.Resync, Consumer: m.Consumer, Last: m.Upto}
	for _, p := range m.Deliveries {
		if int(p.Size) > len(payload) {
			b.bad(from, "deliveries", errors.New("payload is cut short"))
			return
		}
		deaths, err := decodeDeaths(p.Deaths)
		if err != nil {
			b.bad(from, "deliveries", err)
			return
		}
		message := fsm.Message{Consumer: p.Consumer, ID: p.Id, Acquired: p.Acquired, Failed: p.Failed, Deaths: deaths, Ready: p.Ready, ScheduledFor: fsm.Time(p.ScheduledFor)}
		if p.Size > 0 {
			message.Payload = fsm.Readable(payload[:p.Size:p.Size])
		}
		d.Messages = append(d.Messages, message)
		payload = payload[p.Size:]
	}
	b.deliver(fsm.QueueID(m.Queue), b.sessionID(m.Session, m.Boot), d)
}

// onNotice takes what a queue's leader, or a node that is none, has to say.
func (b *Broker) onNotice(from string, head, _ []byte) {
	var m peerpb.Notice
	if err := m.UnmarshalVT(head); err != nil {
		b.bad(from, "notice", err)
		return
	}
	id := fsm.QueueID(m.Queue)
	switch m.Kind {
	case peerpb.Notice_LEADER:
		b.routes.Lead(id, from, m.Term)
	case peerpb.Notice_NOT_LEADER:
		b.routes.Lose(id, from)
	default:
		b.notice(id, b.sessionID(m.Session, m.Boot), stream.Notice{
			Kind: m.Kind, Consumer: m.Consumer, IDs: m.Deliveries, Limit: fsm.Millis(m.Timeout),
		})
	}
}

// onResync answers a session that misses deliveries.
func (b *Broker) onResync(from string, head, _ []byte) {
	var m peerpb.Resync
	if err := m.UnmarshalVT(head); err != nil {
		b.bad(from, "resync", err)
		return
	}
	n, ok := b.view().NodeByName(from)
	if !ok {
		return
	}
	b.answerResync(fsm.GroupID(m.Group), stream.Resync{
		Session:  fsm.SessionID{Node: fsm.NodeID(n.Number), Boot: m.Boot, Num: m.Session},
		Consumer: m.Consumer, After: m.After,
	})
}

// answerResync asks the machine, if this node leads the group.
func (b *Broker) answerResync(id fsm.GroupID, q stream.Resync) {
	if g := b.host.Group(id); g != nil {
		g.Resync(fsm.ConsumerID{Session: q.Session, Number: q.Consumer}, q.After)
	}
}

// onStats answers how a queue stands that this node should lead.
func (b *Broker) onStats(_ context.Context, _ string, req []byte) ([]byte, error) {
	var m peerpb.StatsRequest
	if err := proto.Unmarshal(req, &m); err != nil {
		return nil, err
	}
	return proto.Marshal(b.stats(fsm.GroupID(m.Group), fsm.QueueID(m.Queue)))
}

// stateGone is what StatsReply.State says of a queue that has ended.
const stateGone = "gone"

// stats reads a led queue's figures once nothing is due in it any more.
func (b *Broker) stats(id fsm.GroupID, q fsm.QueueID) *peerpb.StatsReply {
	g := b.host.Group(id)
	if g == nil || g.Spec().Queue != q || g.Leading() == 0 || g.Expire(statsTimeout) != nil {
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
