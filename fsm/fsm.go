// Package fsm holds the words that the machines, the AMQP front and the
// cluster share: time, ids, what a machine is, what it answers and what it
// wants done, and the values a client's request is made of.
//
// Nothing here reads a clock, does I/O or starts a goroutine.
package fsm

import (
	"cmp"
	"iter"

	"github.com/quorate/quorate/proto/logpb"
)

// Time is an instant: milliseconds since the Unix epoch. Zero means never
// where a deadline is optional.
type Time int64

// Millis is a duration in milliseconds.
type Millis int64

// MaxTime is where arithmetic on instants saturates.
const MaxTime Time = 1 << 62

// Add returns t + d, saturating at MaxTime. d must not be negative.
func (t Time) Add(d Millis) Time {
	if d >= Millis(MaxTime) || t >= MaxTime-Time(d) {
		return MaxTime
	}
	return t + Time(d)
}

// QueueID names a queue for ever: the index of the catalog entry that created
// it. A queue deleted and declared again has another id.
type QueueID uint64

// GroupID numbers a raft group on the links between nodes. 0 is the catalog.
type GroupID uint32

// NodeID numbers a node in the catalog, from 1.
type NodeID uint32

// SessionID names a channel as the cluster knows it: the node that serves it,
// that node's boot number, and a number of its own. Node 0 is a queue that
// forwards dead letters; Boot is then its QueueID.
type SessionID struct {
	Node NodeID
	Boot uint64
	Num  uint64
}

// Compare orders session ids by node, boot and number.
func (s SessionID) Compare(o SessionID) int {
	return cmp.Or(cmp.Compare(s.Node, o.Node), cmp.Compare(s.Boot, o.Boot), cmp.Compare(s.Num, o.Num))
}

// Proto returns s in its log form.
func (s SessionID) Proto() *logpb.Session {
	return &logpb.Session{Node: uint32(s.Node), Boot: s.Boot, Num: s.Num}
}

// SessionFrom is the inverse of Proto. A nil p is the zero SessionID.
func SessionFrom(p *logpb.Session) SessionID {
	return SessionID{Node: NodeID(p.GetNode()), Boot: p.GetBoot(), Num: p.GetNum()}
}

// Ref says where a message's payload lies: in the payload section of the log
// entry at Index, Size bytes from Offset.
type Ref struct {
	Index  uint64
	Offset uint32
	Size   uint32
}

// Meta is what a machine knows about the entry it applies.
type Meta struct {
	Index, Term uint64
	Now         Time      // stamped by the leader that proposed the entry
	Session     SessionID // of the command; zero: none
	Offset      uint32    // where the command's payload starts in its entry
	Version     uint32    // of the entry; a machine is of the highest it has seen
}

// Machine is a deterministic queue. Equal logs give equal states, answers and
// effects on every replica. A machine is used by one goroutine at a time.
type Machine interface {
	// Apply performs one command of an entry. It never panics on a command
	// that a client can cause; it keeps nothing of cmd. The commands of one
	// entry are applied one after the other with equal Index, Term and Now.
	Apply(m Meta, cmd *logpb.Command, eff *Effects) Result
	// NextDeadline is the earliest instant at which a Tick would change the
	// state. 0: never. An instant that has passed: at once.
	NextDeadline() Time
	// Resume adds what a new leader owes: notices that queue deletion, or an
	// outbox with letters, is waiting. Deliveries are not repeated here;
	// sessions ask for them with Resync.
	Resume(eff *Effects)
}

// Code is the outcome of a command.
type Code uint8

const (
	OK        Code = iota
	Empty          // get: no message
	Gap            // the stream misses commands: resend from Result.Next
	Gone           // the queue is deleted, or its lease has ended
	InUse          // exclusive consumption refused; or delete if-unused
	NotEmpty       // delete if-empty
	NoSession      // the session is over
	Rejected       // enqueue refused by a length limit
	NotFound       // no such consumer
	Invalid        // a command no client can cause; it changed nothing
	Reserved       // get: the queue serves one consumer at a time
	Late           // the first command of a stream is too old: stamp it with Result.Next
	NotYet         // get: what is due comes before what there may be; ticks do it, ask again
	Crowded        // consume, get: the queue has as many consumers as it may
)

// Result answers one command.
type Result struct {
	Code Code
	// Count: messages removed (purge, delete), ready messages left (get),
	// ready messages (touch).
	Count uint64
	// Consumers at the queue after a touch.
	Consumers uint64
	// Next sequence number wanted, with Gap; the queue's clock, with Late.
	Next uint64
}

