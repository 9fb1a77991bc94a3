package queue

import (
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

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

// Add adds what there is in another queue. Counters, which say what has been, and what does not add up stay.
func (s *Stats) Add(o *Stats) {
	s.Ready, s.Unacknowledged, s.Scheduled = s.Ready.plus(o.Ready), s.Unacknowledged.plus(o.Unacknowledged), s.Scheduled.plus(o.Scheduled)
	s.Delayed, s.Deferred, s.Parked = s.Delayed.plus(o.Delayed), s.Deferred.plus(o.Deferred), s.Parked.plus(o.Parked)
	s.Outbox, s.Waiting, s.Forwarding, s.Pending = s.Outbox.plus(o.Outbox), s.Waiting.plus(o.Waiting), s.Forwarding.plus(o.Forwarding), s.Pending.plus(o.Pending)
	s.Consumers, s.Sessions, s.Locked, s.IDs = s.Consumers+o.Consumers, s.Sessions+o.Sessions, s.Locked+o.Locked, s.IDs+o.IDs
	s.Groups.Groups, s.Groups.Held, s.Groups.StateBytes = s.Groups.Groups+o.Groups.Groups, s.Groups.Held+o.Groups.Held, s.Groups.StateBytes+o.Groups.StateBytes
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
	Pause        *Pause // nil: consumers are handed what is ready
	// Redrive is the last redrive, which nobody may change; nil: there was none.
	Redrive *logpb.RedriveState
	// Consumers are those of gets, and those that are over and have something to settle,
	// besides those of Stats.
	Consumers int
}

// Dead are the counters of deaths and dead letters, and of other ends.
type Dead struct {
	By                          Deaths
	Confirmed, Dropped, Refused uint64 // letters, letters, transfers
	// Messages that ended otherwise: see Counters.
	Cancelled, Replaced, Purged, Forwarded, Deleted uint64
	Redriven                                        uint64 // of Forwarded
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
	d.Forwarded, d.Deleted, d.Redriven = f(d.Forwarded, o.Forwarded), f(d.Deleted, o.Deleted), f(d.Redriven, o.Redriven)
	return d
}

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
	ConsumerCredit
}

// ConsumerCredit is what a consumer in credit mode may be handed, for listings.
type ConsumerCredit struct {
	CreditMode    bool   // otherwise the rest is 0
	DeliveryCount uint32 // of its deliveries and of what drains have used up
	Credit        uint32 // what is left
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
	Deaths           []*logpb.Death      // shared, never changed
	Annotations      []*logpb.Annotation // likewise: what receivers have added
	Holder           fsm.ConsumerID      // checked out only
	Delivery         uint64              // checked out only
	Deadline         fsm.Time            // checked out only; 0: never
	LockedUntil      fsm.Time            // checked out only; 0: it has no lock that runs
	Letter           uint64              // outbox and waiting only
	DueAt            fsm.Time            // scheduled and delayed; deferred: 0 if it does not return
	ScheduleID       string              // scheduled only
	Deferral         string              // the token; deferred only
	ScheduledFor     fsm.Time            // 0: it was never scheduled
	// What the publisher calls the message, cut; empty: nothing, or the queue keeps
	// no record of ends.
	MessageID, CorrelationID string
	// EnqueuedAt is since when it is here, or ready if it was scheduled. Only Browse and Peek say it.
	EnqueuedAt fsm.Time
	GroupMember
}

// GroupMember says to which group a message belongs, or that it leaves its queue.
type GroupMember struct {
	Group     string // empty: to none, or it is a letter
	Forwarded bool   // a letter that has not died, but goes on
	Copy      bool   // a letter that is a copy of another message
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

	BootsChanged uint64 // grows with each change of what SessionNodes and SuspectedNodes list; no part of the state
}

// DemandOf returns what the consumers of a queue want. O(1).
func DemandOf(m *Machine) Demand {
	return Demand{
		Ready: m.messages.readyCount(), Held: m.messages.count(CheckedOut).Messages, Acked: m.counters.Acked,
		Sated: m.consumers.active() > 0 && !m.paused() && !m.consumers.hasCredit(), BootsChanged: m.sessions.changed(),
	}
}

