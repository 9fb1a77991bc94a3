package broker

import (
	"errors"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// weighedBatch is a delivery batch that is being filled, and what its messages cost.
type weighedBatch struct {
	stream.DeliveryBatch
	weight int
}

// Perform acts on what a group that this node leads has committed. Messages
// go out before the answers, so that a get finds its message when it is answered.
func (b *Broker) Perform(g *group.Group, w *group.Work) {
	queue := g.Spec().Queue
	from := 0
	for i := range w.Resyncs {
		at := w.Resyncs[i].At
		b.performDeliveries(g, queue, w.Deliveries[from:at])
		b.performResync(g, queue, &w.Resyncs[i])
		from = at
	}
	b.performDeliveries(g, queue, w.Deliveries[from:])
	b.noteLateness(g, w)
	for _, t := range w.Timeouts {
		b.tell(g, t.To, stream.Notice{Kind: peerpb.Notice_TIMED_OUT, Consumer: t.To.Number, IDs: t.Deliveries, Limit: t.Limit})
	}
	b.performOutcomes(queue, w.Outcomes)
	for _, c := range w.Cancelled {
		b.tell(g, c, stream.Notice{Kind: peerpb.Notice_CANCELLED, Consumer: c.Number})
	}
	if len(w.DeadLetters) > 0 {
		b.letters.SendOnce(g, w.DeadLetters)
	}
	if w.Outbox {
		b.letters.Forward(g)
	}
	if w.Gone {
		b.removeGone(g)
	}
	if w.Silence {
		b.noteNodes(g)
	}
}

// Bounds of what goes to a session in one frame, and at once: it asks for the
// rest as it has room.
const (
	maxFrameBytes = 1 << 20
	maxPush       = 2 << 20
)

// payloads reads what deliveries carry, as a group does.
type payloads interface {
	Payload(fsm.Ref) ([]byte, error)
}

// performDeliveries sends runs of messages to the sessions they are for.
func (b *Broker) performDeliveries(from payloads, queue fsm.QueueID, ds []fsm.Delivery) {
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
		b.push(from, queue, s, ds, bySession[s])
	}
}

// push sends a session those of ds that are for it, up to the bound; of the
// rest it is told the last one of each consumer. Gets have no bound: each is
// waited for.
func (b *Broker) push(from payloads, queue fsm.QueueID, s fsm.SessionID, ds []fsm.Delivery, which []int) {
	var d weighedBatch
	var cut map[uint64]int
	pushed := 0
	for _, i := range which {
		number := ds[i].To.Number
		if pushed >= maxPush && number != 0 {
			if cut == nil {
				cut = map[uint64]int{}
			}
			cut[number] = i
			continue
		}
		before := d.weight
		b.add(&d, from, &ds[i])
		pushed += d.weight - before
		if d.weight >= maxFrameBytes {
			b.hand(queue, s, d.DeliveryBatch)
			d = weighedBatch{}
		}
	}
	for number, i := range cut {
		d.announce(number, ds[i].ID)
	}
	if len(d.Messages) > 0 {
		b.hand(queue, s, d.DeliveryBatch)
	}
}

// add reads a delivery's payload and adds it to d. One whose payload is gone is
// left out: the session notices the gap, if the delivery still means anything.
func (b *Broker) add(d *weighedBatch, from payloads, of *fsm.Delivery) {
	raw, err := from.Payload(of.Ref)
	if err != nil {
		b.slog.Debug("payload is gone", "ref", of.Ref, "error", err)
		return
	}
	p := fsm.Readable(raw)
	d.Messages = append(d.Messages, fsm.Message{
		Consumer: of.To.Number, ID: of.ID, Payload: p, Acquired: of.Acquired, Failed: of.Failed, Deaths: of.Deaths, Ready: of.Ready, ScheduledFor: of.ScheduledFor,
	})
	d.weight += len(p) + group.DeliveryWeight
}

// announce adds a delivery without its message.
func (d *weighedBatch) announce(consumer, id uint64) {
	d.Messages = append(d.Messages, fsm.Message{Consumer: consumer, ID: id})
}

