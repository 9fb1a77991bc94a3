package queue

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

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

// Place is where a message is. The values are in snapshots; 0 is no place. Live
// messages are in exactly one.
type Place uint8

const (
	// Ready messages wait in the list of their priority. They may be handed out
	// and may expire, as may Returned ones. Of the others, only Delayed, Deferred and
	// Parked ones expire.
	Ready Place = iota + 1
	// Returned messages are ready too, and are served before the others.
	Returned
	// CheckedOut messages are held by a consumer or a get.
	CheckedOut
	// Outbox messages are dead letters on their way.
	Outbox
	// Scheduled messages become ready at their time.
	Scheduled
	// Waiting messages are dead letters that have no destination for now.
	Waiting
	// Purged messages no longer count and are released step by step.
	Purged
	// Delayed messages were returned, and wait before they become ready again.
	Delayed
	// Deferred messages were put aside by a consumer under a token.
	Deferred
	// Grouped messages are ready and belong to a group.
	Grouped
	// Parked messages have failed more often than the default delivery limit allows.
	Parked

	placeCount = iota + 1
)

// aside reports whether messages here were set aside after a delivery.
func (p Place) aside() bool { return p == Delayed || p == Deferred }

// Due is a kind of deadline.
type Due uint8

const (
	// NothingDue means that there is no deadline.
	NothingDue Due = iota
	// ExpiryDue: a message expires.
	ExpiryDue
	// TimeoutDue: a delivery has been held for too long.
	TimeoutDue
	// LockDue: a lock ends.
	LockDue
	// LeaseDue: the queue ends.
	LeaseDue
	// ScheduleDue: a message becomes ready.
	ScheduleDue
	// WorkDue: a command has left work, which is due at once.
	WorkDue
)

// Count is a number of messages and the bytes of their properties and bodies.
type Count struct{ Messages, Bytes uint64 }

func (c *Count) add(o Count) { c.Messages, c.Bytes = c.Messages+o.Messages, c.Bytes+o.Bytes }
func (c *Count) sub(o Count) { c.Messages, c.Bytes = c.Messages-o.Messages, c.Bytes-o.Bytes }

func (c Count) plus(o Count) Count { return Count{c.Messages + o.Messages, c.Bytes + o.Bytes} }

// Stats are the statistics of a queue at one moment.
type Stats struct {
	Phase          Phase
	Clock          fsm.Time
	Ready          Count // including returned messages and those of groups
	Unacknowledged Count
	Scheduled      Count
	Delayed        Count
	Deferred       Count
	Parked         Count
	Outbox         Count // including waiting letters
	Waiting        Count // letters that have no destination for now
	Forwarding     Count // letters that have not died, but go on
	// Pending are the letters that count as messages of the queue and in its
	// length limits: the whole outbox, if it delivers at least once.
	Pending   Count
	Consumers int // without cancelled ones that still hold messages
	Sessions  int
	Locked    int // deliveries with a lock, also one that does not run yet
	Groups    GroupStats
	IDs       int // remembered against duplicates
	Ended     QueueEnd
	Counters  Counters
}

// Outlook is what a queue waits for, besides deliveries and scheduled messages.
type Outlook struct {
	// NextExpiry is when the first message expires that nobody holds and that is not
	// scheduled; 0: none ever does.
	NextExpiry fsm.Time
	// LeaseEnd is when the queue is deleted unless it is used before; 0: never, as it
	// is used now.
	LeaseEnd     fsm.Time
	Returned     uint64 // of the ready messages: those that consumers had
	SingleActive string // tag of the single active consumer; empty: there is none
}

// Deaths counts messages by the reason of their death, from EXPIRED on, and by
// disposition.
type Deaths [logpb.Death_MAXHOPS][AtLeastOnce + 1]uint64

