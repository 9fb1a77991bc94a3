package session

import (
	"errors"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Submit passes a batch to a queue's leader, through the local group or over the link to the
// leader's node.
func (h *host) Submit(to *stream.Route, leader string, b group.Batch) error {
	if leader == h.name {
		g := h.groups.Group(to.Group())
		if g == nil {
			return group.ErrNotLeading
		}
		return g.Submit(b)
	}
	head, err := (&peerpb.Submit{
		Group: uint32(to.Group()), Queue: uint64(to.Queue()), Commands: b.Commands, Count: uint32(b.Count), Light: b.Light, Patient: b.Patient, Pauses: true,
	}).MarshalVT()
	if err != nil {
		return err
	}
	// Its streams are bounded: waiting here delays their clients and nobody else.
	return h.mesh.SendWait(leader, kindSubmit, head, b.Payloads...)
}

// Ask asks a queue's leader for deliveries, or about commands.
func (h *host) Ask(to *stream.Route, leader string, q stream.Resync) {
	if leader == h.name {
		answerResync(h.groups, to.Group(), q)
		return
	}
	head, err := (&peerpb.Resync{
		Group: uint32(to.Group()), Queue: uint64(to.Queue()), Session: q.Session.Num, Boot: q.Session.Boot,
		Consumer: q.Consumer, After: q.After, Commands: q.Commands,
	}).MarshalVT()
	if err == nil {
		_ = h.mesh.Send(leader, kindResync, head) // after a broken link everything starts over
	}
}

// Perform acts on what a group led by this node has committed. A session gets its messages before answers, so
// that a get has its message when it is answered. Sessions that get no messages are answered first: reading
// those may take long.
func (b *Broker) Perform(g *group.Group, w *group.Work) {
	queue := g.Spec().Queue
	early, outcomes := w.SplitOutcomes()
	b.dispatcher.outcomes(queue, early)
	from := 0
	for i := range w.Resyncs {
		at := w.Resyncs[i].At
		b.dispatcher.deliveries(g, queue, w.Deliveries[from:at])
		b.dispatcher.resync(g, queue, &w.Resyncs[i])
		from = at
	}
	b.dispatcher.deliveries(g, queue, w.Deliveries[from:])
	b.late.note(g, w)
	for _, t := range w.Timeouts {
		b.dispatcher.tell(g, t.To, stream.Notice{Kind: peerpb.Notice_TIMED_OUT, Consumer: t.To.Number, IDs: t.Deliveries, Limit: t.Limit})
	}
	b.dispatcher.outcomes(queue, outcomes)
	for _, c := range w.Cancelled {
		b.dispatcher.tell(g, c, stream.Notice{Kind: peerpb.Notice_CANCELLED, Consumer: c.Number})
	}
	for _, c := range w.Short {
		b.dispatcher.tell(g, c, stream.Notice{Kind: peerpb.Notice_READY, Consumer: c.Number})
	}
	if len(w.DeadLetters) > 0 {
		b.letters.SendOnce(g, w.DeadLetters)
	}
	if w.Outbox {
		b.letters.Forward(g)
	}
	if w.Gone {
		b.definitions.removeGone(g)
	}
	if w.SuspicionChanged {
		b.reporter.report(g)
	}
}

// Led is called when this node becomes the leader of a group or ceases to be. All other nodes are
// notified; sessions that wait for the queue start to send.
func (b *Broker) Led(g *group.Group, term uint64) {
	spec := g.Spec()
	if term == 0 {
		b.letters.Drop(spec.Queue)
		b.routes.Lose(spec.Queue, b.name)
		return
	}
	b.routes.Lead(spec.Queue, b.name, term)
	if g.IsLocal() {
		return // all nodes know, and the queue has no past
	}
	for _, p := range b.mesh.Peers() {
		b.links.announce(g, p.Node, term)
	}
	b.reporter.report(g)
	// Machine.Resume emits the waiting dead letters as effects.
}

// dispatcher delivers what the queues led by this node have committed to the sessions concerned:
// here directly, to another node over the link to it. It is called in the order of a queue's log.
type dispatcher struct {
	*node
	routes *stream.Table
	links  *links
	// readsStored reports whether a node reads payloads from its own log.
	readsStored func(node string) bool
}

// weighedBatch is a delivery batch being filled, and the cost of its messages.
type weighedBatch struct {
	stream.DeliveryBatch
	weight int
	// stored are the payloads that the session's node has in its log of group, by the positions of
	// their messages.
	stored map[int]group.Shared
	group  fsm.GroupID
}

// Bounds of what is sent to a session in one frame, and at once: it asks for the rest as it has
// space.
const (
	maxFrameBytes = 1 << 20
	maxPush       = 2 << 20
)

// minStored is the size from which a payload that the session's node has is not sent to it.
const minStored = 512

// payloads reads the payloads of deliveries, as a group does.
type payloads interface {
	Payload(fsm.Ref) ([]byte, error)
}

// sharer is a group that knows which payloads other members have.
type sharer interface {
	Spec() group.Spec
	HeldBy(node string, ref fsm.Ref) (at group.Shared, ok bool)
}

// deliveries sends runs of messages to their sessions.
func (x *dispatcher) deliveries(from payloads, queue fsm.QueueID, ds []fsm.Delivery) {
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
		x.push(from, queue, s, ds, bySession[s])
	}
}

