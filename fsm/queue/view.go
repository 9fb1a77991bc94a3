package queue

import (
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

// GroupCounters count how often a consumer got a group, and how often the lock of
// one ended.
type GroupCounters struct{ GroupsTaken, GroupsLost uint64 }

// Deaths counts messages by the reason of their death, from EXPIRED on, and by
// disposition.
type Deaths [logpb.Death_MAXHOPS][AtLeastOnce + 1]uint64

// Removals counts those of Counters.Unscheduled that were cancelled, and those
// that were replaced by others of their names; and the messages that have arrived
// at all queues to which the queue forwarded them, which are not among
// DeadConfirmed.
type Removals struct{ Cancelled, Replaced, Forwarded uint64 }

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
	// Scheduled counts messages that were scheduled, Unscheduled those
	// cancelled, replaced or purged before they became due.
	Scheduled, Unscheduled uint64
	// AckedExpired counts messages that were acked although they had expired
	// meanwhile.
	AckedExpired uint64
	// Unroutable counts messages of a delayed exchange that had no route when
	// due.
	Unroutable uint64
	// DeadConfirmed counts letters that have arrived, DeadDropped those that no
	// target has, DeadRefused transfers (not letters) that a target has
	// refused.
	DeadConfirmed, DeadRefused uint64
	Removals
	LockCounters
	// Deaths counts by reason and disposition.
	Deaths Deaths
	AsideCounters
	ParkedCounters
	GroupCounters
	IDCounters
}

// IDCounters count what a window against duplicates does.
type IDCounters struct {
	SameID       uint64 // publishes that were duplicates of messages
	IDsForgotten uint64 // within the window, since there were too many
}

// AsideCounters are the counters of messages that were set aside.
type AsideCounters struct {
	Deferred uint64 // deliveries that ended in a deferral
	Kicked   uint64 // messages that were retried before their time
}

// ParkedCounters are the counters of messages that have exceeded the default
// delivery limit.
type ParkedCounters struct {
	Parked   uint64
	Unparked uint64 // of those: became ready again
}

// LockCounters are the counters of locks.
type LockCounters struct {
	LocksLost    uint64 // locks that ended before their delivery was settled
	LocksRenewed uint64 // on request
	LateLocks    uint64 // settlements of deliveries whose lock had ended
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
