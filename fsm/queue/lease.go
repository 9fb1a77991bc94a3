package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// drainTimeout bounds how long a queue that has ended keeps its outbox. After
// that, the letters that are left count as dropped.
const drainTimeout fsm.Millis = 60_000

// Phase is the phase of a queue's life. The values are in snapshots.
type Phase uint8

const (
	// Active queues are in service.
	Active Phase = iota
	// Draining queues have ended; only their outbox is still forwarded.
	Draining
	// Gone queues hold nothing.
	Gone
)

// QueueEnd is why a queue has ended by itself.
type QueueEnd uint8

const (
	NotEnded  QueueEnd = iota // or it was deleted
	LeaseOver                 // it was unused for longer than its lease
	IdleOver                  // it was idle for too long
	Abandoned                 // its last consumer has gone
)

// String is the argument that has ended the queue; empty: none.
func (e QueueEnd) String() string {
	return [...]string{"", "x-expires", "x-auto-delete-on-idle", "auto-delete"}[min(e, Abandoned)]
}

// lease is the life of the queue: when it was last used, when it ends because
// it is unused, and its phase after that. Use renews the lease; activity is use
// and everything else that keeps a queue from being idle.
//
// Invariants:
//
//	0 ≤ used ≤ clock, 0 ≤ active ≤ clock; both are at least the clock at the
//	beginning of the term
//	goneAt ≠ 0 ⇔ the queue is draining
//	a queue that is not Active has no consumers and no sessions, and nothing ready unless
//	it has a last will; one that is Draining has messages, and one that is Gone has none
type lease struct {
	*shared
	timers    *timers
	messages  *messages
	consumers *consumers

	// Instants of the machine's clock. 0 only before the first entry, or if its stamp
	// was 0.
	used   fsm.Time
	active fsm.Time
	life   Phase
	goneAt fsm.Time // end of draining
	reason QueueEnd
}

func (l *lease) phase() Phase { return l.life }

// begin restarts the lease if the term is new, since nobody could use the queue
// without a leader. It is called with each command, before due work, which thus
// sees the restarted lease.
func (l *lease) begin(newTerm bool) {
	if newTerm || l.used == 0 {
		l.use()
	}
	if newTerm && l.life == Draining && l.hasWill() {
		l.drain()
	}
}

// use records a use of the queue. Consumers need no call: while there is one, leaseEnd and idleEnd
// are 0.
func (l *lease) use() { l.used, l.active = l.clock.now(), l.clock.now() }

// touch records an activity that is not a use.
func (l *lease) touch() { l.active = l.clock.now() }

// renew restarts the lease without counting as activity.
func (l *lease) renew() { l.used = l.clock.now() }

func (l *lease) endsFor(r QueueEnd) { l.reason = r }

func (l *lease) endReason() QueueEnd { return l.reason }

// drain ends the queue except for its outbox, and for what its last will is about; or it
// gives it its time once more. Requires: no consumers, no sessions, and messages left, all of
// them letters or none of them ready unless there is a last will.
func (l *lease) drain() { l.life, l.goneAt = Draining, l.clock.deadline(drainTimeout) }

func (l *lease) end() { l.life, l.goneAt = Gone, 0 }

func (l *lease) drainedAt() fsm.Time { return l.goneAt }

// drained reports whether the queue's time to drain its outbox is over.
// Requires: the queue is draining; otherwise goneAt is 0 and it is always true.
func (l *lease) drained() bool { return l.goneAt <= l.clock.now() }

// leaseEnd is the first instant at which an unused queue ends: one millisecond after its lease, or
// when the message dies that is awaited, if that is later; 0: never.
func (l *lease) leaseEnd() fsm.Time {
	if l.settings.lease == 0 || l.consumers.inUse() {
		return 0
	}
	return max(l.used.Add(l.settings.lease).Add(1), l.awaited())
}

