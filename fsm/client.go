package fsm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/quorate/quorate/proto/logpb"
)

// ErrNotFresh is returned when a message is not published because the broker
// does not know for certain, at present, where it must go. No client sees it.
var ErrNotFresh = errors.New("the routes may be out of date")

// Table is an AMQP field table as the catalog keeps it; nil is empty.
type Table = logpb.Table

// Publish is one incoming message.
type Publish struct {
	// Number counts the publishes of a session from 1, without gaps. Every
	// routed publish is answered by one SessionEvents.Confirmed that covers
	// Number.
	Number     uint64
	Exchange   string
	RoutingKey string
	// Payload belongs to the broker from now on and must not change.
	Payload       Payload
	TTL           Millis // -1: none
	Priority      int    // -1: none
	HasExpiration bool
	// Copies are additional routing keys, from the CC and BCC headers.
	Copies []string
	// Schedule says when the message becomes ready; nil: as the queue's
	// settings say, normally at once. Schedule and Delay must not change.
	Schedule *Schedule
	// Delay says how long the message waits at a delayed exchange; nil: not at
	// all. Other exchanges ignore it.
	Delay *Delay
	// MessageID and CorrelationID are the properties, cut to MaxLabel bytes. A
	// queue that keeps a record of ends remembers them.
	MessageID, CorrelationID string
	// Fresh is set if the session was refreshed after the message arrived, so
	// that the broker may route by what it knows.
	Fresh bool
	// Mandatory asks for a notice if the message is routed nowhere.
	Mandatory bool
	// Confirm is set if the client is told the outcome. It decides only how the
	// message is counted.
	Confirm bool
	// TTLError, HeadersError and UserError are refusals that package amqp has
	// found in the properties: an expiration that is not a TTL, a header of the
	// wrong type, a user-id other than the login's. Publish returns the first
	// two once it has found the exchange and checked the write permission.
	// UserError is its last check before routing, and does not apply if the
	// user may impersonate. In all cases the message goes nowhere.
	TTLError, HeadersError, UserError error
	// WantsReply is set if the reply-to property asks for replies to this
	// channel. RequesterGone is set if the message is a reply and its requester
	// is known to be gone.
	WantsReply, RequesterGone bool
	// Headers decodes the headers property. It is called only while Publish
	// runs, and only if an exchange on the way needs it.
	Headers func() *Table
	// Property returns the text of a property that an exchange needs, nil if
	// the message has none. It is called under the same conditions as Headers,
	// and its result is valid until the next call.
	Property func(name string) []byte
	// Holdings are what the channel holds, of a publish to CommandExchange. They
	// may be used only while Publish runs.
	Holdings Holdings
}

// CommandExchange exists in every vhost: messages published to it are commands
// to the broker.
const CommandExchange = "amq.quorate.command"

// Held is a delivery that its channel has not settled. Consumer and ID are as
// in Message; Get says that Consumer is the token of a get.
type Held struct {
	Tag, Consumer, ID uint64
	Get               bool
}

// Holdings are the consumers of a channel and the deliveries that it has not
// settled.
type Holdings interface {
	// First is the lowest tag that a delivery may have.
	First() uint64
	// Consumer finds a consumer by its tag; 0: there is none.
	Consumer(tag string) uint64
	// Find finds a delivery by its tag.
	Find(tag uint64) (Held, bool)
	// UpTo returns the deliveries with tags up to last, in order.
	UpTo(last uint64) []Held
	// Of returns the deliveries of a consumer, in order.
	Of(consumer uint64) []Held
	// Take is Find for a delivery that a command is about to settle: the channel
	// holds it no longer, unless SessionEvents.Kept gives it back.
	Take(tag uint64) (Held, bool)
}

// MaxLabel is how much of a message id and of a correlation id a queue remembers,
// in bytes.
const MaxLabel = 128

// Label returns what a queue remembers of an id.
func Label(id []byte) string { return string(id[:min(len(id), MaxLabel)]) }

// Schedule says when a message becomes ready in its queues.
type Schedule struct {
	At       Time   // 0: after Delay
	Delay    Millis // counted from the enqueue; -1: as the queue's settings say
	ID       string // names the message while it waits; empty: none
	Conflict logpb.Enqueue_Conflict
}