// Counters only grow. They are part of the replicated state. They are equal on
// all replicas, and a repeated command counts only in Duplicates.
type Counters struct {
	Enqueued, Delivered, Redelivered       uint64
	Acked, Requeued                        uint64
	Expired, DeadLettered, DeadDropped     uint64
	TimedOut, LateAcks, Purged, Duplicates uint64
	// Refused counts publishes refused by a length limit, or by a schedule
	// name.
	Refused uint64
	// Scheduled counts messages that were scheduled, Unscheduled those cancelled,
	// replaced by others of their names, or purged before they became due.
	Scheduled, Unscheduled uint64
	Cancelled, Replaced    uint64 // of Unscheduled
	// AckedExpired counts messages that were acked although they had expired
	// meanwhile.
	AckedExpired uint64
	// Unroutable counts messages of a delayed exchange that had no route when
	// due.
	Unroutable uint64
	// DeadConfirmed counts letters that have arrived, DeadDropped those that no
	// target has, DeadRefused transfers (not letters) that a target has
	// refused. Forwarded counts the messages that have arrived at all queues to
	// which the queue forwards them; they are no letters.
	DeadConfirmed, DeadRefused uint64
	Forwarded                  uint64
	// Deaths counts by reason and disposition.
	Deaths       Deaths
	LocksLost    uint64 // locks that ended before their delivery was settled
	LocksRenewed uint64 // on request
	LateLocks    uint64 // settlements of deliveries whose lock had ended
	GroupsTaken  uint64 // how often a consumer got a group
	GroupsLost   uint64 // how often its lock ended
	Deferred     uint64 // deliveries that ended in a deferral
	Kicked       uint64 // messages that were retried before their time
	Parked       uint64 // messages that have exceeded the default delivery limit
	Unparked     uint64 // of those: became ready again
	SameID       uint64 // publishes that were duplicates of messages
	IDsForgotten uint64 // within the window against duplicates, since there were too many
}

// fields lists the counters, but for Deaths, each with what has it in a snapshot.
func (c *Counters) fields(st *logpb.QueueCounters) [][2]*uint64 {
	return [][2]*uint64{
		{&c.Enqueued, &st.Enqueued}, {&c.Delivered, &st.Delivered}, {&c.Redelivered, &st.Redelivered},
		{&c.Acked, &st.Acked}, {&c.Requeued, &st.Requeued},
		{&c.Expired, &st.Expired}, {&c.DeadLettered, &st.DeadLettered}, {&c.DeadDropped, &st.DeadDropped},
		{&c.TimedOut, &st.TimedOut}, {&c.LateAcks, &st.LateAcks}, {&c.Purged, &st.Purged}, {&c.Duplicates, &st.Duplicates},
		{&c.Refused, &st.Refused}, {&c.Scheduled, &st.Scheduled}, {&c.Unscheduled, &st.Unscheduled},
		{&c.Cancelled, &st.Cancelled}, {&c.Replaced, &st.Replaced}, {&c.AckedExpired, &st.SettledExpired}, {&c.Unroutable, &st.Unroutable},
		{&c.DeadConfirmed, &st.DeadConfirmed}, {&c.DeadRefused, &st.DeadRefused}, {&c.Forwarded, &st.Forwarded},
		{&c.LocksLost, &st.LocksLost}, {&c.LocksRenewed, &st.LocksRenewed}, {&c.LateLocks, &st.LateLocks},
		{&c.GroupsTaken, &st.GroupsTaken}, {&c.GroupsLost, &st.GroupsLost},
		{&c.Deferred, &st.Deferred}, {&c.Kicked, &st.Kicked}, {&c.Parked, &st.Parked}, {&c.Unparked, &st.Unparked},
		{&c.SameID, &st.SameId}, {&c.IDsForgotten, &st.IdsForgotten},
	}
}