// push sends a session its deliveries among ds, up to the bound; for the rest it announces the last
// delivery of each consumer. Gets are not bounded: the client waits for each.
func (x *dispatcher) push(from payloads, queue fsm.QueueID, s fsm.SessionID, ds []fsm.Delivery, which []int) {
	var d weighedBatch
	var cut map[uint64]int
	pushed := 0
	g, node := x.sharing(from, s)
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
		if g == nil || number == 0 || !d.addStored(g, node, &ds[i]) {
			x.add(&d, from, &ds[i])
		}
		pushed += d.weight - before
		if d.weight >= maxFrameBytes {
			x.hand(queue, s, d)
			d = weighedBatch{}
		}
	}
	for number, i := range cut {
		d.announce(number, ds[i].ID)
	}
	if len(d.Messages) > 0 {
		x.hand(queue, s, d)
	}
}

// sharing returns the group that deliveries come from, if the node of a session may have their payloads
// in its own log: it is told then where they are. Gets are given the payloads: they cannot ask again.
func (x *dispatcher) sharing(from payloads, s fsm.SessionID) (g sharer, node string) {
	if x.is(s.Node) {
		return nil, ""
	}
	g, _ = from.(sharer)
	if node = x.nameOf(s.Node); g == nil || node == "" || !x.readsStored(node) {
		return nil, ""
	}
	return g, node
}

// add reads a delivery's payload and adds it to d. A delivery whose payload is gone is left out:
// the session notices the gap, if the delivery still matters.
func (x *dispatcher) add(d *weighedBatch, from payloads, of *fsm.Delivery) {
	raw, err := from.Payload(of.Ref)
	if err != nil {
		x.slog.Debug("payload no longer exists", "ref", of.Ref, "error", err)
		return
	}
	d.append(of, fsm.Readable(raw))
}

// append adds a delivery.
func (d *weighedBatch) append(of *fsm.Delivery, p fsm.Payload) {
	d.Messages = append(d.Messages, fsm.Message{
		Consumer: of.To.Number, ID: of.ID, Payload: p, Acquired: of.Acquired, Failed: of.Failed, Deaths: of.Deaths, Ready: of.Ready, ScheduledFor: of.ScheduledFor,
		ExpireAt: of.ExpireAt, EnqueuedAt: of.EnqueuedAt, LockedUntil: of.LockedUntil, LockRemaining: of.LockRemaining,
	})
	d.weight += len(p) + group.DeliveryWeight
}

// addStored adds a delivery if the session's node has the payload. The session needs space for it as for
// any other.
func (d *weighedBatch) addStored(g sharer, node string, of *fsm.Delivery) bool {
	if of.Ref.Size < minStored {
		return false
	}
	at, ok := g.HeldBy(node, of.Ref)
	if !ok {
		return false
	}
	if d.stored == nil {
		d.stored = map[int]group.Shared{}
	}
	d.stored[len(d.Messages)], d.group = at, g.Spec().Group
	d.append(of, nil)
	d.weight += int(of.Ref.Size)
	return true
}

