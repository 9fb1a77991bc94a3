// Package stream carries the numbered commands of a session to a queue, and knows the way to the
// queue's leader.
//
// Each command reaches the queue once and in the order of its number, whatever is lost, late or
// duplicated on the way, and its owner gets one answer to it, in that order. Deliveries come out
// in order and without gaps; missing ones are requested again. Only the end of the queue or of the
// session leaves commands without effect.
//
// It neither routes nor knows clients: it reports to Owner and Receiver, and Host is what it needs
// of the node.
package stream

import (
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Stream holds the commands of one session to one queue. They stay until they are answered. A new leader
// is sent all of them. After anything else that may have lost some, the leader is asked which one it
// expects, and they are sent again from there on: it drops copies.
//
// Invariant: pending holds the numbers oldest … next-1 without a gap, and sent < next, heavy <
// next. sent < oldest means that all commands are to be sent (again).
type Stream struct {
	owner    Owner
	receiver Receiver // nil: its session has no consumers
	id       fsm.SessionID
	route    *Route

	// Guarded by the owner's lock.
	encoder   encoder
	pending   pendingList
	next      uint64      // number of the next command
	sent      uint64      // commands up to here have been submitted
	heavy     uint64      // the last command that was submitted in a batch that is not light
	urgent    func() bool // see Patient; nil: always
	dirty     bool        // on the route's list
	begun     bool        // something was submitted: the queue may know the session
	gone      bool        // the queue is gone
	lost      bool        // the queue has ended the session
	ending    bool        // SESSION_DOWN is among its commands
	consumers map[uint64]*Consumer
	unseen    []settlement // to be queued once the current answers have been processed
	gap       gap
	wait      wait
}

// New returns a stream that begins with command 1. It is not attached to the route yet. receiver
// may be nil.
func New(o Owner, receiver Receiver, id fsm.SessionID, r *Route) *Stream {
	s := &Stream{
		owner: o, receiver: receiver, id: id, route: r, next: 1,
		encoder: encoder{session: id.Proto()}, wait: wait{since: r.host.Now()},
	}
	if receiver != nil {
		s.consumers = map[uint64]*Consumer{0: {}}
	}
	return s
}

// Patient says that the stream's publishes may wait for the queue's consumers, until urgent reports
// true, which it does from then on. It is called before the stream is attached.
func (s *Stream) Patient(urgent func() bool) { s.urgent = urgent }

// ID returns the id of the session.
func (s *Stream) ID() fsm.SessionID { return s.id }

// Route returns the way to the queue.
func (s *Stream) Route() *Route { return s.route }

// Queue returns the id of the queue.
func (s *Stream) Queue() fsm.QueueID { return s.route.id }

// The methods below need the owner's lock unless they say otherwise.

// Next returns the number of the next command.
func (s *Stream) Next() uint64 { return s.next }

// Waiting returns the number of commands without an answer.
func (s *Stream) Waiting() int { return s.pending.len() }

// waits reports whether a command has no answer. The owner's lock is not held.
func (s *Stream) waits() bool {
	s.owner.Lock()
	defer s.owner.Unlock()
	return s.pending.len() > 0
}

// Unanswered iterates over the commands without an answer.
func (s *Stream) Unanswered() iter.Seq[*Pending] {
	return func(yield func(*Pending) bool) {
		for i := range s.pending.len() {
			if !yield(s.pending.at(i)) {
				return
			}
		}
	}
}

// Gone reports whether the stream's queue is gone.
func (s *Stream) Gone() bool { return s.gone }

// Over reports whether the stream has ended: nothing is added to it any more.
func (s *Stream) Over() bool { return s.gone || s.lost }

// Ending reports whether the commands include the session's end.
func (s *Stream) Ending() bool { return s.ending }

// Skip continues after command n, which the queue already has. No command may be waiting.
func (s *Stream) Skip(n uint64) { s.sent, s.next, s.begun = n, n+1, true }

// Add queues a command. Its number is Next, unless the caller has given it
// another one by Skip.
func (s *Stream) Add(c *logpb.Command, p Pending) {
	c.Seq = s.next
	if s.next == 1 {
		c.OpenedAt = int64(s.route.host.Stamp())
	}
	s.ending = s.ending || c.Kind == logpb.Command_SESSION_DOWN
	p.encoded = s.encoder.encode(c)
	s.push(p)
}

func (s *Stream) push(p Pending) {
	p.seq = s.next
	s.next++
	if s.pending.len() == 0 {
		s.wait.since = s.route.host.Now()
	}
	s.pending.push(p)
	s.wake()
}

// AddSettle queues a settlement, or merges it into the last one that has not been sent. ids are
// ascending.
func (s *Stream) AddSettle(consumer uint64, ids []uint64, outcome fsm.Outcome) {
	if len(ids) == 0 || s.Over() {
		return
	}
	if n := s.pending.len(); n > 0 {
		if p := s.pending.at(n - 1); p.seq > s.sent && p.encoded == nil && p.settle.joins(consumer, ids[0], outcome) {
			p.settle.ranges = AppendRanges(p.settle.ranges, ids)
			return
		}
	}
	s.push(Pending{settle: settlement{consumer, outcome, AppendRanges(nil, ids)}})
}

// Request queues a command whose answer a caller waits for.
func (s *Stream) Request(c *logpb.Command) *Call { return s.RequestWith(c, nil) }

// RequestWith is Request for a command that brings messages, whose payloads follow each other.
func (s *Stream) RequestWith(c *logpb.Command, payload []byte) *Call {
	k := newCall(c)
	if k.takes {
		k.before = s.consumers[0].last
	}
	switch {
	case s.gone:
		k.Finish(fsm.Result{Code: fsm.Gone})
	case s.lost:
		k.Finish(fsm.Result{Code: fsm.NoSession})
	default:
		s.Add(c, Pending{Call: k, Payload: payload})
	}
	return k
}

// wake puts the stream on its route's list.
func (s *Stream) wake() {
	if !s.dirty {
		s.dirty = true
		s.route.wake(s)
	}
}

// Abandon drops the waiting commands because the queue has ended the session: it is unknown
// whether they were applied. Only callers that wait for a call are told.
func (s *Stream) Abandon() {
	s.lost = true
	for ; s.pending.len() > 0; s.pending.pop() {
		if p := s.pending.at(0); p.Call != nil {
			s.owner.Answered(p, fsm.Result{Code: fsm.NoSession})
		}
	}
	s.pending = pendingList{}
}

// Forget abandons the stream of a session that ends if the queue does not know it, and all it was to do is to serve the
// session. It reports whether there is nothing left to tell the queue. Otherwise a queue that gets a leader again would
// hand messages to each consumer that has waited for that in vain and gone, and count each time as a failed delivery.
func (s *Stream) Forget() bool {
	if s.begun {
		return false
	}
	for p := range s.Unanswered() {
		if p.Call == nil || !slices.Contains(serving, p.Call.Kind) {
			return false
		}
	}
	s.Abandon()
	return true
}

// serving are the commands without effect once their session has ended.
var serving = []logpb.Command_Kind{logpb.Command_CONSUME, logpb.Command_CANCEL, logpb.Command_GET}

// chunkBytes is how much is allocated at a time for encoded commands.
const chunkBytes = 4 << 10

// encoder encodes the commands of a session.
type encoder struct {
	session *logpb.Session
	chunk   []byte
}

// encode appends the command to the chunk and returns its bytes.
func (e *encoder) encode(c *logpb.Command) []byte {
	c.Session = e.session
	if cap(e.chunk)-len(e.chunk) < 128 {
		e.chunk = make([]byte, 0, chunkBytes)
	}
	at := len(e.chunk)
	out := group.AppendCommand(e.chunk, c)
	if cap(out) == cap(e.chunk) {
		e.chunk = out
	}
	return out[at:len(out):len(out)]
}

// settle encodes a settlement, which is fixed from then on, as a command.
func (e *encoder) settle(p *Pending) []byte {
	return e.encode(&logpb.Command{
		Kind: logpb.Command_SETTLE, Seq: p.seq,
		Settle: &logpb.Settle{Outcome: p.settle.outcome, Consumer: p.settle.consumer, Ranges: p.settle.ranges},
	})
}

// MaxBatchCommands bounds the commands of one submission.
const MaxBatchCommands = 256

// maxBatchBytes bounds the payloads of one submission of several commands.
const maxBatchBytes = 256 << 10

// Load is what a route submits at a time. Light batches may overtake heavy ones, also those that
// were submitted earlier; heavy ones may overtake patient ones.
type Load struct{ light, heavy, patient group.Batch }

// NewLoad returns an empty load.
func NewLoad() Load {
	return Load{light: group.Batch{Light: true}, patient: group.Batch{Patient: true}}
}

// Submit hands over its batches until one is refused.
func (b *Load) Submit(to func(group.Batch) error) error {
	for _, batch := range [...]group.Batch{b.light, b.heavy, b.patient} {
		if batch.Count == 0 {
			continue
		}
		if err := to(batch); err != nil {
			return err
		}
	}
	return nil
}

// Take moves what has not been sent into batches and reports whether one of them is full. It takes the
// owner's lock. Commands are light up to the stream's first payload: while a command that is not light
// is unanswered, later ones must stay behind it. Those of a stream that becomes urgent may overtake
// patient ones, and then all are sent again.
func (s *Stream) Take(to *Load) (full bool) {
	s.owner.Lock()
	defer s.owner.Unlock()
	heavy := &to.heavy
	if s.urgent != nil && !s.urgent() {
		heavy = &to.patient
	}
	for i := s.firstUnsent(); i < s.pending.len(); i++ {
		p := s.pending.at(i)
		b := &to.light
		if p.Payload != nil || s.heavy >= s.pending.at(0).seq {
			b = heavy
		}
		if b.Count > 0 && (b.Bytes+len(p.Payload) > maxBatchBytes || b.Count >= MaxBatchCommands) {
			return true
		}
		if p.encoded == nil {
			p.encoded = s.encoder.settle(p)
		}
		b.Commands = append(b.Commands, p.encoded...)
		b.Count++
		if p.Payload != nil {
			b.Payloads = append(b.Payloads, p.Payload)
			b.Bytes += len(p.Payload)
		}
		s.sent, s.begun = p.seq, true
		if b == heavy {
			s.heavy = p.seq
		}
	}
	s.dirty = false
	return false
}

// firstUnsent returns the index in pending of the first command that has not been sent.
func (s *Stream) firstUnsent() int {
	n := s.pending.len()
	if n == 0 || s.sent < s.pending.at(0).seq {
		return 0
	}
	return min(n, int(s.sent-s.pending.at(0).seq)+1)
}

// rewind makes unanswered commands go out again from next on. The lock is held.
func (s *Stream) rewind(next uint64) {
	if s.pending.len() == 0 {
		return
	}
	next = max(next, s.pending.at(0).seq)
	if s.sent >= next {
		s.route.table.resent.Add(s.sent + 1 - next)
		s.sent = next - 1
	}
	s.wake()
}

// resend makes all unanswered commands go out again. The lock is held.
func (s *Stream) resend() {
	s.wait = wait{since: s.route.host.Now(), resent: s.wait.resent}
	s.rewind(0)
}

// sendAgain is resend, and takes the lock, releasing it even after a panic.
func (s *Stream) sendAgain() {
	s.owner.Lock()
	defer s.owner.Unlock()
	s.resend()
}

// gap is the last report that a command has come too early. Commands that were on their way behind one
// that got lost are all reported, in the order in which they were sent, and say nothing new.
type gap struct {
	next  uint64 // command that is missing
	first uint64 // command that came too early, the last one that was reported
	sent  uint64 // the newest command that was on its way then
}

// missing goes back to next, which the leader expected when first came.
func (s *Stream) missing(first, next uint64) {
	g := &s.gap
	known := next == g.next && g.first < first && first <= g.sent
	g.first = first
	if known || next < s.pending.at(0).seq || next > s.sent {
		return // the answer is on its way, or next has not been sent
	}
	*g = gap{next, first, s.sent}
	s.wait.requested = 0 // this tells what would be the answer
	s.rewind(next)
}

// wait determines when the leader is asked what it has.
type wait struct {
	since     int64  // when something was last heard of the commands, or they were sent again, ms
	requested uint64 // commands up to here were on their way when the leader was asked; 0: it was not, or has answered
	resent    int    // how often everything was sent again because it did not answer; ≤ maxResent
}

// maxResent bounds how long a stream waits before it sends everything again.
const maxResent = 4

// heard notes that the leader has said something about the commands.
func (s *Stream) heard() { s.wait.since, s.wait.resent = s.route.host.Now(), 0 }

// question returns what to ask the leader about the commands. The lock is held.
func (s *Stream) question() (asks []Resync) {
	if s.pending.len() == 0 || s.sent < s.pending.at(0).seq {
		return nil // nothing is on its way
	}
	s.wait.since, s.wait.requested = s.route.host.Now(), s.sent
	return []Resync{{Session: s.id, After: ^uint64(0), Commands: s.pending.at(0).seq}}
}

// expected processes the answer to a question.
func (s *Stream) expected(next uint64) {
	requested := s.wait.requested
	s.wait.requested = 0
	if next <= requested && next >= s.pending.at(0).seq {
		s.gap = gap{next, next, s.sent}
		s.rewind(next)
	}
}

// overdueCommands returns what to ask if nothing has been heard of the commands for a while. A leader that
// does not answer this either, as one of an earlier version, gets everything again, for longer and longer
// times. The lock is held.
func (s *Stream) overdueCommands(now int64) []Resync {
	x := &s.wait
	switch {
	case s.pending.len() == 0 || now-x.since <= stuckAfter<<x.resent:
	case x.requested == 0:
		return s.question()
	default:
		x.resent = min(x.resent+1, maxResent)
		s.resend()
	}
	return nil
}

// Answer processes outcomes of commands reported by a node. It takes the owner's lock.
func (s *Stream) Answer(from string, outcomes []group.Outcome) {
	if s != nil {
		s.route.ask(s.answerAll(from, outcomes))
	}
}

// answerAll processes outcomes, and lists what to ask.
func (s *Stream) answerAll(from string, outcomes []group.Outcome) (asks []Resync) {
	s.owner.Lock()
	defer s.owner.Unlock()
	unclear := false
	for i := range outcomes {
		o := &outcomes[i]
		if (o.Result.Code == fsm.NoSession || o.Result.Code == fsm.Gap) && !s.route.IsLeader(from) {
			continue // from a former leader, for commands that have been sent again since
		}
		unclear = s.answered(o.First, o.Run, o.Result) || unclear
	}
	if unclear && s.wait.requested == 0 {
		asks = s.question()
	}
	return asks
}

// answered processes the outcome of commands. unclear says that answers to earlier ones have been lost.
// The lock is held.
func (s *Stream) answered(first, run uint64, r fsm.Result) (unclear bool) {
	if s.pending.len() == 0 || first+run <= s.pending.at(0).seq {
		return false // an answer to a duplicate
	}
	switch oldest := s.pending.at(0).seq; {
	case r.Code == fsm.Gap:
		s.heard()
		if r.Next < first {
			s.missing(first, r.Next)
		} else {
			s.expected(r.Next)
		}
		return false
	case r.Code == fsm.NoSession && oldest == 1 && first > 1:
		// The command that begins the stream was lost, later ones were not.
		s.missing(first, 1)
		return false
	case r.Code == fsm.Late:
		s.reopen(fsm.Time(r.Next))
		return false
	case r.Code == fsm.NoSession:
		s.owner.Lost()
		return false
	case first > oldest:
		return true
	}
	for s.pending.len() > 0 && s.pending.at(0).seq < first+run {
		p := s.pending.at(0)
		if p.Call.again(r) {
			if p.Call.takes {
				s.consumers[0].last = p.Call.before // all of it comes again
			}
			s.rewind(p.seq)
			return false
		}
		s.pending.pop()
		s.owner.Answered(p, r)
		*p = Pending{}
	}
	s.heard()
	for _, u := range s.unseen {
		s.push(Pending{settle: u})
	}
	s.unseen = nil
	s.pending.compact()
	return false
}

// reopen begins a stream whose first command has waited for too long, with the queue's own time.
// The queue has never begun it, unless the stream has reached its end and the queue has forgotten
// that.
func (s *Stream) reopen(at fsm.Time) {
	first := s.pending.at(0)
	if first.seq != 1 {
		return // an answer to an earlier attempt
	}
	if s.ending {
		s.owner.Lost()
		return
	}
	c, err := first.Command()
	if err != nil {
		panic(err) // it was encoded here
	}
	c.OpenedAt = int64(at)
	first.encoded = s.encoder.encode(c)
	s.resend()
}

// end answers all waiting commands and tells the owner that the queue is gone. It takes the
// owner's lock.
func (s *Stream) end() {
	s.finish()
	s.owner.Gone()
}

func (s *Stream) finish() {
	s.owner.Lock()
	defer s.owner.Unlock()
	s.gone = true
	for s.pending.len() > 0 {
		p := s.pending.at(0)
		s.pending.pop()
		s.owner.Answered(p, fsm.Result{Code: fsm.Gone})
		*p = Pending{}
	}
	s.pending = pendingList{}
}

// fail ends a stream whose route has panicked, and its owner. It takes the owner's lock.
func (s *Stream) fail() {
	s.owner.Lock()
	defer s.owner.Unlock()
	s.owner.Failed()
}

// Notice passes on a notice from the leader. It is called without the lock.
func (s *Stream) Notice(n Notice) {
	if s != nil && s.receiver != nil {
		s.receiver.Noticed(n)
	}
}

// Route is this node's way to the leader of one queue. It carries the streams of all sessions that
// use the queue. The goroutine that submits their commands lives only while there are some.
type Route struct {
	table *Table
	host  Host
	id    fsm.QueueID
	group fsm.GroupID
	local bool // the queue is not replicated
	// classic: the queue has the defaults of a classic one
	classic bool

	mu         sync.Mutex // may be taken under the lock of an owner
	leader     string     // name of the node that serves; empty: unknown
	term       uint64     // of the newest leader that is known; it only grows
	newest     string     // that leader
	pause      pause
	leaderless int64                     // since when there is no leader, ms
	wantAgain  int64                     // when it may be said again that somebody waits for one, ms
	led        chan struct{}             // closed when there is a leader again; nil: nobody has asked for it
	streams    map[fsm.SessionID]*Stream // nil: none
	dirty      []*Stream                 // those with something to send
	running    bool                      // the submitting goroutine is running
	searching  bool                      // the members are being asked who leads
	watched    bool                      // it is on the table's list, or being handled by Watch
	ended      bool                      // the queue is gone: there are no more streams
}

func newRoute(t *Table, q *catalog.Queue) *Route {
	r := &Route{
		table: t, host: t.host, id: q.ID, group: q.Group, local: q.Local, classic: q.Type() == catalog.ClassicType,
		leaderless: t.host.Now(),
	}
	if q.Local {
		r.setLeader(r.host.NodeName(q.Home())) // and never any other node
		r.newest, r.term = r.leader, group.LocalTerm
		return r
	}
	r.watch() // no other goroutine has it yet
	return r
}

// Queue returns the id of the queue.
func (r *Route) Queue() fsm.QueueID { return r.id }

// Group returns the id of the queue's group.
func (r *Route) Group() fsm.GroupID { return r.group }

// Attach adds a stream, whose owner's lock is held. A stream to a queue that is gone is over from
// the start.
func (r *Route) Attach(s *Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		s.gone = true
		return
	}
	if r.streams == nil {
		r.streams = map[fsm.SessionID]*Stream{}
	}
	r.streams[s.id] = s
	r.watch()
}