// Dead returns the counters of deaths and other ends.
func (m *Machine) Dead() Dead {
	c := &m.counters
	return Dead{
		By: c.Deaths, Confirmed: c.DeadConfirmed, Dropped: c.DeadDropped, Refused: c.DeadRefused,
		Cancelled: c.Cancelled, Replaced: c.Replaced, Purged: c.Purged, Forwarded: c.Forwarded, Deleted: c.Deleted, Redriven: c.Redriven,
	}
}

// Outlook returns what comes next, and what Stats does not count. O(1).
func (m *Machine) Outlook() Outlook {
	o := Outlook{Returned: m.messages.count(Returned).Messages, Consumers: m.consumers.len()}
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
	if c := m.consumers.singleActive(); c != nil {
		o.SingleActive = c.tag
	}
	o.Redrive = m.redrive.last
	if m.paused() {
		p := m.pause
		o.Pause = &p
	}
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

// ConsumersNow returns how many consumers have not settled what was taken back from
// them, and how many of Stats.Consumers take by credit. O(consumers).
func (m *Machine) ConsumersNow() (timedOut, byCredit int) {
	for c := range m.consumers.from(0) {
		if c.link.on && !c.cancelled {
			byCredit++
		}
		if len(c.late) > 0 && !c.cancelled && !c.isGets() {
			timedOut++
		}
	}
	return timedOut, byCredit
}

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
	d.ConsumerCredit = ConsumerCredit{c.link.on, c.link.count, c.link.left}
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
func (m *Machine) SessionNodes() []Boot { return m.sessions.nodes(1, 0) }

// SuspectedNodes lists the lives of nodes that are suspected, ascending.
func (m *Machine) SuspectedNodes() []Boot { return m.sessions.suspectedNodes() }

// ConsumerNodes lists the lives of nodes that have consumers or gets,
// ascending.
func (m *Machine) ConsumerNodes() []Boot { return m.sessions.nodes(0, 1) }

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
	if c.link.on && !c.cancelled {
		serving := fsm.NewsKind(0)
		if m.settings.SingleActive {
			serving = servingNews(c, m.consumers.singleActive())
		}
		repeatNews(c, serving, m.takers.of(c), eff)
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

func consumerOf(m *Machine, id fsm.ConsumerID) *consumer {
	if s := m.sessions.get(id.Session); s != nil {
		return s.consumer(id.Number)
	}
	return m.detached.find(id)
}

func (ms *messages) readyByPriority() (counts []uint64) {
	for i, n := range ms.ready {
		if n > 0 {
			counts = append(counts, make([]uint64, i-len(counts))...)
			counts = append(counts, uint64(n))
		}
	}
	return counts
}

// walk yields the messages of one list. It reports false if yield did. What
// yield gets shares its deaths with the record.
func (ms *messages) walk(no int, yield func(Message) bool) bool {
	for h := ms.lists[no].head; h != 0; h = ms.Get(h).next {
		if !yield(ms.describe(h)) {
			return false
		}
	}
	return true
}

// describe describes message h for listings. The caller adds the holder.
func (ms *messages) describe(h uint32) Message {
	x, e, r := ms.Get(h), ms.extra(h), ms.scheduleInfo(h)
	d := Message{
		Seq: x.seq, Ref: x.ref(), Place: x.place, Priority: x.priority, ExpireAt: x.expireAt,
		Acquired: x.acquired, Failed: x.failed, HasExpiration: x.hasExpiration(), Deaths: e.deaths, Annotations: e.annotations, Letter: e.letter,
		ScheduleID: r.id, ScheduledFor: r.scheduledFor, Deferral: r.deferral,
	}
	d.Copy = r.takenAs == logpb.Take_COPY
	if d.Forwarded = e.forwarded; e.group != nil {
		d.Group = e.group.id
	}
	if x.waitsForTime() {
		d.ExpireAt, d.DueAt = r.expireAt, x.expireAt
	}
	if messageID, correlationID := ms.label(h); x.labelled() {
		d.MessageID, d.CorrelationID = string(messageID), string(correlationID)
	}
	return d
}

func (m *Machine) describeHeld(of fsm.ConsumerID, held *checkout) Message {
	d := m.messages.describe(held.handle)
	d.Holder, d.Delivery, d.Deadline = of, held.id, m.clock.heldUntil(held.deadline)
	if m.lease.phase() == Active {
		d.LockedUntil = m.clock.heldUntil(m.deadlines.unlocks(held.lock))
	}
	return d
}

func (o *outbox) letter(h uint32) Letter {
	e := o.messages.extra(h)
	return Letter{Number: e.letter, DeadLetter: o.deadLetter(h), Done: o.messages.scheduleInfo(h).done, Transfers: e.transfers}
}

// unroutedLetters returns up to limit letters without a route, oldest first.
// O(limit): it starts at unrouted. The letters share their slices with the
// machine, which replaces them and never changes them.
func (o *outbox) unroutedLetters(limit int) []Letter {
	var letters []Letter
	for h := o.unrouted; h != 0 && len(letters) < limit; h = o.messages.Get(h).next {
		letters = append(letters, o.letter(h))
	}
	return letters
}

func (o *outbox) waitingLetters(after uint64, limit int) []Letter {
	var letters []Letter
	for h := range o.waiting.Values(key{Seq: after + 1}) {
		if len(letters) == limit {
			break
		}
		letters = append(letters, o.letter(h))
	}
	return letters
}

func (o *outbox) pendingTransfers(to fsm.QueueID, from uint64, limit int) []Outgoing {
	i, ok := o.find(to)
	if !ok {
		return nil
	}
	var out []Outgoing
	t := o.deadLetterTargets[i]
	for n := max(t.confirmed+1, from); n < t.next && len(out) < limit; n++ {
		l := o.letter(*t.pending.Item(int(n - t.confirmed - 1)))
		at := slices.IndexFunc(l.Transfers, func(x Transfer) bool { return x.To == to })
		out = append(out, Outgoing{l.Transfers[at], l})
	}
	return out
}

func (o *outbox) list(after fsm.QueueID, limit int) []DeadLetterTarget {
	i, found := o.find(after)
	if found {
		i++
	}
	targets := make([]DeadLetterTarget, 0, min(limit, len(o.deadLetterTargets)-i))
	for ; i < len(o.deadLetterTargets) && len(targets) < limit; i++ {
		t := o.deadLetterTargets[i]
		targets = append(targets, DeadLetterTarget{t.id, t.next, t.confirmed})
	}
	return targets
}

func (ss *sessions) ids() []fsm.SessionID {
	ids := make([]fsm.SessionID, 0, len(ss.byID))
	for s := range ss.all() {
		if !s.life.over {
			ids = append(ids, s.id)
		}
	}
	return ids
}

func (ss *sessions) changed() uint64 { return ss.changes }

func (ss *sessions) nodes(from fsm.NodeID, consumers int) []Boot {
	var boots []Boot
	for l := range ss.lives.Values(key{At: fsm.Time(from)}) {
		if !l.over && l.consumers >= consumers {
			boots = append(boots, l.of)
		}
	}
	return boots
}

func (ss *sessions) sources(after fsm.QueueID, limit int) []fsm.QueueID {
	var ids []fsm.QueueID
	for k := range ss.lives.From(key{Seq: uint64(after) + 1}) {
		if k.At != 0 || len(ids) == limit {
			break
		}
		ids = append(ids, fsm.QueueID(k.Seq))
	}
	return ids
}

func (ss *sessions) suspectedNodes() []Boot {
	var boots []Boot
	for _, x := range ss.suspected {
		boots = append(boots, x.of)
	}
	return boots
}

// Position is where the stream of a session stands.
type Position struct {
	Next uint64 // number of the next command; 0: the queue has no such session
	Call uint64 // number of the last synchronous command; 0: there was none
	// Ended: the session is known to have ended, and no command begins it again.
	Ended bool
	// Over: the queue serves no sessions any more, and answers each command alike.
	Over bool
}

// PositionOf returns where the stream of a session stands. O(1).
func PositionOf(m *Machine, id fsm.SessionID) Position {
	if m.lease.phase() != Active {
		return Position{Over: true}
	}
	if s := m.sessions.get(id); s != nil {
		return Position{Next: s.next, Call: s.last.seq}
	}
	return Position{Ended: m.sessions.hasEnded(id)}
}