// proto returns the counters in the form of the snapshot.
func (c *Counters) proto() *logpb.QueueCounters {
	st := &logpb.QueueCounters{Deaths: make([]uint64, 0, len(c.Deaths)*len(c.Deaths[0]))}
	for _, d := range c.Deaths {
		st.Deaths = append(st.Deaths, d[:]...)
	}
	for _, f := range c.fields(st) {
		*f[1] = *f[0]
	}
	return st
}

// restore is the inverse of proto.
func (c *Counters) restore(st *logpb.QueueCounters) error {
	if len(st.Deaths) != len(c.Deaths)*len(c.Deaths[0]) {
		return fmt.Errorf("%w: deaths are not counted", ErrSnapshot)
	}
	for i := range c.Deaths {
		copy(c.Deaths[i][:], st.Deaths[i*len(c.Deaths[i]):])
	}
	for _, f := range c.fields(st) {
		*f[0] = *f[1]
	}
	return nil
}

// Died is the number of deaths for a reason, with any disposition.
func (c *Counters) Died(reason logpb.Death_Reason) (n uint64) {
	for _, d := range c.Deaths[reason-1] {
		n += d
	}
	return n
}

// Dead are the counters of deaths and dead letters, and of other ends.
type Dead struct {
	By                          Deaths
	Confirmed, Dropped, Refused uint64 // letters, letters, transfers
	// Messages that ended otherwise: see Counters.
	Cancelled, Replaced, Purged, Forwarded uint64
}

// Plus returns the sum d + o.
func (d Dead) Plus(o Dead) Dead { return d.with(o, func(a, b uint64) uint64 { return a + b }) }

// Minus returns the increase d - o since an earlier o.
func (d Dead) Minus(o Dead) Dead { return d.with(o, func(a, b uint64) uint64 { return a - b }) }

// with applies f to each pair of counters.
func (d Dead) with(o Dead, f func(a, b uint64) uint64) Dead {
	for reason := range d.By {
		for disposition := range d.By[reason] {
			d.By[reason][disposition] = f(d.By[reason][disposition], o.By[reason][disposition])
		}
	}
	d.Confirmed, d.Dropped, d.Refused = f(d.Confirmed, o.Confirmed), f(d.Dropped, o.Dropped), f(d.Refused, o.Refused)
	d.Cancelled, d.Replaced, d.Purged = f(d.Cancelled, o.Cancelled), f(d.Replaced, o.Replaced), f(d.Purged, o.Purged)
	d.Forwarded = f(d.Forwarded, o.Forwarded)
	return d
}

// Disposition is what happens to a message that has died.
type Disposition uint8

const (
	// Dropped: the queue has no dead-letter exchange.
	Dropped Disposition = iota
	// SentOnce: sent once by the leader, as an effect (at-most-once).
	SentOnce
	// Transactional: in the outbox until the targets have it, or there are
	// none.
	Transactional
	// AtLeastOnce: in the outbox until a target has it.
	AtLeastOnce
)

var dispositions = [...]string{Dropped: "disabled", SentOnce: "at_most_once", Transactional: "transactional", AtLeastOnce: "at_least_once"}

// String returns the dead-letter strategy of the disposition, as metrics name
// it.
func (d Disposition) String() string { return dispositions[d] }

// Status is the status of a consumer.
type Status uint8

const (
	// Up consumers are served while they have credit.
	Up Status = iota
	// TimedOut consumers get nothing until they have settled what was taken
	// back from them.
	TimedOut
	// Cancelled consumers only settle what they hold, or held.
	Cancelled
	// Quiescing consumers get nothing new, because a consumer with a higher
	// priority takes over once they hold nothing.
	Quiescing
	// Suspected consumers get nothing because their node is suspected.
	Suspected
)