// Detach removes a stream.
func (r *Route) Detach(s *Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams[s.id] == s {
		if delete(r.streams, s.id); len(r.streams) == 0 {
			r.streams = nil // most queues have none most of the time
		}
	}
}

// Stream returns the stream of a session, or nil if there is none.
func (r *Route) Stream(id fsm.SessionID) *Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streams[id]
}

// Streams returns all streams.
func (r *Route) Streams() []*Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.streams))
}

// wake submits the commands of s, now or as soon as there is a leader.
func (r *Route) wake(s *Stream) {
	r.mu.Lock()
	r.dirty = append(r.dirty, s)
	r.want()
	r.start()
	r.mu.Unlock()
}

// submits reports whether there is a leader that takes commands. mu is held.
func (r *Route) submits() bool { return r.leader != "" && r.pause.until == 0 }

// Want says that somebody waits for a leader, if there is none: those who could elect one are otherwise
// patient with one that is silent.
func (r *Route) Want() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want()
}

// wantEvery is how often it is said that somebody waits for a leader.
const wantEvery = 200 // milliseconds

// wantIfUnanswered is Want if a stream waits for an answer.
func (r *Route) wantIfUnanswered() {
	if slices.ContainsFunc(r.Streams(), (*Stream).waits) {
		r.Want()
	}
}

