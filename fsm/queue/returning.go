package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// returning is what one consumer held and no longer holds: its session has
// ended, its node was suspected for too long, or it has settled more at once
// than one command may end. The messages stay checked out and are processed
// step by step. held is never empty.
//
// Settlements come first, in their order, so that what was settled before a
// session ended is not lost with it. order ≠ 0 ⇔ it is a settlement; failed is
// meaningful only for losses.
//
// due is when what was settled is to be tried again; 0: as the settings say. What
// is deferred is never here: it is one delivery, which ends at once.
//
// It belongs to no consumer and no session, since both may be gone: of and tag are only
// for listings and the record of ends. In a snapshot the head has all but held, and the messages name their
// holder by position.
type returning struct {
	of      fsm.ConsumerID
	tag     string // of the consumer
	held    held
	order   uint64               // settlements finish in this order; 0: of has lost the messages
	outcome logpb.Settle_Outcome // of a settlement
	due     fsm.Time             // of a settlement
	remark  *fsm.Remark          // of one that discards; shared, never changed; nil: none
	failed  bool                 // of a loss
	group   bool                 // of a group that was lost or given up: failed is meant for it, too
}

// returningKey is the position of r among what is on its way back: settlements
// first, then by the oldest message that comes next.
//
// The key of a loss changes with its first message, so takeLost removes the entry
// before it takes anything. Keys are unique: a message has one holder.
func (ds *deliveries) returningKey(r *returning) key {
	if r.order != 0 {
		return key{0, r.order}
	}
	_, g := r.held.first()
	return key{1, ds.messages.get(g.handle).seq}
}

// addReturning adds r, which holds something, to what is on its way back.
func (ds *deliveries) addReturning(r *returning) { ds.returning.put(ds.returningKey(r), r) }

// detach takes everything that c holds. The messages go back.
//
// It does not walk over what c holds: the table changes its owner. Ensures: c.held is empty.
// The caller removes c, or sees to it that it gets nothing for now.
func (ds *deliveries) detach(c *consumer, failed bool) {
	if c.held.len() == 0 {
		return
	}
	ds.consumers.holds(c, -c.held.len())
	ds.addReturning(&returning{of: c.id, tag: c.tag, failed: failed, held: c.held})
	c.held = held{}
}

// unfinished reports whether something is on its way back. As long as it is
// true NextDue is at once, nothing times out, and a get is never answered
// Empty.
func (ds *deliveries) unfinished() bool { return ds.sessions.isEnding() || ds.returning.len() > 0 }

// sessionsEnd reports whether sessions are still ending, so that something older
// may come back.
func (ds *deliveries) sessionsEnd() bool { return ds.sessions.isEnding() }

// bringBack ends sessions of nodes that are down, and returns what is on its
// way back and what is in scratch.taken. It stops at the bound of the command;
// the next command continues. While sessions are still ending nobody is served,
// so that everything comes back in order.
//
// It runs once with every command of an active queue, after the command itself and
// before the assignment at its end. Ensures: scratch.taken is empty; either nothing
// is unfinished or the bound was reached. On a Tick the bound is what expiries and
// timeouts have left of the budget, and at most bounds.Back.
//
// Order: lives that ended, then settlements by age, then losses by number. It is
// kept over any number of commands, because a new settlement waits while an older
// one is unfinished (endDeliveries).
func (ds *deliveries) bringBack(kind logpb.Command_Kind, eff *fsm.Effects) {
	if !ds.unfinished() && len(ds.scratch.taken) == 0 {
		return
	}
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
	ds.giveBack(ds.scratch.taken, true, 0, eff)
	ds.scratch.taken = ds.scratch.taken[:0]
	if kind == logpb.Command_TICK {
		ds.scratch.budget -= allowed - left
	}
}

// finishSettling ends up to n settled deliveries, in the order of the
// settlements, and returns how many.
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
		ds.members.concluded(r.of, some)
		ds.conclude(r, some, eff)
		done += len(some)
	}
	return done
}

// takeLost moves up to n messages that their holders have lost to scratch.taken
// and returns how many: oldest first, as far as each holder got them in that
// order.
//
// It merges the holders by their next message, as long as one of them is the
// oldest. key{at: 2} stands for "no other holder": it is after all keys.
func (ds *deliveries) takeLost(n int) (done int) {
	for done < n && ds.returning.len() > 0 {
		k, p := ds.returning.first()
		r := *p
		ds.returning.remove(k)
		next := key{at: 2}
		if ds.returning.len() > 0 {
			next, _ = ds.returning.first()
		}
		by := ds.scratch.holder(r.of, r.tag)
		for done < n && r.held.len() > 0 && ds.returningKey(r).before(next) {
			ds.scratch.taken = r.held.takeFirst(ds.scratch.taken)
			last := &ds.scratch.taken[len(ds.scratch.taken)-1]
			last.failed, last.by = r.failed && (r.group || ds.members.of(last.handle) == nil), by
			done++
		}
		if r.held.len() > 0 {
			ds.addReturning(r)
		}
	}
	return done
}

// endDown ends sessions of nodes that are down in at most n steps, one for each
// session and for each consumer. It returns how many steps it took. Lives end
// by node, then boot; sessions by number; consumers from the last one, so that
// the slice of a session only gets shorter.
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

// endSession removes a session with its consumers. What they hold goes back, as
// failed unless it is of a group, or stays locked for a while unless it is of a
// group. It takes at most n steps and removes the session only after all
// its consumers. It returns how many steps it took. The consumers stay in
// consumers.all, see dropEnded. Late deliveries end with it: nobody can settle
// them any more.
func (ds *deliveries) endSession(s *session, n int) (done int) {
	for i := len(s.consumers) - 1; i >= 0; i-- {
		if done == n {
			return done
		}
		c := s.consumers[i]
		if c.lockGrace > 0 {
			for _, g := range ds.takers.heldBy(c) {
				ds.giveUp(g, false)
			}
		}
		if grace := ds.settings.grace(c); grace > 0 {
			ds.detached.add(c, ds.clock.heldDeadline(grace))
		} else {
			ds.detach(c, true)
		}
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
//
// An unknown session is remembered as ended, too: its first command may be late.
// The end of a session is not divided into steps, since it has at most as many
// consumers as the queue may have. The return of its deliveries is, see bringBack.
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

// endSuspicions takes back what sessions hold whose nodes have been suspected
// for too long. The consumers stay: they are served again when the node is
// heard from. Only cancelled ones that hold nothing any more are removed.
func (ds *deliveries) endSuspicions() {
	if !ds.sessions.overdue() {
		return
	}
	ds.consumers.contest()
	var done []*consumer
	for c := range ds.consumers.from(0) {
		ds.scratch.steps++
		if (c.held.len() > 0 || ds.takers.holdsAny(c)) && ds.sessions.isOverdue(c.session) {
			ds.detach(c, false)
			for _, g := range ds.takers.heldBy(c) {
				ds.groups.release(g)
			}
			done = append(done, c)
		}
	}
	ds.consumers.removeFinished(done...)
}
