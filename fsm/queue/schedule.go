package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// enqueueLater takes a message in that becomes ready at due. One of the same
// name makes way, or stays and is told of.
func (m *Machine) enqueueLater(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) fsm.Result {
	var old uint32
	if cmd.ScheduleId != "" {
		old = m.messages.findScheduled(cmd.ScheduleId, 0)
	}
	switch {
	case old != 0 && cmd.Conflict == logpb.Enqueue_REJECT:
		return m.reject(eff)
	case old != 0 && cmd.Conflict == logpb.Enqueue_IGNORE:
		m.entries.refuse(eff)
		return fsm.Result{}
	case m.full(cmd, old):
		return m.refuse(meta, cmd, eff)
	}
	if old != 0 {
		m.unschedule(old)
		m.messages.free(old, eff)
		m.counters.Unscheduled++
	}
	h := m.store(meta, cmd, due, eff)
	m.messages.setRare(h, rare{scheduledFor: due, id: cmd.ScheduleId, ttl: cmd.TtlPlusOne, ceiling: cmd.TtlCeilingPlusOne})
	m.messages.schedule(h, due, cmd.ScheduleId)
	m.counters.Enqueued++
	m.counters.Scheduled++
	return fsm.Result{}
}

// unschedule takes message h out of those that are scheduled. It is in no
// place then. A queue whose last one goes has been active until now.
func (m *Machine) unschedule(h uint32) {
	m.messages.remove(h)
	m.active = m.clock.now()
}

// promote makes scheduled message h ready, as if it had come just now; only its
// TTL counts from the instant it was scheduled for. The message of a delayed
// exchange departs.
func (m *Machine) promote(h uint32, eff *fsm.Effects) {
	r := *m.messages.rareOf(h)
	due := m.messages.get(h).expireAt
	m.unschedule(h)
	if m.settings.DelayedStore {
		m.depart(h, due, r, eff)
		return
	}
	m.messages.setRare(h, rare{scheduledFor: r.scheduledFor})
	ttl := m.settings.messageTTL(r.ttl, r.ceiling)
	m.messages.renew(h)
	m.messages.mut(h).expireAt = 0
	if ttl.given {
		m.messages.mut(h).expireAt = max(due.Add(ttl.value), 1)
	}
	m.messages.put(h, Ready)
	if ttl.given && ttl.value == 0 {
		m.offer(h, true, eff)
	} else {
		m.messages.watch(h)
	}
}

// depart makes message h of a delayed exchange, which is in no place and has
// become due, a letter: not a dead one. It keeps what its TTL will be made of.
func (m *Machine) depart(h uint32, due fsm.Time, r rare, eff *fsm.Effects) {
	m.messages.setRare(h, rare{scheduledFor: due, ttl: r.ttl, ceiling: r.ceiling})
	m.messages.mut(h).expireAt = 0
	e := m.messages.mutExtra(h)
	e.reason, e.diedAt = logpb.Death_NONE, m.clock.now()
	m.outbox.post(h, eff)
}

// reschedule cancels scheduled messages or moves them to another time. Count
// of the answer says how many there were.
func (m *Machine) reschedule(cmd *logpb.Schedule, eff *fsm.Effects) fsm.Result {
	if cmd == nil || cmd.Action < logpb.Schedule_CANCEL || cmd.Action > logpb.Schedule_FIRE {
		return fsm.Result{Code: fsm.Invalid}
	}
	if cmd.Action == logpb.Schedule_FIRE && cmd.Id == "" && cmd.Message == 0 {
		return m.fireNext(cmd.Count, eff)
	}
	h := m.messages.findScheduled(cmd.Id, cmd.Message)
	if h == 0 {
		return fsm.Result{Code: fsm.NotFound}
	}
	switch cmd.Action {
	case logpb.Schedule_CANCEL:
		m.unschedule(h)
		m.messages.free(h, eff)
		m.counters.Unscheduled++
	case logpb.Schedule_MOVE:
		m.move(h, m.dueAt(cmd.DueAt, cmd.DelayPlusOne, 0))
	case logpb.Schedule_FIRE:
		m.move(h, m.clock.now())
	}
	m.catchUp(eff)
	return fsm.Result{Count: 1}
}

// NextScheduled returns when the first scheduled message is due; 0: there is
// none.
func (m *Machine) NextScheduled() fsm.Time {
	first, _ := m.ScheduledSpan()
	return first
}

// ScheduledSpan returns when the first and when the last scheduled message is
// due; 0: there is none.
func (m *Machine) ScheduledSpan() (first, last fsm.Time) {
	return m.timers.scheduledSpan()
}

// ScheduledAfter returns up to limit scheduled messages that are due next behind
// the one with this instant and number, in their order.
func (m *Machine) ScheduledAfter(at fsm.Time, number uint64, limit int) []Message {
	var messages []Message
	after := key{at, number}
	for k, h := range m.timers.scheduled(after) {
		if len(messages) == limit {
			break
		}
		if k != after {
			messages = append(messages, m.messages.describe(*h))
		}
	}
	return messages
}

// move makes scheduled message h due at another time; in the past is now.
func (m *Machine) move(h uint32, due fsm.Time) {
	m.messages.move(h, max(due, m.clock.atOnce()))
	m.active = m.clock.now()
}

// fireNext makes up to n of those messages ready that are due next, scheduled
// or delayed, in their order, and no more than one command may.
func (m *Machine) fireNext(n uint64, eff *fsm.Effects) fsm.Result {
	var r fsm.Result
	for n = min(n, uint64(m.bounds.Tick)); r.Count < n; r.Count++ {
		_, h, ok := m.timers.nextTimed()
		if !ok {
			break
		}
		if m.messages.get(h).place == Delayed {
			m.active = m.clock.now()
			m.retry(h)
			continue
		}
		m.move(h, m.clock.now())
		m.promote(h, eff)
	}
	return r
}
