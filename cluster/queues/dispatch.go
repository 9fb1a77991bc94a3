package queues

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Submit passes a batch to a queue's leader, through the local group or over the link to the
// leader's node.
func (h host) Submit(to *stream.Route, leader string, b group.Batch) error {
	if leader == h.Name() {
		g := h.Groups.Group(to.Group())
		if g == nil {
			return replica.ErrNotLeading
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
	return h.Mesh.SendWait(leader, self.KindSubmit, head, b.Payloads...)
}

// Ask asks a queue's leader for deliveries, or about commands.
func (h host) Ask(to *stream.Route, leader string, q stream.Resync) {
	if leader == h.Name() {
		answerResync(h.Groups.Group(to.Group()), q)
		return
	}
	head, err := (&peerpb.Resync{
		Group: uint32(to.Group()), Queue: uint64(to.Queue()), Session: q.Session.Num, Boot: q.Session.Boot,
		Consumer: q.Consumer, After: q.After, Commands: q.Commands,
	}).MarshalVT()
	if err == nil {
		_ = h.Mesh.Send(leader, self.KindResync, head) // after a broken link everything starts over
	}
}

// Perform acts on what a group led by this node has committed. A session gets its messages before answers, so
// that a get has its message when it is answered. Sessions that get no messages are answered first: reading
// those may take long.
func (x *Queues) Perform(g *group.Group, w *group.Work) {
	queue := g.Spec().Queue
	early, outcomes := w.SplitOutcomes()
	x.dispatcher.outcomes(queue, early)
	from := 0
	for i := range w.Resyncs {
		at := w.Resyncs[i].At
		x.dispatcher.deliveries(g, queue, w.Deliveries[from:at])
		x.dispatcher.resync(g, queue, &w.Resyncs[i])
		from = at
	}
	x.dispatcher.deliveries(g, queue, w.Deliveries[from:])
	x.Timeouts.note(g, w)
	for _, t := range w.Timeouts {
		x.dispatcher.tell(g, t.To, stream.Notice{Kind: peerpb.Notice_TIMED_OUT, Consumer: t.To.Number, IDs: t.Deliveries, Limit: t.Limit})
	}
	for _, t := range w.Tellings {
		x.dispatcher.tell(g, t.To, stream.Notice{Kind: peerpb.Notice_NEWS, Consumer: t.To.Number, IDs: t.News.Deliveries, News: t.News})
	}
	x.dispatcher.outcomes(queue, outcomes)
	for _, c := range w.Cancelled {
		x.dispatcher.tell(g, c, stream.Notice{Kind: peerpb.Notice_CANCELLED, Consumer: c.Number})
	}
	for _, c := range w.Short {
		x.dispatcher.tell(g, c, stream.Notice{Kind: peerpb.Notice_READY, Consumer: c.Number})
	}
	if len(w.DeadLetters) > 0 {
		x.letters.SendOnce(g, w.DeadLetters)
	}
	if w.Outbox {
		x.letters.Forward(g)
	}
	if w.Redrive {
		x.dispatcher.redriver.rounds.Add(g.Spec().Group)
	}
	if w.Choosers {
		x.dispatcher.chooser.rounds.Add(g.Spec().Group)
	}
	if w.Gone {
		x.removeGone(g)
	}
	if w.SuspicionChanged {
		x.failures.Report(g)
	}
}

// Led is called when this node becomes the leader of a group or ceases to be. All other nodes are
// notified; sessions that wait for the queue start to send.
func (x *Queues) Led(g *group.Group, term uint64) {
	spec := g.Spec()
	if term == 0 {
		x.letters.Drop(spec.Queue)
		x.Routes.Lose(spec.Queue, x.node.Name())
		return
	}
	x.terms.Add(1)
	x.Routes.Lead(spec.Queue, x.node.Name(), term)
	if g.IsLocal() {
		return // all nodes know, and the queue has no past
	}
	for _, p := range x.node.Mesh.Peers() {
		x.dispatcher.links.announce(g, p.Node, term)
	}
	x.failures.Report(g)
	// Machine.Resume emits the waiting dead letters as effects.
}

// LeaderWait bounds how long a request waits for the leader of a queue that may be a new one.
const LeaderWait = 15 * time.Second

// Leaders says whether queues have a leader that can commit. It waits for that, and gives up as soon
// as it is known that no answer will come.
type Leaders struct {
	node   *self.Node
	routes *stream.Table
}

// HasMajority reports whether enough members of a queue are alive to commit.
func (x *Leaders) HasMajority(q *catalog.Queue) bool {
	if q.Local {
		return true
	}
	return x.node.Mesh.HasMajority(x.node.NodeNames(x.node.View().Members(q)))
}

// Leaderless is the error for a client that waited for a queue without a leader.
func Leaderless(q *catalog.Queue) error {
	return fsm.Refuse(fsm.Unavailable, fmt.Sprintf("queue '%s' in vhost '%s' has no leader", q.Name, q.VHost))
}

// Ending is the error for a client that waited for the end of a queue whose last letters are under way.
func Ending(q *catalog.Queue) error {
	return fsm.Refuse(fsm.Unavailable, fmt.Sprintf("queue '%s' in vhost '%s' is being deleted, and its messages are dead-lettered first", q.Name, q.VHost))
}

// NoQueue is the error for a client that names a queue which is gone.
func NoQueue(q *catalog.Queue) error { return fsm.Refuse(fsm.NotFoundKind, "no "+q.String()) }

// leaderRetry is the pause before a leader that did not answer is asked again.
const leaderRetry = 50 * time.Millisecond

// Ask asks the leader of a queue until one answers as its leader, but no longer than the
// grace. gone: the queue has ended.
func (x *Leaders) Ask(ctx context.Context, q *catalog.Queue, ask func(leader string) (leads bool)) (gone bool, err error) {
	to := x.routes.Route(q)
	wait, cancel := context.WithTimeout(ctx, x.node.Grace)
	defer cancel()
	for {
		leader, _, led := to.Leader()
		if leader != "" && ask(leader) {
			return false, nil
		}
		to.Want()
		if stream.IsOver(x.node.View(), q.ID) {
			return true, nil
		}
		select {
		case <-wait.Done():
			return false, Leaderless(q)
		case <-led:
		case <-time.After(leaderRetry):
		}
	}
}

// askLeader asks the leader of a queue, which may be this node: here answers then.
func askLeader[R any, P interface {
	*R
	proto.Message
	GetLeader() bool // it has answered as the leader
}](ctx context.Context, x *Leaders, q *catalog.Queue, within time.Duration, kind peer.Kind, req proto.Message, here func() P) (r P, err error) {
	gone, err := x.Ask(ctx, q, func(leader string) bool {
		r, _ = self.Ask(ctx, x.node, leader, within, kind, req, here)
		return r.GetLeader()
	})
	if gone && err == nil {
		err = NoQueue(q)
	}
	return r, err
}

// Await returns when a queue serves.
func (x *Leaders) Await(ctx context.Context, q *catalog.Queue) error {
	to := x.routes.Route(q)
	for {
		leader, _, led := to.Leader()
		if leader != "" {
			return nil
		}
		if stream.IsOver(x.node.View(), q.ID) {
			return NoQueue(q)
		}
		select {
		case <-led:
		case <-time.After(leaderRetry):
			to.Want()
		case <-ctx.Done():
			return Leaderless(q)
		}
	}
}

// AwaitGone returns when a queue that has ended is gone from the catalog.
func (x *Leaders) AwaitGone(ctx context.Context, q *catalog.Queue) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, ok := x.node.View().QueueByID(q.ID); !ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if x.node.View().HasWill(q) {
				return Ending(q)
			}
			return Leaderless(q)
		}
	}
}

