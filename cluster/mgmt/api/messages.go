package api

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Message is a message as POST /api/queues/{vhost}/{queue}/get shows it.
type Message struct {
	PayloadBytes    int            `json:"payload_bytes"` // of all of it, even if less is shown
	Redelivered     bool           `json:"redelivered"`
	Exchange        string         `json:"exchange"`
	RoutingKey      string         `json:"routing_key"`
	MessageCount    uint64         `json:"message_count"` // ready ones left when it was taken
	Properties      map[string]any `json:"properties"`
	Payload         string         `json:"payload"`
	PayloadEncoding string         `json:"payload_encoding"` // string or base64
}

// PeekPage is answered by GET /api/queues/{vhost}/{queue}/messages/peek.
type PeekPage struct {
	Items []PeekedMessage `json:"items"`
	Next  uint64          `json:"next"` // the after of the next page; 0: this is the last one
}

// PeekedMessage is a message that was looked at. Times are milliseconds since
// the epoch.
type PeekedMessage struct {
	Number        uint64 `json:"number"` // in its queue
	State         string `json:"state"`  // ready, unacked, scheduled, delayed, deferred or parked
	ExpiresAt     int64  `json:"expires_at,omitempty"`
	DueAt         int64  `json:"due_at,omitempty"`
	Deadline      int64  `json:"deadline,omitempty"` // of whoever holds it
	ScheduleID    string `json:"schedule_id,omitempty"`
	DeferralToken string `json:"deferral_token,omitempty"`
	AcquiredCount uint32 `json:"acquired_count"`
	DeliveryCount uint32 `json:"delivery_count"` // failed ones
	Message
}

// DeferredPage is answered by GET /api/queues/{vhost}/{queue}/deferred.
type DeferredPage struct {
	Items []Deferred `json:"items"`
	Next  uint64     `json:"next"` // the after of the next page; 0: this is the last one
}

// Deferred is a message that a consumer has put aside under a token. Times are
// milliseconds since the epoch.
type Deferred struct {
	Number        uint64 `json:"number"` // in its queue
	Token         string `json:"deferral_token"`
	DueAt         int64  `json:"due_at,omitempty"`     // when it returns by itself
	ExpiresAt     int64  `json:"expires_at,omitempty"` // when it dies
	AcquiredCount uint32 `json:"acquired_count"`
	DeliveryCount uint32 `json:"delivery_count"` // failed ones
	RoutingKey    string `json:"routing_key"`
	Bytes         int    `json:"bytes"` // of its body
	MessageID     any    `json:"message_id,omitempty"`
}

// GroupPage is answered by GET /api/queues/{vhost}/{queue}/groups.
type GroupPage struct {
	Items []Group `json:"items"`
	Next  string  `json:"next"` // the after of the next page; empty: this is the last one
}

// Group is a group of messages. Times are milliseconds since the epoch.
type Group struct {
	ID          string `json:"id"`
	Held        bool   `json:"held"`
	ConsumerTag string `json:"consumer_tag,omitempty"` // of who holds it
	Session     string `json:"session,omitempty"`      // of who holds it: node, boot and number
	LockedUntil int64  `json:"locked_until,omitempty"` // 0: until it is given up
	Remaining   int64  `json:"remaining_ms,omitempty"` // until then
	// Messages is how many there are, Unacknowledged how many of them its holder has.
	Messages       uint64 `json:"messages"`
	Unacknowledged uint64 `json:"messages_unacknowledged"`
	OldestAt       int64  `json:"oldest,omitempty"` // when its first message that is not unacknowledged was enqueued
	HasState       bool   `json:"has_state"`
	StateBytes     int    `json:"state_bytes"`
	StateSetAt     int64  `json:"state_set_at,omitempty"` // 0: there is none
	StateUntil     int64  `json:"state_until,omitempty"`  // 0: until it is cleared
}

// Retry asks for delayed messages to be retried at once.
type Retry struct {
	Count uint64 `json:"count,omitempty"` // 0: all
}

// Published is answered by POST /api/exchanges/{vhost}/{exchange}/publish.
type Published struct {
	Routed bool `json:"routed"` // some queue has the message
}

