// Package fsm holds the vocabulary that the state machines, the AMQP server and
// the cluster share: time, ids, the interface of a machine, its results and
// effects, and the value types of client requests.
//
// Nothing here reads a clock, does I/O or starts a goroutine.
package fsm

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"unicode/utf8"

	"github.com/quorate/quorate/proto/logpb"
)

// Time is an instant in milliseconds since the Unix epoch. In an optional
// deadline, zero means never.
type Time int64

// Millis is a duration in milliseconds.
type Millis int64

// MaxTime is the value at which arithmetic on instants saturates.
const MaxTime Time = 1 << 62

// Add returns t + d, saturating at MaxTime. d must not be negative.
func (t Time) Add(d Millis) Time {
	if d >= Millis(MaxTime) || t >= MaxTime-Time(d) {
		return MaxTime
	}
	return t + Time(d)
}

// QueueID identifies a queue forever: it is the index of the catalog entry that
// created the queue. A queue that is deleted and declared again gets another
// id.
type QueueID uint64

// GroupID numbers a raft group on the links between nodes. 0 is the catalog.
type GroupID uint32

// NodeID numbers a node in the catalog, from 1.
type NodeID uint32

// SessionID identifies a channel within the cluster: the node that serves it,
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

// Ref locates a message's payload in the payload section of the log entry at
// Index: Size bytes, starting at Offset.
type Ref struct {
	Index  uint64
	Offset uint32
	Size   uint32
}

// Meta is what a machine knows about the entry it applies.
type Meta struct {
	Index, Term uint64
	Now         Time      // stamped by the leader that proposed the entry
	Session     SessionID // of the command; zero if it has none
	Offset      uint32    // where the command's payload starts in its entry
	Version     uint32    // of the entry; a machine has the highest version it has seen
}

// Machine is a deterministic queue. Equal logs produce equal states, results
// and effects on every replica. Only one goroutine at a time may use a machine.
type Machine interface {
	// Apply performs one command of an entry. It never panics on a command that
	// a client can cause, and it retains nothing of cmd. The commands of one
	// entry are applied one after the other with equal Index, Term and Now.
	Apply(m Meta, cmd *logpb.Command, eff *Effects) Result
	// NextDeadline is the earliest instant at which a Tick would change the
	// state. 0 means never; an instant in the past means at once.
	NextDeadline() Time
	// Resume adds what a new leader still owes: the notice that the queue is to
	// be deleted, that its outbox has letters, or that a redrive goes on. Deliveries are not repeated
	// here; sessions ask for them with Resync.
	Resume(eff *Effects)
}

// Code is the outcome of a command.
type Code uint8

const (
	OK        Code = iota
	Empty          // get: no message
	Gap            // the stream misses commands: resend from Result.Next
	Gone           // the queue is deleted, or its lease has ended
	InUse          // exclusive consumption refused; or delete if-unused; or a token of another deferred message
	NotEmpty       // delete if-empty
	NoSession      // the session is over
	Rejected       // enqueue refused by a length limit
	NotFound       // no such consumer, delivery or deferred message
	Invalid        // a command that no client can cause; it changed nothing
	Reserved       // get: the queue serves one consumer at a time; receive deferred: this one is not served now
	Late           // the first command of a stream is too old: stamp it with Result.Next
	NotYet         // get: work that is due blocks the answer; ticks do it, ask again
	Crowded        // consume, get: the queue has reached its limit of consumers
	Forwards       // consume, get: the queue forwards its messages
	TooMany        // consume: the consumers of the queue ask for as many different least TTLs as they may
)

// Result answers one command.
type Result struct {
	Code Code
	// Count is the number of messages removed (purge, delete), of ready messages
	// (get: those left; touch; credit), or of messages that the command has changed
	// (schedule, kick, receive deferred).
	Count uint64
	// Consumers is the number of consumers of the queue after a touch.
	Consumers uint64
	// Next is the expected sequence number (Gap), the queue's clock (Late) or the
	// number of the consumer's next delivery (Credit).
	Next uint64
	// Until is when the first of the renewed locks ends (Renew).
	Until Time
	// State is the state of a group that was asked for, as bytes.
	State string
	// DeliveryCount and Credit are those of a consumer in credit mode (Credit). A
	// repetition is answered without them, and Next is 0 then.
	DeliveryCount, Credit uint32
}

