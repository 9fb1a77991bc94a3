package deadletter

import (
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Sender sends the dead letters of the queues that this node leads.
//
// Invariants: an outbox that is not in busy holds no letters, and is in sources of each of its targets, of which none
// is gone; it is there exactly under its targets. Stopped outboxes are in none of the maps.
type Sender struct {
	node       string
	host       Host
	routes     *stream.Table
	properties Properties
	filters    filterTable
	slog       *slog.Logger
	once       onceSender

	mu       sync.Mutex
	outboxes map[fsm.QueueID]*outboxSender // of queues that this node leads
	busy     map[*outboxSender]struct{}    // those that Wake looks at
	sources  map[fsm.QueueID]map[*outboxSender]struct{}
	closed   bool
}

// New returns a sender that has nothing to send.
func New(c Config) *Sender {
	return &Sender{
		node: c.Node, host: c.Host, routes: c.Routes, properties: c.Properties, filters: filterTable{filters: c.Filters}, slog: c.Logger,
		once: onceSender{streams: map[fsm.QueueID]*onceStream{}}, outboxes: map[fsm.QueueID]*outboxSender{},
		busy: map[*outboxSender]struct{}{}, sources: map[fsm.QueueID]map[*outboxSender]struct{}{},
	}
}

// Forward sees to it that the letters in the outbox of a led queue move.
func (s *Sender) Forward(g Group) {
	id := g.Spec().Queue
	s.mu.Lock()
	x := s.outboxes[id]
	if x == nil && g.Leading() != 0 && !s.closed { // else Drop has been here, or Close
		x = newOutboxSender(s, g)
		s.outboxes[id] = x
	}
	if x != nil {
		s.busy[x] = struct{}{}
	}
	s.mu.Unlock()
	if x != nil {
		x.wake()
	}
}

// Drop forgets the outbox of a queue that this node does not lead any more, or that is gone; then outboxes
// whose target it was are looked at.
func (s *Sender) Drop(id fsm.QueueID) {
	over := stream.IsOver(s.host.View(), id)
	s.mu.Lock()
	x := s.outboxes[id]
	delete(s.outboxes, id)
	if x != nil {
		delete(s.busy, x)
		s.unwatch(x, slices.Collect(maps.Keys(x.targets))...)
	}
	if over {
		for from := range s.sources[id] {
			s.busy[from] = struct{}{}
			delete(from.targets, id)
		}
		delete(s.sources, id)
	}
	s.mu.Unlock()
	if x != nil {
		x.stop()
	}
}

// Wake has outboxes looked at again that hold something: a proposal may have been lost, or a way may have
// opened. It reports whether there are any. Those that hold nothing are left alone until Forward, or until a
// target is gone.
func (s *Sender) Wake() (some bool) {
	s.mu.Lock()
	all := s.busy
	s.busy = map[*outboxSender]struct{}{}
	s.mu.Unlock()
	for x := range all {
		if x.waiting() && s.keepBusy(x) {
			some = true
			x.wake()
		}
	}
	return some
}

// CheckAll has the next Wake look at all outboxes: it is not known which of their targets are gone. Those that
// are not are watched from then on.
func (s *Sender) CheckAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.outboxes {
		s.busy[x] = struct{}{}
		clear(x.targets)
	}
	clear(s.sources)
}

// keepBusy has the next Wake look at an outbox again, unless it has been dropped.
func (s *Sender) keepBusy(x *outboxSender) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.outboxes[x.group.Spec().Queue] == x
	if known {
		s.busy[x] = struct{}{}
	}
	return known
}

// watch has an outbox looked at when one of these targets is gone from the catalog.
func (s *Sender) watch(x *outboxSender, targets []queue.DeadLetterTarget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outboxes[x.group.Spec().Queue] != x {
		return
	}
	for _, t := range targets {
		of := s.sources[t.ID]
		if _, known := of[x]; known {
			continue
		}
		if of == nil {
			of = map[*outboxSender]struct{}{}
			s.sources[t.ID] = of
		}
		of[x] = struct{}{}
		x.targets[t.ID] = struct{}{}
	}
}