// Delay is the wait that a message requests at a delayed exchange.
type Delay struct {
	For Millis // above 0
	// ID and Conflict are as in Schedule.
	ID       string
	Conflict logpb.Enqueue_Conflict
	Err      error // why the exchange must refuse the message; nil: no reason
}

// MaxUnanswered bounds the unanswered publishes of one session over all queues,
// and its other commands of which many may be under way. Queues remember enough about each session to recognize that many
// repetitions.
const MaxUnanswered = 4096

// MaxHeld is how many unsettled deliveries a queue leaves one of its consumers.
// One that asks for no limit, or a higher one, has this.
const MaxHeld = 65_535

// QueueSpec is the request of queue.declare.
type QueueSpec struct {
	Name       string // empty: the broker generates one
	Prefix     string // of a generated name, which begins with DynamicPrefix; empty: as the arguments say
	Passive    bool
	Durable    bool
	Exclusive  bool
	AutoDelete bool
	Arguments  *Table
}

// DynamicPrefix starts the names of queues that brokers make for nodes which a client wants for the life of a
// link.
const DynamicPrefix = "amq.dyn"

// QueueInfo answers a declare.
type QueueInfo struct {
	Name      string
	Ready     uint64
	Consumers uint64
	Created   bool // by this declare
}

// QueueDetails are what a client is told of a queue.
type QueueDetails struct {
	QueueInfo
	VHost                          string
	Type                           string // quorum or classic
	Durable, Exclusive, AutoDelete bool
	Arguments                      *Table
	Leader                         string   // its node; empty: there is none at present
	Replicas                       []string // nodes
}

// ExchangeSpec is the request of exchange.declare.
type ExchangeSpec struct {
	Name       string
	Type       string
	Passive    bool
	Durable    bool
	AutoDelete bool
	Internal   bool
	Arguments  *Table
}

// BindSpec is a binding to make or to remove.
type BindSpec struct {
	Source      string
	Destination string
	ToExchange  bool
	RoutingKey  string
	Arguments   *Table
}

// ConsumeSpec is the request of basic.consume.
type ConsumeSpec struct {
	Queue     string
	Number    uint64 // chosen by the session, from 1, never reused
	Tag       string
	Prefetch  uint32 // 0: no limit requested
	NoAck     bool   // package amqp settles each delivery once it is written
	Exclusive bool
	// Credit: it is handed what Flows allow, and Prefetch means nothing. It begins
	// without credit.
	Credit bool
	// Browse, with Credit: it is shown each message that is ready, once, by number,
	// and takes none. It is no consumer, and settling does nothing. Credited says what
	// its queue had a moment before.
	Browse bool
	// Selector, with Credit: it is handed only messages that match, see package
	// selector. Empty: all. The queue must let it, which Selects tells.
	Selector string
	// Numbered: its deliveries can be named by a Handle. They carry Sequence, and no
	// LockToken.
	Numbered bool
	// Hold: it keeps groups that are empty, until it gives them up or their locks end. If
	// its arguments name a group it holds that from the beginning, or is refused: ErrGroupHeld.
	Hold      bool
	Arguments *Table
}

// Handle names a delivery to a consumer with ConsumeSpec.Numbered, or of TakeDeferred, to
// whoever knows it: by the number of its message (Message.Sequence), and how often that was
// handed out before (Message.Acquired).
type Handle struct {
	Number   uint64
	Acquired uint32
}

// Unit is what is done in one queue together, or not at all.
type Unit struct {
	// Sends are messages for the queue. Of each of them Number, Exchange, RoutingKey, Copies,
	// Mandatory, Confirm and what is for exchanges mean nothing. They do not conflict, so they
	// have no Schedule.ID.
	Sends []Publish
	// Onward are messages for other queues, each of which is delivered once, as if somebody had
	// moved it there. RoutingKey is the name of the queue.
	Onward  []Publish
	Endings []Ending
}

// Ending settles deliveries in a unit. Settlement.Number and Exact mean nothing, and one that
// defers has one handle. No delivery is named twice.
type Ending struct {
	Handles []Handle
	Settlement
}

// Peeked is a message of a queue that is shown, and not handed out. Sequence, ExpireAt,
// EnqueuedAt and Edit are set.
type Peeked struct {
	Message
	State MessageState
	DueAt Time // of a scheduled message
}

