package fsm

import (
	"errors"

	"github.com/quorate/quorate/proto/logpb"
)

// ErrNotFresh is what a message is not published for: the broker does not know
// for certain where it has to go, for now. No client sees it.
var ErrNotFresh = errors.New("the routes may be out of date")

// Table is an AMQP field table as the catalog keeps it; nil is empty.
type Table = logpb.Table

// Publish is one message on its way in.
type Publish struct {
	// Number of the publish on its session, from 1, growing by 1. Every routed publish
	// is answered by one SessionEvents.Confirmed that covers Number.
	Number     uint64
	Exchange   string
	RoutingKey string
	// Payload belongs to the broker from now on; nobody changes it.
	Payload       Payload
	TTL           Millis // -1: none
	Priority      int    // -1: none
	HasExpiration bool
	// Copies are more routing keys: those of the headers CC and BCC.
	Copies []string
	// Schedule says when the message is to become ready; nil: when the queue
	// says so, at once as a rule. Neither it nor Delay ever changes.
	Schedule *Schedule
	// Delay says how long the message waits at a delayed exchange; nil: it does
	// not. Elsewhere it has no meaning.
	Delay *Delay
	// Fresh: the session has been refreshed since the message came in, so it may
	// be routed by what the broker knows.
	Fresh bool
	// Mandatory: the client wants to hear if the message goes nowhere.
	Mandatory bool
	// TTLError, HeadersError and UserError are refusals that package amqp has found
	// in the properties: an expiration that is no TTL, a header of the wrong
	// type, a user-id that is not the login's. Publish returns the first two
	// once the exchange has been found and may be written to, and UserError as
	// its last check before it routes, unless the user may impersonate. Either
	// way the message goes nowhere.
	TTLError, HeadersError, UserError error
	// WantsReply: the reply-to property asks for replies to this channel.
	// RequesterGone: the message is a reply, and who asked is known to be gone.
	WantsReply, RequesterGone bool
	// Headers decodes the headers property. It is called only while Publish
	// runs, and only if an exchange on the way needs it.
	Headers func() *Table
	// Property returns the text of a property that exchanges may ask for, nil
	// if the message has none. It is called as Headers is, and what it returns
	// is valid until the next call.
	Property func(name string) []byte
}

// Schedule names the time at which a message becomes ready in its queues.
type Schedule struct {
	At       Time   // 0: after Delay
	Delay    Millis // from the enqueue on; -1: as the queue says
	ID       string // names the message while it waits; empty: it has no name
	Conflict logpb.Enqueue_Conflict
}

// Delay is what a message asks of a delayed exchange.
type Delay struct {
	For Millis // above 0
	// ID and Conflict are as in Schedule.
	ID       string
	Conflict logpb.Enqueue_Conflict
	Err      error // why the exchange must refuse the message; nil: it need not
}

// MaxUnanswered is how many publishes of one session, to all queues together,
// may be without an answer. Queues remember of a session what the repetition of
// so many needs.
const MaxUnanswered = 4096

// QueueSpec is what queue.declare says.
type QueueSpec struct {
	Name       string // empty: the broker makes one
	Passive    bool
	Durable    bool
	Exclusive  bool
	AutoDelete bool
	Arguments  *Table
}

// QueueInfo answers a declare.
type QueueInfo struct {
	Name      string
	Ready     uint64
	Consumers uint64
}

// ExchangeSpec is what exchange.declare says.
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

// ConsumeSpec is what basic.consume says.
type ConsumeSpec struct {
	Queue     string
	Number    uint64 // chosen by the session, from 1, never used again
	Tag       string
	Prefetch  uint32 // 0: no limit asked for
	NoAck     bool   // package amqp settles each delivery once it is written
	Exclusive bool
	Arguments *Table
}

// Outcome is how a delivery ends.
type Outcome = logpb.Settle_Outcome

const (
	Ack           = logpb.Settle_ACK
	Requeue       = logpb.Settle_REQUEUE
	RequeueFailed = logpb.Settle_REQUEUE_FAILED
	Discard       = logpb.Settle_DISCARD
)

// Message is one message on its way out to a consumer.
type Message struct {
	Consumer uint64 // number of the consumer; for a get its Queue token
	ID       uint64 // number of the delivery, for Settle
	Payload  Payload
	Acquired uint32 // earlier hand-outs: redelivered if > 0
	Failed   uint32 // earlier failures
	Local    bool   // the queue is not replicated: receivers do not see these counts
	Deaths   []*logpb.Death
	Ready    uint64 // gets only: ready messages left
	// ScheduledFor is when the message was to become ready; 0: it never was
	// scheduled.
	ScheduledFor Time
}

// SessionEvents is what a session tells its channel. Calls come from the
// broker's goroutines, never two at a time for one session, and must not
// block: the channel stores what it is given and returns.
type SessionEvents interface {
	// Confirmed: the publishes numbered first … last have the same outcome.
	// ok: every queue that they lead to holds them, or none is there to hold them;
	// otherwise at least one queue refused. Numbers may come in any order, each once.
	Confirmed(first, last uint64, ok bool)
	// Returned: a mandatory publish is about to be settled as ok although no queue
	// has it: those that it was routed to are gone, and it leads nowhere else. The
	// payload is never changed by anybody.
	Returned(payload Payload)
	// Refused: a mandatory publish is about to be settled as not ok, because
	// what it asked the broker for was not done. why nil: there is no such thing
	// to ask for. The payload is never changed by anybody.
	Refused(payload Payload, why *Refusal)
	// Deliver hands over messages in order. The slice is the broker's, the
	// messages are the channel's; payloads are never changed by anybody.
	Deliver(messages []Message)
	// Cancelled: the queue of this consumer is gone.
	Cancelled(consumer uint64)
	// Revoked: the user may not read the queue of this consumer any more; why is
	// what the user would be refused with now.
	Revoked(consumer uint64, why error)
	// TimedOut: deliveries were held longer than limit and have gone back to
	// the queue. consumer may be one that was cancelled, or a get token.
	TimedOut(consumer uint64, deliveries []uint64, limit Millis)
	// Lost: the broker gave up the session; the channel must close with err.
	Lost(err error)
}

// Kind says what sort of refusal an error is. Package amqp maps it to a reply code.
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
)

// Refusal is an error that a client sees: its text goes onto the wire
// behind the name of the reply code.
type Refusal struct {
	Kind Kind
	Text string
}

func (r *Refusal) Error() string { return r.Text }

// Refuse returns a Refusal as an error.
func Refuse(k Kind, text string) error { return &Refusal{Kind: k, Text: text} }