// anyOver reports whether one of an outbox's targets is gone from the catalog. Those that are nobody watches any more.
func (s *Sender) anyOver(x *outboxSender, v *catalog.View, targets []queue.DeadLetterTarget) (some bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range targets {
		if stream.IsOver(v, t.ID) {
			s.unwatch(x, t.ID)
			some = true
		}
	}
	return some
}

// unwatch is the inverse of watch. The caller holds mu.
func (s *Sender) unwatch(x *outboxSender, targets ...fsm.QueueID) {
	for _, id := range targets {
		delete(x.targets, id)
		if delete(s.sources[id], x); len(s.sources[id]) == 0 {
			delete(s.sources, id)
		}
	}
}

// Close ends the sending from outboxes. Goroutines that are at it end soon.
func (s *Sender) Close() {
	s.mu.Lock()
	s.closed = true
	all := s.outboxes
	s.outboxes = map[fsm.QueueID]*outboxSender{}
	clear(s.busy)
	clear(s.sources)
	s.mu.Unlock()
	for _, x := range all {
		x.stop()
	}
}

// LostOnce counts the dead letters of no outbox that this node sent, or was to
// send, and that did not arrive: with each target that did not take one, or
// once if there was none.
func (s *Sender) LostOnce() uint64 { return s.once.missed.Load() }

// Bounds of what is routed, and of what is on its way to one target, at a time.
const (
	routeAtOnce   = 512
	sendAtOnce    = 512
	retryAtOnce   = 4096 // waiting letters handled in one run
	targetsAtOnce = 512  // examined under the queue's lock
	sendBytes     = 4 << 20
	targetsRouted = 1 << 14 // in one command
	editsRouted   = 1 << 20 // bytes
)

// proposeAgain is the time after which a proposal of the sender without effect is considered lost.
const proposeAgain = 1000 // milliseconds

// keptSince is the fsm_version since which queues know that a transfer is kept if they refuse it:
// before, no entry says so.
const keptSince = 3

// keeps reports whether a letter waits at its source if a target refuses it.
func (s *Sender) keeps(c *logpb.QueueConfig, l *queue.Letter) bool {
	return s.host.View().FSMVersion() >= keptSince &&
		(l.Forwarded || c.DelayedStore || c.DeadLetterStrategy == logpb.QueueConfig_AT_LEAST_ONCE)
}

// retryEvery is how often waiting letters are routed again if nothing has changed, and probeFirst how
// soon at first some of them are.
const (
	retryEvery = 10_000 // milliseconds
	probeFirst = 1000   // milliseconds
)

// outboxSender sends the dead letters of a queue that this node leads to their targets. It is a
// special kind of session: its stream to each target takes its numbers from the source's log, so a
// successor on another node sends the same letters under the same numbers, and each target takes
// each letter once.
type outboxSender struct {
	sender *Sender
	group  Group
	id     fsm.SessionID

	targets map[fsm.QueueID]struct{} // in whose Sender.sources it is; guarded by that one's lock

	mu      sync.Mutex
	streams map[fsm.QueueID]*transfers
	again   bool // something has changed since run last checked
	running bool
	stopped bool

	// Used by run only.
	routing   uint64 // first letter of the route that was proposed last
	routedAt  int64  // ms
	givingUp  uint64 // first of the letters that were given up last
	givenUpAt int64  // ms
	retriedAs *logpb.QueueConfig
	retriedIn *catalog.View // the view with which waiting letters were last routed
	retriedAt int64         // ms; when all of them were
	changedIn *catalog.View // not nil: only those are routed again that went elsewhere in this view
	retrying  bool          // letters after number retried have yet to be routed again
	retried   uint64
	probe     probe
}

// probe are waiting letters that are routed again to see whether their targets take them by now.
// As long as they do, more follow at once; if not, one is tried again after twice the time.
type probe struct {
	upTo uint64 // number of the last one that is out; 0: none is
	at   int64  // ms; when the last ones went, or when waiting began; 0: nothing waits
	wait int64  // ms
	size int
}

