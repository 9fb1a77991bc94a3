package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A stream begins only with a command that was made at most beginWithin before
// or after the queue's clock, and a session that has ended is remembered for
// endedFor. So a delayed command, however late, cannot begin its session again:
// either it is too old, or the end of the session is still known.
//
// Invariant: 2 × beginWithin ≤ endedFor.
const (
	beginWithin = fsm.Millis(60_000)
	endedFor    = 2 * beginWithin
)

// forgetAtOnce bounds how many ended sessions are forgotten when another one
// ends.
const forgetAtOnce = 64

// ended is an ended session and when it ended.
type ended struct {
	id fsm.SessionID
	at fsm.Time
}

// session is the stream of one channel's commands to this queue. Commands are
// numbered from 1. The next one is performed; earlier ones get the same answer
// again, as far as it is remembered; later ones are a Gap.
//
// Invariants:
//
//	1 ≤ next, last.seq < next
//	refused: runs ascend, do not touch, and end at next at most; there are no more
//	than refusedRuns
//	consumers ascends by number, and each of them refers to this session
//
// It begins with command 1 and ends with SessionDown or the end of its node.
// There is no timeout: a session without traffic costs only its memory.
type session struct {
	id        fsm.SessionID
	next      uint64 // number of the next command
	last      answer
	consumers []*consumer // by number
	nextGet   uint64      // of the next delivery of its gets, while they are no consumer; 0: 1
	// life is never nil. thinning is temporary, within removeFinished.
	refused  []run // commands that were refused, ascending; see refuse
	life     *life
	thinning bool // set while some of its consumers are finished
}

// life is one life of a node, or a queue that forwards dead letters (node 0),
// with its sessions, at least one. What holds for the node holds for all of
// them, and is recorded once.
//
// Invariants: consumers = Σ len(consumers of sessions); over ⇒ not suspected.
//
// It exists as long as it has sessions. suspected and over repeat what
// suspicions and down say, so that no lookup is needed for each consumer; both
// are computed again when sessions are restored.
type life struct {
	of        Boot
	sessions  sorted[*session] // by number
	consumers int              // of all of them, gets included
	suspected bool             // nothing is heard from the node
	over      bool             // it is down: the sessions end step by step and can no longer be found
}

// key returns the position of a life among lives. Queues that forward letters
// are node 0 and come first, by id.
func (b Boot) key() key { return key{fsm.Time(b.Node), b.Boot} }

// run is a run of command numbers.
type run struct{ first, length uint64 }

// refusedRuns bounds what a session remembers of refused commands: the maximum
// number of runs among the commands that may be repeated, the unanswered ones.
// These are MaxUnanswered publishes, as many commands about deliveries, and, which
// versions before 3 do not count, strict settlements of all that a consumer holds.
const (
	refusedRuns = fsm.MaxUnanswered + fsm.MaxHeld/2 + 1
	fewerRuns   = fsm.MaxUnanswered + 1 // before version 3
)

// refuse remembers that command seq was refused, so that a repetition gets the
// same answer. If there are too many runs, the two oldest are merged, including
// the gap between them: all of these commands have been answered.
//
// Requires: seq is above all refused before. Amortized O(1).
func (s *session) refuse(seq uint64, runs int) {
	if n := len(s.refused); n > 0 && s.refused[n-1].first+s.refused[n-1].length == seq {
		s.refused[n-1].length++
		return
	}
	if len(s.refused) >= runs {
		first, second := s.refused[0], s.refused[1]
		s.refused[1] = run{first.first, second.first + second.length - first.first}
		s.refused = s.refused[1:]
	}
	s.refused = append(s.refused, run{seq, 1})
}

// wasRefused reports whether command seq was refused. O(log runs). It may be
// true for commands that were not refused and are so old that nobody repeats
// them.
func (s *session) wasRefused(seq uint64) bool {
	i, found := slices.BinarySearchFunc(s.refused, seq, func(r run, seq uint64) int { return cmp.Compare(r.first, seq) })
	return found || i > 0 && seq-s.refused[i-1].first < s.refused[i-1].length
}

// answer is the answer to the last synchronous command of a stream. A channel
// has one such call at a time, so one is enough. seq 0: none yet. delivery 0:
// it was not a get, or there was no message.
type answer struct {
	seq, count, consumers uint64
	delivery              uint64 // of a get
	code                  fsm.Code
}

// attach adds c, whose number is not in use here. Requires: c.session is s.
// O(consumers of the session).
func (s *session) attach(c *consumer) {
	i, _ := s.search(c.id.Number)
	s.consumers = slices.Insert(s.consumers, i, c)
	s.life.consumers++
}

// prune removes unregistered consumers from the table.
func (s *session) prune(gone func(*consumer) bool) {
	s.consumers = slices.DeleteFunc(s.consumers, gone)
}

// detached counts a consumer that was unregistered.
func (l *life) detached() { l.consumers-- }

// search returns the position of the consumer with this number, or where to
// insert it.
func (s *session) search(number uint64) (int, bool) {
	return slices.BinarySearchFunc(s.consumers, number, func(c *consumer, n uint64) int { return cmp.Compare(c.id.Number, n) })
}

// consumer returns the consumer with this number, nil if there is none.
func (s *session) consumer(number uint64) *consumer {
	if i, ok := s.search(number); ok {
		return s.consumers[i]
	}
	return nil
}

// pipelined are synchronous commands of which many may be under way at a time.
var pipelined = []logpb.Command_Kind{logpb.Command_SCHEDULE, logpb.Command_RECEIVE_DEFERRED, logpb.Command_GROUP}

// record remembers the answer to a synchronous command of a stream, and that
// another one was refused.
//
// Requires: cmd was performed just now, so cmd.Seq = next-1, or 0 for one
// outside of the stream, which is not remembered. runs is refusedRuns of the version.
func (s *session) record(cmd *logpb.Command, r *fsm.Result, delivery uint64, runs int) {
	switch cmd.Kind {
	case logpb.Command_CONSUME, logpb.Command_CANCEL, logpb.Command_GET,
		logpb.Command_PURGE, logpb.Command_DELETE, logpb.Command_TOUCH, logpb.Command_SCHEDULE,
		logpb.Command_RECEIVE_DEFERRED, logpb.Command_KICK, logpb.Command_UNPARK, logpb.Command_GROUP:
		if cmd.Seq != 0 {
			s.last = answer{cmd.Seq, r.Count, r.Consumers, delivery, r.Code}
		}
		if cmd.Seq != 0 && r.Code != fsm.OK && slices.Contains(pipelined, cmd.Kind) {
			s.refuse(cmd.Seq, runs) // many of them may be under way at a time
		}
	case logpb.Command_SETTLE, logpb.Command_RENEW:
		if cmd.Seq != 0 && r.Code != fsm.OK {
			s.refuse(cmd.Seq, runs) // as before
		}
	case logpb.Command_ENQUEUE:
		if cmd.Seq != 0 && r.Code == fsm.Rejected {
			s.refuse(cmd.Seq, runs)
		}
	}
}