// Ended is the record of a message that ended otherwise than by an
// acknowledgement. Instants are milliseconds since the epoch; 0: none.
type Ended struct {
	Number        uint64 `json:"number"` // of the record
	Reason        string `json:"reason"`
	At            int64  `json:"at"`
	Index         uint64 `json:"index"` // of the log entry that ended it
	Term          uint64 `json:"term"`
	Count         uint64 `json:"count"`             // messages; more than 1 in a record of a purge
	Message       uint64 `json:"message,omitempty"` // its number in the queue
	MessageID     string `json:"message_id,omitempty"`
	CorrelationID string `json:"correlation_id,omitempty"`
	EnqueuedAt    int64  `json:"enqueued_at,omitempty"`
	TTL           int64  `json:"ttl,omitempty"` // from then until it would have expired
	ExpiresAt     int64  `json:"expires_at,omitempty"`
	AcquiredCount uint32 `json:"acquired_count"`
	DeliveryCount uint32 `json:"delivery_count"` // failures
	ConsumerTag   string `json:"consumer_tag,omitempty"`
	Session       string `json:"session,omitempty"` // of who held it: node, boot and number
	// Disposition is the dead-letter strategy that took effect: disabled,
	// at_most_once, transactional or at_least_once.
	Disposition string `json:"disposition,omitempty"`
	Letter      uint64 `json:"letter,omitempty"`
	// LetterState is pending, arrived or dropped, of a letter in the outbox.
	LetterState string    `json:"letter_state,omitempty"`
	SettledAt   uint64    `json:"letter_settled_index,omitempty"`
	Arrivals    []Arrival `json:"arrivals,omitempty"`
}

// Arrival is a queue that has a dead letter.
type Arrival struct {
	Queue string `json:"queue"`
	Index uint64 `json:"index"` // of the entry in the sender's log that says so
}

// EndedPage is a page of records, oldest first.
type EndedPage struct {
	Items []Ended `json:"items"`
	Next  uint64  `json:"next,omitempty"` // value of after for the next page; 0: there is none
}

// Explanation tells the lives of the messages with an id.
type Explanation struct {
	VHost string `json:"vhost"`
	Queue string `json:"queue"`
	Node  string `json:"node"` // whose replica was read
	// From is the entry that the newest snapshot covers: what happened up to
	// there is known only from the records of ends. To is the last entry read.
	From uint64 `json:"from_index"`
	To   uint64 `json:"to_index"`
	// Uncertain: entries up to To may never have been committed. They are from the
	// log of a node that has stopped.
	Uncertain bool   `json:"uncertain,omitempty"`
	Lives     []Life `json:"lives"`
}

// Life is what happened to one message.
type Life struct {
	Message       uint64      `json:"message,omitempty"` // its last number in the queue
	MessageID     string      `json:"message_id,omitempty"`
	CorrelationID string      `json:"correlation_id,omitempty"`
	State         string      `json:"state"` // where it is, or ended
	Events        []LifeEvent `json:"events"`
}

// LifeEvent is a step of a life.
type LifeEvent struct {
	At    int64  `json:"at"` // ms since the epoch, by the queue's clock
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	Event string `json:"event"`
	Why   string `json:"why,omitempty"`
	// Of hand-outs and returns.
	ConsumerTag string `json:"consumer_tag,omitempty"`
	Session     string `json:"session,omitempty"`
	Delivery    uint64 `json:"delivery,omitempty"`
	Until       int64  `json:"until,omitempty"` // deadline of the delivery, or when it is due
	ExpiresAt   int64  `json:"expires_at,omitempty"`
	// Of letters: the queues that it goes to or has arrived at.
	Letter uint64   `json:"letter,omitempty"`
	Queues []string `json:"queues,omitempty"`
}

// Verification compares the replicas of a queue, or of the catalog.
type Verification struct {
	VHost string `json:"vhost"` // both are empty: of the catalog
	Queue string `json:"queue"`
	// Verdict is equal, different, or unknown: some replicas could not be
	// compared.
	Verdict  string            `json:"verdict"`
	Index    uint64            `json:"index"`
	Replicas []VerifiedReplica `json:"replicas"`
}