func newOutboxSender(s *Sender, from Group) *outboxSender {
	return &outboxSender{
		sender: s, group: from, id: fsm.SessionID{Boot: uint64(from.Spec().Queue)},
		targets: map[fsm.QueueID]struct{}{}, streams: map[fsm.QueueID]*transfers{},
	}
}

// waiting reports whether the outbox holds letters, or has a target that is gone. Those that are not are
// watched before the view is read, so none is missed.
func (x *outboxSender) waiting() bool {
	for after := fsm.QueueID(0); ; {
		holds, targets := false, []queue.DeadLetterTarget(nil)
		x.group.View(func(m *queue.Machine) {
			if holds = m.Stats().Outbox.Messages > 0; !holds {
				targets = m.DeadLetterTargets(after, targetsAtOnce)
			}
		})
		x.sender.watch(x, targets)
		if view := x.sender.host.View(); holds || x.sender.anyOver(x, view, targets) {
			return true
		}
		if len(targets) < targetsAtOnce {
			return x.hasEnded()
		}
		after = targets[len(targets)-1].ID
	}
}

// hasEnded reports whether a stream to a target that is gone is yet to be forgotten.
func (x *outboxSender) hasEnded() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, tr := range x.streams {
		if tr.ended {
			return true
		}
	}
	return false
}

// wake starts the sender, or makes it run once more if it is running.
func (x *outboxSender) wake() {
	x.lock()
	defer x.unlock()
	x.again = true
}

func (x *outboxSender) stop() {
	x.mu.Lock()
	x.stopped = true
	streams := x.streams
	x.streams = map[fsm.QueueID]*transfers{}
	x.mu.Unlock()
	for _, t := range streams {
		if t.stream != nil {
			t.stream.Route().Detach(t.stream)
		}
	}
}

// run does the sender's work for the source. A panic quarantines the source: the sender's
// successor on another node continues from what the log says.
func (x *outboxSender) run() {
	if !x.group.Guard("send dead letters", x.work) {
		x.stop()
	}
}

// work routes, sends and settles until nothing changes any more. It does not wait for proposals:
// their effects wake it again.
func (x *outboxSender) work() {
	for {
		x.mu.Lock()
		if !x.again || x.stopped {
			x.running = false
			x.mu.Unlock()
			return
		}
		x.again = false
		x.mu.Unlock()
		x.routeLetters()
		x.retryLetters()
		x.moveTransfers()
	}
}

// propose submits a command of the source queue. If this node has lost the leadership, its
// successor proposes the same again.
func (x *outboxSender) propose(c *logpb.Command) {
	b := group.BatchOf(c)
	b.Light = true // it need not wait for what clients publish
	_ = x.group.Submit(b)
}