// Effects are facts for the outside, collected while applying. Only the
// leader acts on them, except for Released. They may be lost or repeated: deliveries are
// numbered per consumer, so sessions notice. Reset and reuse.
type Effects struct {
	Deliveries []Delivery
	// DeadLetters are sent once, by the leader, and are in no outbox. Their
	// payloads are read before Released is acted on, as those of Deliveries.
	DeadLetters []DeadLetter
	Timeouts    []Timeout
	LateAcks    []LateAck
	// Cancelled consumers: their queue is gone.
	Cancelled []ConsumerID
	// Released are log indexes whose last live message has gone. Every
	// replica frees their payloads.
	Released []uint64
	// Rest is more of the same, of a queue that has ended: as many as it had
	// live. It reads what the machine has let go, and nobody else has. nil: none.
	Rest iter.Seq[uint64]
	// Outbox: there are dead letters to route or to forward.
	Outbox bool
	// Gone: the queue has ended by itself (lease, auto-delete, delete); its
	// catalog record must be removed.
	Gone bool
	// SuspicionChanged: the machine suspects a node, or no longer does. The
	// reason may have gone since that was proposed.
	SuspicionChanged bool
}

// Reset empties e and keeps its memory.
func (e *Effects) Reset() {
	clear(e.Deliveries)
	clear(e.DeadLetters)
	clear(e.Timeouts)
	clear(e.LateAcks)
	*e = Effects{
		Deliveries: e.Deliveries[:0], DeadLetters: e.DeadLetters[:0], Timeouts: e.Timeouts[:0],
		LateAcks:  e.LateAcks[:0],
		Cancelled: e.Cancelled[:0], Released: e.Released[:0],
	}
}

// ConsumerID names a consumer of a queue: a session, and the number the
// session gave it. Number 0 stands for the session's gets.
type ConsumerID struct {
	Session SessionID
	Number  uint64
}

// Delivery hands one message to a consumer.
type Delivery struct {
	To ConsumerID
	// ID counts the deliveries of this consumer, from 1.
	ID       uint64
	Ref      Ref
	Acquired uint32         // how often it was handed out before: redelivered if > 0
	Failed   uint32         // how often that ended in a failure
	Deaths   []*logpb.Death // shared, never changed
	Ready    uint64         // gets only: ready messages left
	// ExpireAt is the message's deadline, which the delivery keeps from
	// having effect; 0: none.
	ExpireAt Time
	// ScheduledFor is when the message was to become ready; 0: it never was
	// scheduled.
	ScheduledFor Time
}

// DeadLetter is a message that has died and is to be sent to the queue's
// dead-letter exchange.
type DeadLetter struct {
	Ref          Ref
	Reason       logpb.Death_Reason
	DiedAt       Time
	Priority     uint8
	ScheduledFor Time // see Delivery
	// HasExpiration: the payload carries an expiration property, which the
	// copy that is sent must not have.
	HasExpiration bool
	// Fresh: Deaths[0] is a new pair of queue and reason, whose exchange,
	// routing keys and original expiration are those of the payload. They are
	// empty here; whoever sends fills them in. Otherwise they stay.
	Fresh bool
	// A message of a delayed exchange is due, not dead: its Reason is NONE, its
	// history is of before, it was due at ScheduledFor. TTL is its own, Ceiling
	// what the exchanges on its way allowed.
	TTL, Ceiling Optional[Millis]
	// Deaths is the history, the present death first. It is shared: copy the
	// first one before filling it in. Its LastExchange is the payload's.
	Deaths []*logpb.Death
}

// Timeout says that deliveries of a consumer went back because they were held
// for longer than Limit.
type Timeout struct {
	To         ConsumerID
	Tag        string
	Deliveries []uint64 // ascending
	Limit      Millis   // the smallest one
	Held       Millis   // the longest time until now
	// First: none of this consumer's deliveries was late before. What a new
	// leader repeats, and what gets late later, is not.
	First bool
	// Again: the consumer was notified before, perhaps in vain.
	Again bool
}

// LateAck says that a consumer has settled deliveries after they had gone back
// because they were held for too long.
type LateAck struct {
	Of         ConsumerID
	Tag        string
	Deliveries []uint64 // ascending
	Limit      Millis   // the smallest one
	Held       Millis   // the longest time until now
	First      bool     // the consumer has settled nothing late before
}
