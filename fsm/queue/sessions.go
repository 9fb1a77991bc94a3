package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// sessions are all sessions that have a stream here, the lives of the nodes
// they live on, and the memory of ended ones: sessions for a while, nodes that
// were declared down forever.
//
// A session whose life is over can no longer be found. It ends step by step,
// and is one of the ending sessions until it has ended.
//
// Invariants:
//
//	every session is in byID and in the sessions of its life; a life is in lives
//	exactly while it has sessions
//	ending = Σ sessions of lives that are over, 0 ≤ ending ≤ len(byID)
//	life.over = the life was declared down; life.suspected = it is in suspected
//	isEnded has exactly the sessions in ended, none of which is in byID
//	ended ascends by time, which is at most the clock's; down ascends by node,
//	suspected by node and boot
//
// A snapshot has each session (next, last answer, refused runs), and in its
// head ended, down and suspected. lives, ending and the maps are rebuilt. Maps
// are only looked up; whatever is listed or ended in order comes from lives.
type sessions struct {
	*shared

	byID    map[fsm.SessionID]*session
	lives   sorted[*life] // by node and boot
	ending  int           // sessions of lives that are over
	recent  *session      // the last one looked up; nil: none
	ended   deque[ended]  // by time
	isEnded map[fsm.SessionID]bool
	// One entry for each node ever declared down: it bounds the memory by the
	// number of nodes, not of boots.
	down      []Boot // highest boot declared down, by node
	suspected []suspicion

	changes uint64 // see Demand.BootsChanged
}

func (ss *sessions) clear() {
	*ss = sessions{shared: ss.shared, changes: ss.changes + 1, byID: map[fsm.SessionID]*session{}, isEnded: map[fsm.SessionID]bool{}}
}

// endAll removes all sessions, but keeps the memory of those that ended before.
// The caller has detached what they hold. suspected goes, too: it concerns only
// sessions of an active queue.
func (ss *sessions) endAll() {
	ss.byID, ss.lives, ss.ending = map[fsm.SessionID]*session{}, sorted[*life]{}, 0
	ss.recent, ss.suspected = nil, nil
	ss.changes++
}

func (ss *sessions) len() int { return len(ss.byID) - ss.ending }

// size is the number of all sessions, including remembered ended ones.
func (ss *sessions) size() int { return len(ss.byID) + ss.ended.Len() }

func (ss *sessions) has(s *session) bool { return ss.byID[s.id] == s }

// get is find for readers. It does not touch recent, so it changes nothing.
func (ss *sessions) get(id fsm.SessionID) *session {
	if s := ss.byID[id]; s != nil && !s.life.over {
		return s
	}
	return nil
}

// add registers a session. Requires: it is not there yet. Ensures: s.life is
// set.
func (ss *sessions) add(s *session) {
	of := Boot{s.id.Node, s.id.Boot}
	if s.life = ss.lives.Value(of.key()); s.life == nil {
		s.life = &life{of: of, suspected: ss.isSuspected(s.id), over: ss.isDown(of)}
		ss.lives.Put(of.key(), s.life)
		ss.changes++
	}
	if s.life.over {
		ss.ending++
	}
	s.life.sessions.Put(key{Seq: s.id.Num}, s)
	ss.byID[s.id] = s
}

// remove removes a session that has no consumers left, and reports whether it was the last of the
// ending sessions. The caller remembers that it has ended, or its node is down.
func (ss *sessions) remove(s *session) (allEnded bool) {
	l := s.life
	l.sessions.Remove(key{Seq: s.id.Num})
	if l.sessions.Len() == 0 {
		ss.lives.Remove(l.of.key())
		ss.changes++
	}
	delete(ss.byID, s.id)
	if ss.recent == s {
		ss.recent = nil
	}
	if !l.over {
		return false
	}
	ss.ending--
	return ss.ending == 0
}

func (ss *sessions) begin(id fsm.SessionID) *session {
	s := &session{id: id, next: 1}
	ss.add(s)
	ss.recent = s
	return s
}

// declareDown records forever that a node is down up to a boot number. From
// then on its sessions are ending. It reports whether there are new ones.
//
// O(lives of the node), however many sessions they have: from now on get and
// find do not return them, and endDown takes them apart. A suspicion ends with
// its life.
func (ss *sessions) declareDown(node fsm.NodeID, boot uint64) (some bool) {
	i, ok := ss.findDown(node)
	if !ok {
		ss.down = slices.Insert(ss.down, i, Boot{Node: node})
	}
	ss.down[i].Boot = max(ss.down[i].Boot, boot)
	ss.changes++
	ss.suspected = slices.DeleteFunc(ss.suspected, func(x suspicion) bool { return x.of.Node == node && x.of.Boot <= boot })
	for l := range ss.lives.Values(Boot{Node: node}.key()) {
		if l.of.Node != node || l.of.Boot > ss.down[i].Boot {
			break
		}
		if !l.over {
			l.over, l.suspected, some = true, false, true
			ss.ending += l.sessions.Len()
		}
	}
	ss.recent = nil
	return some
}