// MessageState is where a message is that is shown.
type MessageState uint8

const (
	ReadyState    MessageState = iota
	HeldState                  // by somebody
	DeferredState              // also if it is held by somebody who has taken it so
	ScheduledState
)

// Bounds of units, and of other commands that name messages by number.
const (
	MaxUnit    = 4500 // messages that come, and settlements
	MaxNumbers = 1000 // messages that are settled
)

var (
	// ErrNotHeld: a delivery is not held any more, so nothing was done.
	ErrNotHeld = errors.New("a delivery is not held any more")
	// ErrNoMessage: a message is not there, so nothing was done.
	ErrNoMessage = errors.New("no such message")
	// ErrGroupHeld: another consumer holds the group.
	ErrGroupHeld = errors.New("another consumer holds the group")
)

// GroupAction is what is done with a group that a consumer holds.
type GroupAction = logpb.Group_Action

const (
	RenewGroup    = logpb.Group_RENEW
	ReleaseGroup  = logpb.Group_RELEASE
	SetGroupState = logpb.Group_SET_STATE
	GetGroupState = logpb.Group_GET_STATE
)

// MaxGroupState bounds the state of a group, in bytes.
const MaxGroupState = 256 << 10

// GroupInfo describes a group of messages.
type GroupInfo struct {
	ID       string
	Messages uint64
	Held     bool
	HasState bool
	StateSet Time // when the state was last set; 0: there is none
}

// Deferred are deferred messages that a session takes without a consumer.
type Deferred struct {
	Tokens []string // each once
	Delete bool     // they are settled at once
	// Lock is how long they are locked, also if the session ends; 0: as the queue says. They can
	// be named by a Handle, and what comes back is deferred again under its token.
	Lock Millis
}

// Flow is how many messages a consumer in credit mode may be given from now on: up to
// DeliveryCount + Credit, by its count, which is 0 at first and rises with each message
// that it is given. Counts are of 32 bits, and begin anew after the last one.
type Flow struct {
	DeliveryCount uint32 // that its receiver knows of
	Credit        uint32
	// Drain: it is given all that is ready, at most its credit, and what is left of
	// that is used up. SessionEvents.Credited reports the end of it.
	Drain bool
	// Echo asks for SessionEvents.Credited.
	Echo bool
}

// LinkState is the count and the credit of a consumer in credit mode, after the
// messages that it was given before.
type LinkState struct {
	DeliveryCount, Credit uint32
	Available             uint64 // messages that were ready in its queue
	Drained               bool   // a drain has ended: the count has risen by what was left
}

// Outcome is how a delivery ends.
type Outcome = logpb.Settle_Outcome

const (
	Ack           = logpb.Settle_ACK
	Requeue       = logpb.Settle_REQUEUE
	RequeueFailed = logpb.Settle_REQUEUE_FAILED
	Discard       = logpb.Settle_DISCARD
	Defer         = logpb.Settle_DEFER
)

// Settlement is how deliveries end, for a receiver that says more than an Outcome.
type Settlement struct {
	Outcome Outcome
	// Reason and Description are what it says about messages that it discards.
	Reason, Description string
	// DueAt is when returned messages are ready again, and deferred ones return; 0: as the
	// queue says, or never.
	DueAt Time
	// Deferral is the token under which a single delivery is deferred.
	Deferral string
	// Annotations are added to messages that return or are deferred; empty: none. The keys
	// are symbols, each once, within MaxAnnotations and MaxAnnotationBytes.
	Annotations []*logpb.Annotation
	// Edit replaces the edit of messages that return, are deferred or are discarded; nil: that
	// stays. It has at most MaxEdit bytes.
	Edit []byte
	// Number has SessionEvents.Settled called with it; 0: it is not called.
	Number uint64
	// Exact: Settled names the deliveries that the queue had taken back before. It costs a
	// command for each delivery.
	Exact bool
}

// OutcomeNamed returns the outcome that commands call by a name. A rejected
// message dies like one that is rejected without requeue.
func OutcomeNamed(name string) (o Outcome, ok bool) {
	switch name {
	case "ack":
		return Ack, true
	case "requeue":
		return Requeue, true
	case "reject", "dead-letter":
		return Discard, true
	}
	return 0, false
}

