package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// silence is one life of a node from which nothing is heard. Its sessions go
// on, but their consumers get nothing; what they hold goes back at until, on
// the clock of held messages. 0: it has gone back.
type silence struct {
	of    Boot
	until fsm.Time
}

// findSilent returns where a silence is, or would be.
func (ss *sessions) findSilent(of Boot) (int, bool) {
	return slices.BinarySearchFunc(ss.silent, of, func(x silence, of Boot) int {
		return cmp.Or(cmp.Compare(x.of.Node, of.Node), cmp.Compare(x.of.Boot, of.Boot))
	})
}

// isSilent reports whether nothing is heard from the node of a session.
func (ss *sessions) isSilent(id fsm.SessionID) bool {
	if len(ss.silent) == 0 {
		return false
	}
	_, ok := ss.findSilent(Boot{id.Node, id.Boot})
	return ok
}

// setSilent begins or ends the silence of a life, and returns it if sessions
// live on it. ok: it was not so before.
func (ss *sessions) setSilent(of Boot, silent bool) (l *life, ok bool) {
	i, was := ss.findSilent(of)
	switch {
	case was == silent || ss.isDown(of):
		return nil, false
	case was:
		ss.silent = slices.Delete(ss.silent, i, i+1)
	default:
		ss.silent = slices.Insert(ss.silent, i, silence{of, ss.clock.heldDeadline(ss.settings.disconnected)})
	}
	if p := ss.lives.get(of.key()); p != nil {
		l = *p
		l.silent = silent
	}
	return l, true
}

// overdue ends the wait for those that have been silent for too long, see
// isOverdue, and reports whether there are such.
func (ss *sessions) overdue() (some bool) {
	for i := range ss.silent {
		if x := &ss.silent[i]; x.until != 0 && ss.clock.heldUntil(x.until) <= ss.clock.now() {
			x.until, some = 0, true
		}
	}
	return some
}

// silenceEnds is when the first one has been silent for too long; 0: never.
func (ss *sessions) silenceEnds() (at fsm.Time) {
	for _, x := range ss.silent {
		if t := ss.clock.heldUntil(x.until); t != 0 && (at == 0 || t < at) {
			at = t
		}
	}
	return at
}

// renewSilence is told that a session is about to hold something: if it is
// silent and has lost what it held, the time begins anew.
func (ss *sessions) renewSilence(s *session) {
	if !s.life.silent {
		return
	}
	if i, ok := ss.findSilent(Boot{s.id.Node, s.id.Boot}); ok && ss.silent[i].until == 0 {
		ss.silent[i].until = ss.clock.heldDeadline(ss.settings.disconnected)
	}
}

// isOverdue reports whether a session's node has been silent for so long that
// what it held has gone back.
func (ss *sessions) isOverdue(s *session) bool {
	if !s.life.silent {
		return false
	}
	i, ok := ss.findSilent(Boot{s.id.Node, s.id.Boot})
	return ok && ss.silent[i].until == 0
}

// silentNodes lists the lives of nodes that are taken to be silent, ascending.
func (ss *sessions) silentNodes() []Boot {
	var boots []Boot
	for _, x := range ss.silent {
		boots = append(boots, x.of)
	}
	return boots
}
