package broker

import (
	"errors"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// delivered are messages for one session, from one queue.
type delivered struct {
	consumer []uint64 // numbers, one for each message
	messages []fsm.Message
	resync   bool
	upto     uint64
	who      uint64 // resync: the consumer
}

// told is a notice for one session about one of its consumers.
type told struct {
	kind     peerpb.Notice_Kind
	consumer uint64
	ids      []uint64
	limit    fsm.Millis
}

// Perform acts on what a group that this node leads has committed. Messages
// go out before the answers, so that a get finds its message when it is answered.
func (b *Broker) Perform(g *group.Group, w *group.Work) {
	queue := g.Spec().Queue
	from := 0
	for i := range w.Resyncs {
		at := w.Resyncs[i].At
		b.performDeliveries(queue, w.Deliveries[from:at], w.Payloads[from:at])
		b.performResync(queue, &w.Resyncs[i])
		from = at
	}
	b.performDeliveries(queue, w.Deliveries[from:], w.Payloads[from:])
	for _, t := range w.Timeouts {
		b.tell(g, t.To, told{kind: peerpb.Notice_TIMED_OUT, consumer: t.To.Number, ids: t.Deliveries, limit: t.Limit})
	}
	b.performOutcomes(queue, w.Outcomes)
	for _, c := range w.Cancelled {
		b.tell(g, c, told{kind: peerpb.Notice_CANCELLED, consumer: c.Number})
	}
	if w.Outbox {
		b.forward(g)
	}
	if w.Gone {
		b.removeGone(g)
	}
}

// performDeliveries sends runs of messages to the sessions they are for.
func (b *Broker) performDeliveries(queue fsm.QueueID, ds []fsm.Delivery, payloads [][]byte) {
	if len(ds) == 0 {
		return
	}
	bySession := map[fsm.SessionID][]int{}
	var order []fsm.SessionID
	for i := range ds {
		s := ds[i].To.Session
		if _, seen := bySession[s]; !seen {
			order = append(order, s)
		}
		bySession[s] = append(bySession[s], i)
	}
	for _, s := range order {
		if b.isSelf(s.Node) {
			b.deliverLocal(queue, s, ds, payloads, bySession[s])
		} else {
			b.deliverRemote(queue, s, ds, payloads, bySession[s])
		}
	}
}

func (b *Broker) deliverLocal(queue fsm.QueueID, s fsm.SessionID, ds []fsm.Delivery, payloads [][]byte, which []int) {
	o := b.owner(s)
	t := b.findTarget(queue)
	if o == nil || t == nil {
		return
	}
	l := t.lane(s)
	if l == nil {
		return
	}
	var d delivered
	for _, i := range which {
		if payloads[i] == nil {
			continue // gone: the session notices the gap and asks
		}
		d.consumer = append(d.consumer, ds[i].To.Number)
		d.messages = append(d.messages, fsm.Message{
			ID: ds[i].ID, Payload: payloads[i], Acquired: ds[i].Acquired, Failed: ds[i].Failed,
			Deaths: ds[i].Deaths, Ready: ds[i].Ready,
		})
	}
	o.deliver(l, d)
}

// maxFrameBytes bounds the payloads of one frame of deliveries.
const maxFrameBytes = 1 << 20

func (b *Broker) deliverRemote(queue fsm.QueueID, s fsm.SessionID, ds []fsm.Delivery, payloads [][]byte, which []int) {
	node := b.nodeName(s.Node)
	if node == "" {
		return
	}
	for len(which) > 0 {
		m := &peerpb.Deliveries{Queue: uint64(queue), Session: s.Num, Boot: s.Boot}
		parts, bytes, n := [][]byte(nil), 0, 0
		for ; n < len(which) && (n == 0 || bytes < maxFrameBytes); n++ {
			i := which[n]
			if payloads[i] == nil {
				continue
			}
			m.Deliveries = append(m.Deliveries, deliveryProto(&ds[i], len(payloads[i])))
			parts = append(parts, payloads[i])
			bytes += len(payloads[i])
		}
		which = which[n:]
		b.sendOrRepeat(node, queue, kindDeliveries, m, parts...)
	}
}

func deliveryProto(d *fsm.Delivery, size int) *peerpb.Delivery {
	p := &peerpb.Delivery{
		Consumer: d.To.Number, Id: d.ID, Size: uint32(size),
		Acquired: d.Acquired, Failed: d.Failed, Ready: d.Ready,
	}
	if len(d.Deaths) > 0 {
		p.Deaths = encodeDeaths(d.Deaths)
	}
	return p
}

func encodeDeaths(deaths []*logpb.Death) []byte {
	out, err := (&logpb.MessageState{Deaths: deaths}).MarshalVT()
	if err != nil {
		panic(err) // a message without required fields always encodes
	}
	return out
}

func decodeDeaths(in []byte) ([]*logpb.Death, error) {
	if len(in) == 0 {
		return nil, nil
	}
	var m logpb.MessageState
	err := m.UnmarshalVT(in)
	return m.Deaths, err
}

// performResync sends a session what a consumer of it holds.
func (b *Broker) performResync(queue fsm.QueueID, r *group.Resynced) {
	s := r.To.Session
	if !b.isSelf(s.Node) {
		b.resyncRemote(queue, r)
		return
	}
	o, t := b.owner(s), b.findTarget(queue)
	if o == nil || t == nil {
		return
	}
	l := t.lane(s)
	if l == nil {
		return
	}
	d := delivered{resync: true, who: r.To.Number, upto: r.UpTo}
	for i := range r.Held {
		if h := &r.Held[i]; r.Payloads[i] != nil {
			d.consumer = append(d.consumer, r.To.Number)
			d.messages = append(d.messages, fsm.Message{
				ID: h.ID, Payload: r.Payloads[i], Acquired: h.Acquired, Failed: h.Failed, Deaths: h.Deaths,
			})
		}
	}
	o.deliver(l, d)
}

func (b *Broker) resyncRemote(queue fsm.QueueID, r *group.Resynced) {
	node := b.nodeName(r.To.Session.Node)
	if node == "" {
		return
	}
	for i, last := 0, false; !last; {
		m := &peerpb.Deliveries{
			Queue: uint64(queue), Session: r.To.Session.Num, Boot: r.To.Session.Boot,
			Resync: true, Consumer: r.To.Number,
		}
		var parts [][]byte
		for bytes := 0; i < len(r.Held) && bytes < maxFrameBytes; i++ {
			m.Upto = r.Held[i].ID
			if p := r.Payloads[i]; p != nil {
				m.Deliveries = append(m.Deliveries, deliveryProto(&r.Held[i], len(p)))
				parts = append(parts, p)
				bytes += len(p)
			}
		}
		if last = i == len(r.Held); last {
			m.Upto = r.UpTo
		}
		b.sendOrRepeat(node, queue, kindDeliveries, m, parts...)
	}
}

// performOutcomes answers the sessions whose commands were applied.
func (b *Broker) performOutcomes(queue fsm.QueueID, outcomes []group.Outcome) {
	remote := map[fsm.SessionID]*peerpb.Outcomes{}
	var order []fsm.SessionID
	for i := 0; i < len(outcomes); {
		s := outcomes[i].Session
		n := i + 1
		for n < len(outcomes) && outcomes[n].Session == s {
			n++
		}
		if b.here(s) {
			b.answer(b.config.Node, queue, s, outcomes[i:n])
		} else {
			m := remote[s]
			if m == nil {
				m = &peerpb.Outcomes{Queue: uint64(queue), Session: s.Num, Boot: s.Boot}
				remote[s] = m
				order = append(order, s)
			}
			for _, o := range outcomes[i:n] {
				m.Outcomes = append(m.Outcomes, &peerpb.Outcome{
					First: o.First, Run: o.Run, Code: uint32(o.Result.Code),
					Count: o.Result.Count, Consumers: o.Result.Consumers, Next: o.Result.Next,
				})
			}
		}
		i = n
	}
	for _, s := range order {
		if node := b.answerTo(s); node != "" {
			b.sendOrRepeat(node, queue, kindOutcomes, remote[s])
		}
	}
}

// here reports whether the session's answers are for this node.
func (b *Broker) here(s fsm.SessionID) bool {
	return b.isSelf(s.Node) || s.Node == 0 && b.answerTo(s) == b.config.Node
}

// answerTo names the node that waits for a session's answers: its own, or the
// leader of the queue that forwards dead letters.
func (b *Broker) answerTo(s fsm.SessionID) string {
	if s.Node != 0 {
		return b.nodeName(s.Node)
	}
	t := b.findTarget(fsm.QueueID(s.Boot))
	if t == nil {
		return ""
	}
	leader, _, _ := t.leaderNow()
	return leader
}

// answer passes outcomes, which came from a node, to the lane they belong to.
func (b *Broker) answer(from string, queue fsm.QueueID, s fsm.SessionID, outcomes []group.Outcome) {
	o, t := b.owner(s), b.findTarget(queue)
	if o == nil || t == nil {
		return
	}
	l := t.lane(s)
	if l == nil {
		return
	}
	o.lock().Lock()
	for i := range outcomes {
		if outcomes[i].Result.Code == fsm.NoSession && !t.isLeader(from) {
			continue // of a former leader, about commands that have been sent again since
		}
		l.answered(outcomes[i].First, outcomes[i].Run, outcomes[i].Result)
	}
	o.release()
}

// tell passes a notice about a consumer to its session.
func (b *Broker) tell(g *group.Group, to fsm.ConsumerID, n told) {
	queue := g.Spec().Queue
	if b.isSelf(to.Session.Node) {
		if o, t := b.owner(to.Session), b.findTarget(queue); o != nil && t != nil {
			if l := t.lane(to.Session); l != nil {
				o.told(l, n)
			}
		}
		return
	}
	if node := b.nodeName(to.Session.Node); node != "" {
		b.send(node, kindNotice, &peerpb.Notice{
			Kind: n.kind, Queue: uint64(queue), Session: to.Session.Num, Boot: to.Session.Boot,
			Consumer: n.consumer, Deliveries: n.ids, Timeout: uint64(n.limit),
		})
	}
}

// nodeName returns the name of a node by its number, empty if unknown.
func (b *Broker) nodeName(id fsm.NodeID) string {
	if n, ok := b.view().Node(id); ok {
		return n.Name
	}
	return ""
}

// vtMessage is a generated message.
type vtMessage interface{ MarshalVT() ([]byte, error) }

// send sends a message and lets a broken link be: whoever waits for it asks
// again when the link is back.
func (b *Broker) send(node string, k kind, m vtMessage, payloads ...[]byte) error {
	head, err := m.MarshalVT()
	if err != nil {
		b.slog.Error("message cannot be encoded", "error", err)
		return err
	}
	if err = b.mesh.Send(node, k, head, payloads...); err != nil {
		b.slog.Debug("message not sent", "node", node, "error", err)
	}
	return err
}

// unsent names a node that has missed something of a queue because its link
// was too busy: a link that holds does not make the node ask again by itself.
type unsent struct {
	node  string
	queue fsm.QueueID
}

// sendOrRepeat is send for what belongs to a queue that this node leads.
func (b *Broker) sendOrRepeat(node string, queue fsm.QueueID, k kind, m vtMessage, payloads ...[]byte) {
	if errors.Is(b.send(node, k, m, payloads...), peer.ErrBacklog) {
		b.mu.Lock()
		b.unsent[unsent{node, queue}] = struct{}{}
		b.mu.Unlock()
	}
}

// sendAgain makes nodes ask for what could not be sent to them.
func (b *Broker) sendAgain() {
	b.mu.Lock()
	all := b.unsent
	b.unsent = map[unsent]struct{}{}
	b.mu.Unlock()
	for u := range all {
		if q, ok := b.view().QueueByID(u.queue); ok {
			if g := b.host.Group(q.Group); g != nil && g.Leading() != 0 {
				b.announce(g, u.node, g.Leading())
			}
		}
	}
}

// Undecided tells the node that submitted commands to submit them again.
func (b *Broker) Undecided(g *group.Group, from string) {
	if from == "" {
		// If this node leads all the same, as after a transfer that failed,
		// the watch finds it in a moment. Sending again at once would spin.
		if t := b.findTarget(g.Spec().Queue); t != nil {
			t.lose(b.config.Node)
		}
		return
	}
	b.send(from, kindNotice, &peerpb.Notice{
		Kind: peerpb.Notice_NOT_LEADER, Queue: uint64(g.Spec().Queue), Group: uint32(g.Spec().Group),
	})
}