// Bounds of what commands may ask for.
const (
	MinLock, MaxLock     = 1000, 43_200_000 // duration of a lock, ms
	MaxSettleReason      = 255              // bytes
	MaxPauseText         = 255              // bytes: who pauses a queue, and why
	MaxSettleDescription = 4096
	MaxConditions        = 4096 // bytes: which messages a redrive is about
)

// Message is one outgoing message to a consumer.
type Message struct {
	Consumer uint64 // number of the consumer; for a get, its Queue token
	ID       uint64 // number of the delivery, for Settle
	Payload  Payload
	Acquired uint32 // earlier deliveries: redelivered if > 0
	Failed   uint32 // earlier failures
	Classic  bool   // the queue has the defaults of a classic one: receivers that have no LockToken do not see these counts
	Deaths   []*logpb.Death
	Ready    uint64 // gets only: ready messages left
	// ScheduledFor is when the message was to become ready; 0: it was never
	// scheduled.
	ScheduledFor Time
	// As in Delivery; 0: none.
	ExpireAt, EnqueuedAt, LockedUntil Time
	LockRemaining                     Millis
	// LockToken names the delivery from anywhere. If it is given receivers see it
	// and the four before.
	LockToken string
	// Sequence is as in Delivery. If it is given the receiver sees it, ExpireAt and
	// EnqueuedAt, with a LockToken or without.
	Sequence uint64
	// Annotations are what receivers have added to the message, a map as AMQP 1.0 encodes
	// it; empty: nothing. They replace those of the same names that it came with.
	Annotations []byte
	// Edit is what the last of them that said so wants changed in it, see EditOf; empty: nothing.
	Edit []byte
}

// SessionEvents is how a session notifies its channel. The broker's goroutines
// call it, never two at a time for one session. Calls must not block: the
// channel stores what it is given and returns.
type SessionEvents interface {
	// Confirmed reports the common outcome of the publishes first … last. why nil:
	// every queue that they were routed to, and that was not deleted meanwhile,
	// holds them. ErrUnroutable: all of those were deleted. *NotTaken: at least one
	// queue refused. *Refusal, or ErrNoCommand: the broker has not done what the
	// message requests. Numbers may come in any order, each exactly once.
	Confirmed(first, last uint64, why error)
	// Returned reports that a mandatory publish is about to be confirmed as ok
	// although no queue has it: the queues that it was routed to are gone, and
	// it has no other route. Nobody ever changes the payload.
	Returned(payload Payload)
	// Refused reports that a mandatory publish is about to be confirmed as not
	// ok because the broker did not do what the message requested. why is nil
	// if there is nothing of the kind to request. Nobody ever changes the
	// payload.
	Refused(payload Payload, why *Refusal)
	// Kept gives deliveries back that Holdings.Take has taken: the command has
	// not settled them. The slice belongs to the channel.
	Kept(deliveries []Held)
	// Deliver hands over messages in order. The broker owns the slice, the
	// channel owns the messages; nobody ever changes the payloads.
	Deliver(messages []Message)
	// Cancelled reports that the queue of this consumer is gone.
	Cancelled(consumer uint64)
	// Gone reports that a queue is gone that the session watches. Publishes that it was sent have their outcomes, unless they were routed
	// again to one that lives.
	Gone(queue QueueID)
	// Revoked reports that the user may no longer read the queue of this
	// consumer. why is the error that the user would now get.
	Revoked(consumer uint64, why error)
	// TimedOut reports that deliveries were held longer than limit and have
	// gone back to the queue. consumer may be cancelled already, or be a get
	// token. suspend: the consumer goes on once they are settled; otherwise it
	// is to be cancelled.
	TimedOut(consumer uint64, deliveries []uint64, limit Millis, suspend bool)
	// Credited reports what a consumer in credit mode has, because a Flow asks for
	// it. Of several flows at a time the last one is answered, but each drain that
	// has ended is told.
	Credited(consumer uint64, now LinkState)
	// Settled reports that a settlement with this number has been committed. lost are
	// those of its deliveries that it did not end: the queue had taken them back, or
	// refuses a deferral. It is not called if the queue is gone.
	Settled(number uint64, lost []uint64)
	// News reports what has become of a consumer in credit mode, perhaps not for the first time. Nobody
	// ever changes it.
	News(consumer uint64, news *News)
	// Lost reports that the broker gave up the session; the channel must close
	// with err.
	Lost(err error)
}

