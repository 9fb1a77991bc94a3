package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// sessions are all sessions that have a stream here, the lives of the nodes
// they live on, and the memory of ended ones: sessions for a while, nodes that
// were declared down forever. suspected.go has the suspected lives.
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
}

// newSessions returns an empty set of sessions.
func newSessions(s *shared) *sessions {
	ss := &sessions{shared: s}
	ss.clear()
	return ss
}

// clear removes all sessions and the memory of ended ones.
func (ss *sessions) clear() {
	*ss = sessions{shared: ss.shared, byID: map[fsm.SessionID]*session{}, isEnded: map[fsm.SessionID]bool{}}
}

// endAll removes all sessions, but keeps the memory of those that ended before.
// The caller has detached what they hold. suspected goes, too: it concerns only
// sessions of an active queue.
func (ss *sessions) endAll() {
	ss.byID, ss.lives, ss.ending = map[fsm.SessionID]*session{}, sorted[*life]{}, 0
	ss.recent, ss.suspected = nil, nil
}

// len is the number of sessions that can be found.
func (ss *sessions) len() int { return len(ss.byID) - ss.ending }

// size is the number of all sessions, including remembered ended ones.
func (ss *sessions) size() int { return len(ss.byID) + ss.ended.len() }

// has reports whether s is a session of the queue.
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
	l := ss.lives.get(of.key())
	if l == nil {
		ss.lives.put(of.key(), &life{of: of, suspected: ss.isSuspected(s.id), over: ss.isDown(of)})
		l = ss.lives.get(of.key())
	}
	s.life = *l
	if s.life.over {
		ss.ending++
	}
	s.life.sessions.put(key{seq: s.id.Num}, s)
	ss.byID[s.id] = s
}

// remove removes a session that has no consumers left. It reports whether it
// was the last of the ending sessions. Requires: its consumers were
// unregistered. It is not remembered as ended: the caller does that, or its
// node is down.
func (ss *sessions) remove(s *session) (allEnded bool) {
	l := s.life
	l.sessions.remove(key{seq: s.id.Num})
	if l.sessions.len() == 0 {
		ss.lives.remove(l.of.key())
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

// begin begins a stream. Requires: hasEnded(id) and isLate were false.
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
	ss.suspected = slices.DeleteFunc(ss.suspected, func(x suspicion) bool { return x.of.Node == node && x.of.Boot <= boot })
	for k, l := range ss.lives.from(Boot{Node: node}.key()) {
		if k.at != fsm.Time(node) || k.seq > ss.down[i].Boot {
			break
		}
		if !(*l).over {
			(*l).over, (*l).suspected, some = true, false, true
			ss.ending += (*l).sessions.len()
		}
	}
	ss.recent = nil
	return some
}

// toEnd is the number of ending sessions.
func (ss *sessions) toEnd() int { return ss.ending }

// isEnding reports whether there are ending sessions.
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

// isDown reports whether a life of a node was declared down.
func (ss *sessions) isDown(b Boot) bool {
	i, ok := ss.findDown(b.Node)
	return ok && b.Boot <= ss.down[i].Boot
}

// findDown returns the position of a node in down, or where to insert it.
func (ss *sessions) findDown(n fsm.NodeID) (int, bool) {
	return slices.BinarySearchFunc(ss.down, n, func(b Boot, n fsm.NodeID) int { return cmp.Compare(b.Node, n) })
}

// remember records that a session has ended.
func (ss *sessions) remember(id fsm.SessionID) {
	if ss.hasEnded(id) {
		return
	}
	for range forgetAtOnce {
		if ss.ended.len() == 0 || ss.ended.item(0).at.Add(endedFor) >= ss.clock.now() {
			break
		}
		delete(ss.isEnded, ss.ended.item(0).id)
		ss.ended.pop()
	}
	ss.ended.push(ended{id, ss.clock.now()})
	ss.isEnded[id] = true
}

// all iterates over the sessions, ascending, including ending ones. The order
// is that of SessionID.Compare, and that of a snapshot.
func (ss *sessions) all() iter.Seq[*session] {
	return func(yield func(*session) bool) {
		for _, l := range ss.lives.all() {
			for _, s := range (*l).sessions.all() {
				if !yield(*s) {
					return
				}
			}
		}
	}
}

// ids lists the sessions with a stream, ascending.
func (ss *sessions) ids() []fsm.SessionID {
	ids := make([]fsm.SessionID, 0, len(ss.byID))
	for s := range ss.all() {
		if !s.life.over {
			ids = append(ids, s.id)
		}
	}
	return ids
}

// nodes lists the lives of nodes that have sessions, ascending. Queues that
// forward dead letters are on no node.
func (ss *sessions) nodes() []Boot {
	var boots []Boot
	for _, l := range ss.lives.from(key{at: 1}) {
		if !(*l).over {
			boots = append(boots, (*l).of)
		}
	}
	return boots
}

// sources lists up to limit queues with a session that forwards their letters
// here, with an id above after, ascending.
func (ss *sessions) sources(after fsm.QueueID, limit int) []fsm.QueueID {
	var ids []fsm.QueueID
	for k := range ss.lives.from(key{seq: uint64(after) + 1}) {
		if k.at != 0 || len(ids) == limit {
			break
		}
		ids = append(ids, fsm.QueueID(k.seq))
	}
	return ids
}

// firstDown returns the first life of a node that is down and has sessions;
// there must be one. The order is by node, then boot. It costs O(nodes ever
// down × log lives).
func (ss *sessions) firstDown() *life {
	for _, b := range ss.down {
		for k, l := range ss.lives.from(key{at: fsm.Time(b.Node)}) {
			if k.at == fsm.Time(b.Node) && k.seq <= b.Boot {
				return *l
			}
			break
		}
	}
	panic("no node is down")
}

// consumerNodes lists the lives of nodes that have consumers or gets,
// ascending.
func (ss *sessions) consumerNodes() []Boot {
	var boots []Boot
	for _, l := range ss.lives.all() {
		if (*l).consumers > 0 && !(*l).over {
			boots = append(boots, (*l).of)
		}
	}
	return boots
}