// routeLetters decides where the oldest unrouted letters go. The decision is in the source's log
// before anything is sent.
func (x *outboxSender) routeLetters() {
	if !x.sender.host.Fresh() {
		return // the watch retries it
	}
	var letters []queue.Letter
	var config *logpb.QueueConfig
	x.group.View(func(m *queue.Machine) {
		if letters = m.UnroutedLetters(1); len(letters) > 0 && x.mayRoute(letters[0].Number) {
			letters, config = m.UnroutedLetters(routeAtOnce), m.Config()
		}
	})
	if config == nil {
		return
	}
	view := x.sender.host.View()
	r, targets, edits := &logpb.RouteDead{First: letters[0].Number}, 0, 0
	for i := range letters {
		to := x.routeLetter(view, config, &letters[i], false)
		r.Routes = append(r.Routes, to)
		targets += len(to.Targets)
		for _, edit := range to.Edits {
			edits += len(edit)
		}
		if targets >= targetsRouted || edits >= editsRouted {
			break
		}
	}
	x.propose(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
}

// pending reports whether a proposal made at that time may still take effect.
func (x *outboxSender) pending(at int64) bool {
	passed := x.sender.host.Now() - at
	return passed >= 0 && passed < proposeAgain
}

// mayRoute reports whether no proposal to route this letter is under way.
func (x *outboxSender) mayRoute(first uint64) bool {
	if first == x.routing && x.pending(x.routedAt) {
		return false
	}
	x.routing, x.routedAt = first, x.sender.host.Now()
	return true
}

// routeLetter returns where a letter goes. waits: it has been to a target that did not take it.
func (x *outboxSender) routeLetter(v *catalog.View, c *logpb.QueueConfig, l *queue.Letter, waits bool) *logpb.DeadRoute {
	r := &logpb.DeadRoute{}
	if l.TakenTo != 0 {
		to, there := v.QueueByID(l.TakenTo)
		if refused, ok := x.sentRefused(v); ok && (waits || !there) {
			to, there = refused, true
		}
		if there {
			r.Targets = []uint64{uint64(to.ID)}
		}
		return r
	}
	p, err := x.payload(l)
	if err != nil {
		return r
	}
	var queues []*catalog.Queue
	var copies []letterCopy
	var limits catalog.Ceilings
	switch {
	case l.Forwarded && c.GetForward():
		queues, copies, limits = x.sender.wayTargets(v, x.group.Spec().VHost, c, &l.DeadLetter, p)
	case l.Forwarded:
	case isDue(&l.DeadLetter):
		queues, copies, limits = x.sender.dueTargets(v, x.group.Spec().Queue, &l.DeadLetter, p)
		r.Unroutable = len(queues)+len(copies) == 0
	}
	if len(queues)+len(copies) == 0 && c.GetDeadLetter() && !l.Forwarded {
		queues, copies, limits = x.sender.wayTargets(v, x.group.Spec().VHost, c, &l.DeadLetter, p)
	}
	for _, q := range queues {
		addTarget(r, q, limits.Of(q), nil)
	}
	for _, c := range copies {
		addTarget(r, c.queue, c.ceiling(limits), c.edit)
	}
	r.Unroutable = r.Unroutable && len(r.Targets) > 0
	return r
}

// sentRefused returns the queue for what was sent from here and not taken.
func (x *outboxSender) sentRefused(v *catalog.View) (*catalog.Queue, bool) {
	q, ok := v.QueueByID(x.group.Spec().Queue)
	if !ok {
		return nil, false
	}
	return q.SentRefused(v)
}

// isRefused reports whether a letter that was sent goes to a target because it was not taken. One whose destination was gone from the
// start has no other destination.
func (x *outboxSender) isRefused(l *fsm.DeadLetter, to *catalog.Queue) bool {
	refused, ok := x.sentRefused(x.sender.host.View())
	return l.TakenTo != to.ID || ok && refused.ID == to.ID
}

// addTarget adds a queue to a route, of which the lists end with what is not empty.
func addTarget(r *logpb.DeadRoute, q *catalog.Queue, limit fsm.Optional[fsm.Millis], edit []byte) {
	i := len(r.Targets)
	r.Targets = append(r.Targets, uint64(q.ID))
	if limit.Given {
		r.TtlCeilingsPlusOne = append(r.TtlCeilingsPlusOne, make([]uint64, i-len(r.TtlCeilingsPlusOne))...)
		r.TtlCeilingsPlusOne = append(r.TtlCeilingsPlusOne, limit.Stored())
	}
	if len(edit) > 0 {
		r.Edits = append(r.Edits, make([][]byte, i-len(r.Edits))...)
		r.Edits = append(r.Edits, edit)
	}
}

func (x *outboxSender) payload(l *queue.Letter) (fsm.Payload, error) {
	raw, err := x.group.Payload(l.Ref)
	if err != nil {
		x.sender.slog.Error("dead letter has no payload", "queue", x.group.Spec().Name, "letter", l.Number, "error", err)
		return nil, err
	}
	return fsm.Readable(raw), nil
}

// moveTransfers reports to the source what its targets hold, and queues what is routed and not yet
// on its way.
func (x *outboxSender) moveTransfers() {
	view := x.sender.host.View()
	for after := fsm.QueueID(0); ; {
		var targets []queue.DeadLetterTarget
		x.group.View(func(m *queue.Machine) { targets = m.DeadLetterTargets(after, targetsAtOnce) })
		for _, t := range targets {
			x.moveTo(view, t)
		}
		if len(targets) < targetsAtOnce {
			break
		}
		after = targets[len(targets)-1].ID
	}
	x.forget()
}

// moveTo reports to the source what one target holds, and queues what goes there.
func (x *outboxSender) moveTo(view *catalog.View, t queue.DeadLetterTarget) {
	q, ok := view.QueueByID(t.ID)
	switch {
	case ok:
		x.report(t)
		if t.Confirmed+1 < t.Next {
			x.sendTo(q, t)
		}
	case stream.IsOver(view, t.ID):
		x.sender.host.QueueGone(t.ID) // in case it has not been reported yet
		// What the target took while it existed does not go with it.
		if !x.report(t) {
			x.reportGone(t.ID)
		}
	}
}

// forget drops the state of targets that the source has settled as gone. By then the letters that
// did not arrive there wait to be routed.
func (x *outboxSender) forget() {
	x.mu.Lock()
	var gone []fsm.QueueID
	for id, tr := range x.streams {
		if tr.ended {
			gone = append(gone, id)
		}
	}
	x.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	x.group.View(func(m *queue.Machine) {
		gone = slices.DeleteFunc(gone, m.HasDeadLetterTarget)
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range gone {
		if tr := x.streams[id]; tr != nil && tr.ended {
			delete(x.streams, id)
			x.retriedIn, x.again = nil, true
		}
	}
}

// report tells the source which of its transfers a target has answered, and returns whether there
// are any that the source's log does not know of.
func (x *outboxSender) report(t queue.DeadLetterTarget) bool {
	c, behind := x.unreported(t)
	if c != nil {
		x.propose(&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: c})
	}
	return behind
}

// unreported returns the command that report submits, nil if one is under way, and whether there
// are unreported transfers.
func (x *outboxSender) unreported(t queue.DeadLetterTarget) (c *logpb.SettleDead, behind bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	tr := x.streams[t.ID]
	switch {
	case tr == nil || tr.answered <= t.Confirmed:
		return nil, false
	case tr.answered == tr.reported && x.pending(tr.reportedAt):
		return nil, true
	}
	tr.refused = slices.DeleteFunc(tr.refused, func(n uint64) bool { return n <= t.Confirmed })
	tr.reported, tr.reportedAt = tr.answered, x.sender.host.Now()
	return &logpb.SettleDead{Target: uint64(t.ID), Last: tr.answered, Refused: slices.Clone(tr.refused)}, true
}

// reportGone tells the source that a target is gone, and with it every unsettled transfer. A
// stream that has not ended may still hold answers.
func (x *outboxSender) reportGone(id fsm.QueueID) {
	x.mu.Lock()
	tr := x.streams[id]
	if tr == nil {
		tr = &transfers{from: x, ended: true}
		x.streams[id] = tr
	}
	if x.stopped || !tr.ended || tr.reportedGone && x.pending(tr.reportedAt) {
		x.mu.Unlock()
		return
	}
	tr.reportedGone, tr.reportedAt = true, x.sender.host.Now()
	x.mu.Unlock()
	x.propose(&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{
		Target: uint64(id), Gone: true,
	}})
}

// sendTo fills the stream to one target.
func (x *outboxSender) sendTo(q *catalog.Queue, t queue.DeadLetterTarget) {
	tr := x.stream(q, t.Confirmed)
	if tr == nil {
		return
	}
	x.mu.Lock()
	from, free, bytes := tr.sent+1, sendAtOnce-tr.stream.Waiting(), tr.bytes
	x.mu.Unlock()
	if free <= 0 || bytes >= sendBytes || from >= t.Next {
		return
	}
	var out []queue.Outgoing
	var config *logpb.QueueConfig
	x.group.View(func(m *queue.Machine) {
		out, config = m.PendingTransfers(t.ID, from, free), m.Config()
	})
	for i := 0; i < len(out) && bytes < sendBytes; i++ {
		o := &out[i]
		p, err := x.payload(&o.Letter)
		if err != nil {
			return
		}
		x.sendLetter(tr, o, p, config, q)
		bytes += len(p)
	}
}

// stream returns the stream to a target, creating it if needed. settled is the number of the last
// transfer known to have arrived. It returns nil if there can be no stream.
func (x *outboxSender) stream(q *catalog.Queue, settled uint64) *transfers {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stopped {
		return nil
	}
	tr := x.streams[q.ID]
	if tr == nil {
		r := x.sender.routes.Route(q)
		tr = &transfers{from: x, sent: settled}
		tr.stream = stream.New(tr, nil, x.id, r)
		tr.stream.Skip(settled)
		if r.Attach(tr.stream); tr.stream.Gone() {
			return nil // the next run finds it gone from the view, too
		}
		x.streams[q.ID] = tr
	}
	if tr.ended || tr.stream.Over() {
		return nil
	}
	if tr.sent < settled {
		// The log knows of answers given to another sender. What this stream has sent of the same
		// transfers must be answered before it continues after them.
		if tr.stream.Waiting() > 0 {
			return nil
		}
		tr.sent = settled
		tr.stream.Skip(settled)
	}
	return tr
}

// sendLetter queues one transfer. Its number in the source's log is its number in the stream; if
// the two differ, there is a gap that cannot be repaired, and nothing is sent.
func (x *outboxSender) sendLetter(tr *transfers, o *queue.Outgoing, p fsm.Payload, c *logpb.QueueConfig, to *catalog.Queue) {
	l := o.Letter.DeadLetter
	if l.TakenTo != 0 && x.isRefused(&l, to) {
		c, l = refusedLetter(c, &l, x.group.Spec().Name, to.Name)
	}
	out := x.sender.filters.edited(c, o, x.sender.deadPayload(c, &l, p))
	e := x.sender.reenqueue(c, &l, p, out, o.Ceiling.Stored())
	x.sender.comeTo(to, e, out)
	e.Kept = x.sender.keeps(c, &o.Letter)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stopped || tr.stream.Over() || o.Number != tr.stream.Next() {
		return
	}
	tr.stream.Add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e}, stream.Pending{Payload: out, Number: o.Number})
	tr.sent = o.Number
	tr.bytes += len(out)
}