// Effects are facts for the outside, collected during Apply. Only the leader
// acts on them, except for Released. They may be lost or repeated; sessions
// notice, because deliveries are numbered per consumer. Reset and reuse them.
type Effects struct {
	Deliveries []Delivery
	// DeadLetters are sent once, by the leader, and are in no outbox. Like
	// those of Deliveries, their payloads are read before Released is acted on.
	DeadLetters []DeadLetter
	Timeouts    []Timeout
	LateAcks    []LateAck
	// Cancelled are consumers whose queue is gone.
	Cancelled []ConsumerID
	// Tellings are what consumers in credit mode are to know.
	Tellings []Telling
	// Short are consumers that share a limit with others of their session, and
	// have no credit for messages that are ready.
	Short []ConsumerID
	// Released are the indexes of log entries whose last live message is gone.
	// Every replica frees their payloads.
	Released []uint64
	// Rest continues Released for a queue that has ended: it yields every entry
	// that still had live messages. It reads a table that the machine has given
	// up and that nobody else uses. nil if there is none.
	Rest iter.Seq[uint64]
	// Outbox is set if there are dead letters to route or to forward.
	Outbox bool
	// Redrive is set if the leader is to go on with a redrive.
	Redrive bool
	// Gone is set once the queue has ended (lease, auto-delete, delete); its
	// catalog record must be removed.
	Gone bool
	// SuspicionChanged is set if the machine has begun or ceased to suspect a
	// node. The reason may no longer hold by now.
	SuspicionChanged bool
	// Choosers is set if consumers with selectors may be handed messages, which the
	// leader chooses for them.
	Choosers bool
}

// Reset empties e and keeps its memory for reuse.
func (e *Effects) Reset() {
	clear(e.Deliveries)
	clear(e.DeadLetters)
	clear(e.Timeouts)
	clear(e.LateAcks)
	clear(e.Tellings)
	*e = Effects{
		Deliveries: e.Deliveries[:0], DeadLetters: e.DeadLetters[:0], Timeouts: e.Timeouts[:0],
		LateAcks: e.LateAcks[:0], Tellings: e.Tellings[:0],
		Cancelled: e.Cancelled[:0], Short: e.Short[:0], Released: e.Released[:0],
	}
}

// Add appends o, which follows e.
func (e *Effects) Add(o *Effects) {
	e.Deliveries = append(e.Deliveries, o.Deliveries...)
	e.DeadLetters = append(e.DeadLetters, o.DeadLetters...)
	e.Timeouts = append(e.Timeouts, o.Timeouts...)
	e.LateAcks = append(e.LateAcks, o.LateAcks...)
	e.Cancelled = append(e.Cancelled, o.Cancelled...)
	e.Tellings = append(e.Tellings, o.Tellings...)
	e.Short = append(e.Short, o.Short...)
	e.Released = append(e.Released, o.Released...)
	if o.Rest != nil {
		e.Rest = o.Rest
	}
	e.Outbox = e.Outbox || o.Outbox
	e.Redrive = e.Redrive || o.Redrive
	e.Gone = e.Gone || o.Gone
	e.SuspicionChanged = e.SuspicionChanged || o.SuspicionChanged
	e.Choosers = e.Choosers || o.Choosers
}

// Empty reports whether there is no effect.
func (e *Effects) Empty() bool {
	return len(e.Deliveries)+len(e.DeadLetters)+len(e.Timeouts)+len(e.LateAcks)+len(e.Cancelled)+len(e.Tellings)+len(e.Short)+len(e.Released) == 0 &&
		e.Rest == nil && !e.Outbox && !e.Redrive && !e.Gone && !e.SuspicionChanged && !e.Choosers
}

