package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/proto/logpb"
)

// assign hands ready messages to consumers with credit until one of both has
// run out, or the command may hand out no more: then the next one goes on.
func (m *Machine) assign(eff *fsm.Effects) {
	for m.consumers.service.any() && m.scratch.handOuts > 0 && !m.sessions.isEnding() {
		h := m.first(eff)
		if h == 0 {
			return
		}
		m.scratch.handOuts--
		c := m.consumers.service.next()
		held := m.checkOut(h, c)
		eff.Deliveries = append(eff.Deliveries, m.delivery(c, held))
		m.consumers.handedOut(c)
	}
}

// first is the message to hand out next; 0: none. It expires what is in the
// way, and gives up when that is more than this command may expire.
func (m *Machine) first(eff *fsm.Effects) uint32 {
	for {
		h := m.messages.front()
		if h == 0 || h == m.scratch.fresh || !m.messages.get(h).due(m.clock.now()) {
			return h
		}
		if !m.expireNext(eff) {
			return 0
		}
	}
}

// checkOut hands message h, which is ready, to c.
func (m *Machine) checkOut(h uint32, c *consumer) checkout {
	m.messages.remove(h)
	x := m.messages.mut(h)
	invariants.Assert(!x.due(m.clock.now()) || h == m.scratch.fresh, "no message is handed out past its expiry")
	m.messages.setPlace(x, CheckedOut)
	m.counters.Delivered++
	if x.acquired > 0 {
		m.counters.Redelivered++
	}
	held := checkout{id: c.next, grip: grip{handle: h, since: m.clock.atOnce()}}
	c.next++
	if limit := m.settings.timeout(c); limit.given {
		held.limit, held.deadline = limit.value, m.clock.heldDeadline(limit.value)
	}
	c.held.push(held)
	m.consumers.holds(c, 1)
	m.timers.hold(held.deadline, x.seq, holding{c, held.id})
	return held
}

// delivery describes what c holds.
func (m *Machine) delivery(c *consumer, held checkout) fsm.Delivery {
	x := m.messages.get(held.handle)
	d := fsm.Delivery{To: c.id, ID: held.id, Ref: x.ref(), Acquired: x.acquired, Failed: x.failed, ExpireAt: x.expireAt}
	if x.extra != 0 {
		d.Deaths, d.ScheduledFor = m.messages.extraOf(held.handle).deaths, m.messages.rareOf(held.handle).scheduledFor
	}
	return d
}

// take removes the deliveries first … last from what c holds and appends them
// to m.taken.
func (m *Machine) take(c *consumer, first, last uint64) {
	before := len(m.scratch.taken)
	m.scratch.taken = c.held.take(first, last, m.scratch.taken)
	m.consumers.holds(c, before-len(m.scratch.taken))
}

// lift takes messages that nobody holds any more out of the books of those
// that are held: they are in no place then.
func (m *Machine) lift(taken []checkout) {
	for i := range taken {
		held := &taken[i]
		x := m.messages.mut(held.handle)
		held.seq = x.seq
		m.messages.setPlace(x, 0)
		m.timers.letGo(held.deadline, held.seq)
	}
}

// mayHave reports whether a queue from which first hands out nothing may have
// something all the same: behind what no command so far could expire, make
// ready, or bring back.
func (m *Machine) mayHave() bool {
	if next, _, ok := m.timers.nextTimed(); ok && next.at <= m.clock.now() {
		return true
	}
	return m.messages.front() != 0 || m.unfinished()
}

// get takes one message for a session. With no-ack it is settled at once. A
// queue is empty when there is nothing, and not when to find that out is more
// than one command may do.
func (m *Machine) get(s *session, cmd *logpb.Get, eff *fsm.Effects) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	if m.settings.SingleActive {
		return fsm.Result{Code: fsm.Reserved}
	}
	m.lastUsed, m.active = m.clock.now(), m.clock.now()
	if m.sessions.isEnding() {
		return fsm.Result{Code: fsm.NotYet} // something older may be about to come back
	}
	h := m.first(eff)
	c := s.consumer(0)
	switch {
	case h == 0 && m.mayHave():
		return fsm.Result{Code: fsm.NotYet}
	case h == 0:
		return fsm.Result{Code: fsm.Empty}
	case c == nil && m.consumers.crowded():
		return fsm.Result{Code: fsm.Crowded}
	case c == nil:
		c = m.consumers.register(s, 0)
	}
	m.sessions.renewSilence(s)
	held := m.checkOut(h, c)
	d := m.delivery(c, held)
	d.Ready = m.messages.readyCount()
	eff.Deliveries = append(eff.Deliveries, d)
	m.scratch.delivered = held.id
	if cmd.GetNoAck() {
		m.scratch.taken = m.scratch.taken[:0]
		m.take(c, held.id, held.id)
		m.ack(m.scratch.taken, eff)
		m.scratch.taken = m.scratch.taken[:0]
	}
	return fsm.Result{Count: d.Ready}
}