// lock takes the sender's lock.
func (x *outboxSender) lock() { x.mu.Lock() }

// unlock releases it and handles what has been answered meanwhile.
func (x *outboxSender) unlock() {
	start := x.again && !x.running && !x.stopped
	x.running = x.running || start
	x.mu.Unlock()
	if start {
		x.sender.host.Spawn("send dead letters", x.run)
	}
}

// transfers are the letters on their way to one target, in a stream that they own
// under the sender's lock. The number of a transfer is that of its command.
//
// Invariant: reported ≤ answered ≤ sent.
type transfers struct {
	from         *outboxSender
	stream       *stream.Stream // nil: there was none, and the target is gone
	ended        bool           // the target is gone, and nothing in the stream is unanswered
	sent         uint64         // number of the newest transfer in the stream
	bytes        int            // of the payloads in the stream
	answered     uint64         // number of the newest transfer that the target has taken or refused
	refused      []uint64       // transfers that the target has refused, ascending
	refusedAt    int64          // ms; when it last did; 0: never
	reported     uint64         // number of the newest one that was reported to the source's log
	reportedAt   int64          // ms; 0: never
	reportedGone bool           // that the target is gone was reported to the source's log
}

// Lock takes the sender's lock.
func (tr *transfers) Lock() { tr.from.lock() }