// ErrUnroutable is the outcome of a publish that no queue has and none has refused.
var ErrUnroutable = errors.New("no queue has the message")

// ErrNoCommand is the outcome of a publish that is no command that there is.
var ErrNoCommand = errors.New("no such command")

// NotTaken is the outcome of a publish that a queue has refused.
type NotTaken struct {
	Queue  string
	Reason NotTakenReason
}

// NotTakenReason is why a queue refuses a message.
type NotTakenReason uint8

const (
	// TooLong: the queue would exceed its limits of length.
	TooLong NotTakenReason = iota
	// NoGroup: the queue takes only messages that have a group.
	NoGroup
	// Scheduled: the queue would exceed its limits, or a message with the same
	// schedule id waits in it already.
	Scheduled
	// OutOfOrder: the queue cannot take messages.
	OutOfOrder
)

func (n *NotTaken) Error() string {
	switch n.Reason {
	case NoGroup:
		return fmt.Sprintf("queue '%s' requires messages to have a group", n.Queue)
	case Scheduled:
		return fmt.Sprintf("queue '%s' has a waiting message with this schedule id, or exceeded maximum length", n.Queue)
	case OutOfOrder:
		return fmt.Sprintf("queue '%s' is unavailable", n.Queue)
	}
	return fmt.Sprintf("queue '%s' exceeded maximum length", n.Queue)
}

// IsConfirmed reports whether an outcome of SessionEvents.Confirmed is none that
// a publisher must repair: no queue has refused.
func IsConfirmed(why error) bool { return why == nil || why == ErrUnroutable }

// Kind classifies a refusal. Package amqp maps it to a reply code.
type Kind uint8

const (
	Internal       Kind = iota + 1 // 541
	NotFoundKind                   // 404
	AccessRefused                  // 403
	Locked                         // 405
	Precondition                   // 406
	NotAllowed                     // 530
	NotImplemented                 // 540
	Unavailable                    // no leader in time: 406 on the channel
	Forced                         // 320: the connection ends with its node's boot
	NoVHost                        // 530: the vhost that is to be opened does not exist
	NoAccess                       // 530: the user has no permission in it
	LimitReached                   // 530: there are too many connections or sessions
)

// Refusal is an error that a client sees. Its text goes onto the wire after the
// name of the reply code.
type Refusal struct {
	Kind Kind
	Text string
}

func (r *Refusal) Error() string { return r.Text }

// LimitText ends the text of a Precondition if there are as many queues or exchanges as may be, so that a protocol can
// tell it apart.
const LimitText = " is reached"

// UnknownExchangeType is the text of the Precondition if there is no such type of exchange.
func UnknownExchangeType(name string) string { return "unknown exchange type '" + name + "'" }

// Refuse returns a Refusal as an error.
func Refuse(k Kind, text string) error { return &Refusal{Kind: k, Text: text} }

// ReplyQueue is the name under which a channel consumes replies to its
// publishes, and the value of reply-to that requests them. It is not a queue.
const ReplyQueue = "amq.rabbitmq.reply-to"

// replyPrefix is the prefix of the routing keys of replies.
const replyPrefix = ReplyQueue + "."

// ReplyName returns the routing key that leads to a channel.
func ReplyName(suffix string) string { return replyPrefix + suffix }

// ReplySuffix is the inverse of ReplyName; ok is false for other names.
func ReplySuffix(name string) (suffix string, ok bool) { return strings.CutPrefix(name, replyPrefix) }

// ReasonName is how clients are told why a message died.
func ReasonName(r logpb.Death_Reason) string {
	switch r {
	case logpb.Death_EXPIRED:
		return "expired"
	case logpb.Death_REJECTED:
		return "rejected"
	case logpb.Death_MAXLEN:
		return "maxlen"
	case logpb.Death_DELIVERY_LIMIT:
		return "delivery_limit"
	case logpb.Death_UNROUTABLE:
		return "unroutable"
	case logpb.Death_GROUP_EXPIRED:
		return "group_expired"
	case logpb.Death_MAXHOPS:
		return "maxhops"
	case logpb.Death_QUEUE_DELETED:
		return "queue_deleted"
	}
	return "unknown"
}