// VerifiedReplica is the state of one replica at the index.
type VerifiedReplica struct {
	Node      string `json:"node"`
	StateHash string `json:"state_hash,omitempty"`
	Error     string `json:"error,omitempty"` // why it is not known
}

// Print writes the explanation as text.
func (x *Explanation) Print(w io.Writer) {
	fmt.Fprintf(w, "Queue %s in vhost %s, by the replica on node %s: entries %d to %d\n", x.Queue, x.VHost, x.Node, x.From, x.To)
	if x.Uncertain {
		fmt.Fprintln(w, "The node is stopped: its last entries may never have been committed.")
	}
	if len(x.Lives) == 0 {
		fmt.Fprintln(w, "No trace of such a message: it never reached this queue, or it was settled and forgotten before the first of these entries.")
	}
	for i := range x.Lives {
		x.Lives[i].print(w)
	}
}

func (l *Life) print(w io.Writer) {
	fmt.Fprintf(w, "Message %d, message_id %q, correlation_id %q: %s\n", l.Message, l.MessageID, l.CorrelationID, l.State)
	for i := range l.Events {
		e := &l.Events[i]
		words := []string{instant(e.At), fmt.Sprintf("entry %d", e.Index), e.Event}
		add := func(given bool, format string, args ...any) {
			if given {
				words = append(words, fmt.Sprintf(format, args...))
			}
		}
		add(e.Why != "", "(%s)", e.Why)
		add(e.ConsumerTag != "", "consumer %q", e.ConsumerTag)
		add(e.Session != "", "session %s", e.Session)
		add(e.Delivery != 0, "delivery %d", e.Delivery)
		add(e.Until != 0, "until %s", instant(e.Until))
		add(e.ExpiresAt != 0, "expires %s", instant(e.ExpiresAt))
		add(e.Letter != 0, "letter %d", e.Letter)
		add(len(e.Queues) > 0, "queues %s", strings.Join(e.Queues, " "))
		fmt.Fprintln(w, strings.Join(words, "\t"))
	}
}

func instant(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

// Next counts what is known today to come next. Each count includes those of the spans before.
type Next struct {
	Minute TimeCounts `json:"minute"`
	Hour   TimeCounts `json:"hour"`
	Day    TimeCounts `json:"day"`
}

// TimeCounts counts what comes within a time from now on.
type TimeCounts struct {
	Expire     uint64 `json:"expire"`      // messages that nobody holds and that are not scheduled
	DeadLetter uint64 `json:"dead_letter"` // of these: those that become dead letters
	Fire       uint64 `json:"fire"`        // scheduled messages that become ready
	TimeOut    uint64 `json:"time_out"`    // deliveries that are taken back from their consumers
	Unlock     uint64 `json:"unlock"`      // deliveries whose locks end
	Retry      uint64 `json:"retry"`       // returned messages that become ready again
	Return     uint64 `json:"return"`      // deferred messages that become ready again
	Delete     uint64 `json:"delete"`      // queues that are deleted unless they are used
}

// TimeWithin has the counts of one span.
type TimeWithin struct {
	WithinMS uint64 `json:"within_ms"`
	TimeCounts
}

// Time is answered by GET /api/quorate/time: what comes next in all queues that the user may see.
type Time struct {
	CountedAt int64 `json:"counted_at"`     // ms since the epoch
	Queues    int   `json:"queues"`         // that are counted
	Unknown   int   `json:"queues_unknown"` // whose leaders do not answer
	AtLeast   bool  `json:"at_least"`       // there may be more: queues are unknown, or too long to count
	Next
	Within []TimeWithin `json:"within"` // ascending; the last one is a day
}

// QueueTime is what comes next in a queue within a day.
type QueueTime struct {
	VHost    string `json:"vhost"`
	Name     string `json:"name"`
	Exchange string `json:"exchange,omitempty"` // whose delayed messages the queue holds
	NextAt   int64  `json:"next_at"`            // when something is due first, ms since the epoch
	AtLeast  bool   `json:"at_least"`           // there may be more: not all were counted
	Next
}
