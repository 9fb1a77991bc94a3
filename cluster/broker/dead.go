package broker

import (
	mathrand "math/rand/v2"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of what is routed, and is on its way to one target, at a time.
const (
	routeAtOnce   = 512
	forwardAtOnce = 512
	retryAtOnce   = 4096 // letters that wait, in one run
	targetsAtOnce = 512  // looked at under the queue's lock
	forwardBytes  = 4 << 20
)

// proposeAgain is when a proposal of the forwarder that has had no effect is
// taken for lost.
const proposeAgain = 1000 // milliseconds

// retryEvery is how often ways are looked for again if nothing has changed.
const retryEvery = 10_000 // milliseconds

// source is the group whose dead letters are forwarded: *group.Group.
type source interface {
	Spec() group.Spec
	View(f func(m *queue.Machine))
	Submit(b group.Batch) error
	Payload(ref fsm.Ref) ([]byte, error)
	// Guard does something for the group; false: it has panicked.
	Guard(doing string, f func()) bool
}

// forwarder brings the dead letters of a queue that this node leads to their
// targets. It is a session of its own kind: its stream to each target is
// numbered by the source's log, so a successor on another node sends the same
// letters under the same numbers, and each target takes each letter once.
type forwarder struct {
	broker *Broker
	group  source
	id     fsm.SessionID

	mu      sync.Mutex
	streams map[fsm.QueueID]*transfers
	again   bool // something has changed since run looked
	running bool
	stopped bool

	// Used by run only.
	routing   uint64 // first letter of the route that was proposed last
	routedAt  int64  // ms
	retriedAs *logpb.QueueConfig
	retriedIn *catalog.View // where letters that wait were last looked at for a way
	retriedAt int64         // ms
	retrying  bool          // those behind letter retried are still to be looked at
	retried   uint64
}

// forward sees to it that a led queue's dead letters move.
func (b *Broker) forward(g *group.Group) {
	id := g.Spec().Queue
	b.mu.Lock()
	f := b.forwarders[id]
	if f == nil && g.Leading() != 0 && !b.closed { // else dropForwarder has been here, or Close
		f = newForwarder(b, g)
		b.forwarders[id] = f
	}
	b.mu.Unlock()
	if f != nil {
		f.kick()
	}
}

func newForwarder(b *Broker, from source) *forwarder {
	return &forwarder{
		broker: b, group: from, id: fsm.SessionID{Boot: uint64(from.Spec().Queue)},
		streams: map[fsm.QueueID]*transfers{},
	}
}

// dropForwarder ends the forwarder of a queue that this node no longer leads.
func (b *Broker) dropForwarder(id fsm.QueueID) {
	b.mu.Lock()
	f := b.forwarders[id]
	delete(b.forwarders, id)
	b.mu.Unlock()
	if f != nil {
		f.stop()
	}
}

// kickForwarders lets every forwarder look again: a proposal may have been
// lost, or a way may have opened.
func (b *Broker) kickForwarders() {
	b.mu.RLock()
	all := make([]*forwarder, 0, len(b.forwarders))
	for _, f := range b.forwarders {
		all = append(all, f)
	}
	b.mu.RUnlock()
	for _, f := range all {
		if f.waiting() {
			f.kick()
		}
	}
}

// waiting reports whether the outbox holds anything, or a target that may be gone.
func (f *forwarder) waiting() (yes bool) {
	f.group.View(func(m *queue.Machine) { yes = m.Stats().Outbox.Messages > 0 || len(m.Targets(0, 1)) > 0 })
	return yes
}

// kick runs the forwarder, once more if it is running.
func (f *forwarder) kick() {
	f.lock()
	defer f.unlock()
	f.again = true
}

func (f *forwarder) stop() {
	f.mu.Lock()
	f.stopped = true
	streams := f.streams
	f.streams = map[fsm.QueueID]*transfers{}
	f.mu.Unlock()
	for _, t := range streams {
		if t.stream != nil {
			t.stream.Route().Detach(t.stream)
		}
	}
}

// run works for the source. A panic quarantines that: its successor, on another
// node, begins where the log says.
func (f *forwarder) run() {
	if !f.group.Guard("forward dead letters", f.work) {
		f.stop()
	}
}

// work routes, forwards and settles until nothing changes any more. Proposals
// are not waited for: what they change kicks again.
func (f *forwarder) work() {
	for {
		f.mu.Lock()
		if !f.again || f.stopped {
			f.running = false
			f.mu.Unlock()
			return
		}
		f.again = false
		f.mu.Unlock()
		f.routeLetters()
		f.retryLetters()
		f.moveTransfers()
	}
}

// propose submits a command of the source queue. If this node has lost the
// lead, its successor does the same again.
func (f *forwarder) propose(c *logpb.Command) {
	b := commandsOf(c)
	b.Light = true // it need not wait for what clients publish
	_ = f.group.Submit(b)
}

// routeLetters decides where the oldest letters without a route go. The
// decision is in the source's log before anything is forwarded.
func (f *forwarder) routeLetters() {
	if !f.broker.config.Catalog.Fresh() {
		return // the watch comes back to it
	}
	var letters []queue.Letter
	var config *logpb.QueueConfig
	f.group.View(func(m *queue.Machine) {
		if letters = m.UnroutedLetters(1); len(letters) > 0 && f.mayRoute(letters[0].Number) {
			letters, config = m.UnroutedLetters(routeAtOnce), m.Config()
		}
	})
	if config == nil {
		return
	}
	view := f.broker.view()
	r := &logpb.RouteDead{First: letters[0].Number}
	for i := range letters {
		r.Routes = append(r.Routes, f.routeLetter(view, config, &letters[i]))
	}
	f.propose(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
}

// pending reports whether a proposal of that time may still have an effect.
func (f *forwarder) pending(at int64) bool {
	passed := f.broker.now() - at
	return passed >= 0 && passed < proposeAgain
}

// mayRoute reports whether no proposal that routes this letter is under way.
func (f *forwarder) mayRoute(first uint64) bool {
	if first == f.routing && f.pending(f.routedAt) {
		return false
	}
	f.routing, f.routedAt = first, f.broker.now()
	return true
}

// routeLetter says where a letter goes.
func (f *forwarder) routeLetter(v *catalog.View, c *logpb.QueueConfig, l *queue.Letter) *logpb.DeadRoute {
	r := &logpb.DeadRoute{}
	p, err := f.payload(l)
	if err != nil {
		return r
	}
	var queues []*catalog.Queue
	var limits catalog.Ceilings
	if isDue(&l.DeadLetter) {
		queues, limits = f.broker.dueTargets(v, f.group.Spec().Queue, &l.DeadLetter, p)
		r.Unroutable = len(queues) == 0
	}
	if len(queues) == 0 && c.GetDeadLetter() {
		queues, limits = f.broker.deadTargets(v, f.group.Spec().VHost, c, &l.DeadLetter, p)
	}
	for i, q := range queues {
		r.Targets = append(r.Targets, uint64(q.ID))
		if limit := limits.PlusOne(q); limit != 0 {
			r.TtlCeilingsPlusOne = append(r.TtlCeilingsPlusOne, make([]uint64, i-len(r.TtlCeilingsPlusOne))...)
			r.TtlCeilingsPlusOne = append(r.TtlCeilingsPlusOne, limit)
		}
	}
	r.Unroutable = r.Unroutable && len(queues) > 0
	return r
}

// deadTargets returns the queues that a dead message goes to, and how long the
// exchanges on its way let it live there.
func (b *Broker) deadTargets(v *catalog.View, vhost string, c *logpb.QueueConfig, l *fsm.DeadLetter, p fsm.Payload) ([]*catalog.Queue, catalog.Ceilings) {
	keys := []string{fsm.Short(c.DeadLetterRoutingKey)}
	if !c.HasDeadLetterRoutingKey {
		keys = append(b.keys(p), p.BlindKeys()...)
	}
	queues, limits, err := v.Route(vhost, c.DeadLetterExchange, &catalog.Message{
		Keys:     keys,
		Headers:  func() *fsm.Table { return b.config.Properties.Headers(p.Properties(), b.deaths(l, p)) },
		Property: func(name string) []byte { return b.config.Properties.Property(p.Properties(), name) },
		Chance:   mathrand.Uint64(), Local: b.leadsHere, Passed: b.used, Delayed: !c.DelayedStore && b.config.Properties.Delay(p.Properties()) > 0,
	}, nil)
	if err != nil {
		return nil, limits
	}
	return slices.DeleteFunc(queues, func(q *catalog.Queue) bool { return cycle(l.Deaths, q.Name) }), limits
}

// keys returns the routing keys of a message that receivers may see.
func (b *Broker) keys(p fsm.Payload) []string {
	return append([]string{string(p.RoutingKey())}, b.config.Properties.Copies(p.Properties())...)
}

func (f *forwarder) payload(l *queue.Letter) (fsm.Payload, error) {
	raw, err := f.group.Payload(l.Ref)
	if err != nil {
		f.broker.slog.Error("dead letter has no payload", "queue", f.group.Spec().Name, "letter", l.Number, "error", err)
		return nil, err
	}
	return fsm.Readable(raw), nil
}

// cycle reports whether a letter would come back to a queue where it has died
// before without anybody having rejected it on the way.
func cycle(deaths []*logpb.Death, target string) bool {
	for _, d := range deaths {
		if d.Reason == logpb.Death_REJECTED {
			return false
		}
		if d.Queue == target {
			return true
		}
	}
	return false
}

// moveTransfers tells the source what its targets hold, and queues what is
// routed and not yet on its way.
func (f *forwarder) moveTransfers() {
	view := f.broker.view()
	for after := fsm.QueueID(0); ; {
		var targets []queue.Target
		f.group.View(func(m *queue.Machine) { targets = m.Targets(after, targetsAtOnce) })
		for _, t := range targets {
			f.moveTo(view, t)
		}
		if len(targets) < targetsAtOnce {
			break
		}
		after = targets[len(targets)-1].ID
	}
	f.forget()
}

// moveTo tells the source what one target holds, and queues what goes there.
func (f *forwarder) moveTo(view *catalog.View, t queue.Target) {
	q, ok := view.QueueByID(t.ID)
	switch {
	case ok:
		f.settle(t)
		if t.Settled+1 < t.Next {
			f.sendTo(q, t)
		}
	case stream.IsOver(view, t.ID):
		f.broker.QueueGone(t.ID) // if nobody has done so yet
		// What the target took while it was there does not go with it.
		if !f.settle(t) {
			f.settleGone(t.ID)
		}
	}
}

// forget drops what is known of targets that the source has settled as gone.
// The letters that did not arrive there wait for a way by then.
func (f *forwarder) forget() {
	f.mu.Lock()
	var gone []fsm.QueueID
	for id, tr := range f.streams {
		if tr.ended {
			gone = append(gone, id)
		}
	}
	f.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	f.group.View(func(m *queue.Machine) {
		gone = slices.DeleteFunc(gone, m.HasTarget)
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range gone {
		if tr := f.streams[id]; tr != nil && tr.ended {
			delete(f.streams, id)
			f.retriedIn, f.again = nil, true
		}
	}
}

// settle tells the source which of its transfers a target has answered, and
// reports whether there are some that the source's log does not know of.
func (f *forwarder) settle(t queue.Target) bool {
	c, behind := f.settlement(t)
	if c != nil {
		f.propose(&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: c})
	}
	return behind
}

// settlement is what settle tells, nil if that is under way, and what it reports.
func (f *forwarder) settlement(t queue.Target) (c *logpb.SettleDead, behind bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tr := f.streams[t.ID]
	switch {
	case tr == nil || tr.answered <= t.Settled:
		return nil, false
	case tr.answered == tr.told && f.pending(tr.toldAt):
		return nil, true
	}
	tr.refused = slices.DeleteFunc(tr.refused, func(n uint64) bool { return n <= t.Settled })
	tr.told, tr.toldAt = tr.answered, f.broker.now()
	return &logpb.SettleDead{Target: uint64(t.ID), Upto: tr.answered, Refused: slices.Clone(tr.refused)}, true
}

// settleGone tells the source that a target is gone, and with it every transfer
// that is not settled. A stream that has not ended may still hold answers.
func (f *forwarder) settleGone(id fsm.QueueID) {
	f.mu.Lock()
	tr := f.streams[id]
	if tr == nil {
		tr = &transfers{from: f, ended: true}
		f.streams[id] = tr
	}
	if f.stopped || !tr.ended || tr.toldGone && f.pending(tr.toldAt) {
		f.mu.Unlock()
		return
	}
	tr.toldGone, tr.toldAt = true, f.broker.now()
	f.mu.Unlock()
	f.propose(&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{
		Target: uint64(id), Gone: true,
	}})
}

// sendTo fills the stream to one target.
func (f *forwarder) sendTo(q *catalog.Queue, t queue.Target) {
	tr := f.stream(q, t.Settled)
	if tr == nil {
		return
	}
	f.mu.Lock()
	from, room, bytes := tr.sent+1, forwardAtOnce-tr.stream.Waiting(), tr.bytes
	f.mu.Unlock()
	if room <= 0 || bytes >= forwardBytes || from >= t.Next {
		return
	}
	var out []queue.Outgoing
	var config *logpb.QueueConfig
	f.group.View(func(m *queue.Machine) {
		out, config = m.PendingTransfers(t.ID, from, room), m.Config()
	})
	for i := 0; i < len(out) && bytes < forwardBytes; i++ {
		o := &out[i]
		p, err := f.payload(&o.Letter)
		if err != nil {
			return
		}
		f.sendLetter(tr, o, p, config, q)
		bytes += len(p)
	}
}

// stream finds or makes the stream to a target; settled is the number of the
// last transfer that is known to be there. nil: there can be none.
func (f *forwarder) stream(q *catalog.Queue, settled uint64) *transfers {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return nil
	}
	tr := f.streams[q.ID]
	if tr == nil {
		r := f.broker.routes.Route(q)
		tr = &transfers{from: f, sent: settled}
		tr.stream = stream.New(tr, nil, f.id, r)
		tr.stream.Skip(settled)
		if r.Attach(tr.stream); tr.stream.Gone() {
			return nil // the next look finds it gone from the view, too
		}
		f.streams[q.ID] = tr
	}
	if tr.ended || tr.stream.Over() {
		return nil
	}
	if tr.sent < settled {
		// The log knows of answers to somebody else; what this stream has sent
		// of the same transfers is answered before it goes on behind them.
		if tr.stream.Waiting() > 0 {
			return nil
		}
		tr.sent = settled
		tr.stream.Skip(settled)
	}
	return tr
}

// sendLetter queues one transfer. Its number in the source's log is its number
// in the stream; a gap between the two cannot be mended and is not sent.
func (f *forwarder) sendLetter(tr *transfers, o *queue.Outgoing, p fsm.Payload, c *logpb.QueueConfig, to *catalog.Queue) {
	out := f.broker.deadPayload(c, &o.Letter.DeadLetter, p)
	e := f.broker.reenqueue(c, &o.Letter.DeadLetter, p, out, o.CeilingPlusOne)
	f.broker.delayAt(to, e, out)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped || tr.stream.Over() || o.Number != tr.stream.Next() {
		return
	}
	tr.stream.Add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e}, stream.Pending{Payload: out, Number: o.Number})
	tr.sent = o.Number
	tr.bytes += len(out)
}

