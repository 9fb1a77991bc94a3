package queue

import (
	"iter"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Name returns the name of the queue.
func (m *Machine) Name() string { return m.name }

// ID returns the id of the queue.
func (m *Machine) ID() fsm.QueueID { return m.id }

// Clock is the machine's time: the latest stamp it has seen.
func (m *Machine) Clock() fsm.Time { return m.clock.now() }

// LockCredit is how far the clock of held messages is behind Clock.
func (m *Machine) LockCredit() fsm.Millis { return m.clock.lockCredit() }

// Config returns the effective settings. They must not be changed.
func (m *Machine) Config() *logpb.QueueConfig { return m.settings.QueueConfig }

// Stats returns the current statistics. O(1), whatever the queue holds: counts
// are kept, not computed.
func (m *Machine) Stats() Stats {
	return Stats{
		Phase: m.lease.phase(), Clock: m.clock.now(),
		Ready: Count{
			m.messages.readyCount(),
			m.messages.count(Ready).Bytes + m.messages.count(Returned).Bytes + m.messages.count(Grouped).Bytes,
		},
		Unacknowledged: m.messages.count(CheckedOut), Scheduled: m.messages.count(Scheduled), Delayed: m.messages.count(Delayed),
		Deferred: m.messages.count(Deferred), Parked: m.messages.count(Parked),
		Outbox: m.messages.count(Outbox).plus(m.messages.count(Waiting)), Waiting: m.messages.count(Waiting), Pending: m.outbox.counted(),
		Forwarding: m.outbox.underWay(),
		Consumers:  m.consumers.active(), Sessions: m.sessions.len(), IDs: m.seen.len(), Ended: m.lease.endReason(), Locked: m.locks.len(), Groups: m.groups.stats(), Counters: m.counters,
	}
}

// Demand is what consumers want.
type Demand struct {
	Ready, Held uint64 // messages
	Acked       uint64 // messages so far
	Sated       bool   // there are consumers, and none may hold more than it does
}

// DemandOf returns what the consumers of a queue want. O(1).
func DemandOf(m *Machine) Demand {
	return Demand{
		Ready: m.messages.readyCount(), Held: m.messages.count(CheckedOut).Messages, Acked: m.counters.Acked,
		Sated: m.consumers.active() > 0 && !servable{m.consumers}.credit(),
	}
}

// Dead returns the counters of deaths and other ends.
func (m *Machine) Dead() Dead {
	c := &m.counters
	return Dead{
		By: c.Deaths, Confirmed: c.DeadConfirmed, Dropped: c.DeadDropped, Refused: c.DeadRefused,
		Cancelled: c.Cancelled, Replaced: c.Replaced, Purged: c.Purged, Forwarded: c.Forwarded,
	}
}

// Outlook returns what comes next, and what Stats does not count. O(1).
func (m *Machine) Outlook() Outlook {
	o := Outlook{Returned: m.messages.count(Returned).Messages}
	if m.lease.phase() != Active {
		return o
	}
	if k, _, ok := m.timers.expiry(); ok {
		o.NextExpiry = k.at
	}
	if o.LeaseEnd = m.lease.leaseEnd(); o.LeaseEnd == 0 {
		o.LeaseEnd = m.lease.idleEnd()
	} else if idle := m.lease.idleEnd(); idle != 0 {
		o.LeaseEnd = min(o.LeaseEnd, idle)
	}
	o.SingleActive = m.consumers.singleTag()
	return o
}

// CapacityOf returns how much of the time the queue could hand messages out, of late. Replicas
// need not agree on it.
func CapacityOf(m *Machine) Capacity { return m.consumers.measured() }

// ReadyByPriority returns how many messages are ready of each priority, from 0 to the
// highest that has any. Returned ones and those of groups count by their priorities,
// too, although these do not decide when they are handed out. O(1).
func ReadyByPriority(m *Machine) []uint64 { return readyByPriority(m.messages) }

// Live reports whether the entry at index has live messages.
func (m *Machine) Live(index uint64) bool { return m.entries.has(index) }

// LiveIndexes iterates over the entries with live messages, ascending.
func (m *Machine) LiveIndexes() iter.Seq[uint64] { return m.entries.indexes() }

// Consumers iterates over the consumers in order of registration, including
// cancelled ones that still have deliveries to settle.
func (m *Machine) Consumers() iter.Seq[Consumer] {
	return func(yield func(Consumer) bool) {
		for c := range m.consumers.from(0) {
			if !c.isGets() && !yield(m.consumers.describe(c)) {
				return
			}
		}
	}
}

// ConsumersAfter appends up to limit consumers to list that follow a position
// in the order of registration, initially 0. It returns the position of the
// last one; 0: there are no more. Between two pieces of a long list others may
// use the machine.
func (m *Machine) ConsumersAfter(place uint64, limit int, list []Consumer) (_ []Consumer, last uint64) {
	for c := range m.consumers.from(place + 1) {
		if limit--; limit < 0 {
			return list, last
		}
		if last = c.registered; !c.isGets() {
			list = append(list, m.consumers.describe(c))
		}
	}
	return list, 0
}

// Lateness returns how many consumers have not settled what was taken back from
// them, and when the oldest held message was handed out; 0: none is held, or
// that is not known. O(consumers).
func (m *Machine) Lateness() (timedOut int, oldest fsm.Time) {
	for c := range m.consumers.from(0) {
		if len(c.late) > 0 && !c.cancelled && !c.isGets() {
			timedOut++
		}
		if c.held.len() == 0 {
			continue
		}
		if _, first := c.held.first(); first.since != 0 && (oldest == 0 || first.since < oldest) {
			oldest = first.since
		}
	}
	return timedOut, oldest
}

// describe describes c for listings.
func (cs *consumers) describe(c *consumer) Consumer {
	d := Consumer{
		ID: c.id, Tag: c.tag, Prefetch: c.prefetch, Priority: c.priority, NoAck: c.noAck, Exclusive: c.exclusive,
		Status: c.status(), Held: c.held.len(), TimedOut: len(c.late), NextDelivery: c.next,
		LateAcks: c.lateAcks, Timeout: cs.settings.timeout(c).Or(-1), OwnTimeout: c.ownTimeout.Given,
	}
	l := cs.settings.lock(c)
	d.ConsumerLocks = ConsumerLocks{
		Lock: fsm.Millis(l.length), MaxLock: fsm.Millis(l.max), AutoRenew: c.lockAuto, Head: c.lockHead, Grace: c.lockGrace,
		LostLocks: len(c.lockLost), LateLocks: c.lateLocks,
	}
	d.Active = c.level != nil && (!cs.settings.SingleActive || c == cs.single)
	if d.Active && cs.quiescing && d.Status == Up {
		d.Status = Quiescing
	}
	for held := range c.held.from(0) {
		d.FirstDeadline, d.HeldSince = cs.clock.heldUntil(held.deadline), held.since
		break
	}
	return d
}

// Messages iterates over all messages: the ready ones by priority, highest
// first, the returned ones, the scheduled ones by number, the delayed ones, the
// deferred ones, those of groups, the parked ones, the held ones by consumer and delivery, those on
// their way back, those held by detached consumers, the outbox, the waiting letters.
// Purged ones are left out. The machine must not change
// meanwhile.
func (m *Machine) Messages() iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for no := maxPriority; no >= 0; no-- {
			if !m.messages.walk(no, yield) {
				return
			}
		}
		if !m.messages.walk(returnedList, yield) || !m.messages.walk(scheduledList, yield) || !m.messages.walk(delayedList, yield) ||
			!m.messages.walk(deferredList, yield) || !m.messages.walk(groupedList, yield) || !m.messages.walk(parkedList, yield) {
			return
		}
		for c := range m.consumers.from(0) {
			if !m.deliveries.walk(c.id, &c.held, yield) {
				return
			}
		}
		for r := range m.deliveries.lost() {
			if !m.deliveries.walk(r.of, &r.held, yield) {
				return
			}
		}
		for c := range m.detached.list() {
			if !m.deliveries.walk(c.id, &c.held, yield) {
				return
			}
		}
		if m.messages.walk(outboxList, yield) {
			m.messages.walk(waitingList, yield)
		}
	}
}