func (ss *sessions) toEnd() int { return ss.ending }

func (ss *sessions) isEnding() bool { return ss.ending > 0 }

// find returns a session; nil: there is none, or it is ending. It is optimized
// for runs of commands of one session.
func (ss *sessions) find(id fsm.SessionID) *session {
	if ss.recent != nil && ss.recent.id == id {
		return ss.recent
	}
	s := ss.get(id)
	if s != nil {
		ss.recent = s
	}
	return s
}

// hasEnded reports whether a session is known to have ended. That is known at
// least for endedFor, and forever if its node was declared down.
func (ss *sessions) hasEnded(id fsm.SessionID) bool {
	return ss.isDown(Boot{id.Node, id.Boot}) || ss.isEnded[id]
}

// isLate reports whether a command made at that time is too old or too new to
// begin a stream. 0: the command does not say when it was made.
//
// Too new matters as well: a command with a stamp in the future could begin its
// stream again after the end of that stream has been forgotten.
func (ss *sessions) isLate(at fsm.Time) bool {
	return at < 0 || at != 0 && (at.Add(beginWithin) < ss.clock.now() || ss.clock.now().Add(beginWithin) < at)
}

func (ss *sessions) isDown(b Boot) bool {
	i, ok := ss.findDown(b.Node)
	return ok && b.Boot <= ss.down[i].Boot
}

func (ss *sessions) findDown(n fsm.NodeID) (int, bool) {
	return slices.BinarySearchFunc(ss.down, n, func(b Boot, n fsm.NodeID) int { return cmp.Compare(b.Node, n) })
}

func (ss *sessions) remember(id fsm.SessionID) {
	if ss.hasEnded(id) {
		return
	}
	for range forgetAtOnce {
		if ss.ended.Len() == 0 || ss.ended.Item(0).at.Add(endedFor) >= ss.clock.now() {
			break
		}
		delete(ss.isEnded, ss.ended.Item(0).id)
		ss.ended.Pop()
	}
	ss.ended.Push(ended{id, ss.clock.now()})
	ss.isEnded[id] = true
}

