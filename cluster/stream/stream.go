package stream

import (
	"iter"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Stream is the commands of one session to one queue. They stay until they are
// answered; after a change of leader, or a broken link, all of them are sent
// again: the machine drops what it has had.
//
// Invariant: pending holds the numbers oldest … next-1 without a gap, and
// sent < next, heavy < next. sent < oldest says that all is to go out (again).
type Stream struct {
	owner    Owner
	receiver Receiver // nil: its session has no consumers
	id       fsm.SessionID
	route    *Route

	// Guarded by the owner's lock.
	encoder   encoder
	pending   pendingList
	next      uint64 // number of the next command
	sent      uint64 // commands up to here have been submitted
	heavy     uint64 // the last command that was submitted in a batch that is not light
	dirty     bool   // on the route's list
	gone      bool   // the queue is gone
	lost      bool   // the queue has ended the session
	ending    bool   // SESSION_DOWN is among its commands
	consumers map[uint64]*Consumer
	unseen    []settlement // to be queued once the answers at hand are taken
	progress  progress
}

// New makes a stream that begins with command 1. It is not attached to the route
// yet. receiver may be nil.
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

// ID is the session's.
func (s *Stream) ID() fsm.SessionID { return s.id }

// Route is the way to the queue.
func (s *Stream) Route() *Route { return s.route }

// Queue is the queue's id.
func (s *Stream) Queue() fsm.QueueID { return s.route.id }

// All that follows needs the owner's lock unless it says otherwise.

// Next is the number that the next command will have.
func (s *Stream) Next() uint64 { return s.next }

// Waiting counts the commands without an answer.
func (s *Stream) Waiting() int { return s.pending.len() }

// Unanswered lists the commands without an answer.
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

// Ending reports whether the session's end is among the commands.
func (s *Stream) Ending() bool { return s.ending }

// Skip goes on behind command n, which the queue has already. Nothing waits.
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

// AddSettle queues a settlement, or joins it to the last one that has not been
// sent. ids are ascending.
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

// Request queues a command somebody waits for.
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

// Abandon drops what waits, because the queue has ended the session: whether it
// was applied is not known. Only who waits for a call is told.
func (s *Stream) Abandon() {
	s.lost = true
	for ; s.pending.len() > 0; s.pending.pop() {
		if p := s.pending.at(0); p.Call != nil {
			s.owner.Answered(p, fsm.Result{Code: fsm.NoSession})
		}
	}
	s.pending = pendingList{}
}

// chunkBytes is how much is allocated for encoded commands at a time.
const chunkBytes = 4 << 10

// encoder encodes commands of a session.
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

// settle encodes a settlement as the command that it has become.
func (e *encoder) settle(p *Pending) []byte {
	return e.encode(&logpb.Command{
		Kind: logpb.Command_SETTLE, Seq: p.seq,
		Settle: &logpb.Settle{Outcome: p.settle.outcome, Consumer: p.settle.consumer, Ranges: p.settle.ranges},
	})
}
