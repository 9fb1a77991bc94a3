package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// inUse reports whether somebody keeps the queue from ending by its lease: a
// consumer, also a cancelled one that still owes, or a get that is not settled.
func (m *Machine) inUse() bool { return m.attached > 0 || m.getsHeld > 0 }

// leaseEnd is the first instant at which an unused queue ends; 0: never.
func (m *Machine) leaseEnd() fsm.Time {
	if m.config.Expires == 0 || m.inUse() {
		return 0
	}
	return m.lastUsed.Add(fsm.Millis(min(m.config.Expires, uint64(fsm.MaxTime)))).Add(1)
}

// afterUse notes the end of use, and ends an auto-delete queue whose last
// consumer has gone. inUse and active are from before the command.
func (m *Machine) afterUse(inUse bool, active int, eff *fsm.Effects) {
	if inUse && !m.inUse() {
		m.lastUsed = m.clock
	}
	if m.phase == Active && m.config.AutoDelete && active > 0 && m.active == 0 {
		m.end(eff)
	}
}

// end lets the queue go by itself. Its messages are dropped, not dead-lettered;
// letters that already are in the outbox have a while to be forwarded.
func (m *Machine) end(eff *fsm.Effects) {
	if m.counts[Outbox].Messages == 0 {
		m.vanish(eff)
		return
	}
	m.dismissAll(eff)
	m.dropReady(eff)
	m.phase, m.goneAt = Draining, m.deadline(drainTimeout)
	eff.Outbox = true
}

// dismissAll ends all sessions and consumers; what they hold is dropped.
func (m *Machine) dismissAll(eff *fsm.Effects) {
	m.taken = m.taken[:0]
	for _, c := range m.consumers {
		if c.status() != Cancelled && !c.isGets() {
			eff.Cancelled = append(eff.Cancelled, c.id)
		}
		m.take(c, 0, c.next)
	}
	for _, held := range m.taken {
		m.free(held.handle, eff)
	}
	m.consumers, m.attached, m.active, m.getsHeld = nil, 0, 0, 0
	m.exclusive, m.levels, m.serviced = nil, nil, 0
	clear(m.sessions)
	m.recent = nil
	m.timeouts.clear()
}

// vanish drops everything at once.
func (m *Machine) vanish(eff *fsm.Effects) {
	for _, c := range m.consumers {
		if c.status() != Cancelled && !c.isGets() {
			eff.Cancelled = append(eff.Cancelled, c.id)
		}
	}
	m.counters.DeadDropped += m.counts[Outbox].Messages
	for index := range m.live.all() {
		eff.Released = append(eff.Released, index)
	}
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
		r = m.routeDead(cmd.RouteDead, eff)
	case logpb.Command_SETTLE_DEAD:
		r = m.settleDead(cmd.SettleDead, eff)
	}
	if m.counts[Outbox].Messages == 0 || cmd.Kind == logpb.Command_TICK && m.goneAt <= m.clock {
		m.vanish(eff)
	}
	return r
}

// delete ends the queue on request, with its outbox.
func (m *Machine) delete(cmd *logpb.Delete, eff *fsm.Effects) fsm.Result {
	switch n := m.readyCount(); {
	case cmd.GetIfUnused() && m.active > 0:
		return fsm.Result{Code: fsm.InUse}
	case cmd.GetIfEmpty() && n > 0:
		return fsm.Result{Code: fsm.NotEmpty}
	default:
		m.vanish(eff)
		return fsm.Result{Count: n}
	}
}