// Here reports whether this node leads a queue.
func (x *Leaders) Here(q *catalog.Queue) bool { return x.routes.Route(q).IsLeader(x.node.Name()) }

// Undecided tells the node that submitted commands to submit them again.
func (x *Queues) Undecided(g *group.Group, from string) {
	if from == "" {
		// If this node still leads, as after a failed transfer, the watch notices soon. Sending
		// again at once would spin.
		x.Routes.Lose(g.Spec().Queue, x.node.Name())
		return
	}
	x.dispatcher.links.send(from, self.KindNotice, &peerpb.Notice{
		Kind: peerpb.Notice_NOT_LEADER, Queue: uint64(g.Spec().Queue), Group: uint32(g.Spec().Group),
	})
}

// dispatcher delivers what the queues led by this node have committed to the sessions concerned:
// here directly, to another node over the link to it. It is called in the order of a queue's log.
// And it takes what other nodes send: commands for the queues led by this node, and what leaders of
// queues send to sessions of this node.
type dispatcher struct {
	*self.Node
	routes *stream.Table
	links  *links
	// chooser serves consumers with selectors.
	chooser *chooser
	// redriver goes on with redrives.
	redriver *redriver
	// readsStored reports whether a node reads payloads from its own log.
	readsStored func(node string) bool
	// replica returns this node's replica of a group; nil: it has none.
	replica func(fsm.GroupID) member
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
	MaxFrameBytes = 1 << 20
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
		if d.weight >= MaxFrameBytes {
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
	if x.Is(s.Node) {
		return nil, ""
	}
	g, _ = from.(sharer)
	if node = x.NodeName(s.Node); g == nil || node == "" || !x.readsStored(node) {
		return nil, ""
	}
	return g, node
}

// add reads a delivery's payload and adds it to d. A delivery whose payload is gone is left out:
// the session notices the gap, if the delivery still matters.
func (x *dispatcher) add(d *weighedBatch, from payloads, of *fsm.Delivery) {
	raw, err := from.Payload(of.Ref)
	if err != nil {
		x.Logger.Debug("payload no longer exists", "ref", of.Ref, "error", err)
		return
	}
	d.append(of, fsm.Readable(raw))
}

// append adds a delivery.
func (d *weighedBatch) append(of *fsm.Delivery, p fsm.Payload) {
	d.Messages = append(d.Messages, fsm.Message{
		Consumer: of.To.Number, ID: of.ID, Payload: p, Acquired: of.Acquired, Failed: of.Failed, Deaths: of.Deaths, Ready: of.Ready, ScheduledFor: of.ScheduledFor,
		ExpireAt: of.ExpireAt, EnqueuedAt: of.EnqueuedAt, LockedUntil: of.LockedUntil, LockRemaining: of.LockRemaining,
		Sequence: of.Sequence, Annotations: of.Annotations, Edit: of.Edit,
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
	if x.Is(s.Node) {
		x.routes.Stream(queue, s).Receive(d.DeliveryBatch)
		return
	}
	node := x.NodeName(s.Node)
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
		all[i].Sequence, all[i].Annotations = of.Sequence, of.Annotations
		all[i].Edit = of.Edit
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
	x.links.sendOrRepeat(node, queue, self.KindDeliveries, m, payloads...)
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
			x.routes.Stream(queue, s).Answer(x.Name(), outcomes[i:n])
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
					DeliveryCount: o.Result.DeliveryCount, Credit: o.Result.Credit,
				})
			}
		}
		i = n
	}
	for _, s := range order {
		if isBackup(s) { // any node may be restoring it
			for _, node := range x.Others("") {
				x.links.sendOrRepeat(node, queue, self.KindOutcomes, remote[s])
			}
		} else if node := x.answerTo(s); node != "" {
			x.links.sendOrRepeat(node, queue, self.KindOutcomes, remote[s])
		}
	}
}