// Unlock gives it back.
func (tr *transfers) Unlock() { tr.from.unlock() }

// known reports whether the sender still has this stream. The lock is held.
func (tr *transfers) known() bool { return tr.from.streams[tr.stream.Queue()] == tr }

// Answered processes a target's answer to one transfer: the target has it, or refuses it. A
// transfer to a target that is gone has not arrived: it stays unsettled until the view has lost
// the target.
func (tr *transfers) Answered(p *stream.Pending, r fsm.Result) {
	if !tr.known() {
		return
	}
	tr.from.again = true
	tr.bytes -= len(p.Payload)
	switch r.Code {
	case fsm.OK:
	case fsm.Gone:
		return
	case fsm.Rejected:
		tr.refuse(p.Number)
	default:
		tr.from.sender.host.OddAnswer(tr.stream.Queue(), "transfer", r.Code)
		tr.refuse(p.Number)
	}
	tr.answered = max(tr.answered, p.Number)
}

func (tr *transfers) refuse(number uint64) {
	tr.refused, tr.refusedAt = append(tr.refused, number), tr.from.sender.host.Now()
}

// Gone is called when the catalog has lost the target.
func (tr *transfers) Gone() {
	x := tr.from
	x.lock()
	defer x.unlock()
	if tr.known() {
		tr.ended = true
	}
	x.again = true
}

