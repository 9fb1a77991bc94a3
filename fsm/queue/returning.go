package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// returning is what one consumer held and does not hold any more: its session
// has ended, its node was suspected for too long, or it has settled more at once
// than one command may end. The messages stay checked out, and come out of it
// piece by piece. held is never empty.
//
// Settlements come first, in their order: what was settled before a session
// ended is not lost with it. order ≠ 0 ⇔ it is a settlement, and failed says
// something of losses only.
type returning struct {
	of      fsm.ConsumerID
	held    held
	order   uint64               // of settlements, which are finished in their order; 0: the messages are lost to of
	outcome logpb.Settle_Outcome // of a settlement
	failed  bool                 // of a loss
}

// key is the place of r among those that are on their way back: settlements
// first, then the oldest message that comes next.
func (ds *deliveries) returningKey(r *returning) key {
	if r.order != 0 {
		return key{0, r.order}
	}
	_, g := r.held.first()
	return key{1, ds.messages.get(g.handle).seq}
}

// addReturning adds r, which holds something, to what is on its way back.
func (ds *deliveries) addReturning(r *returning) { ds.returning.put(ds.returningKey(r), r) }

// detach takes all that c holds from it. The messages go back.
func (ds *deliveries) detach(c *consumer, failed bool) {
	if c.held.len() == 0 {
		return
	}
	ds.consumers.holds(c, -c.held.len())
	ds.addReturning(&returning{of: c.id, failed: failed, held: c.held})
	c.held = held{}
}

// unfinished reports whether something is on its way back.
func (ds *deliveries) unfinished() bool { return ds.sessions.isEnding() || ds.returning.len() > 0 }

// bringBack ends sessions of nodes that are down, and brings back what is on
// its way and what scratch.taken holds besides. It stops when the command may do no
// more; the next one goes on. While sessions are left that have to end nobody
// is served: so all that comes back comes in its order.
func (ds *deliveries) bringBack(kind logpb.Command_Kind, eff *fsm.Effects) {
	left := ds.bounds.Before
	switch kind {
	case logpb.Command_TICK:
		left = min(ds.scratch.budget, ds.bounds.Back())
	case logpb.Command_NODE_DOWN, logpb.Command_SESSION_DOWN:
		left = ds.bounds.Back()
	}
	allowed := left
	left -= ds.endDown(left)
	if !ds.sessions.isEnding() {
		left -= ds.finishSettling(left, eff)
		left -= ds.takeLost(left)
	}
	ds.giveBack(ds.scratch.taken, true, eff)
	ds.scratch.taken = ds.scratch.taken[:0]
	if kind == logpb.Command_TICK {
		ds.scratch.budget -= allowed - left
	}
}

// finishSettling ends up to n deliveries of settlements, in their order, and
// returns how many.
func (ds *deliveries) finishSettling(n int, eff *fsm.Effects) (done int) {
	for done < n && ds.returning.len() > 0 {
		k, p := ds.returning.first()
		r := *p
		if r.order == 0 {
			break
		}
		var some []checkout
		for done+len(some) < n && r.held.len() > 0 {
			some = r.held.takeFirst(some)
		}
		if r.held.len() == 0 {
			ds.returning.remove(k)
		}
		ds.conclude(r.outcome, some, eff)
		done += len(some)
	}
	return done
}

// takeLost moves up to n messages that are lost to their holders to scratch.taken,
// oldest first as far as each holder got them in this order, and returns how many.
func (ds *deliveries) takeLost(n int) (done int) {
	for done < n && ds.returning.len() > 0 {
		k, p := ds.returning.first()
		r := *p
		ds.returning.remove(k)
		next := key{at: 2}
		if ds.returning.len() > 0 {
			next, _ = ds.returning.first()
		}
		for done < n && r.held.len() > 0 && ds.returningKey(r).before(next) {
			ds.scratch.taken = r.held.takeFirst(ds.scratch.taken)
			ds.scratch.taken[len(ds.scratch.taken)-1].failed = r.failed
			done++
		}
		if r.held.len() > 0 {
			ds.addReturning(r)
		}
	}
	return done
}

// endDown ends sessions of nodes that are down, in at most n steps: one for
// each session and for each consumer. It returns how many it took.
func (ds *deliveries) endDown(n int) (done int) {
	for done < n && ds.sessions.isEnding() {
		l := ds.sessions.firstDown()
		for done < n && l.sessions.len() > 0 {
			_, s := l.sessions.first()
			done += ds.endSession(*s, n-done)
		}
	}
	if done > 0 {
		ds.consumers.dropEnded()
	}
	return done
}

// endSession removes a session with its consumers, what they hold goes back
// as failed; in at most n steps, which must do for the consumers of a session
// before it goes itself. It returns how many it took. The consumers are left in
// consumers.all, see dropEnded.
func (ds *deliveries) endSession(s *session, n int) (done int) {
	for i := len(s.consumers) - 1; i >= 0; i-- {
		if done == n {
			return done
		}
		c := s.consumers[i]
		ds.detach(c, true)
		ds.consumers.unregister(c)
		s.consumers = s.consumers[:i]
		done++
		ds.scratch.steps++
	}
	if done == n {
		return done
	}
	if ds.sessions.remove(s) {
		ds.consumers.contest()
	}
	ds.scratch.steps++
	return done + 1
}

// sessionDown ends the session of the command.
func (ds *deliveries) sessionDown(meta *fsm.Meta, s *session) fsm.Result {
	if meta.Session == (fsm.SessionID{}) {
		return fsm.Result{Code: fsm.Invalid}
	}
	if s != nil {
		ds.endSession(s, len(s.consumers)+1)
		ds.consumers.dropEnded()
	}
	ds.sessions.remember(meta.Session)
	return fsm.Result{}
}

// endSuspicions takes what sessions hold whose nodes have been suspected for too long.
func (ds *deliveries) endSuspicions() {
	if !ds.sessions.overdue() {
		return
	}
	ds.consumers.contest()
	var done []*consumer
	for c := range ds.consumers.from(0) {
		ds.scratch.steps++
		if c.held.len() > 0 && ds.sessions.isOverdue(c.session) {
			ds.detach(c, false)
			done = append(done, c)
		}
	}
	ds.consumers.removeFinished(done...)
}