// awaited is when the message dies for which the lease is extended; 0: it is
// not extended. The lease is extended at most to twice its length after the
// last use.
//
// Only the earliest expiry counts. When that message has died the next one may
// extend the lease again, but never beyond the same bound.
func (l *lease) awaited() fsm.Time {
	if !l.settings.ExpiresKeepPending || !l.settings.DeadLetter {
		return 0
	}
	if k, _, ok := l.timers.expiry(); ok && k.At <= l.used.Add(l.settings.lease).Add(l.settings.lease) {
		return k.At
	}
	return 0
}

// idleEnd is the first instant at which an idle queue ends; 0: never.
func (l *lease) idleEnd() fsm.Time {
	if l.settings.idle == 0 || l.consumers.inUse() || l.settings.DeadLetter && !l.settings.IdleDeadLetters || l.settings.forwards() || l.expectant() {
		return 0
	}
	return l.active.Add(l.settings.idle).Add(1)
}

func (l *lease) expectant() bool {
	return l.messages.count(Scheduled).Messages+l.messages.count(Delayed).Messages > 0
}

func (l *lease) lastUsed() fsm.Time   { return l.used }
func (l *lease) lastActive() fsm.Time { return l.active }

// over returns why the queue ends if it has been unused or idle for too long. Only
// a Tick asks. Other commands, however late, find the queue alive.
func (l *lease) over() QueueEnd {
	if end := l.idleEnd(); end != 0 && end <= l.clock.now() {
		return IdleOver
	}
	if end := l.leaseEnd(); end != 0 && end <= l.clock.now() && l.awaited() == 0 {
		return LeaseOver
	}
	return NotEnded
}

func (l *lease) save(h *logpb.QueueSnapshot) {
	h.LastUsed, h.LastActive = int64(l.used), int64(l.active)
	h.State, h.GoneAt, h.EndReason = uint32(l.life), int64(l.goneAt), uint32(l.reason)
}

func (l *lease) restore(h *logpb.QueueSnapshot) {
	l.used, l.active = fsm.Time(h.LastUsed), fsm.Time(h.LastActive)
	l.life, l.goneAt, l.reason = Phase(h.State), fsm.Time(h.GoneAt), QueueEnd(min(h.EndReason, uint32(Abandoned)))
}

func (l *lease) check(k *checker) {
	k.that(0 <= l.used && l.used <= l.clock.now(), "clock %d, last used %d", l.clock.now(), l.used)
	k.that(0 <= l.active && l.active <= l.clock.now(), "clock %d, last active %d", l.clock.now(), l.active)
	k.that((l.life == Draining) == (l.goneAt != 0), "phase %d ends at %d", l.life, l.goneAt)
	k.that(l.life != Active || l.reason == NotEnded, "an active queue has ended")
	k.that(l.life != Draining || len(k.live) > 0, "nothing to drain")
	k.that(l.life != Gone || len(k.live) == 0, "a queue that is gone has messages")
}

// afterUse records the end of use, and ends an auto-delete queue whose last
// consumer is gone. inUse and serving are from before the command.
func (m *Machine) afterUse(inUse bool, serving int, eff *fsm.Effects) {
	if inUse && !m.consumers.inUse() {
		m.lease.use()
	}
	if m.lease.phase() == Active && m.settings.AutoDelete && serving > 0 && m.consumers.active() == 0 {
		m.end(Abandoned, eff)
	}
}

// end ends the queue by itself. Its messages are dropped, not dead-lettered, unless it has
// a last will; letters that are already in the outbox have some time to be forwarded.
//
// Which end comes when: Delete, at once and with the letters (dropAll) unless there is a
// last will; lease and idleness, by a Tick only; auto-delete, by any command that ends the
// last consumer. Nothing leads back to Active.
func (m *Machine) end(why QueueEnd, eff *fsm.Effects) {
	m.lease.endsFor(why)
	if m.outbox.letters()+m.outbox.unwilled() == 0 {
		m.dropAll(eff)
		return
	}
	if m.hasWill() {
		m.endSessions(eff)
		m.groups.settle()
	} else {
		m.ends.several(m.outbox.left()-m.outbox.letters(), logpb.EndState_QUEUE_DELETED, m.outbox.nextLetter())
		m.endSessions(eff)
		m.dropReady()
		m.groups.clear()
		m.messages.disband()
		m.sweep(logpb.Command_TICK, eff) // the rest goes with the queue
	}
	m.lease.drain()
	eff.Outbox = true
}

