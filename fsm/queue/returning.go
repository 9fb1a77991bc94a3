package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// returning is what one consumer held and does not hold any more: its session
// has ended, its node was silent for too long, or it has settled more at once
// than one command may end. The messages stay checked out, and come out of it
// piece by piece. held is never empty.
type returning struct {
	of      fsm.ConsumerID
	held    held
	order   uint64               // of settlements, which are finished in their order; 0: the messages are lost to of
	outcome logpb.Settle_Outcome // of a settlement
	failed  bool                 // of a loss
}

// key is the place of r among those that are on their way back: settlements
// first, then the oldest message that comes next.
func (m *Machine) returningKey(r *returning) key {
	if r.order != 0 {
		return key{0, r.order}
	}
	_, g := r.held.first()
	return key{1, m.messages.get(g.handle).seq}
}

func (m *Machine) addReturning(r *returning) { m.returning.put(m.returningKey(r), r) }

// detach takes all that c holds from it. The messages go back.
func (m *Machine) detach(c *consumer, failed bool) {
	if c.held.len() == 0 {
		return
	}
	m.consumers.holds(c, -c.held.len())
	m.addReturning(&returning{of: c.id, failed: failed, held: c.held})
	c.held = held{}
}

// unfinished reports whether something is on its way back.
func (m *Machine) unfinished() bool { return m.sessions.isEnding() || m.returning.len() > 0 }

// bringBack ends sessions of nodes that are down, and brings back what is on
// its way and what m.taken holds besides. It stops when the command may do no
// more; the next one goes on. While sessions are left that have to end nobody
// is served: so all that comes back comes in its order.
func (m *Machine) bringBack(kind logpb.Command_Kind, eff *fsm.Effects) {
	left := m.bounds.Before
	switch kind {
	case logpb.Command_TICK:
		left = min(m.scratch.budget, m.bounds.Back())
	case logpb.Command_NODE_DOWN, logpb.Command_SESSION_DOWN:
		left = m.bounds.Back()
	}
	most := left
	left -= m.endDown(left)
	if !m.sessions.isEnding() {
		left -= m.finishSettling(left, eff)
		left -= m.takeLost(left)
	}
	m.giveBack(m.scratch.taken, true, eff)
	m.scratch.taken = m.scratch.taken[:0]
	if kind == logpb.Command_TICK {
		m.scratch.budget -= most - left
	}
}

// finishSettling ends up to n deliveries of settlements, in their order, and
// returns how many.
func (m *Machine) finishSettling(n int, eff *fsm.Effects) (done int) {
	for done < n && m.returning.len() > 0 {
		k, p := m.returning.first()
		r := *p
		if r.order == 0 {
			break
		}
		var some []checkout
		for done+len(some) < n && r.held.len() > 0 {
			some = r.held.takeFirst(some)
		}
		if r.held.len() == 0 {
			m.returning.remove(k)
		}
		m.conclude(r.outcome, some, eff)
		done += len(some)
	}
	return done
}

// takeLost moves up to n messages that are lost to their holders to m.taken,
// oldest first as far as each holder got them in this order, and returns how many.
func (m *Machine) takeLost(n int) (done int) {
	for done < n && m.returning.len() > 0 {
		k, p := m.returning.first()
		r := *p
		m.returning.remove(k)
		next := key{at: 2}
		if m.returning.len() > 0 {
			next, _ = m.returning.first()
		}
		for done < n && r.held.len() > 0 && m.returningKey(r).before(next) {
			m.scratch.taken = r.held.takeFirst(m.scratch.taken)
			m.scratch.taken[len(m.scratch.taken)-1].failed = r.failed
			done++
		}
		if r.held.len() > 0 {
			m.addReturning(r)
		}
	}
	return done
}

// endDown ends sessions of nodes that are down, in at most n steps: one for
// each session and for each consumer. It returns how many it took.
func (m *Machine) endDown(n int) (done int) {
	for done < n && m.sessions.isEnding() {
		l := m.sessions.firstDown()
		for done < n && l.sessions.len() > 0 {
			_, s := l.sessions.first()
			done += m.endSession(*s, n-done)
		}
	}
	if done > 0 {
		m.consumers.dropEnded()
	}
	return done
}

// endSession removes a session with its consumers, what they hold goes back
// as failed; in at most n steps, which must do for the consumers of a session
// before it goes itself. It returns how many it took. The consumers are left in
// Machine.consumers, see dropEnded.
func (m *Machine) endSession(s *session, n int) (done int) {
	for i := len(s.consumers) - 1; i >= 0; i-- {
		if done == n {
			return done
		}
		c := s.consumers[i]
		m.detach(c, true)
		m.consumers.unregister(c)
		s.consumers = s.consumers[:i]
		done++
		m.scratch.steps++
	}
	if done == n {
		return done
	}
	if m.sessions.remove(s) {
		m.consumers.contest()
	}
	m.scratch.steps++
	return done + 1
}