// ConsumerID identifies a consumer of a queue by its session and the number
// that the session gave it. Number 0 stands for the session's gets.
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
	Acquired uint32         // number of earlier deliveries: redelivered if > 0
	Failed   uint32         // how many of those ended in a failure
	Deaths   []*logpb.Death // shared, never changed
	Ready    uint64         // gets only: ready messages left
	// ExpireAt is the message's deadline, which has no effect while the message
	// is delivered; 0: none.
	ExpireAt Time
	// ScheduledFor is when the message was to become ready; 0: it was never
	// scheduled.
	ScheduledFor Time
	// EnqueuedAt is when the queue took the message in, or when it became ready
	// if it was scheduled.
	EnqueuedAt Time
	// LockedUntil is when the lock of the delivery ends, LockRemaining how far
	// that is from the queue's clock; 0: it has no lock, or that is not running.
	LockedUntil   Time
	LockRemaining Millis
	// Sequence is the number of the message in its queue. Only consumers in credit mode
	// are given it.
	Sequence uint64
	// Annotations are what receivers have added to the message, see AnnotationMap, and Edit is
	// shared, see EditOf.
	Annotations, Edit []byte
}

// Remark is what a receiver says about a message that it discards; zero:
// nothing.
type Remark struct{ Reason, Description string }

// Rewrite is what changes in what a message says of itself when it leaves a queue
// for others. What it carries stays as it is.
type Rewrite struct {
	// Died: it has no TTL of its own any more.
	Died bool
	// Waited: it has waited as long as its x-delay says.
	Waited bool
	// Remark is what its last receiver said, in place of what earlier ones did;
	// nil: what they said stays.
	Remark *Remark
	// Redirected: it goes by a routing key of its queue.
	Redirected bool
	// Redriven: it says once more that it was.
	Redriven bool
}

// DeadLetter is a message that has died and must be sent to the queue's
// dead-letter exchange.
type DeadLetter struct {
	Ref          Ref
	Reason       logpb.Death_Reason
	DiedAt       Time
	Priority     uint8
	ScheduledFor Time // see Delivery
	Remark       Remark
	// HasExpiration is set if the payload has an expiration property, which the
	// outgoing copy must not have.
	HasExpiration bool
	// Fresh is set if Deaths[0] is a new pair of queue and reason. Its
	// exchange, routing keys and original expiration are then empty here; the
	// sender fills them in from the payload. Otherwise they stay as they are.
	Fresh bool
	// TTL and Ceiling are for messages of a delayed exchange, which are due,
	// not dead: Reason is NONE, Deaths is the history so far, and the message
	// was due at ScheduledFor. TTL is the message's own, Ceiling the limit set
	// by the exchanges on its way.
	TTL, Ceiling Optional[Millis]
	// Forwarded is set if the message has not died but goes on to where its queue
	// forwards. Reason is NONE then, and Deaths is the history so far. Hops is how
	// often it was forwarded, this time included.
	Forwarded bool
	Hops      uint32
	// Sequence is the message's number in its queue. ExpireAt is when a message expires that is
	// Forwarded; 0: never, or it is not.
	Sequence uint64
	ExpireAt Time
	// TakenTo is the queue that somebody sends the message to; 0: nobody does, its queue
	// forwards it. Redriven: it is to say that.
	TakenTo  QueueID
	Redriven bool
	// Deaths is the history, with the present death first. It is shared: copy
	// the first record before filling it in. Its LastExchange is the payload's.
	Deaths []*logpb.Death
	// Annotations are what receivers have added to the message. They are shared, and
	// never changed.
	Annotations []*logpb.Annotation
}

// Timeout reports that deliveries of a consumer were taken back because they
// were held for longer than Limit.
type Timeout struct {
	To         ConsumerID
	Tag        string
	Deliveries []uint64 // ascending
	Limit      Millis   // the smallest among them
	Held       Millis   // the longest time so far
	// First is set if none of this consumer's deliveries was late before. It is
	// not set when a new leader repeats the notice or when more deliveries
	// become late.
	First bool
	// Again is set if the consumer was notified before, perhaps in vain.
	Again bool
}

// Telling is news for a consumer in credit mode. Other consumers are told nothing of
// the kind.
type Telling struct {
	To   ConsumerID
	News News
}

// News is what has become of a consumer, or of what it holds.
type News struct {
	Kind       NewsKind
	Deliveries []uint64 // LocksLost: ascending
	Groups     []string // GroupsTaken, GroupsLeft, GroupsHeld
}