// hand gives a session what it has to be given, here or at its node.
func (b *Broker) hand(queue fsm.QueueID, s fsm.SessionID, d stream.DeliveryBatch) {
	if b.isSelf(s.Node) {
		b.deliver(queue, s, d)
		return
	}
	node := b.nodeName(s.Node)
	if node == "" {
		return
	}
	m := &peerpb.Deliveries{
		Queue: uint64(queue), Session: s.Num, Boot: s.Boot, Resync: d.Resync, Consumer: d.Consumer, Upto: d.Last,
	}
	all := make([]peerpb.Delivery, len(d.Messages))
	m.Deliveries = make([]*peerpb.Delivery, len(all))
	payloads := make([][]byte, 0, len(all))
	for i := range d.Messages {
		of := &d.Messages[i]
		all[i].Consumer, all[i].Id, all[i].Size = of.Consumer, of.ID, uint32(len(of.Payload))
		all[i].Acquired, all[i].Failed, all[i].Ready = of.Acquired, of.Failed, of.Ready
		all[i].ScheduledFor = int64(of.ScheduledFor)
		if len(of.Deaths) > 0 {
			all[i].Deaths = encodeDeaths(of.Deaths)
		}
		m.Deliveries[i] = &all[i]
		if len(of.Payload) > 0 {
			payloads = append(payloads, of.Payload)
		}
	}
	b.sendOrRepeat(node, queue, kindDeliveries, m, payloads...)
}

// deliver gives a session of this node what is for it.
func (b *Broker) deliver(queue fsm.QueueID, s fsm.SessionID, d stream.DeliveryBatch) {
	if to := b.routes.Stream(queue, s); to != nil {
		to.Receive(d)
	}
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
func (b *Broker) performResync(from payloads, queue fsm.QueueID, r *group.Resynced) {
	d := weighedBatch{DeliveryBatch: stream.DeliveryBatch{Resync: true, Consumer: r.To.Number, Last: r.UpTo}}
	for i := range r.Held {
		b.add(&d, from, &r.Held[i])
	}
	if r.More != 0 {
		d.announce(r.To.Number, r.More)
	}
	b.hand(queue, r.To.Session, d.DeliveryBatch)
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
	r := b.routes.Find(fsm.QueueID(s.Boot))
	if r == nil {
		return ""
	}
	leader, _, _ := r.Leader()
	return leader
}

// answer passes outcomes, which came from a node, to the stream they belong to.
func (b *Broker) answer(from string, queue fsm.QueueID, s fsm.SessionID, outcomes []group.Outcome) {
	if to := b.routes.Stream(queue, s); to != nil {
		to.Answer(from, outcomes)
	}
}

// notice passes on what a queue's leader has to say to a session of this node.
func (b *Broker) notice(queue fsm.QueueID, s fsm.SessionID, n stream.Notice) {
	if to := b.routes.Stream(queue, s); to != nil {
		to.Notice(n)
	}
}

// tell passes a notice about a consumer to its session.
func (b *Broker) tell(g *group.Group, to fsm.ConsumerID, n stream.Notice) {
	queue := g.Spec().Queue
	if b.isSelf(to.Session.Node) {
		b.notice(queue, to.Session, n)
		return
	}
	if node := b.nodeName(to.Session.Node); node != "" {
		b.send(node, kindNotice, &peerpb.Notice{
			Kind: n.Kind, Queue: uint64(queue), Session: to.Session.Num, Boot: to.Session.Boot,
			Consumer: n.Consumer, Deliveries: n.IDs, Timeout: uint64(n.Limit),
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
	if err = b.transmit(node, k, head, payloads...); err != nil {
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
		b.routes.Lose(g.Spec().Queue, b.config.Node)
		return
	}
	b.send(from, kindNotice, &peerpb.Notice{
		Kind: peerpb.Notice_NOT_LEADER, Queue: uint64(g.Spec().Queue), Group: uint32(g.Spec().Group),
	})
}