// announce adds a delivery without its message.
func (d *weighedBatch) announce(consumer, id uint64) {
	d.Messages = append(d.Messages, fsm.Message{Consumer: consumer, ID: id})
}

// hand passes a batch to a session, here or at its node.
func (x *dispatcher) hand(queue fsm.QueueID, s fsm.SessionID, d weighedBatch) {
	if x.is(s.Node) {
		x.routes.Deliver(queue, s, d.DeliveryBatch)
		return
	}
	node := x.nameOf(s.Node)
	if node == "" {
		return
	}
	m := &peerpb.Deliveries{
		Queue: uint64(queue), Session: s.Num, Boot: s.Boot, Resync: d.Resync, Consumer: d.Consumer, Last: d.Last, Group: uint32(d.group),
	}
	all := make([]peerpb.Delivery, len(d.Messages))
	m.Deliveries = make([]*peerpb.Delivery, len(all))
	payloads := make([][]byte, 0, len(all))
	for i := range d.Messages {
		of := &d.Messages[i]
		all[i].Consumer, all[i].Id, all[i].Size = of.Consumer, of.ID, uint32(len(of.Payload))
		all[i].Acquired, all[i].Failed, all[i].Ready = of.Acquired, of.Failed, of.Ready
		all[i].ScheduledFor = int64(of.ScheduledFor)
		all[i].ExpiresAt, all[i].EnqueuedAt = int64(of.ExpireAt), int64(of.EnqueuedAt)
		all[i].LockedUntil, all[i].LockRemaining = int64(of.LockedUntil), uint64(of.LockRemaining)
		if len(of.Deaths) > 0 {
			all[i].Deaths = encodeDeaths(of.Deaths)
		}
		m.Deliveries[i] = &all[i]
		if len(of.Payload) > 0 {
			payloads = append(payloads, of.Payload)
		} else if at, stored := d.stored[i]; stored {
			all[i].StoredIndex, all[i].StoredTerm, all[i].StoredOffset, all[i].StoredSize = at.Index, at.Term, at.Offset, at.Size
		}
	}
	x.links.sendOrRepeat(node, queue, kindDeliveries, m, payloads...)
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

// resync sends a session the messages that one of its consumers holds. Their payloads are always sent:
// what is taken from such an answer may have gaps, so a missing one would not be noticed.
func (x *dispatcher) resync(from payloads, queue fsm.QueueID, r *group.Resynced) {
	d := weighedBatch{DeliveryBatch: stream.DeliveryBatch{Resync: true, Consumer: r.To.Number, Last: r.Last}}
	for i := range r.Held {
		x.add(&d, from, &r.Held[i])
	}
	if r.More != 0 {
		d.announce(r.To.Number, r.More)
	}
	x.hand(queue, r.To.Session, d)
}

// outcomes answers the sessions whose commands were applied.
func (x *dispatcher) outcomes(queue fsm.QueueID, outcomes []group.Outcome) {
	remote := map[fsm.SessionID]*peerpb.Outcomes{}
	var order []fsm.SessionID
	for i := 0; i < len(outcomes); {
		s := outcomes[i].Session
		n := i + 1
		for n < len(outcomes) && outcomes[n].Session == s {
			n++
		}
		here := x.here(s)
		if here {
			x.routes.Answer(x.name, queue, s, outcomes[i:n])
		}
		if !here || isBackup(s) {
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
					Until: int64(o.Result.Until), State: []byte(o.Result.State),
				})
			}
		}
		i = n
	}
	for _, s := range order {
		if isBackup(s) { // any node may be restoring it
			for _, node := range x.others("") {
				x.links.sendOrRepeat(node, queue, kindOutcomes, remote[s])
			}
		} else if node := x.answerTo(s); node != "" {
			x.links.sendOrRepeat(node, queue, kindOutcomes, remote[s])
		}
	}
}

// isBackup reports whether a session is a backup that is restored: it is of no node,
// so that another one may go on with it.
func isBackup(s fsm.SessionID) bool { return s.Node == 0 && s.Boot&RestoredSource != 0 }

// here reports whether the session's answers go to this node.
func (x *dispatcher) here(s fsm.SessionID) bool {
	return x.is(s.Node) || s.Node == 0 && (isBackup(s) || x.answerTo(s) == x.name)
}