// want is Want. mu is held.
func (r *Route) want() {
	if now := r.host.Now(); r.leader == "" && now >= r.wantAgain {
		r.wantAgain = now + wantEvery
		r.host.Want(r)
	}
}

// start runs the submitting goroutine if there is a leader. mu is held.
func (r *Route) start() {
	if !r.running && r.submits() && len(r.dirty) > 0 {
		r.running = true
		go r.run()
	}
}

// run submits as long as there are commands. A panic ends the sessions that use the queue here.
func (r *Route) run() {
	if !r.host.Try("submit to a queue", r.submitDirty) {
		r.rebuild()
	}
}

func (r *Route) submitDirty() {
	var streams []*Stream
	for {
		r.mu.Lock()
		if !r.submits() || len(r.dirty) == 0 {
			r.running = false
			r.mu.Unlock()
			return
		}
		leader, term := r.leader, r.term
		streams, r.dirty = r.dirty, streams[:0]
		r.mu.Unlock()
		r.submitAll(streams, leader)
		if !r.leads(leader, term) {
			// Whoever changed the leader has made the streams send again, perhaps before the
			// commands were taken for the former leader.
			for _, s := range streams {
				s.sendAgain()
			}
		}
		clear(streams)
	}
}

// submitAll sends what the streams hold, in as few batches as the bounds allow.
func (r *Route) submitAll(streams []*Stream, leader string) {
	b := NewLoad()
	for i := 0; i < len(streams); {
		full := streams[i].Take(&b)
		if !full {
			i++
		}
		if full || i == len(streams) {
			if err := b.Submit(func(b group.Batch) error { return r.host.Submit(r, leader, b) }); err != nil {
				r.refused(leader, err)
				r.mu.Lock()
				r.dirty = append(r.dirty, streams[i:]...) // they have not been read
				r.mu.Unlock()
				return
			}
			b = NewLoad()
		}
	}
}