// Lost is called when a target knows other transfers of this source than its log says. Nothing
// more is sent there.
func (tr *transfers) Lost() {
	x := tr.from
	x.sender.slog.Error("target queue refuses dead letters",
		"queue", x.group.Spec().Name, "target", uint64(tr.stream.Queue()))
	tr.stream.Abandon()
	x.again = true
}

// Failed ends the sender: another one continues from what the log says.
func (tr *transfers) Failed() {
	x := tr.from
	tr.stream.Abandon()
	x.sender.host.Spawn("resend dead letters", func() {
		x.sender.Drop(x.group.Spec().Queue)
		x.sender.Forward(x.group)
	})
}

// tryWaiting routes the first waiting letters again if that is due. It leaves all as it is while
// transfers are on their way, whose outcome is not known.
func (x *outboxSender) tryWaiting(view *catalog.View, config *logpb.QueueConfig) {
	var letters []queue.Letter
	underWay := false
	x.group.View(func(m *queue.Machine) {
		letters = m.WaitingLetters(0, routeAtOnce)
		underWay = slices.ContainsFunc(m.DeadLetterTargets(0, targetsAtOnce), func(t queue.DeadLetterTarget) bool { return t.Confirmed+1 < t.Next })
	})
	p, now := &x.probe, x.sender.host.Now()
	switch {
	case len(letters) == 0:
		*p = probe{}
		return
	case p.at == 0 || now < p.at:
		*p = probe{at: now, wait: probeFirst, size: 1}
	case underWay:
		return
	case p.upTo == 0:
	case letters[0].Number <= p.upTo: // refused
		p.upTo, p.size, p.wait = 0, 1, min(2*p.wait, retryEvery)
	default:
		p.upTo, p.size, p.wait = 0, min(2*p.size, routeAtOnce), 0
	}
	if now-p.at < p.wait {
		return
	}
	r := x.routeAgain(view, config, letters[:min(len(letters), p.size)])
	if len(r.Routes) == 0 {
		p.at = now
		return
	}
	p.upTo, p.at, p.wait = r.Routes[len(r.Routes)-1].Letter, now, max(p.wait, probeFirst)
	x.propose(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
}

// routeAgain returns where waiting letters go now, of those that go anywhere.
func (x *outboxSender) routeAgain(view *catalog.View, config *logpb.QueueConfig, letters []queue.Letter) *logpb.RouteDead {
	r := &logpb.RouteDead{Retry: true}
	for i := range letters {
		if route := x.routeLetter(view, config, &letters[i], true); len(route.Targets) > 0 {
			route.Letter = letters[i].Number
			r.Routes = append(r.Routes, route)
		}
	}
	return r
}

// giveUp routes waiting letters that were sent from here to the queue for those that are not taken, at once: nobody waits until
// their target takes them. What that queue refuses as well is tried again at intervals.
func (x *outboxSender) giveUp(view *catalog.View, config *logpb.QueueConfig) {
	to, ok := x.sentRefused(view)
	if !ok || x.refusesNow(to.ID) {
		return
	}
	var letters []queue.Letter
	x.group.View(func(m *queue.Machine) { letters = m.WaitingLetters(0, routeAtOnce) })
	letters = slices.DeleteFunc(letters, func(l queue.Letter) bool { return l.TakenTo == 0 })
	if len(letters) == 0 || letters[0].Number == x.givingUp && x.pending(x.givenUpAt) {
		return
	}
	x.givingUp, x.givenUpAt = letters[0].Number, x.sender.host.Now()
	x.propose(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: x.routeAgain(view, config, letters)})
}