// all iterates over the sessions, ascending, including ending ones. The order
// is that of SessionID.Compare, and that of a snapshot.
func (ss *sessions) all() iter.Seq[*session] {
	return func(yield func(*session) bool) {
		for l := range ss.lives.Values(key{}) {
			for s := range l.sessions.Values(key{}) {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// firstDown returns the first life, by node and boot, that is down and has sessions; there must be one.
// O(nodes ever down × log lives).
func (ss *sessions) firstDown() *life {
	for _, b := range ss.down {
		for l := range ss.lives.Values(Boot{Node: b.Node}.key()) {
			if l.of.Node == b.Node && l.of.Boot <= b.Boot {
				return l
			}
			break
		}
	}
	panic("no node is down")
}

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

// Boot identifies one life of a node.
type Boot struct {
	Node fsm.NodeID
	Boot uint64
}

func (b Boot) key() key { return key{At: fsm.Time(b.Node), Seq: b.Boot} }

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

// wasRefused reports whether command seq was refused. It may be true for others that are so old that
// nobody repeats them. O(log runs).
func (s *session) wasRefused(seq uint64) bool {
	i, found := slices.BinarySearchFunc(s.refused, seq, func(r run, seq uint64) int { return cmp.Compare(r.first, seq) })
	return found || i > 0 && seq-s.refused[i-1].first < s.refused[i-1].length
}

// answer is the answer to the last synchronous command of a stream. A channel
// has one such call at a time, so one is enough. seq 0: none yet. delivery 0:
// it was not a get, or there was no message.
type answer struct {
	seq, count, consumers uint64
	delivery              uint64 // of a get, or the first of those taken without consumer
	next                  uint64 // of a unit
	code                  fsm.Code
}

func (s *session) attach(c *consumer) {
	i, _ := s.search(c.id.Number)
	s.consumers = slices.Insert(s.consumers, i, c)
	s.life.consumers++
}

func (s *session) prune(gone func(*consumer) bool) {
	s.consumers = slices.DeleteFunc(s.consumers, gone)
}

func (l *life) detached() { l.consumers-- }

func (s *session) search(number uint64) (int, bool) {
	return slices.BinarySearchFunc(s.consumers, number, func(c *consumer, n uint64) int { return cmp.Compare(c.id.Number, n) })
}

func (s *session) consumer(number uint64) *consumer {
	if i, ok := s.search(number); ok {
		return s.consumers[i]
	}
	return nil
}

// pipelined are synchronous commands of which many may be under way at a time.
var pipelined = []logpb.Command_Kind{logpb.Command_SCHEDULE, logpb.Command_RECEIVE_DEFERRED, logpb.Command_GROUP, logpb.Command_UNIT}

// record remembers the answer to a synchronous command of a stream, and that
// another one was refused.
//
// Requires: cmd was performed just now, so cmd.Seq = next-1, or 0 for one
// outside of the stream, which is not remembered. runs is refusedRuns of the version.
func (s *session) record(cmd *logpb.Command, r *fsm.Result, delivery uint64, runs int) {
	switch cmd.Kind {
	case logpb.Command_CONSUME, logpb.Command_CANCEL, logpb.Command_GET,
		logpb.Command_PURGE, logpb.Command_DELETE, logpb.Command_TOUCH, logpb.Command_SCHEDULE,
		logpb.Command_RECEIVE_DEFERRED, logpb.Command_KICK, logpb.Command_UNPARK, logpb.Command_GROUP, logpb.Command_PAUSE, logpb.Command_TAKE,
		logpb.Command_REDRIVE, logpb.Command_UNIT:
		if cmd.Seq != 0 {
			s.last = answer{cmd.Seq, r.Count, r.Consumers, delivery, 0, r.Code}
		}
		if cmd.Seq != 0 && cmd.Kind == logpb.Command_UNIT {
			s.last.next = r.Next
		}
		if cmd.Seq != 0 && r.Code != fsm.OK && slices.Contains(pipelined, cmd.Kind) {
			s.refuse(cmd.Seq, runs) // many of them may be under way at a time
		}
	case logpb.Command_SETTLE, logpb.Command_RENEW, logpb.Command_CREDIT:
		if cmd.Seq != 0 && r.Code != fsm.OK {
			s.refuse(cmd.Seq, runs) // as before
		}
	case logpb.Command_ENQUEUE:
		if cmd.Seq != 0 && r.Code == fsm.Rejected {
			s.refuse(cmd.Seq, runs)
		}
	}
}

// suspicion is one life of a node that is not heard from. Its sessions
// continue, but their consumers get nothing; what they hold goes back at until,
// on the clock of held messages. 0: it has gone back.
//
// Invariant: 0 ≤ until; of is not down. There is one for a node without
// sessions here, too, because sessions may begin while it is suspected.
type suspicion struct {
	of    Boot
	until fsm.Time
}

func (ss *sessions) findSuspected(of Boot) (int, bool) {
	return slices.BinarySearchFunc(ss.suspected, of, func(x suspicion, of Boot) int {
		return cmp.Or(cmp.Compare(x.of.Node, of.Node), cmp.Compare(x.of.Boot, of.Boot))
	})
}

func (ss *sessions) isSuspected(id fsm.SessionID) bool {
	if len(ss.suspected) == 0 {
		return false
	}
	_, ok := ss.findSuspected(Boot{id.Node, id.Boot})
	return ok
}

// setSuspected begins or ends the suspicion of a life, and returns the life if it has sessions. The
// caller refreshes its consumers. ok: this is a change.
func (ss *sessions) setSuspected(of Boot, suspected bool) (l *life, ok bool) {
	i, was := ss.findSuspected(of)
	switch {
	case was == suspected || ss.isDown(of):
		return nil, false
	case was:
		ss.suspected = slices.Delete(ss.suspected, i, i+1)
	default:
		ss.suspected = slices.Insert(ss.suspected, i, suspicion{of, ss.clock.heldDeadline(ss.settings.disconnected)})
	}
	ss.changes++
	if l = ss.lives.Value(of.key()); l != nil {
		l.suspected = suspected
	}
	return l, true
}

// overdue ends the wait for lives that have been suspected for too long, and reports whether there are
// any, once. The caller takes back what their sessions hold.
func (ss *sessions) overdue() (some bool) {
	for i := range ss.suspected {
		if x := &ss.suspected[i]; x.until != 0 && ss.clock.heldUntil(x.until) <= ss.clock.now() {
			x.until, some = 0, true
		}
	}
	return some
}

// suspicionEnds returns when the first life has been suspected for too long; 0:
// never.
func (ss *sessions) suspicionEnds() (at fsm.Time) {
	for _, x := range ss.suspected {
		if t := ss.clock.heldUntil(x.until); t != 0 && (at == 0 || t < at) {
			at = t
		}
	}
	return at
}

// renewSuspicion is called before a session holds something: if its node is
// suspected and what it held has gone back, the time starts anew.
func (ss *sessions) renewSuspicion(s *session) {
	if !s.life.suspected {
		return
	}
	if i, ok := ss.findSuspected(Boot{s.id.Node, s.id.Boot}); ok && ss.suspected[i].until == 0 {
		ss.suspected[i].until = ss.clock.heldDeadline(ss.settings.disconnected)
	}
}

// isOverdue reports whether a session's node has been suspected for so long
// that what it held has gone back. It is false if the node is not suspected.
func (ss *sessions) isOverdue(s *session) bool {
	if !s.life.suspected {
		return false
	}
	i, ok := ss.findSuspected(Boot{s.id.Node, s.id.Boot})
	return ok && ss.suspected[i].until == 0
}