// Consumer describes one consumer, for listings.
type Consumer struct {
	ID            fsm.ConsumerID
	Tag           string
	Prefetch      uint32 // as requested; 0: the ceiling
	Priority      int32
	NoAck         bool
	Exclusive     bool
	Active        bool // not cancelled, and not waiting for a single active consumer
	Status        Status
	Held          int
	TimedOut      int        // deliveries taken back and not yet settled
	LateAcks      uint64     // settlements of deliveries that had been taken back
	NextDelivery  uint64     // number of the next delivery
	Timeout       fsm.Millis // effective for the next delivery; -1: none
	OwnTimeout    bool       // set by the consumer, not inherited
	FirstDeadline fsm.Time   // of the oldest delivery; 0: none
	HeldSince     fsm.Time   // when the oldest delivery was handed out; 0: it holds nothing, or unknown
	ConsumerLocks
}

// ConsumerLocks describe the locks of one consumer, for listings.
type ConsumerLocks struct {
	Lock      fsm.Millis // effective for the next delivery; 0: none
	MaxLock   fsm.Millis // likewise, with all renewals; 0: no bound
	AutoRenew fsm.Millis // 0: never
	Head      bool       // only the oldest delivery is locked
	Grace     fsm.Millis // 0: locks end with the session
	LostLocks int        // deliveries whose lock has ended and that are not settled; at most 256
	LateLocks uint64     // settlements of such deliveries
}

// Message describes one message, for listings.
type Message struct {
	Seq              uint64
	Ref              fsm.Ref
	Place            Place
	Priority         uint8
	ExpireAt         fsm.Time // 0: never
	Acquired, Failed uint32
	HasExpiration    bool
	Deaths           []*logpb.Death // shared, never changed
	Holder           fsm.ConsumerID // checked out only
	Delivery         uint64         // checked out only
	Deadline         fsm.Time       // checked out only; 0: never
	LockedUntil      fsm.Time       // checked out only; 0: it has no lock that runs
	Letter           uint64         // outbox and waiting only
	DueAt            fsm.Time       // scheduled and delayed; deferred: 0 if it does not return
	ScheduleID       string         // scheduled only
	Deferral         string         // the token; deferred only
	ScheduledFor     fsm.Time       // 0: it was never scheduled
	// What the publisher calls the message, cut; empty: nothing, or the queue keeps
	// no record of ends.
	MessageID, CorrelationID string
	GroupMember
}

// GroupMember says to which group a message belongs, or that it leaves its queue.
type GroupMember struct {
	Group     string // empty: to none, or it is a letter
	Forwarded bool   // a letter that has not died, but goes on
}

// Letter is a dead letter in the outbox.
type Letter struct {
	Number uint64
	fsm.DeadLetter
	// Done are the targets that have the letter: it must not go there again.
	Done []fsm.QueueID
	// Transfers are the unsettled ones, in the order of the route.
	Transfers []Transfer
}

// Transfer is one copy of a letter on its way to one queue. Numbers count from
// 1 per target and are the sequence numbers of the stream at the target.
type Transfer struct {
	To     fsm.QueueID
	Number uint64
	// Ceiling is the smallest TTL of the exchanges on the way.
	Ceiling fsm.Optional[fsm.Millis]
}

// Outgoing is a transfer with its letter.
type Outgoing struct {
	Transfer
	Letter Letter
}

// DeadLetterTarget is a queue that letters were routed to. Its transfers
// Confirmed+1 … Next-1 are under way.
type DeadLetterTarget struct {
	ID        fsm.QueueID
	Next      uint64 // number of the next transfer
	Confirmed uint64 // the target holds all transfers up to here
}

// Boot identifies one life of a node.
type Boot struct {
	Node fsm.NodeID
	Boot uint64
}

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
		Consumers:  m.consumers.active(), Sessions: m.sessions.len(), IDs: m.seen.len(), Ended: m.lease.endReason(), Locked: m.deadlines.locked(), Groups: m.groups.stats(), Counters: m.counters,
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
		Sated: m.consumers.active() > 0 && !m.consumers.hasCredit(),
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
		o.NextExpiry = k.At
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
func ReadyByPriority(m *Machine) []uint64 { return m.messages.readyByPriority() }

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
		if c.held.Len() == 0 {
			continue
		}
		if _, first := c.held.First(); first.since != 0 && (oldest == 0 || first.since < oldest) {
			oldest = first.since
		}
	}
	return timedOut, oldest
}

