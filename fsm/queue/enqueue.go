package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// enqueue takes one message in, for now or for later. With TTL 0 it is offered
// to consumers with credit, and expires here if none takes it. A message that
// has no place in the queue is refused, unless somebody takes it at once.
func (m *Machine) enqueue(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Result {
	if cmd.GetSize() == 0 || cmd.Head > cmd.Size || cmd.Head >= expirationBit {
		return fsm.Result{Code: fsm.Invalid}
	}
	if !cmd.Routed || m.settings.IdleCountsRouted {
		m.active = m.clock.now()
	}
	due := m.dueAt(cmd.DueAt, cmd.DelayPlusOne, m.settings.DeliveryDelay)
	if due > m.clock.now() || m.settings.DelayedStore {
		return m.enqueueLater(meta, cmd, max(due, m.clock.now(), 1), eff)
	}
	ttl := m.settings.messageTTL(cmd.TtlPlusOne, cmd.TtlCeilingPlusOne)
	if ttl.given && ttl.value > 0 && cmd.TtlFrom > 0 && m.expiry(cmd.TtlFrom, ttl.value) <= m.clock.now() {
		return m.enqueueExpired(meta, cmd, due, eff)
	}
	now := ttl.given && ttl.value == 0
	full := !now && m.full(cmd, 0)
	if full && !m.consumers.service.any() {
		return m.refuse(meta, cmd, eff)
	}
	h := m.store(meta, cmd, due, eff)
	if ttl.given {
		m.messages.mut(h).expireAt = m.expiry(cmd.TtlFrom, ttl.value)
	}
	m.messages.put(h, Ready)
	if now || full || ttl.given && !m.unfinished() { // what comes back goes before
		m.offer(h, now, eff)
	}
	if full && !m.stays(h, cmd, eff) {
		return m.refuse(meta, cmd, eff)
	}
	if m.messages.get(h).ready() {
		m.messages.watch(h) // all others need none
	}
	m.counters.Enqueued++
	return fsm.Result{}
}

// enqueueExpired takes in a message whose TTL has passed on its way.
func (m *Machine) enqueueExpired(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) fsm.Result {
	h := m.store(meta, cmd, due, eff)
	m.counters.Enqueued++
	m.outbox.die(h, logpb.Death_EXPIRED, eff)
	return fsm.Result{}
}

// offer hands out what there is, message h among it. If it is now or never, h
// expires unless somebody takes it.
func (m *Machine) offer(h uint32, now bool, eff *fsm.Effects) {
	if now {
		m.scratch.fresh = h
	}
	m.assign(eff)
	m.scratch.fresh = 0
	if now && m.messages.get(h).ready() {
		m.messages.remove(h)
		m.outbox.die(h, logpb.Death_EXPIRED, eff)
	}
}

// stays reports whether message h, which has come to a full queue, was taken
// or may stay. If not it is gone without a trace.
func (m *Machine) stays(h uint32, cmd *logpb.Enqueue, eff *fsm.Effects) bool {
	if !m.messages.get(h).ready() {
		return true
	}
	m.messages.remove(h)
	if m.full(cmd, 0) {
		m.messages.free(h, eff)
		return false
	}
	m.messages.put(h, Ready) // it was the last one
	return true
}

// store makes a record of a message, in no place and without an expiry.
func (m *Machine) store(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) uint32 {
	x := message{
		index: meta.Index, offset: meta.Offset, size: cmd.Size,
		head: uint16(cmd.Head), priority: m.settings.priority(cmd.PriorityPlusOne),
	}
	if cmd.HasExpiration {
		x.head |= expirationBit
	}
	h := m.messages.add(x, eff)
	if len(cmd.Deaths) > 0 {
		m.messages.mutExtra(h).deaths = copyDeaths(cmd.Deaths)
	}
	if due == 0 {
		due = fsm.Time(max(cmd.ScheduledFor, 0))
	}
	if due != 0 {
		m.messages.setRare(h, rare{scheduledFor: due})
	}
	return h
}
