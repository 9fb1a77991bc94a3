package stream

import (
	"iter"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Stream holds the commands of one session to one queue. They stay until they are answered. After
// a change of leader or a broken link, all of them are sent again: the machine drops duplicates.
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
	gone      bool        // the queue is gone
	lost      bool        // the queue has ended the session
	ending    bool        // SESSION_DOWN is among its commands
	consumers map[uint64]*Consumer
	unseen    []settlement // to be queued once the current answers have been processed
	progress  progress
}

// New returns a stream that begins with command 1. It is not attached to the route yet. receiver
// may be nil.
func New(o Owner, receiver Receiver, id fsm.SessionID, r *Route) *Stream {
	s := &Stream{
		owner: o, receiver: receiver, id: id, route: r, next: 1,
		encoder: encoder{session: id.Proto()}, progress: progress{at: r.host.Now()},
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
func (s *Stream) Skip(n uint64) { s.sent, s.next = n, n+1 }

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
		s.progress.at = s.route.host.Now()
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
			p.settle.ranges = appendRanges(p.settle.ranges, ids)
			return
		}
	}
	s.push(Pending{settle: settlement{consumer, outcome, appendRanges(nil, ids)}})
}

// Request queues a command whose answer a caller waits for.
func (s *Stream) Request(c *logpb.Command) *Call {
	k := newCall(c)
	switch {
	case s.gone:
		k.Finish(fsm.Result{Code: fsm.Gone})
	case s.lost:
		k.Finish(fsm.Result{Code: fsm.NoSession})
	default:
		s.Add(c, Pending{Call: k})
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
func (b *Load) Submit(to func(group.Batch) bool) bool {
	return (b.light.Count == 0 || to(b.light)) && (b.heavy.Count == 0 || to(b.heavy)) && (b.patient.Count == 0 || to(b.patient))
}

// Take moves what has not been sent into batches and reports whether one of them
// is full. It takes the owner's lock.
func (s *Stream) Take(to *Load) (full bool) {
	s.owner.Lock()
	defer s.owner.Unlock()
	return s.collect(to)
}

// collect is Take with the lock held. Commands are light up to the stream's first payload: while a
// command that is not light is unanswered, later ones must stay behind it. Those of a stream that
// becomes urgent may overtake patient ones, and then all are sent again.
func (s *Stream) collect(to *Load) (full bool) {
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
		s.sent = p.seq
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

// resend makes all unanswered commands go out again. The lock is held.
func (s *Stream) resend() {
	if s.pending.len() > 0 {
		s.sent = s.pending.at(0).seq - 1
		s.wake()
	}
}

// sendAgain is resend, and takes the lock, releasing it even after a panic.
func (s *Stream) sendAgain() {
	s.owner.Lock()
	defer s.owner.Unlock()
	s.resend()
}

// gapPause is how long repeated reports of the same gap are ignored.
const gapPause = 50 // milliseconds

// maxStalls bounds how long a stream waits before it sends everything again.
const maxStalls = 4

// stallRate is the assumed rate of the slowest queue, in bytes per millisecond: a stream waits
// that much longer for an answer the more bytes it holds.
const stallRate = 2 << 10

// progress determines when a stream sends again by itself.
type progress struct {
	at     int64  // when something was last answered, or sent again, ms
	stalls int    // how often everything was sent again without an answer; ≤ maxStalls
	gapAt  uint64 // last gap that made the stream send again
}

// gap sends again from next on, where the machine's stream ends.
func (s *Stream) gap(next uint64) {
	now := s.route.host.Now()
	if s.progress.gapAt == next && now-s.progress.at < gapPause {
		return
	}
	s.progress.gapAt, s.progress.at = next, now
	s.resend()
}

// stuck sends again if nothing was answered for a while: at first for limit plus the time for the
// payloads, then for twice as long each time. A queue that is merely slow must not get the same
// work over and over. The lock is held.
func (s *Stream) stuck(now, limit int64) {
	p := &s.progress
	if s.pending.len() == 0 || now-p.at <= limit<<p.stalls {
		return
	}
	bytes := int64(0)
	for i := range s.pending.len() {
		bytes += int64(len(s.pending.at(i).Payload))
	}
	if now-p.at > (limit+bytes/stallRate)<<p.stalls {
		p.stalls = min(p.stalls+1, maxStalls)
		p.at = now
		s.resend()
	}
}

// Answer processes outcomes of commands reported by a node. It takes the owner's lock.
func (s *Stream) Answer(from string, outcomes []group.Outcome) {
	s.owner.Lock()
	defer s.owner.Unlock()
	for i := range outcomes {
		if outcomes[i].Result.Code == fsm.NoSession && !s.route.IsLeader(from) {
			continue // from a former leader, for commands that have been sent again since
		}
		s.answered(outcomes[i].First, outcomes[i].Run, outcomes[i].Result)
	}
}

// answered processes the outcome of commands. The lock is held.
func (s *Stream) answered(first, run uint64, r fsm.Result) {
	if s.pending.len() == 0 || first+run <= s.pending.at(0).seq {
		return // an answer to a duplicate
	}
	switch oldest := s.pending.at(0).seq; {
	case r.Code == fsm.Gap:
		s.gap(r.Next)
		return
	case r.Code == fsm.NoSession && oldest == 1 && first > 1:
		// The command that begins the stream was lost, later ones were not.
		s.gap(1)
		return
	case r.Code == fsm.Late:
		s.reopen(fsm.Time(r.Next))
		return
	case r.Code == fsm.NoSession:
		s.owner.Lost()
		return
	case first > oldest:
		// Answers in between have been lost; request them again.
		s.gap(oldest)
		return
	}
	for s.pending.len() > 0 && s.pending.at(0).seq < first+run {
		p := s.pending.at(0)
		if p.Call.again(r) {
			s.sent = p.seq - 1
			s.wake()
			return
		}
		s.pending.pop()
		s.owner.Answered(p, r)
		*p = Pending{}
	}
	s.progress.at, s.progress.stalls = s.route.host.Now(), 0
	for _, u := range s.unseen {
		s.push(Pending{settle: u})
	}
	s.unseen = nil
	s.pending.compact()
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
	s.progress.at = s.route.host.Now()
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
	if s.receiver != nil {
		s.receiver.Noticed(n)
	}
}