// Leader returns the serving node; or, if there is none, since when, and a channel that is closed
// when there is one.
func (r *Route) Leader() (node string, since int64, led <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.led == nil {
		r.led = make(chan struct{})
	}
	return r.leader, r.leaderless, r.led
}

// announce tells who waits for a leader that there is one, or will never be. mu is held.
func (r *Route) announce() {
	if r.led != nil {
		close(r.led)
		r.led = nil
	}
}

// IsLeader reports whether a node serves the queue.
func (r *Route) IsLeader(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader == node
}

func (r *Route) leads(node string, term uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader == node && r.term == term
}

// setLeader notes who serves the queue; empty: nobody. mu is held, or nobody else has the route yet.
func (r *Route) setLeader(node string) {
	r.table.leaders.move(r, r.leader, node)
	r.leader = node
}

// Lead records which node serves the queue. A new leader is sent everything unanswered, and asked for
// missing deliveries. A known one is asked what it has: it announces itself again when it could not send
// something, or takes commands again.
func (r *Route) Lead(node string, term uint64) {
	r.mu.Lock()
	if r.ended || term < r.term {
		r.mu.Unlock()
		return
	}
	if r.leader == "" {
		r.announce()
	}
	isNew := node != r.newest || term != r.term
	r.setLeader(node)
	r.newest, r.term, r.pause = node, term, pause{}
	r.mu.Unlock()
	r.refresh(isNew)
}