// endSessions ends all sessions and consumers. What they hold is dropped with
// the queue, unless that has a last will.
//
// Ensures: no consumers and no sessions. Their messages stay CheckedOut, in
// returning, and are released with the rest of the queue; nothing but a last will
// brings them back.
func (m *Machine) endSessions(eff *fsm.Effects) {
	m.consumers.cancelAll(eff)
	for c := range m.consumers.from(0) {
		m.detach(c, false)
		if m.hasWill() {
			m.consumers.unregister(c) // its groups are served once more
		}
	}
	for c := range m.detached.list() {
		m.detach(c, false)
	}
	m.detached.clear()
	m.consumers.clear()
	m.sessions.endAll()
	if !m.hasWill() {
		m.deadlines.clear()
	}
}

// dropAll drops everything at once.
//
// Ensures: every part is empty, the phase is Gone, eff.Rest has all entries
// that were live, and eff.Gone is set. It does not walk over messages.
func (m *Machine) dropAll(eff *fsm.Effects) {
	m.scratch.steps += m.consumers.len()
	m.consumers.cancelAll(eff)
	m.counters.DeadDropped += m.outbox.letters()
	if m.since(3) {
		m.counters.DeadDropped -= m.outbox.underWay().Messages
	}
	m.counters.DeadDropped += m.outbox.unwilled()
	eff.Rest = m.entries.abandon()
	m.clear()
	m.lease.end()
	eff.Gone = true
}

// applyEnded is Apply for a queue that has ended: only its outbox moves.
func (m *Machine) applyEnded(cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	if m.lease.phase() == Gone {
		return fsm.Result{Code: fsm.Gone}
	}
	m.scratch.ended = true
	r, left := fsm.Result{Code: fsm.Gone}, m.outbox.left()
	switch cmd.Kind {
	case logpb.Command_ROUTE_DEAD:
		r = m.outbox.routeDead(cmd.RouteDead, eff)
	case logpb.Command_SETTLE_DEAD:
		r = m.outbox.confirmTransfers(cmd.SettleDead, eff)
	}
	m.outbox.goOn(cmd.Kind, eff)
	if m.hasWill() {
		m.carryOut(cmd.Kind, eff)
		if m.outbox.left() < left {
			m.lease.drain()
		}
	}
	if m.outbox.letters()+m.outbox.unwilled() == 0 || cmd.Kind == logpb.Command_TICK && m.lease.drained() {
		m.dropAll(eff)
	}
	return r
}

// delete ends the queue on request, with its outbox unless it has a last will: then Until is not 0 as
// long as something is left. It is empty if nothing would be lost. Before version 3 only what is ready or
// due counts.
func (m *Machine) delete(cmd *logpb.Delete, eff *fsm.Effects) fsm.Result {
	n := m.messages.readyCount()
	empty := n == 0 && !m.timers.overdue(m.clock.now())
	if m.since(3) {
		empty = m.outbox.left() == 0
	}
	switch {
	case cmd.GetIfUnused() && m.consumers.active() > 0:
		return fsm.Result{Code: fsm.InUse}
	case cmd.GetIfEmpty() && !empty:
		return fsm.Result{Code: fsm.NotEmpty}
	case m.hasWill():
		m.end(NotEnded, eff)
	default:
		m.dropAll(eff)
	}
	return fsm.Result{Count: n, Until: m.lease.drainedAt()}
}

// endUnused ends the queue if its lease is over. inUse is from before the tick.
// It is called by a Tick, after bringBack: a get that times out ends its use.
func (m *Machine) endUnused(inUse bool, eff *fsm.Effects) {
	if inUse && !m.consumers.inUse() {
		m.lease.use() // the lease begins here, not before
	}
	if why := m.lease.over(); why != NotEnded {
		m.end(why, eff)
	}
}
