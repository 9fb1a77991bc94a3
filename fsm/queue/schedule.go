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
		old = m.named[cmd.ScheduleId]
	}
	switch {
	case old != 0 && cmd.Conflict == logpb.Enqueue_REJECT:
		return m.reject(eff)
	case old != 0 && cmd.Conflict == logpb.Enqueue_IGNORE:
		m.notNeeded(eff)
		return fsm.Result{}
	case m.full(cmd, old):
		return m.refuse(meta, cmd, eff)
	}
	if old != 0 {
		m.unschedule(old)
		m.free(old, eff)
		m.counters.Unscheduled++
	}
	h := m.store(meta, cmd, due, eff)
	m.setRare(h, rare{scheduledFor: due, id: cmd.ScheduleId, ttl: cmd.TtlPlusOne, ceiling: cmd.TtlCeilingPlusOne})
	x := m.messages.mut(h)
	x.expireAt = due
	m.setPlace(x, Scheduled)
	m.append(h)
	if cmd.ScheduleId != "" {
		m.named[cmd.ScheduleId] = h
	}
	m.watchSchedule(h)
	m.counters.Enqueued++
	m.counters.Scheduled++
	return fsm.Result{}
}

// watchSchedule makes sure that message h, which is scheduled, becomes ready.
func (m *Machine) watchSchedule(h uint32) {
	x := m.messages.get(h)
	m.schedules.put(key{x.expireAt, x.seq}, h)
	m.numbers.put(key{seq: x.seq}, h)
}

// timed is the number of messages that wait for an instant.
func (m *Machine) timed() int { return m.schedules.len() + m.delays.len() }

// nextTimed returns the scheduled or delayed message that is due next, and when;
// there is one.
func (m *Machine) nextTimed() (key, uint32) {
	var due key
	var next *uint32
	if m.schedules.len() > 0 {
		due, next = m.schedules.first()
	}
	if m.delays.len() > 0 {
		if k, h := m.delays.first(); next == nil || k.before(due) {
			due, next = k, h
		}
	}
	return due, *next
}

// unschedule takes message h out of those that are scheduled. It is in no
// place then. A queue whose last one goes has been active until now.
func (m *Machine) unschedule(h uint32) {
	if id := m.rareOf(h).id; id != "" {
		delete(m.named, id)
	}
	m.remove(h)
	m.active = m.clock.now()
}

// promote makes scheduled message h ready, as if it had come just now; only its
// TTL counts from the instant it was scheduled for. The message of a delayed
// exchange departs.
func (m *Machine) promote(h uint32, eff *fsm.Effects) {
	r := *m.rareOf(h)
	due := m.messages.get(h).expireAt
	m.unschedule(h)
	if m.settings.DelayedStore {
		m.depart(h, due, r, eff)
		return
	}
	m.setRare(h, rare{scheduledFor: r.scheduledFor})
	ttl := m.settings.messageTTL(r.ttl, r.ceiling)
	x := m.messages.mut(h)
	x.seq, x.expireAt = m.nextMessage, 0
	m.nextMessage++
	if ttl.given {
		x.expireAt = max(due.Add(ttl.value), 1)
	}
	m.setPlace(x, Ready)
	m.append(h)
	if ttl.given && ttl.value == 0 {
		m.offer(h, true, eff)
	} else {
		m.watch(h)
	}
}

// depart makes message h of a delayed exchange, which is in no place and has
// become due, a letter: not a dead one. It keeps what its TTL will be made of.
func (m *Machine) depart(h uint32, due fsm.Time, r rare, eff *fsm.Effects) {
	m.setRare(h, rare{scheduledFor: due, ttl: r.ttl, ceiling: r.ceiling})
	m.messages.mut(h).expireAt = 0
	e := m.mutExtra(h)
	e.reason, e.diedAt = logpb.Death_NONE, m.clock.now()
	m.post(h, eff)
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
	h := m.findScheduled(cmd.Id, cmd.Message)
	if h == 0 {
		return fsm.Result{Code: fsm.NotFound}
	}
	switch cmd.Action {
	case logpb.Schedule_CANCEL:
		m.unschedule(h)
		m.free(h, eff)
		m.counters.Unscheduled++
	case logpb.Schedule_MOVE:
		m.move(h, m.dueAt(cmd.DueAt, cmd.DelayPlusOne, 0))
	case logpb.Schedule_FIRE:
		m.move(h, m.clock.now())
	}
	m.catchUp(eff)
	return fsm.Result{Count: 1}
}

// findScheduled returns the message with this name or, if that is empty, with
// this number; 0: none.
func (m *Machine) findScheduled(id string, seq uint64) uint32 {
	if id != "" {
		return m.named[id]
	}
	if h := m.numbers.get(key{seq: seq}); h != nil {
		return *h
	}
	return 0
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
	if m.schedules.len() == 0 {
		return 0, 0
	}
	from, _ := m.schedules.first()
	upto, _ := m.schedules.last()
	return from.at, upto.at
}

// ScheduledAfter returns up to limit scheduled messages that are due next behind
// the one with this instant and number, in their order.
func (m *Machine) ScheduledAfter(at fsm.Time, number uint64, limit int) []Message {
	var messages []Message
	after := key{at, number}
	for k, h := range m.schedules.from(after) {
		if len(messages) == limit {
			break
		}
		if k != after {
			messages = append(messages, m.describeMessage(*h))
		}
	}
	return messages
}

// move makes scheduled message h due at another time; in the past is now.
func (m *Machine) move(h uint32, due fsm.Time) {
	due = max(due, m.clock.now(), 1)
	x := m.messages.mut(h)
	m.schedules.remove(key{x.expireAt, x.seq})
	x.expireAt = due
	m.schedules.put(key{due, x.seq}, h)
	r := *m.rareOf(h)
	r.scheduledFor = due
	m.setRare(h, r)
	m.active = m.clock.now()
}

// fireNext makes up to n of those messages ready that are due next, scheduled
// or delayed, in their order, and no more than one command may.
func (m *Machine) fireNext(n uint64, eff *fsm.Effects) fsm.Result {
	var r fsm.Result
	for n = min(n, uint64(m.bounds.Tick)); r.Count < n; r.Count++ {
		if m.timed() == 0 {
			break
		}
		_, h := m.nextTimed()
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