// describe describes c for listings.
func (cs *consumers) describe(c *consumer) Consumer {
	d := Consumer{
		ID: c.id, Tag: c.tag, Prefetch: c.prefetch, Priority: c.priority, NoAck: c.noAck, Exclusive: c.exclusive,
		Status: c.status(), Held: c.held.Len(), TimedOut: len(c.late), NextDelivery: c.next,
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
		for _, no := range inOrder {
			if !m.messages.walk(no, yield) {
				return
			}
		}
		for of, all := range m.holders() {
			for held := range all.from(0) {
				if !yield(m.describeHeld(of, &held)) {
					return
				}
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
func (m *Machine) SessionNodes() []Boot { return m.sessions.nodes(0) }

// SuspectedNodes lists the lives of nodes that are suspected, ascending.
func (m *Machine) SuspectedNodes() []Boot { return m.sessions.suspectedNodes() }

// ConsumerNodes lists the lives of nodes that have consumers or gets,
// ascending.
func (m *Machine) ConsumerNodes() []Boot { return m.sessions.nodes(1) }

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
	after := key{At: at, Seq: number}
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
	if s := m.sessions.get(of.Session); s != nil && s.consumer(of.Number) != nil {
		return s.consumer(of.Number).next - 1
	}
	return 0
}

// Held appends the first deliveries, up to limit, that a consumer holds with an
// ID above after, ascending; none if after is 2^64-1. It also appends the notices that it
// was cancelled, is short of credit, and has deliveries that were taken back and are not
// settled, whatever the limit, since effects may be lost. Number 0 stands for the gets of
// a session.
//
// It changes no state and resets no deadline, so only the replica that is asked
// runs it. An unknown session or consumer has nothing: eff stays as it is.
func (m *Machine) Held(to fsm.ConsumerID, after uint64, limit int, eff *fsm.Effects) {
	s := m.sessions.get(to.Session)
	if s == nil || s.consumer(to.Number) == nil {
		return
	}
	c := s.consumer(to.Number)
	if c.revoked {
		eff.Cancelled = append(eff.Cancelled, to)
	}
	if c.noticed && !c.cancelled {
		eff.Short = append(eff.Short, to)
	}
	if len(c.late) > 0 && !c.cancelled {
		t := fsm.Timeout{To: to, Tag: c.tag, Again: true}
		t.Deliveries, t.Limit, t.Held = describeLate(c.late, m.clock.now())
		eff.Timeouts = append(eff.Timeouts, t)
	}
	if after+1 == 0 {
		return
	}
	for h := range c.held.from(after + 1) {
		if limit--; limit < 0 {
			return
		}
		d := m.deliver(c, h.id, h.handle, h.lock, eff)
		if c.isGets() {
			d.Ready = m.messages.readyCount()
		}
	}
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

const (
	// peekWalk bounds how many messages a Peek walks over, and how many
	// consumers.
	peekWalk = 100_000

	// peekStep bounds one step.
	peekStep = 2048
)

// Peek finds messages that are Ready (returned ones included), CheckedOut,
// Scheduled, Delayed, Deferred or Parked, by number, starting above a given number. Expired
// messages are left out. It walks the first 100,000 messages of the place in
// several steps; messages after those are not shown. Others may use the machine
// between two steps, so messages that come or go meanwhile may or may not be
// shown.
//
// It keeps no pointer into the machine, only handles and numbers that it checks
// before it uses them. What it has found belongs to it, except for Deaths,
// which are shared and never changed.
type Peek struct {
	in    Place
	after uint64
	limit int
	now   fsm.Time
	left  int // messages and consumers to walk over

	// lists, at, seq and purged are for places with lists; holder and delivery
	// are for CheckedOut.
	lists []int // still to walk over
	here  int   // found in the first of them
	// The message of that list to continue with (0: the first), and its number.
	at     uint32
	seq    uint64
	purged uint64 // messages the machine had purged at that time

	holder, delivery uint64 // continue after this delivery of this consumer
	detached         bool   // which is one of the detached; these come last
	found            []Message
}

// NewPeek returns a Peek for up to limit messages of a place with a number
// above after, none of which has expired at now. Requires: limit ≥ 0. Letters
// cannot be peeked at: other places find nothing.
func NewPeek(in Place, after uint64, limit int, now fsm.Time) *Peek {
	p := &Peek{in: in, after: after, limit: limit, now: now, left: peekWalk}
	switch in {
	case Ready:
		for no := range returnedList {
			p.lists = append(p.lists, no)
		}
		p.lists = append(p.lists, returnedList, groupedList)
	case Scheduled, Delayed, Deferred, Parked:
		p.lists = []int{listsBehind + int(in)}
	}
	return p
}

// Step continues, and reports whether it is finished. Requires: nobody else
// uses m meanwhile. It walks over at most peekStep messages or consumers, and
// changes nothing.
func (p *Peek) Step(m *Machine) (done bool) {
	n := min(peekStep, p.left)
	p.left -= n
	if p.in == CheckedOut {
		n = p.held(m, n)
	} else {
		n = p.walk(m, n)
	}
	p.cut()
	return n > 0 || p.left == 0
}

// Result returns what was found. more says that there may be others after the
// last one. It may be called once done. The list belongs to the caller.
func (p *Peek) Result() (list []Message, more bool) {
	p.sort()
	n := min(p.limit, len(p.found))
	return p.found[:n], len(p.found) > n
}

// sort orders what was found, and removes duplicates.
func (p *Peek) sort() {
	slices.SortFunc(p.found, func(a, b Message) int { return cmp.Compare(a.Seq, b.Seq) })
	p.found = slices.CompactFunc(p.found, func(a, b Message) bool { return a.Seq == b.Seq })
}

// cut drops what will not be shown, once that is much. So found never has more
// than 2*(limit+1) + peekStep messages. The lowest limit+1 are enough: one more
// than is shown, for more.
func (p *Peek) cut() {
	if len(p.found) > 2*(p.limit+1) {
		p.sort()
		p.found = p.found[:min(p.limit+1, len(p.found))]
	}
}

// walk continues with the lists, over up to n messages. It returns how many are
// left of n: 0 if there are more. Lists of ready messages are ordered by
// number, so that the first ones suffice.
func (p *Peek) walk(m *Machine, n int) (left int) {
	for ; len(p.lists) > 0; p.lists, p.at, p.here = p.lists[1:], 0, 0 {
		no := p.lists[0]
		for h := p.resume(m, no); h != 0 && (no >= returnedList || p.here <= p.limit); h = m.messages.Get(h).next {
			if n == 0 {
				p.at, p.seq, p.purged = h, m.messages.Get(h).seq, m.counters.Purged
				return 0
			}
			n--
			if x := m.messages.describe(h); p.shows(&x) {
				p.here++
				p.found = append(p.found, x)
			}
		}
	}
	return max(n, 1)
}

// resume returns the message of a list to continue with: where the last step
// ended, if that message is still there, otherwise the first.
func (p *Peek) resume(m *Machine, no int) uint32 {
	if h := p.at; h != 0 && p.purged == m.counters.Purged && h < m.messages.End() {
		if x := m.messages.Get(h); x.seq == p.seq && x.place != CheckedOut && x.list() == no {
			return h
		}
	}
	p.here = 0
	return m.messages.head(no)
}

// held continues with what consumers hold, in the same way as walk.
func (p *Peek) held(m *Machine, n int) (left int) {
	holders := m.consumers.from(p.holder)
	if p.detached {
		holders = m.detached.from(p.holder)
	}
	for c := range holders {
		if c.registered != p.holder {
			p.holder, p.delivery = c.registered, 0
		}
		for held := range c.held.from(p.delivery + 1) {
			if n == 0 {
				return 0
			}
			n--
			p.delivery = held.id
			x := m.describeHeld(c.id, &held)
			if p.shows(&x) {
				p.found = append(p.found, x)
			}
		}
		if n == 0 {
			return 0
		}
		n--
	}
	if !p.detached {
		p.detached, p.holder, p.delivery = true, 0, 0
		return p.held(m, n)
	}
	return max(n, 1)
}

// shows reports whether a message is to be shown.
func (p *Peek) shows(x *Message) bool {
	return x.Seq > p.after && (x.ExpireAt == 0 || x.ExpireAt > p.now)
}

// Follow finds one message again after each command, whatever becomes of it. It
// only reads. A message is known by its payload's place in the log, which never
// changes; its number may.
type Follow struct {
	ref    fsm.Ref
	handle uint32
	// The delivery that it was seen in last, see HandedTo.
	holder   fsm.ConsumerID
	delivery uint64
}

// Followed describes a message that is followed.
type Followed struct {
	Message
	// Leaving is set if it was handed out, and nobody holds it any more, but the
	// machine has not yet said what becomes of it.
	Leaving bool
}

// FollowRef begins to follow the message with this payload; false: the queue does
// not have it. O(messages).
func FollowRef(m *Machine, ref fsm.Ref) (Follow, bool) {
	for h := uint32(1); h < m.messages.End(); h++ {
		if x := m.messages.Get(h); x.seq != 0 && x.ref() == ref {
			return Follow{ref: ref, handle: h}, true
		}
	}
	return Follow{}, false
}

// Holder returns who held the message last, and in which delivery.
func (f *Follow) Holder() (of fsm.ConsumerID, delivery uint64) { return f.holder, f.delivery }

// HandedTo says in which delivery the message is now.
func (f *Follow) HandedTo(to fsm.ConsumerID, delivery uint64) { f.holder, f.delivery = to, delivery }

// Describe describes the message; false: the queue does not have it any more, or
// has purged it. A purged message may be described until it is released. m is the
// machine with which f began.
func (f *Follow) Describe(m *Machine) (d Followed, ok bool) {
	if f.handle >= m.messages.End() {
		return d, false
	}
	if x := m.messages.Get(f.handle); x.seq == 0 || x.ref() != f.ref {
		return d, false
	}
	d.Message = m.messages.describe(f.handle)
	if d.Place != CheckedOut {
		return d, true
	}
	d.Holder, d.Delivery, d.Leaving = f.holder, f.delivery, true
	if c := consumerOf(m, f.holder); c != nil {
		if held, ok := c.held.find(f.delivery); ok && held.handle == f.handle {
			d.Message, d.Leaving = m.describeHeld(f.holder, &held), false
		}
	}
	return d, true
}

// NextSeq is the number of the next message.
func NextSeq(m *Machine) uint64 { return m.messages.nextSeq() }

// TagOf returns the tag of a consumer; empty: it has none, or there is no such
// consumer.
func TagOf(m *Machine, id fsm.ConsumerID) string {
	if c := consumerOf(m, id); c != nil {
		return c.tag
	}
	return ""
}

// consumerOf returns a consumer, detached or not; nil: there is none.
func consumerOf(m *Machine, id fsm.ConsumerID) *consumer {
	if s := m.sessions.get(id.Session); s != nil {
		return s.consumer(id.Number)
	}
	return m.detached.find(id)
}

// OfLetter returns the record of a letter; false: there is none.
func (e Ends) OfLetter(letter uint64) (End, bool) {
	i := e.of.ofLetter(letter)
	if i < 0 {
		return End{}, false
	}
	return e.of.ring.Item(i).shown(e.of.next - uint64(e.of.ring.Len()) + uint64(i)), true
}
