package session

import (
	"errors"
	"fmt"
	"slices"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// receiver handles what other nodes send about queues: commands for the queues led by this node,
// and what leaders of queues send to sessions of this node.
type receiver struct {
	*node
	routes *stream.Table
	links  *links
	// replica returns this node's replica of a group; nil: it has none.
	replica func(fsm.GroupID) replica
}

// copyStored is up to which size a payload of this node's log is copied: it lies in a message of up to
// 512 KiB, which a client that does not read would keep in memory.
const copyStored = 8 << 10

// replica is a group that shares payloads with its leader.
type replica interface {
	Spec() group.Spec
	Stored(at group.Shared) []byte
	Missed(node string)
}

// replicaOf is the replica of a node.
func (n *node) replicaOf(id fsm.GroupID) replica {
	if g := n.groups.Group(id); g != nil {
		return g
	}
	return nil
}

// read returns the payload of a delivery that was not sent because it is here; nil: it is not in memory.
// The disk is not asked: whoever reads a link waits for nothing.
func (r *receiver) read(queue fsm.QueueID, id fsm.GroupID, at group.Shared) fsm.Payload {
	g := r.replica(id)
	if g == nil || g.Spec().Queue != queue {
		return nil
	}
	raw := g.Stored(at)
	switch {
	case raw == nil:
		return nil
	case len(raw) < copyStored:
		raw = slices.Clone(raw)
	}
	return fsm.Readable(raw)
}

// listen registers the handlers.
func (r *receiver) listen() {
	r.mesh.Handle(kindSubmit, r.onSubmit)
	r.mesh.Handle(kindOutcomes, r.onOutcomes)
	r.mesh.Handle(kindDeliveries, r.onDeliveries)
	r.mesh.Handle(kindNotice, r.onNotice)
	r.mesh.Handle(kindResync, r.onResync)
}

// bad logs an invalid message of another node.
func (r *receiver) bad(from, what string, err error) {
	r.mesh.Complain(from, "bad message from peer: "+what, err)
}

// decode reads a message that may contain long lists.
func decode(head []byte, m interface{ UnmarshalVT(b []byte) error }) error {
	if err := peer.CheckFields(head); err != nil {
		return err
	}
	return m.UnmarshalVT(head)
}

// onSubmit handles commands for a queue that this node should lead.
func (r *receiver) onSubmit(from string, head, payload []byte) {
	var m peerpb.Submit
	if err := m.UnmarshalVT(head); err != nil {
		r.bad(from, "submit", err)
		return
	}
	if err := admit(&m, payload); err != nil {
		r.bad(from, "submit", err)
		return
	}
	kind := peerpb.Notice_NOT_LEADER
	g := r.groups.Group(fsm.GroupID(m.Group))
	if g != nil && g.Spec().Queue == fsm.QueueID(m.Queue) {
		batch := group.Batch{Commands: m.Commands, Count: int(m.Count), Bytes: len(payload), From: from, Light: m.Light, Patient: m.Patient}
		if len(payload) > 0 {
			batch.Payloads = [][]byte{payload}
		}
		err := g.Submit(batch)
		if err == nil {
			return
		}
		kind = refusal(err, m.Pauses)
	}
	r.links.send(from, kindNotice, &peerpb.Notice{Kind: kind, Queue: m.Queue, Group: m.Group})
}

// refusal is what a node is told whose submission was not taken.
func refusal(err error, pauses bool) peerpb.Notice_Kind {
	switch {
	case pauses && errors.Is(err, group.ErrFull):
		return peerpb.Notice_FULL
	case pauses && errors.Is(err, group.ErrTransferring):
		return peerpb.Notice_TRANSFERRING
	}
	return peerpb.Notice_NOT_LEADER
}

// admit returns an error if a submission of another node must not enter the log: an entry that
// cannot be decoded would end every replica that applies it, again after each restart, and an
// invalid or misplaced payload would end everyone who reads it. No node submits more than a batch.
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

// onOutcomes handles answers for a session of this node.
func (r *receiver) onOutcomes(from string, head, _ []byte) {
	var m peerpb.Outcomes
	if err := decode(head, &m); err != nil {
		r.bad(from, "outcomes", err)
		return
	}
	outcomes := make([]group.Outcome, len(m.Outcomes))
	for i, o := range m.Outcomes {
		outcomes[i] = group.Outcome{First: o.First, Run: o.Run, Result: fsm.Result{
			Code: fsm.Code(o.Code), Count: o.Count, Consumers: o.Consumers, Next: o.Next,
			Until: fsm.Time(o.Until), State: string(o.State),
		}}
	}
	r.routes.Answer(from, fsm.QueueID(m.Queue), r.sessionID(m.Session, m.Boot), outcomes)
}

// sessionID restores a session id from what a peer sends: sessions of this node carry its boot;
// number 0 is a queue that sends dead letters.
func (r *receiver) sessionID(num, boot uint64) fsm.SessionID {
	if num == 0 {
		return fsm.SessionID{Boot: boot}
	}
	return fsm.SessionID{Node: fsm.NodeID(r.number.Load()), Boot: boot, Num: num}
}

// onDeliveries handles messages for a session of this node.
func (r *receiver) onDeliveries(from string, head, payload []byte) {
	var m peerpb.Deliveries
	if err := decode(head, &m); err != nil {
		r.bad(from, "deliveries", err)
		return
	}
	d := stream.DeliveryBatch{Resync: m.Resync, Consumer: m.Consumer, Last: m.Last}
	missed := false
	for _, p := range m.Deliveries {
		if int(p.Size) > len(payload) {
			r.bad(from, "deliveries", errors.New("payload is truncated"))
			return
		}
		deaths, err := decodeDeaths(p.Deaths)
		if err != nil {
			r.bad(from, "deliveries", err)
			return
		}
		message := fsm.Message{
			Consumer: p.Consumer, ID: p.Id, Acquired: p.Acquired, Failed: p.Failed, Deaths: deaths, Ready: p.Ready, ScheduledFor: fsm.Time(p.ScheduledFor),
			ExpireAt: fsm.Time(p.ExpiresAt), EnqueuedAt: fsm.Time(p.EnqueuedAt),
			LockedUntil: fsm.Time(p.LockedUntil), LockRemaining: fsm.Millis(p.LockRemaining),
		}
		if p.Size > 0 {
			message.Payload = fsm.Readable(payload[:p.Size:p.Size])
		} else if p.StoredSize > 0 {
			message.Payload = r.read(fsm.QueueID(m.Queue), fsm.GroupID(m.Group), group.Shared{
				Ref: fsm.Ref{Index: p.StoredIndex, Offset: p.StoredOffset, Size: p.StoredSize}, Term: p.StoredTerm,
			})
			missed = missed || message.Payload == nil
		}
		d.Messages = append(d.Messages, message)
		payload = payload[p.Size:]
	}
	if missed { // said before the session asks
		r.links.send(from, kindNotice, &peerpb.Notice{Kind: peerpb.Notice_MISSED, Queue: m.Queue, Group: m.Group})
	}
	r.routes.Deliver(fsm.QueueID(m.Queue), r.sessionID(m.Session, m.Boot), d)
}

// onNotice handles a notice of a queue's leader, or of a node that is no leader.
func (r *receiver) onNotice(from string, head, _ []byte) {
	var m peerpb.Notice
	if err := m.UnmarshalVT(head); err != nil {
		r.bad(from, "notice", err)
		return
	}
	id := fsm.QueueID(m.Queue)
	switch m.Kind {
	case peerpb.Notice_LEADER:
		r.routes.Lead(id, from, m.Term)
	case peerpb.Notice_NOT_LEADER:
		r.routes.Lose(id, from)
	case peerpb.Notice_FULL, peerpb.Notice_TRANSFERRING:
		r.routes.Pause(id, from)
	case peerpb.Notice_MISSED:
		if g := r.replica(fsm.GroupID(m.Group)); g != nil {
			g.Missed(from)
		}
	default:
		r.routes.Notice(id, r.sessionID(m.Session, m.Boot), stream.Notice{
			Kind: m.Kind, Consumer: m.Consumer, IDs: m.Deliveries, Limit: fsm.Millis(m.Timeout),
		})
	}
}

// onResync answers a session that misses deliveries.
func (r *receiver) onResync(from string, head, _ []byte) {
	var m peerpb.Resync
	if err := m.UnmarshalVT(head); err != nil {
		r.bad(from, "resync", err)
		return
	}
	n, ok := r.view().NodeByName(from)
	if !ok {
		return
	}
	session := fsm.SessionID{Boot: m.Boot, Num: m.Session}
	if m.Session != 0 { // otherwise it is a queue that sends dead letters
		session.Node = fsm.NodeID(n.Number)
	}
	answerResync(r.groups, fsm.GroupID(m.Group), stream.Resync{Session: session, Consumer: m.Consumer, After: m.After, Commands: m.Commands})
}

// answerResync answers if this node leads the group.
func answerResync(groups *group.Host, id fsm.GroupID, q stream.Resync) {
	switch g := groups.Group(id); {
	case g == nil:
	case q.Commands != 0:
		g.Recall(q.Session, q.Commands)
	default:
		g.Resync(fsm.ConsumerID{Session: q.Session, Number: q.Consumer}, q.After)
	}
}