// refresh sends a new leader everything unanswered, or asks the one there was what it has. It requests lost
// deliveries.
func (r *Route) refresh(isNew bool) {
	r.askAll(func(s *Stream) []Resync { return s.restart(isNew) })
}

// Lose forgets a leader that does not serve or cannot be reached.
func (r *Route) Lose(node string) {
	r.mu.Lock()
	lost := r.leader == node
	if lost {
		r.setLeader("")
		r.leaderless, r.wantAgain = r.host.Now(), 0
		r.watch()
	}
	r.mu.Unlock()
	if lost {
		r.wantIfUnanswered()
	}
}

// pause says that a leader that leads is not sent anything. The watch ends it, or the leader does when it
// announces itself.
type pause struct {
	until  int64 // ms; 0: there is none
	ended  int64 // when the last one ended, ms
	length int64 // of the present or the last one, ms
}

// The first and the longest of several pauses in a row, in milliseconds.
const (
	minPause = 100
	maxPause = 2000
)

// begin begins a pause, which is longer if the last one has just ended.
func (p *pause) begin(now int64) {
	if p.length = min(2*p.length, maxPause); p.length == 0 || now-p.ended > maxPause {
		p.length = minPause
	}
	p.until = now + p.length
}

// Pause stops submitting for a while: the leader has too much waiting, or is handing its leadership over.
// It keeps what it has taken.
func (r *Route) Pause(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leader == node && r.pause.until == 0 {
		r.pause.begin(r.host.Now())
		r.watch()
	}
}