// UnroutedLetters returns up to limit letters without a route, oldest first.
func (m *Machine) UnroutedLetters(limit int) []Letter { return m.outbox.unroutedLetters(limit) }

// WaitingLetters returns up to limit letters that have no destination for now,
// with a number above after, ascending.
func (m *Machine) WaitingLetters(after uint64, limit int) []Letter {
	return m.outbox.waitingLetters(after, limit)
}

// PendingTransfers returns up to limit transfers to a target that are not
// settled, from number from on, ascending.
func (m *Machine) PendingTransfers(to fsm.QueueID, from uint64, limit int) []Outgoing {
	return m.outbox.pendingTransfers(to, from, limit)
}

// DeadLetterTargets lists up to limit of the queues that letters were routed to, with an
// id above after, ascending.
func (m *Machine) DeadLetterTargets(after fsm.QueueID, limit int) []DeadLetterTarget {
	return m.outbox.list(after, limit)
}

// Sessions lists the sessions with a stream, ascending. The slice belongs to
// the caller, as in all lists here.
func (m *Machine) Sessions() []fsm.SessionID { return m.sessions.ids() }

// SessionNodes lists the lives of nodes that have sessions, ascending. Queues
// that forward dead letters are on no node.
func (m *Machine) SessionNodes() []Boot { return m.sessions.nodes() }

// SuspectedNodes lists the lives of nodes that are suspected, ascending.
func (m *Machine) SuspectedNodes() []Boot { return m.sessions.suspectedNodes() }

// ConsumerNodes lists the lives of nodes that have consumers or gets,
// ascending.
func (m *Machine) ConsumerNodes() []Boot { return m.sessions.consumerNodes() }

// Sources lists up to limit queues with a session that forwards dead letters
// here, with an id above after, ascending.
func (m *Machine) Sources(after fsm.QueueID, limit int) []fsm.QueueID {
	return m.sessions.sources(after, limit)
}

// ScheduledSpan returns when the first and when the last scheduled message is
// due; 0: there is none.
func (m *Machine) ScheduledSpan() (first, last fsm.Time) {
	return m.timers.scheduledSpan()
}

// ScheduledAfter returns up to limit scheduled messages that follow the one
// with this instant and number, in the order in which they are due.
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

// Index is the index of the last entry that was applied.
func (m *Machine) Index() uint64 { return m.entries.last() }

// Newest returns the number of the newest delivery of a consumer; 0: there is
// none, or no such consumer. It counts all deliveries so far, settled or not.
func (m *Machine) Newest(of fsm.ConsumerID) uint64 {
	s := m.sessions.get(of.Session)
	if s == nil {
		return 0
	}
	c := s.consumer(of.Number)
	if c == nil {
		return 0
	}
	return c.next - 1
}

// Activity returns when the queue was last active, and whether it is in use all
// the time.
func (m *Machine) Activity() (last fsm.Time, inUse bool) {
	return m.lease.lastActive(), m.consumers.inUse()
}

// HasDeadLetterTarget reports whether a queue is one of the dead-letter
// targets.
func (m *Machine) HasDeadLetterTarget(id fsm.QueueID) bool {
	known, _ := m.outbox.has(id)
	return known
}
