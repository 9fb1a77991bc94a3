package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// sessions are all sessions with a stream here, the lives of nodes that they
// live on, and what is remembered of those that have ended: the sessions for a
// while, the nodes that were declared down for ever. suspected.go has the lives
// from which nothing is heard.
//
// A session whose life is over is not found any more: it ends piece by piece,
// and until it has it is one of the ending.
//
// Invariants:
//
//	every session is in byID and in the sessions of its life, which is in lives
//	exactly while it has some
//	ending = Σ sessions of lives that are over, 0 ≤ ending ≤ len(byID)
//	life.over = the life was declared down; life.suspected = it is in suspected
//	isEnded has exactly the sessions in ended, none of which is in byID
//	ended ascends by time, which is at most the clock's; down ascends by node,
//	suspected by node and boot
type sessions struct {
	*shared

	byID      map[fsm.SessionID]*session
	lives     sorted[*life] // by node and boot
	ending    int           // sessions of lives that are over
	recent    *session      // the last one looked up; nil: none
	ended     deque[ended]  // by time
	isEnded   map[fsm.SessionID]bool
	down      []Boot // highest boot declared down, by node
	suspected []suspicion
}

// newSessions returns a queue that has heard of nobody.
func newSessions(s *shared) *sessions {
	ss := &sessions{shared: s}
	ss.clear()
	return ss
}

// clear forgets all sessions, and that there ever were others.
func (ss *sessions) clear() {
	*ss = sessions{shared: ss.shared, byID: map[fsm.SessionID]*session{}, isEnded: map[fsm.SessionID]bool{}}
}

// endAll forgets all sessions, but not those that have ended before.
func (ss *sessions) endAll() {
	ss.byID, ss.lives, ss.ending = map[fsm.SessionID]*session{}, sorted[*life]{}, 0
	ss.recent, ss.suspected = nil, nil
}

// len is the number of sessions that can be found.
func (ss *sessions) len() int { return len(ss.byID) - ss.ending }

// size is the number of all there are, ended ones that are remembered included.
func (ss *sessions) size() int { return len(ss.byID) + ss.ended.len() }

// has reports whether s is a session of the queue.
func (ss *sessions) has(s *session) bool { return ss.byID[s.id] == s }

// get is find for readers.
func (ss *sessions) get(id fsm.SessionID) *session {
	if s := ss.byID[id]; s != nil && !s.life.over {
		return s
	}
	return nil
}

// add makes a session known.
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

// remove is the end of a session that has no consumers any more. It reports
// whether the last one of the ending went.
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

// begin is the beginning of a stream.
func (ss *sessions) begin(id fsm.SessionID) *session {
	s := &session{id: id, next: 1}
	ss.add(s)
	ss.recent = s
	return s
}

// declareDown notes that a node is down up to a boot number, for ever. From then
// on its sessions are among the ending. It reports whether there are new ones.
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

// toEnd is the number of sessions that have to end.
func (ss *sessions) toEnd() int { return ss.ending }

// isEnding reports whether sessions are left that have to end.
func (ss *sessions) isEnding() bool { return ss.ending > 0 }

// find looks a session up; nil: there is none, or it is ending. Runs of commands of one session are the rule.
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

// hasEnded reports whether a session is known to have ended.
func (ss *sessions) hasEnded(id fsm.SessionID) bool {
	return ss.isDown(Boot{id.Node, id.Boot}) || ss.isEnded[id]
}

// isLate reports whether no stream may begin with a command made at that time;
// 0: it does not say when.
func (ss *sessions) isLate(at fsm.Time) bool {
	return at < 0 || at != 0 && (at.Add(beginWithin) < ss.clock.now() || ss.clock.now().Add(beginWithin) < at)
}

// isDown reports whether a life of a node was declared down.
func (ss *sessions) isDown(b Boot) bool {
	i, ok := ss.findDown(b.Node)
	return ok && b.Boot <= ss.down[i].Boot
}

// findDown returns where a node is among those that were declared down, or would be.
func (ss *sessions) findDown(n fsm.NodeID) (int, bool) {
	return slices.BinarySearchFunc(ss.down, n, func(b Boot, n fsm.NodeID) int { return cmp.Compare(b.Node, n) })
}

// remember notes that a session has ended.
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

// all iterates over the sessions, ascending, with those that are ending.
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

// nodes lists the boots of nodes that sessions live on, ascending.
// Queues that forward dead letters live on no node.
func (ss *sessions) nodes() []Boot {
	var boots []Boot
	for _, l := range ss.lives.from(key{at: 1}) {
		if !(*l).over {
			boots = append(boots, (*l).of)
		}
	}
	return boots
}

// sources lists up to limit of the queues that have a session to bring their
// dead letters here, with an id above after, ascending.
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
// there is one.
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

// consumerNodes lists the lives of nodes that consumers, or gets, live on,
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
