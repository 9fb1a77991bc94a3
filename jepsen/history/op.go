package history

import (
	"slices"
	"time"
)

// Kinds of ops.
const (
	Schedule  = "schedule" // a publish with a due time
	Deliver   = "deliver"
	Renew     = "renew"
	Settle    = "settle"  // acked
	Requeue   = "requeue" // given back
	Retry     = "retry"   // given back, and not handed out before Due has passed
	Reject    = "reject"  // given up, as a dead letter
	Defer     = "defer"
	Receive   = "receive" // of a deferred message
	Accept    = "accept"  // a client, which is one for each, holds a group for Lock from the call on, and knows it from Return on
	Cancel    = "cancel"  // of a schedule
	Fire      = "fire"
	Lost      = "lost"      // a session has ended, OK: by its client; otherwise its Call is when it was last heard of
	Empty     = "empty"     // the queue was found to be empty, when nobody published any more
	Cancelled = "cancelled" // the broker has ended a consumer
	Use       = "use"       // of a queue, the Group, whose lease lasts for Lock; Again: by a consumer, until it returned
	There     = "there"     // a queue was found to exist, or a register, the Group, to have the value Key
	Gone      = "gone"      // it was found not to exist, or to have no value
	Policy    = "policy"    // a policy sets a TTL, Due, on the queue; 0: none
	Set       = "set"       // a register, the Group, gets the value Key; No: it has another one, and keeps it
	Clear     = "clear"     // a register loses its value
	Parked    = "parked"    // the Queue has listed the message among its parked ones, after Turn deliveries
	Unpark    = "unpark"    // of the Queue's parked messages, of which Turn were made ready
	Ended     = "ended"     // the record of ends of the Queue has the message, with the number Turn of deliveries and the reason Why
)

// Forever is how long a lock lasts that only its holder ends.
const Forever = 365 * 24 * time.Hour

// Op is something that a client asked for and was answered, or that it saw. The
// answer No means that the broker knew of no such thing (404).
type Op struct {
	Kind   string        `json:"kind"`
	Client string        `json:"client"`           // distinct for each session
	Key    uint64        `json:"key,omitempty"`    // of the message
	Queue  string        `json:"queue,omitempty"`  // where it was
	Why    string        `json:"why,omitempty"`    // it ended: reason and dead-letter strategy, with a space between them
	Group  string        `json:"group,omitempty"`  // of the message
	On     int           `json:"on,omitempty"`     // number of the delivery, from 1, distinct in a run
	Again  bool          `json:"again,omitempty"`  // marked as redelivered
	Turn   int           `json:"turn,omitempty"`   // of a delivery: how many of this message there were before it
	Call   time.Duration `json:"call"`             // of a delivery: it was not handed out before
	Return time.Duration `json:"return,omitempty"` // 0: there was no answer
	Result Result        `json:"result,omitempty"` // of what was asked for
	Lock   time.Duration `json:"lock,omitempty"`   // Deliver, Renew: how long the lock lasts from its beginning
	Due    time.Duration `json:"due,omitempty"`    // Schedule; Retry: from its call
}

// Did records an op.
func (h *History) Did(o Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Ops = append(h.Ops, o)
}

// Took records a delivery that was received now, and returns its number.
func (h *History) Took(o Op) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deliveries++
	o.Kind, o.On, o.Return = Deliver, h.deliveries, h.Now()
	if o.Key > 0 && o.Key <= uint64(len(h.Attempts)) {
		o.Call = max(o.Call, h.Attempts[o.Key-1].Call)
	}
	h.Ops = append(h.Ops, o)
	return h.deliveries
}

// Copy returns what has been recorded so far, for checkers that look while a run
// goes on.
func (h *History) Copy() *History {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &History{Attempts: slices.Clone(h.Attempts), Ops: slices.Clone(h.Ops), Faults: slices.Clone(h.Faults), Skipped: slices.Clone(h.Skipped), Stall: h.Stall}
}