// deadPayload returns a message as its dead letter carries it. What the queue's
// settings say may be longer than a short string: declares and policies of
// former versions were not checked. Then the letter carries as much as it can.
func (b *Broker) deadPayload(c *logpb.QueueConfig, l *fsm.DeadLetter, p fsm.Payload) fsm.Payload {
	properties := p.Properties()
	if c.DelayedStore {
		properties = b.config.Properties.Delayed(properties)
	}
	if isDue(l) {
		return repack(p, string(p.Exchange()), string(p.RoutingKey()), properties, p.BlindKeys())
	}
	key, blind := string(p.RoutingKey()), p.BlindKeys()
	if c.HasDeadLetterRoutingKey {
		key, blind = fsm.Short(c.DeadLetterRoutingKey), nil
		properties = b.config.Properties.Redirected(properties)
	}
	return repack(p, fsm.Short(c.DeadLetterExchange), key, properties, blind)
}

// reenqueue returns what brings a dead message, which is out now and was p, to
// a target. ceiling is what the exchanges on its way allow + 1; 0: no limit.
func (b *Broker) reenqueue(c *logpb.QueueConfig, l *fsm.DeadLetter, p, out fsm.Payload, ceiling uint64) *logpb.Enqueue {
	if isDue(l) {
		return depart(l, out, ceiling)
	}
	return &logpb.Enqueue{
		Size: uint32(len(out)), Head: uint32(out.HeadSize()), Routed: c.DeadLetterExchange != "", TtlCeilingPlusOne: ceiling,
		PriorityPlusOne: uint32(l.Priority) + 1, Deaths: b.deaths(l, p), ScheduledFor: int64(l.ScheduledFor),
	}
}

// repack returns a payload with the body of p, which is valid. The other parts
// are from a payload or short strings: they fit. Should they not, the payload
// stays as it is.
func repack(p fsm.Payload, exchange, key string, properties []byte, blind []string) fsm.Payload {
	size := fsm.PayloadSize(len(exchange), len(key), len(properties), len(p.Body())) + fsm.BlindSize(blind)
	out, err := fsm.AppendHead(make([]byte, 0, size), exchange, key, properties, blind)
	if err != nil {
		return p
	}
	return append(out, p.Body()...)
}

// lock takes the forwarder's lock.
func (f *forwarder) lock() { f.mu.Lock() }

// unlock gives it back, and goes on with what has been answered meanwhile.
func (f *forwarder) unlock() {
	start := f.again && !f.running && !f.stopped
	f.running = f.running || start
	f.mu.Unlock()
	if start {
		f.broker.spawn("forward dead letters", f.run)
	}
}
