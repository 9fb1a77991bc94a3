package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// afterUse records the end of use, and ends an auto-delete queue whose last
// consumer is gone. inUse and serving are from before the command.
//
// It runs last in every command, so that a consumer that is replaced within one
// command does not end the queue.
func (m *Machine) afterUse(inUse bool, serving int, eff *fsm.Effects) {
	if inUse && !m.consumers.inUse() {
		m.lease.use()
	}
	if m.lease.phase() == Active && m.settings.AutoDelete && serving > 0 && m.consumers.active() == 0 {
		m.lease.endsFor(Abandoned)
		m.end(eff)
	}
}

// end ends the queue by itself. Its messages are dropped, not dead-lettered;
// letters that are already in the outbox have some time to be forwarded.
//
// Which end comes when: Delete, at once and with the letters (dropAll); lease
// and idleness, by a Tick only; auto-delete, by any command that ends the last
// consumer. The last two end here. Nothing leads back to Active.
func (m *Machine) end(eff *fsm.Effects) {
	if m.outbox.letters() == 0 {
		m.dropAll(eff)
		return
	}
	m.ends.several(m.intake.left()-m.outbox.letters(), logpb.EndState_QUEUE_DELETED, m.outbox.nextLetter())
	m.endSessions(eff)
	m.intake.dropReady()
	m.groups.clear()
	m.intake.sweep(logpb.Command_TICK, eff) // the rest goes with the queue
	m.lease.drain()
	eff.Outbox = true
}

// endSessions ends all sessions and consumers. What they hold is dropped with
// the queue.
//
// Ensures: no consumers and no sessions. Their messages stay CheckedOut, in
// returning, and are released with the rest of the queue; nothing brings them
// back.
func (m *Machine) endSessions(eff *fsm.Effects) {
	for c := range m.consumers.from(0) {
		if c.status() != Cancelled && !c.isGets() {
			eff.Cancelled = append(eff.Cancelled, c.id)
		}
		m.deliveries.detach(c, false)
	}
	for c := range m.detached.list() {
		m.deliveries.detach(c, false)
	}
	m.detached.clear()
	m.consumers.clear()
	m.sessions.endAll()
	m.timers.forgetHeld()
	m.locks.clear()
}

// dropAll drops everything at once.
//
// Ensures: every part is empty, the phase is Gone, eff.Rest has all entries
// that were live, and eff.Gone is set. It does not walk over messages.
func (m *Machine) dropAll(eff *fsm.Effects) {
	m.scratch.steps += m.consumers.len()
	for c := range m.consumers.from(0) {
		if c.status() != Cancelled && !c.isGets() {
			eff.Cancelled = append(eff.Cancelled, c.id)
		}
	}
	m.counters.DeadDropped += m.outbox.letters()
	if m.since(3) {
		m.counters.DeadDropped -= m.outbox.underWay().Messages
	}
	eff.Rest = m.entries.abandon()
	m.clear()
	m.lease.end()
	eff.Gone = true
}

// applyEnded is Apply for a queue that has ended: only its outbox moves. It
// expires nothing and hands out nothing; no stream is checked, since sessions
// are gone.
func (m *Machine) applyEnded(cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	if m.lease.phase() == Gone {
		return fsm.Result{Code: fsm.Gone}
	}
	m.scratch.ended = true
	r := fsm.Result{Code: fsm.Gone}
	switch cmd.Kind {
	case logpb.Command_ROUTE_DEAD:
		r = m.outbox.routeDead(cmd.RouteDead, eff)
	case logpb.Command_SETTLE_DEAD:
		r = m.outbox.confirmTransfers(cmd.SettleDead, eff)
	}
	m.outbox.goOn(cmd.Kind, eff)
	if m.outbox.letters() == 0 || cmd.Kind == logpb.Command_TICK && m.lease.drained() {
		m.dropAll(eff)
	}
	return r
}

// delete ends the queue on request, with its outbox. It is empty if nothing would be
// lost: it has no message, wherever that is, and no letter. Before version 3 only what
// is ready or due counts.
func (m *Machine) delete(cmd *logpb.Delete, eff *fsm.Effects) fsm.Result {
	n := m.messages.readyCount()
	empty := n == 0 && !overdueTimed(m.shared, m.timers)
	if m.since(3) {
		empty = m.intake.left() == 0
	}
	switch {
	case cmd.GetIfUnused() && m.consumers.active() > 0:
		return fsm.Result{Code: fsm.InUse}
	case cmd.GetIfEmpty() && !empty:
		return fsm.Result{Code: fsm.NotEmpty}
	default:
		m.dropAll(eff)
		return fsm.Result{Count: n}
	}
}

// endUnused ends the queue if its lease is over. inUse is from before the tick.
// It is called by a Tick, after bringBack: a get that times out ends its use.
func (m *Machine) endUnused(inUse bool, eff *fsm.Effects) {
	if inUse && !m.consumers.inUse() {
		m.lease.use() // the lease begins here, not before
	}
	if why := m.lease.over(); why != NotEnded {
		m.lease.endsFor(why)
		m.end(eff)
	}
}