// NewsKind is a kind of News. The values are in messages between nodes.
type NewsKind uint8

const (
	// LocksLost: the locks of deliveries have ended, and these have gone back.
	LocksLost NewsKind = iota + 1
	// Serving: it is the single active consumer of its queue.
	Serving
	// Waiting: another one is.
	Waiting
	// GroupsTaken: it has taken groups.
	GroupsTaken
	// GroupsLeft: it has given groups up.
	GroupsLeft
	// GroupsHeld: these are all that it holds.
	GroupsHeld
)

// LateAck reports that a consumer has settled deliveries after they had been
// taken back because they were held for too long.
type LateAck struct {
	Of         ConsumerID
	Tag        string
	Deliveries []uint64 // ascending
	Limit      Millis   // the smallest among them
	Held       Millis   // the longest time so far
	First      bool     // this consumer has not settled late before
}

// typeNames are the names of the types of field values in error texts and
// listings, indexed by the protocol's type letter.
var typeNames = [128]string{
	't': "bool", 'b': "byte", 'B': "unsignedbyte", 's': "short", 'u': "unsignedshort", 'I': "signedint", 'i': "unsignedint",
	'l': "long", 'L': "long", 'f': "float", 'd': "double", 'D': "decimal", 'S': "longstr", 'x': "binary", 'A': "array",
	'T': "timestamp", 'F': "table", 'V': "void",
}

// TypeName returns the name of the type of a field value with this letter. It
// is empty if AMQP has no such letter.
func TypeName(tag uint32) string {
	if tag < uint32(len(typeNames)) {
		return typeNames[tag]
	}
	return ""
}

// MaxShort is the maximum length in bytes of an AMQP short string. Names of all
// kinds, routing keys and consumer tags are short strings, wherever they come
// from. The values of arguments, policies and headers may be longer, but are
// not names then.
const MaxShort = 255

// MaxGroup is the maximum length in bytes of the name of a group of messages: 128 characters, whichever these are.
const MaxGroup = 512

// Short returns s, or its longest prefix that is a short string and does not
// split a character.
func Short(s string) string { return Cut(s, MaxShort) }

// Cut returns s, or its longest prefix of at most so many bytes that does not
// split a character.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for n := limit; n > max(limit-utf8.UTFMax, -1); n-- {
		if utf8.RuneStart(s[n]) {
			return s[:n]
		}
	}
	return s[:limit] // it is no text
}

// Optional is a duration or a number that may be absent. The zero Optional is
// absent. The log and the links between nodes store the value plus one, and 0
// if it is absent; see OptionalFrom and Stored.
type Optional[T ~int64 | ~uint64] struct {
	Value T // 0 unless Given
	Given bool
}

// Some returns an Optional with value v.
func Some[T ~int64 | ~uint64](v T) Optional[T] { return Optional[T]{v, true} }

// OptionalFrom decodes a stored value. Values that are too large for T become
// the largest value that every T can hold.
func OptionalFrom[T ~int64 | ~uint64](stored uint64) Optional[T] {
	if stored == 0 {
		return Optional[T]{}
	}
	return Some(T(min(stored-1, math.MaxInt64)))
}

// Stored is the inverse of OptionalFrom. The value must not be negative.
func (o Optional[T]) Stored() uint64 {
	if !o.Given {
		return 0
	}
	return uint64(o.Value) + 1
}

// Or returns the value, or other if there is none.
func (o Optional[T]) Or(other T) T {
	if o.Given {
		return o.Value
	}
	return other
}

// Least returns the smaller of the values that are given.
func (o Optional[T]) Least(p Optional[T]) Optional[T] {
	if !o.Given || p.Given && p.Value < o.Value {
		return p
	}
	return o
}

// Allows reports whether v is within the limit o. An absent limit allows
// everything.
func (o Optional[T]) Allows(v T) bool { return !o.Given || v <= o.Value }

// String returns the value, or "none".
func (o Optional[T]) String() string {
	if !o.Given {
		return "none"
	}
	return fmt.Sprint(o.Value)
}