// isBackup reports whether a session is a backup that is restored: it is of no node,
// so that another one may go on with it.
func isBackup(s fsm.SessionID) bool { return s.Node == 0 && s.Boot&RestoredSource != 0 }

// here reports whether the session's answers go to this node.
func (x *dispatcher) here(s fsm.SessionID) bool {
	return x.Is(s.Node) || s.Node == 0 && (isBackup(s) || x.answerTo(s) == x.Name())
}

// answerTo names the node that waits for a session's answers: the session's own, or the leader of
// the queue that sends dead letters.
func (x *dispatcher) answerTo(s fsm.SessionID) string {
	if s.Node != 0 {
		return x.NodeName(s.Node)
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
	if x.Is(to.Session.Node) {
		x.routes.Stream(queue, to.Session).Notice(n)
		return
	}
	if node := x.NodeName(to.Session.Node); node != "" {
		x.links.send(node, self.KindNotice, &peerpb.Notice{
			Kind: n.Kind, Queue: uint64(queue), Session: to.Session.Num, Boot: to.Session.Boot,
			Consumer: n.Consumer, Deliveries: n.IDs, Timeout: uint64(n.Limit), News: uint32(n.News.Kind), Groups: n.News.Groups,
		})
	}
}

// copyStored is up to which size a payload of this node's log is copied: it lies in a message of up to
// 512 KiB, which a client that does not read would keep in memory.
const copyStored = 8 << 10

// member is a group that shares payloads with its leader.
type member interface {
	Spec() group.Spec
	Stored(at group.Shared) []byte
	Missed(node string)
}

// read returns the payload of a delivery that was not sent because it is here; nil: it is not in memory.
// The disk is not asked: whoever reads a link waits for nothing.
func (x *dispatcher) read(queue fsm.QueueID, id fsm.GroupID, at group.Shared) fsm.Payload {
	g := x.replica(id)
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
func (x *dispatcher) listen() {
	x.Mesh.Handle(self.KindSubmit, x.onSubmit)
	x.Mesh.Handle(self.KindOutcomes, x.onOutcomes)
	x.Mesh.Handle(self.KindDeliveries, x.onDeliveries)
	x.Mesh.Handle(self.KindNotice, x.onNotice)
	x.Mesh.Handle(self.KindResync, x.onResync)
}

// bad logs an invalid message of another node.
func (x *dispatcher) bad(from, what string, err error) {
	x.Mesh.Complain(from, "bad message from peer: "+what, err)
}

// decode reads a message that may contain long lists.
func decode(head []byte, m interface{ UnmarshalVT(b []byte) error }) error {
	if err := peer.CheckFields(head); err != nil {
		return err
	}
	return m.UnmarshalVT(head)
}

// onSubmit handles commands for a queue that this node should lead.
func (x *dispatcher) onSubmit(from string, head, payload []byte) {
	var m peerpb.Submit
	if err := m.UnmarshalVT(head); err != nil {
		x.bad(from, "submit", err)
		return
	}
	if err := admit(&m, payload); err != nil {
		x.bad(from, "submit", err)
		return
	}
	kind := peerpb.Notice_NOT_LEADER
	g := x.Groups.Group(fsm.GroupID(m.Group))
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
	x.links.send(from, self.KindNotice, &peerpb.Notice{Kind: kind, Queue: m.Queue, Group: m.Group})
}

// refusal is what a node is told whose submission was not taken.
func refusal(err error, pauses bool) peerpb.Notice_Kind {
	switch {
	case pauses && errors.Is(err, group.ErrFull):
		return peerpb.Notice_FULL
	case pauses && errors.Is(err, replica.ErrTransferring):
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
		return fmt.Errorf("%d commands, but %d were announced", count, m.Count)
	case count > stream.MaxBatchCommands:
		return fmt.Errorf("%d commands at once are too many", count)
	}
	return nil
}

// onOutcomes handles answers for a session of this node.
func (x *dispatcher) onOutcomes(from string, head, _ []byte) {
	var m peerpb.Outcomes
	if err := decode(head, &m); err != nil {
		x.bad(from, "outcomes", err)
		return
	}
	outcomes := make([]group.Outcome, len(m.Outcomes))
	for i, o := range m.Outcomes {
		outcomes[i] = group.Outcome{First: o.First, Run: o.Run, Result: fsm.Result{
			Code: fsm.Code(o.Code), Count: o.Count, Consumers: o.Consumers, Next: o.Next,
			Until: fsm.Time(o.Until), State: string(o.State),
			DeliveryCount: o.DeliveryCount, Credit: o.Credit,
		}}
	}
	x.routes.Stream(fsm.QueueID(m.Queue), x.sessionID(m.Session, m.Boot)).Answer(from, outcomes)
}

// sessionID restores a session id from what a peer sends: sessions of this node carry its boot;
// number 0 is a queue that sends dead letters.
func (x *dispatcher) sessionID(num, boot uint64) fsm.SessionID {
	if num == 0 {
		return fsm.SessionID{Boot: boot}
	}
	return fsm.SessionID{Node: fsm.NodeID(x.Number.Load()), Boot: boot, Num: num}
}

// onDeliveries handles messages for a session of this node.
func (x *dispatcher) onDeliveries(from string, head, payload []byte) {
	var m peerpb.Deliveries
	if err := decode(head, &m); err != nil {
		x.bad(from, "deliveries", err)
		return
	}
	d := stream.DeliveryBatch{Resync: m.Resync, Consumer: m.Consumer, Last: m.Last}
	missed := false
	for _, p := range m.Deliveries {
		if int(p.Size) > len(payload) {
			x.bad(from, "deliveries", errors.New("payload is truncated"))
			return
		}
		deaths, err := decodeDeaths(p.Deaths)
		if err != nil {
			x.bad(from, "deliveries", err)
			return
		}
		message := fsm.Message{
			Consumer: p.Consumer, ID: p.Id, Acquired: p.Acquired, Failed: p.Failed, Deaths: deaths, Ready: p.Ready, ScheduledFor: fsm.Time(p.ScheduledFor),
			ExpireAt: fsm.Time(p.ExpiresAt), EnqueuedAt: fsm.Time(p.EnqueuedAt),
			LockedUntil: fsm.Time(p.LockedUntil), LockRemaining: fsm.Millis(p.LockRemaining), Sequence: p.Sequence, Annotations: p.Annotations, Edit: p.Edit,
		}
		if p.Size > 0 {
			message.Payload = fsm.Readable(payload[:p.Size:p.Size])
		} else if p.StoredSize > 0 {
			message.Payload = x.read(fsm.QueueID(m.Queue), fsm.GroupID(m.Group), group.Shared{
				Ref: fsm.Ref{Index: p.StoredIndex, Offset: p.StoredOffset, Size: p.StoredSize}, Term: p.StoredTerm,
			})
			missed = missed || message.Payload == nil
		}
		d.Messages = append(d.Messages, message)
		payload = payload[p.Size:]
	}
	if missed { // said before the session asks
		x.links.send(from, self.KindNotice, &peerpb.Notice{Kind: peerpb.Notice_MISSED, Queue: m.Queue, Group: m.Group})
	}
	x.routes.Stream(fsm.QueueID(m.Queue), x.sessionID(m.Session, m.Boot)).Receive(d)
}

// onNotice handles a notice of a queue's leader, or of a node that is no leader.
func (x *dispatcher) onNotice(from string, head, _ []byte) {
	var m peerpb.Notice
	if err := m.UnmarshalVT(head); err != nil {
		x.bad(from, "notice", err)
		return
	}
	id := fsm.QueueID(m.Queue)
	switch m.Kind {
	case peerpb.Notice_LEADER:
		x.routes.Lead(id, from, m.Term)
	case peerpb.Notice_NOT_LEADER:
		x.routes.Lose(id, from)
	case peerpb.Notice_FULL, peerpb.Notice_TRANSFERRING:
		x.routes.Pause(id, from)
	case peerpb.Notice_MISSED:
		if g := x.replica(fsm.GroupID(m.Group)); g != nil {
			g.Missed(from)
		}
	default:
		x.routes.Stream(id, x.sessionID(m.Session, m.Boot)).Notice(stream.Notice{
			Kind: m.Kind, Consumer: m.Consumer, IDs: m.Deliveries, Limit: fsm.Millis(m.Timeout),
			News: fsm.News{Kind: fsm.NewsKind(min(m.News, math.MaxUint8)), Deliveries: m.Deliveries, Groups: m.Groups},
		})
	}
}

// onResync answers a session that misses deliveries.
func (x *dispatcher) onResync(from string, head, _ []byte) {
	var m peerpb.Resync
	if err := m.UnmarshalVT(head); err != nil {
		x.bad(from, "resync", err)
		return
	}
	n, ok := x.View().NodeByName(from)
	if !ok {
		return
	}
	session := fsm.SessionID{Boot: m.Boot, Num: m.Session}
	if m.Session != 0 { // otherwise it is a queue that sends dead letters
		session.Node = fsm.NodeID(n.Number)
	}
	answerResync(x.Groups.Group(fsm.GroupID(m.Group)), stream.Resync{Session: session, Consumer: m.Consumer, After: m.After, Commands: m.Commands})
}

// answerResync answers if this node leads the group.
func answerResync(g *group.Group, q stream.Resync) {
	switch {
	case g == nil:
	case q.Commands != 0:
		g.Recall(q.Session, q.Commands)
	default:
		g.Resync(fsm.ConsumerID{Session: q.Session, Number: q.Consumer}, q.After)
	}
}

// links carries messages about the queues that this node leads to other nodes. Messages may be lost
// with a link: the other node asks again when the link is back. A message that did not fit into a
// working link is not asked for by itself, so this node announces itself once more as the queue's
// leader, which makes the other node ask.
type links struct {
	*self.Node
	transmit func(node string, k peer.Kind, head []byte, payloads ...[]byte) error // Mesh.Send

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
func (l *links) send(node string, k peer.Kind, m vtMessage, payloads ...[]byte) error {
	head, err := m.MarshalVT()
	if err != nil {
		l.Logger.Error("message cannot be encoded", "error", err)
		return err
	}
	if err = l.transmit(node, k, head, payloads...); err != nil {
		l.Logger.Debug("message not sent", "node", node, "error", err)
	}
	return err
}

// sendOrRepeat is send for messages of a queue that this node leads.
func (l *links) sendOrRepeat(node string, queue fsm.QueueID, k peer.Kind, m vtMessage, payloads ...[]byte) {
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
		if q, ok := l.View().QueueByID(u.queue); ok {
			if g := l.Groups.Group(q.Group); g != nil && g.Leading() != 0 {
				l.announce(g, u.node, g.Leading())
			}
		}
	}
	return len(all) > 0
}

// announce tells a node that this one leads g.
func (l *links) announce(g *group.Group, node string, term uint64) {
	if l.Mesh.Alive(node) {
		l.sendOrRepeat(node, g.Spec().Queue, self.KindNotice, &peerpb.Notice{
			Kind: peerpb.Notice_LEADER, Queue: uint64(g.Spec().Queue), Group: uint32(g.Spec().Group), Term: term,
		})
	}
}

// announceAll tells a node which groups this one leads.
func (l *links) announceAll(node string) {
	for _, g := range l.Groups.Led() {
		if term := g.Leading(); term != 0 {
			l.announce(g, node, term)
		}
	}
}