// resume ends a pause that has lasted long enough, and reports whether it has. What was refused meanwhile is
// among what the leader is asked for. mu is held.
func (r *Route) resume(now int64) bool {
	if r.pause.until == 0 || now < r.pause.until {
		return false
	}
	r.pause.until, r.pause.ended = 0, now
	return true
}

// refused deals with a leader that has not taken a batch.
func (r *Route) refused(leader string, why error) {
	if errors.Is(why, group.ErrFull) || errors.Is(why, replica.ErrTransferring) {
		r.Pause(leader)
	} else {
		r.Lose(leader)
	}
}

// end ends all streams: the queue is gone.
func (r *Route) end() {
	r.mu.Lock()
	r.ended = true
	r.table.leaders.move(r, r.leader, "")
	streams := r.streams
	r.streams, r.dirty = nil, nil
	r.announce()
	r.mu.Unlock()
	for _, s := range streams {
		if !r.host.Try("end a queue", s.end) {
			r.host.Try("end a queue", s.fail)
		}
	}
}

// rebuild starts over after a panic, when the state of the route and its streams may be half
// changed. Their sessions end, dead letters are sent again from where their queue's log says, and
// the leader is searched for again.
func (r *Route) rebuild() {
	r.mu.Lock()
	streams := r.streams
	r.streams, r.dirty, r.running, r.searching = nil, nil, false, false
	if !r.local {
		r.setLeader("")
		r.leaderless = r.host.Now()
	}
	r.watch()
	r.mu.Unlock()
	for _, s := range streams {
		r.host.Try("end what a queue was used by", s.fail)
	}
}

// askAll asks the leader what each stream has to ask, and goes on to submit.
func (r *Route) askAll(what func(*Stream) []Resync) {
	for _, s := range r.Streams() {
		r.ask(what(s))
	}
	r.mu.Lock()
	r.start()
	r.mu.Unlock()
}

// ask sends resync requests to the leader.
func (r *Route) ask(asks []Resync) {
	if len(asks) == 0 {
		return
	}
	r.mu.Lock()
	leader := r.leader
	r.mu.Unlock()
	if leader == "" {
		return
	}
	for _, a := range asks {
		r.host.Ask(r, leader, a)
	}
}