// refusesNow reports whether a target has refused a letter a moment ago.
func (x *outboxSender) refusesNow(id fsm.QueueID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	tr := x.streams[id]
	return tr != nil && tr.refusedAt != 0 && x.pending(tr.refusedAt)
}

// retryLetters routes waiting letters again at intervals, since a target that refused may have
// space again, and those whose way has changed when the catalog has. Each run handles some of them, in order of number, and
// the next run continues after them, so that neither the queue nor a payload store has to wait.
func (x *outboxSender) retryLetters() {
	if !x.sender.host.Fresh() {
		return
	}
	var config *logpb.QueueConfig
	x.group.View(func(m *queue.Machine) { config = m.Config() })
	view := x.sender.host.View()
	x.giveUp(view, config)
	if !x.retrying {
		passed := x.sender.host.Now() - x.retriedAt
		x.changedIn = nil
		if x.retriedIn != nil && config == x.retriedAs && passed >= 0 && passed < retryEvery {
			if view == x.retriedIn {
				x.tryWaiting(view, config)
				return
			}
			x.changedIn = x.retriedIn
		} else {
			x.retriedAt = x.sender.host.Now()
			x.probe = probe{at: x.retriedAt, wait: probeFirst, size: 1}
		}
		x.retriedIn, x.retriedAs = view, config
		x.retrying, x.retried = true, 0
	}
	r := &logpb.RouteDead{Retry: true}
	for seen := 0; x.retrying && seen < retryAtOnce && len(r.Routes) < routeAtOnce; {
		var letters []queue.Letter
		x.group.View(func(m *queue.Machine) { letters = m.WaitingLetters(x.retried, routeAtOnce-len(r.Routes)) })
		x.retrying = len(letters) > 0
		for i := range letters {
			route := x.routeLetter(view, config, &letters[i], true)
			route.Letter = letters[i].Number
			x.retried = route.Letter
			switch {
			case len(route.Targets) == 0 && waitsForWay(config, &letters[i].DeadLetter):
			case x.changedIn != nil && slices.Equal(route.Targets, x.routeLetter(x.changedIn, config, &letters[i], true).Targets):
			default:
				r.Routes = append(r.Routes, route)
			}
		}
		seen += len(letters)
	}
	if len(r.Routes) > 0 {
		x.propose(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
	}
}

// Bounds of one look at the queues that bring their dead letters to another.
const (
	sourcesAtOnce    = 512 // under the target's lock
	endSourcesAtOnce = 512 // sessions that one look ends
)

// EndSources ends the sessions of queues that are gone: nobody else does, for
// they live on no node. What such a queue has sent and is still on its way
// does not begin its session anew: the target remembers the end for as long as
// the first command of a stream is taken, and every later one needs a session.
// It reports whether there may be more to end.
func EndSources(g Target, v *catalog.View) (more bool) {
	var ends []*logpb.Command
	for after := fsm.QueueID(0); len(ends) < endSourcesAtOnce; {
		var ids []fsm.QueueID
		g.View(func(m *queue.Machine) { ids = m.Sources(after, sourcesAtOnce) })
		for _, id := range ids {
			if after = id; len(ends) < endSourcesAtOnce && stream.IsOver(v, id) {
				ends = append(ends, &logpb.Command{
					Kind: logpb.Command_SESSION_DOWN, Session: fsm.SessionID{Boot: uint64(id)}.Proto(),
				})
			}
		}
		if len(ids) < sourcesAtOnce {
			break
		}
	}
	if len(ends) == 0 {
		return false
	}
	_ = g.Submit(group.BatchOf(ends...)) // the next look finds what was lost
	return true
}
