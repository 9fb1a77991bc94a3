package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// dueAt is when a message becomes ready: at an instant, or so long from now,
// or as long as the queue lets messages wait. 0: it was asked for neither.
func (m *Machine) dueAt(at int64, delayPlusOne, delay uint64) fsm.Time {
	switch {
	case at > 0:
		return min(fsm.Time(at), fsm.MaxTime)
	case delayPlusOne > 0:
		return m.deadline(millis(delayPlusOne))
	case delay > 0:
		return m.deadline(fsm.Millis(min(delay, uint64(fsm.MaxTime))))
	}
	return 0
}

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

// watchSchedule makes sure that message h, which is scheduled or delayed,
// becomes ready.
func (m *Machine) watchSchedule(h uint32) {
	x := m.messages.get(h)
	m.schedules.push(timed[uint32]{x.expireAt, x.seq, h})
	m.schedules.first(m.notScheduled)
	if m.schedules.tooLong(m.timed()) {
		m.rebuildSchedules()
	}
}

// timed is the number of messages that wait for an instant.
func (m *Machine) timed() int {
	return int(m.counts[Scheduled].Messages + m.counts[Delayed].Messages)
}

func (m *Machine) rebuildSchedules() {
	entries := make([]timed[uint32], 0, m.timed())
	for _, no := range [2]int{scheduledList, delayedList} {
		for h := m.lists[no].head; h != 0; {
			x := m.messages.get(h)
			entries = append(entries, timed[uint32]{x.expireAt, x.seq, h})
			h = x.next
		}
	}
	m.schedules.rebuild(entries)
}

// notScheduled reports whether t stands for no scheduled or delayed message.
func (m *Machine) notScheduled(t *timed[uint32]) bool {
	if int(t.v) >= m.messages.top {
		return true
	}
	x := m.messages.get(t.v)
	return x.seq != t.seq || x.place != Scheduled && x.place != Delayed || x.expireAt != t.at
}

// unschedule takes message h out of those that are scheduled. It is in no
// place then. A queue whose last one goes has been active until now.
func (m *Machine) unschedule(h uint32) {
	if id := m.rareOf(h).id; id != "" {
		delete(m.named, id)
	}
	m.remove(h)
	m.active = m.clock
}

// promote makes scheduled message h ready, as if it had come just now; only its
// TTL counts from the instant it was scheduled for. The message of a delayed
// exchange departs.
func (m *Machine) promote(h uint32, eff *fsm.Effects) {
	r := *m.rareOf(h)
	due := m.messages.get(h).expireAt
	m.unschedule(h)
	if m.config.DelayedStore {
		m.depart(h, due, r, eff)
		return
	}
	m.setRare(h, rare{scheduledFor: r.scheduledFor})
	ttl, limited := m.ttl(r.ttl, r.ceiling)
	x := m.messages.mut(h)
	x.seq, x.expireAt = m.nextMessage, 0
	m.nextMessage++
	if limited {
		x.expireAt = max(due.Add(ttl), 1)
	}
	m.setPlace(x, Ready)
	m.append(h)
	if limited && ttl == 0 {
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
	e.reason, e.diedAt = logpb.Death_NONE, m.clock
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
		m.move(h, m.clock)
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
	for h := m.lists[scheduledList].head; h != 0; h = m.messages.get(h).next {
		if m.messages.get(h).seq == seq {
			return h
		}
	}
	return 0
}

// NextScheduled returns when the first scheduled message is due; 0: there is
// none.
func (m *Machine) NextScheduled() fsm.Time {
	if t := m.schedules.first(m.notScheduled); t != nil {
		return t.at
	}
	return 0
}

// ScheduledSpan returns when the first and when the last scheduled message is
// due; 0: there is none. It may look at half of them.
func (m *Machine) ScheduledSpan() (first, last fsm.Time) {
	t := m.schedules.first(m.notScheduled)
	if t == nil {
		return 0, 0
	}
	first, last = t.at, t.at
	for i := m.schedules.fifo.len() - 1; i >= 0; i-- {
		if t := m.schedules.fifo.item(i); !m.notScheduled(t) {
			last = max(last, t.at)
			break
		}
	}
	for i := range m.schedules.heap {
		if t := &m.schedules.heap[i]; t.at > last && !m.notScheduled(t) {
			last = t.at
		}
	}
	return first, last
}

// ScheduledAfter returns up to limit scheduled messages that are due next behind
// the one with this instant and number, in their order. It looks at all.
func (m *Machine) ScheduledAfter(at fsm.Time, number uint64, limit int) []Message {
	after := timed[uint32]{at: at, seq: number}
	var page []timed[uint32]
	least := func() {
		slices.SortFunc(page, func(a, b timed[uint32]) int { return a.compare(&b) })
		page = page[:min(len(page), limit)]
	}
	for h := m.lists[scheduledList].head; h != 0; {
		x := m.messages.get(h)
		if t := (timed[uint32]{x.expireAt, x.seq, h}); after.before(&t) {
			if page = append(page, t); len(page) > 2*limit+64 {
				least()
			}
		}
		h = x.next
	}
	least()
	messages := make([]Message, len(page))
	for i, t := range page {
		messages[i] = m.describeMessage(t.v)
	}
	return messages
}

// move makes scheduled message h due at another time; in the past is now.
func (m *Machine) move(h uint32, due fsm.Time) {
	due = max(due, m.clock, 1)
	m.messages.mut(h).expireAt = due
	r := *m.rareOf(h)
	r.scheduledFor = due
	m.setRare(h, r)
	m.watchSchedule(h)
	m.active = m.clock
}

// fireNext makes up to n of those messages ready that are due next, scheduled
// or delayed, in their order, and no more than one command may.
func (m *Machine) fireNext(n uint64, eff *fsm.Effects) fsm.Result {
	var r fsm.Result
	for n = min(n, dueInTick); r.Count < n; r.Count++ {
		t := m.schedules.first(m.notScheduled)
		if t == nil {
			break
		}
		h := t.v
		if m.messages.get(h).place == Delayed {
			m.active = m.clock
			m.retry(h)
			continue
		}
		m.move(h, m.clock)
		m.promote(h, eff)
	}
	return r
}