// answerTo names the node that waits for a session's answers: the session's own, or the leader of
// the queue that sends dead letters.
func (x *dispatcher) answerTo(s fsm.SessionID) string {
	if s.Node != 0 {
		return x.nameOf(s.Node)
	}
	r := x.routes.Find(fsm.QueueID(s.Boot))
	if r == nil {
		return ""
	}
	leader, _, _ := r.Leader()
	return leader
}

// tell passes a notice about a consumer to its session.
func (x *dispatcher) tell(g *group.Group, to fsm.ConsumerID, n stream.Notice) {
	queue := g.Spec().Queue
	if x.is(to.Session.Node) {
		x.routes.Notice(queue, to.Session, n)
		return
	}
	if node := x.nameOf(to.Session.Node); node != "" {
		x.links.send(node, kindNotice, &peerpb.Notice{
			Kind: n.Kind, Queue: uint64(queue), Session: to.Session.Num, Boot: to.Session.Boot,
			Consumer: n.Consumer, Deliveries: n.IDs, Timeout: uint64(n.Limit),
		})
	}
}

// Undecided tells the node that submitted commands to submit them again.
func (b *Broker) Undecided(g *group.Group, from string) {
	if from == "" {
		// If this node still leads, as after a failed transfer, the watch notices soon. Sending
		// again at once would spin.
		b.routes.Lose(g.Spec().Queue, b.name)
		return
	}
	b.links.send(from, kindNotice, &peerpb.Notice{
		Kind: peerpb.Notice_NOT_LEADER, Queue: uint64(g.Spec().Queue), Group: uint32(g.Spec().Group),
	})
}

// links carries messages about the queues that this node leads to other nodes. Messages may be lost
// with a link: the other node asks again when the link is back. A message that did not fit into a
// working link is not asked for by itself, so this node announces itself once more as the queue's
// leader, which makes the other node ask.
type links struct {
	*node
	transmit func(node string, k kind, head []byte, payloads ...[]byte) error // Mesh.Send

	mu     sync.Mutex
	unsent map[unsent]struct{}
}

// unsent names a node that missed something of a queue because its link was too busy.
type unsent struct {
	node  string
	queue fsm.QueueID
}

// vtMessage is a generated message.
type vtMessage interface{ MarshalVT() ([]byte, error) }

// send sends a message.
func (l *links) send(node string, k kind, m vtMessage, payloads ...[]byte) error {
	head, err := m.MarshalVT()
	if err != nil {
		l.slog.Error("message cannot be encoded", "error", err)
		return err
	}
	if err = l.transmit(node, k, head, payloads...); err != nil {
		l.slog.Debug("message not sent", "node", node, "error", err)
	}
	return err
}

// sendOrRepeat is send for messages of a queue that this node leads.
func (l *links) sendOrRepeat(node string, queue fsm.QueueID, k kind, m vtMessage, payloads ...[]byte) {
	if errors.Is(l.send(node, k, m, payloads...), peer.ErrBacklog) {
		l.mu.Lock()
		l.unsent[unsent{node, queue}] = struct{}{}
		l.mu.Unlock()
	}
}

// repeat makes nodes ask for what could not be sent to them.
func (l *links) repeat() (some bool) {
	l.mu.Lock()
	all := l.unsent
	l.unsent = map[unsent]struct{}{}
	l.mu.Unlock()
	for u := range all {
		if q, ok := l.view().QueueByID(u.queue); ok {
			if g := l.groups.Group(q.Group); g != nil && g.Leading() != 0 {
				l.announce(g, u.node, g.Leading())
			}
		}
	}
	return len(all) > 0
}

// announce tells a node that this one leads g.
func (l *links) announce(g *group.Group, node string, term uint64) {
	if l.mesh.Alive(node) {
		l.sendOrRepeat(node, g.Spec().Queue, kindNotice, &peerpb.Notice{
			Kind: peerpb.Notice_LEADER, Queue: uint64(g.Spec().Queue), Group: uint32(g.Spec().Group), Term: term,
		})
	}
}

// announceAll tells a node which groups this one leads.
func (l *links) announceAll(node string) {
	for _, g := range l.groups.Led() {
		if term := g.Leading(); term != 0 {
			l.announce(g, node, term)
		}
	}
}
