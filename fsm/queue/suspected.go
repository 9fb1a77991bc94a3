package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

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

// findSuspected returns the position of a suspicion, or where to insert it.
func (ss *sessions) findSuspected(of Boot) (int, bool) {
	return slices.BinarySearchFunc(ss.suspected, of, func(x suspicion, of Boot) int {
		return cmp.Or(cmp.Compare(x.of.Node, of.Node), cmp.Compare(x.of.Boot, of.Boot))
	})
}

// isSuspected reports whether the node of a session is suspected. O(1) if
// nobody is, which is the normal case.
func (ss *sessions) isSuspected(id fsm.SessionID) bool {
	if len(ss.suspected) == 0 {
		return false
	}
	_, ok := ss.findSuspected(Boot{id.Node, id.Boot})
	return ok
}

// setSuspected begins or ends the suspicion of a life, and returns the life if
// it has sessions. ok: this is a change.
//
// The caller refreshes the consumers of l. The deadline uses the settings of
// now; later ones do not change it.
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
	if p := ss.lives.get(of.key()); p != nil {
		l = *p
		l.suspected = suspected
	}
	return l, true
}

// overdue ends the wait for lives that have been suspected for too long, see
// isOverdue, and reports whether there are any. It reports each suspicion once.
// The caller takes back what their sessions hold.
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

// suspectedNodes lists the lives of nodes that are suspected, ascending.
func (ss *sessions) suspectedNodes() []Boot {
	var boots []Boot
	for _, x := range ss.suspected {
		boots = append(boots, x.of)
	}
	return boots
}
