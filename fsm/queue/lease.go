package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Activity says when something was last done with the queue, and whether
// somebody keeps it in use all the time.
func (m *Machine) Activity() (last fsm.Time, inUse bool) { return m.active, m.consumers.inUse() }

// leaseEnd is the first instant at which an unused queue ends; 0: never.
func (m *Machine) leaseEnd() fsm.Time {
	if m.settings.lease == 0 || m.consumers.inUse() {
		return 0
	}
	return max(m.lastUsed.Add(m.settings.lease).Add(1), m.awaited())
}

// awaited is when the message dies for which the lease is put off; 0: it is
// not. Two lengths of the lease after the last use it is put off no more.
func (m *Machine) awaited() fsm.Time {
	if !m.settings.ExpiresKeepPending || !m.settings.DeadLetter {
		return 0
	}
	if k, _, ok := m.timers.expiry(); ok && k.at <= m.lastUsed.Add(m.settings.lease).Add(m.settings.lease) {
		return k.at
	}
	return 0
}

// idleEnd is the first instant at which an idle queue ends; 0: never. A queue
// with scheduled messages, or one that forwards dead letters, is not idle.
func (m *Machine) idleEnd() fsm.Time {
	if m.settings.idle == 0 || m.consumers.inUse() || m.settings.DeadLetter || m.messages.count(Scheduled).Messages > 0 {
		return 0
	}
	return m.active.Add(m.settings.idle).Add(1)
}

// isOver reports whether nobody has used the queue for too long.
func (m *Machine) isOver() bool {
	if end := m.idleEnd(); end != 0 && end <= m.clock.now() {
		return true
	}
	end := m.leaseEnd()
	return end != 0 && end <= m.clock.now() && m.awaited() == 0
}

// afterUse notes the end of use, and ends an auto-delete queue whose last
// consumer has gone. inUse and serving are from before the command.
func (m *Machine) afterUse(inUse bool, serving int, eff *fsm.Effects) {
	if inUse && !m.consumers.inUse() {
		m.lastUsed, m.active = m.clock.now(), m.clock.now()
	}
	if m.phase == Active && m.settings.AutoDelete && serving > 0 && m.consumers.active() == 0 {
		m.end(eff)
	}
}

// end lets the queue go by itself. Its messages are dropped, not dead-lettered;
// letters that already are in the outbox have a while to be forwarded.
func (m *Machine) end(eff *fsm.Effects) {
	if m.outbox.letters() == 0 {
		m.vanish(eff)
		return
	}
	m.dismissAll(eff)
	m.dropReady()
	m.sweep(logpb.Command_TICK, eff) // the rest goes with the queue
	m.phase, m.goneAt = Draining, m.clock.deadline(drainTimeout)
	eff.Outbox = true
}

// dismissAll ends all sessions and consumers. What they hold goes with the queue.
func (m *Machine) dismissAll(eff *fsm.Effects) {
	for c := range m.consumers.from(0) {
		if c.status() != Cancelled && !c.isGets() {
			eff.Cancelled = append(eff.Cancelled, c.id)
		}
		m.detach(c, false)
	}
	m.consumers.clear()
	m.sessions.dismiss()
	m.timers.forgetHeld()
}

// vanish drops everything at once.
func (m *Machine) vanish(eff *fsm.Effects) {
	m.scratch.steps += m.consumers.len()
	for c := range m.consumers.from(0) {
		if c.status() != Cancelled && !c.isGets() {
			eff.Cancelled = append(eff.Cancelled, c.id)
		}
	}
	m.counters.DeadDropped += m.outbox.letters()
	eff.Rest = m.entries.abandon()
	m.clear()
	m.phase, m.goneAt = Gone, 0
	eff.Gone = true
}

// afterlife is Apply for a queue that has ended: only its outbox moves.
func (m *Machine) afterlife(cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	if m.phase == Gone {
		return fsm.Result{Code: fsm.Gone}
	}
	r := fsm.Result{Code: fsm.Gone}
	switch cmd.Kind {
	case logpb.Command_ROUTE_DEAD:
		r = m.outbox.routeDead(cmd.RouteDead, eff)
	case logpb.Command_SETTLE_DEAD:
		r = m.outbox.settleDead(cmd.SettleDead, eff)
	}
	m.outbox.goOn(cmd.Kind, eff)
	if m.outbox.letters() == 0 || cmd.Kind == logpb.Command_TICK && m.goneAt <= m.clock.now() {
		m.vanish(eff)
	}
	return r
}

// delete ends the queue on request, with its outbox.
func (m *Machine) delete(cmd *logpb.Delete, eff *fsm.Effects) fsm.Result {
	switch n := m.messages.readyCount(); {
	case cmd.GetIfUnused() && m.consumers.active() > 0:
		return fsm.Result{Code: fsm.InUse}
	case cmd.GetIfEmpty() && n > 0:
		return fsm.Result{Code: fsm.NotEmpty}
	default:
		m.vanish(eff)
		return fsm.Result{Count: n}
	}
}
