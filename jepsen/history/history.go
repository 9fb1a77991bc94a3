// Package history records the calls of clients and the answers that they saw, on one
// clock, for checkers to evaluate afterwards.
package history

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Result is the outcome of a publish for its client.
type Result string

const (
	Unknown Result = "unknown" // there will be no answer
	OK      Result = "ok"      // confirmed
	No      Result = "no"      // refused: basic.nack, or returned as unroutable
)

// Attempt is one basic.publish. A client that got no answer makes another attempt
// at the same message, so that all copies can be distinguished.
type Attempt struct {
	Key       uint64        `json:"key"`     // from 1, growing, distinct for each attempt of a run
	Message   uint64        `json:"message"` // what the client wanted published
	Publisher string        `json:"publisher"`
	Epoch     int           `json:"epoch"` // connections of the publisher so far
	Queue     string        `json:"queue"` // where the message must finally be consumed; several with spaces between them: in each
	TTL       time.Duration `json:"ttl,omitempty"`
	Wait      time.Duration `json:"wait,omitempty"` // in the queue, before it is ready
	Group     string        `json:"group,omitempty"`
	Call      time.Duration `json:"call"`
	Return    time.Duration `json:"return,omitempty"`
	Result    Result        `json:"result"`
}

// Death is the newest entry of x-death.
type Death struct {
	Queue       string   `json:"queue"`
	Reason      string   `json:"reason"`
	Exchange    string   `json:"exchange"`
	RoutingKeys []string `json:"routing_keys"`
	Count       int64    `json:"count"`
	Expiration  string   `json:"expiration,omitempty"` // original-expiration
	Entries     int      `json:"entries"`              // length of x-death
}

// Delivery is one basic.deliver.
type Delivery struct {
	Key         uint64        `json:"key"` // 0: the body is damaged
	Queue       string        `json:"queue"`
	Consumer    string        `json:"consumer"`
	Epoch       int           `json:"epoch"`
	Call        time.Duration `json:"call,omitempty"` // of a basic.get
	At          time.Duration `json:"at"`
	Redelivered bool          `json:"redelivered,omitempty"`
	Acked       bool          `json:"acked,omitempty"`
	Settled     time.Duration `json:"settled,omitempty"` // when the ack was known to hold; 0: not known
	Expiration  string        `json:"expiration,omitempty"`
	Death       *Death        `json:"death,omitempty"`
}

// Fault is a fault that the nemesis injected.
type Fault struct {
	Kind   string        `json:"kind"`
	Node   int           `json:"node"`
	At     time.Duration `json:"at"`
	Healed time.Duration `json:"healed,omitempty"`
}

// Skipped is a fault that was not injected because the cluster or the machine cannot have it.
type Skipped struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
}

// Led says that a node was seen to lead a queue.
type Led struct {
	Queue string        `json:"queue"`
	Node  int           `json:"node"`
	Term  uint64        `json:"term"` // of the queue's raft group; a term has one leader at most
	At    time.Duration `json:"at"`   // when it was first seen
}

// Stalled is a time in which this machine kept the test from running.
type Stalled struct {
	At      time.Duration `json:"at"` // its end
	Longest time.Duration `json:"longest"`
}

// History is the record of one run. Its methods may be called by several
// goroutines; its fields may be read when the run is over.
type History struct {
	Attempts   []Attempt
	Deliveries []Delivery
	Faults     []Fault
	Skipped    []Skipped
	Ops        []Op
	Leaders    []Led     // in the order in which they were seen
	Stalls     []Stalled // samples, in order
	Seconds    []Second  // in order; those in which nothing was counted are missing
	// Past is what was checked before, and is no longer in the history, and what was only
	// counted.
	Past Counts
	// Stall is the longest time for which this machine kept the test from running.
	Stall time.Duration

	mu       sync.Mutex
	start    time.Time
	messages atomic.Uint64
	answers  int                        // confirms so far
	answered map[string]time.Duration   // queue → the newest confirm
	seen     map[string]map[uint64]bool // queue → keys delivered
	led      map[string]map[uint64]bool // queue → terms in Leaders
	counted  pauses                     // between counted confirms
	// deliveries numbers those in Ops.
	deliveries int
}

// New starts a history; its clock starts now.
func New() *History {
	return &History{
		start: time.Now(), answered: map[string]time.Duration{}, seen: map[string]map[uint64]bool{}, led: map[string]map[uint64]bool{},
	}
}

// Beside starts another history on the same clock.
func (h *History) Beside() *History {
	other := New()
	other.start = h.start
	return other
}

// Now returns the time of the history's clock, which never goes back.
func (h *History) Now() time.Duration { return time.Since(h.start) }

// NextMessage returns a number for a message that a client is going to publish.
func (h *History) NextMessage() uint64 { return h.messages.Add(1) }

// Begin records that a publish is about to be called, and returns its key.
func (h *History) Begin(a Attempt) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.Key = uint64(len(h.Attempts)) + 1
	a.Call = h.Now()
	a.Result = Unknown
	h.Attempts = append(h.Attempts, a)
	return a.Key
}

// End records the answer to a publish.
func (h *History) End(key uint64, r Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := &h.Attempts[key-1]
	a.Result, a.Return = r, h.Now()
	if r == OK {
		h.answers++
		h.answered[a.Queue] = a.Return
	}
}

// Answers returns the number of confirms recorded by End, without counting them again.
func (h *History) Answers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.answers
}

// Answered returns when a message for a queue was confirmed last; 0: never.
func (h *History) Answered(queue string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.answered[queue]
}

// Deliver records a delivery and returns its position, for Ack.
func (h *History) Deliver(d Delivery) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	d.At = h.Now()
	h.Deliveries = append(h.Deliveries, d)
	keys := h.seen[d.Queue]
	if keys == nil {
		keys = map[uint64]bool{}
		h.seen[d.Queue] = keys
	}
	keys[d.Key] = true
	return len(h.Deliveries) - 1
}

// Acked records that acks of these deliveries were sent.
func (h *History) Acked(positions []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range positions {
		h.Deliveries[p].Acked = true
	}
}

// Settled records that the acks of these deliveries are known to hold.
func (h *History) Settled(positions []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.Now()
	for _, p := range positions {
		h.Deliveries[p].Settled = now
	}
}

// Fault records a fault and returns a function that records its end.
func (h *History) Fault(kind string, node int) (healed func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Faults = append(h.Faults, Fault{Kind: kind, Node: node, At: h.Now()})
	at := len(h.Faults) - 1
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.Faults[at].Healed = h.Now()
	}
}

// Injected counts the faults so far.
func (h *History) Injected() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.Faults)
}

// Skip records a fault that cannot be injected, once.
func (h *History) Skip(name, kind, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := (Skipped{Name: name, Kind: kind, Reason: reason}); !slices.Contains(h.Skipped, s) {
		h.Skipped = append(h.Skipped, s)
	}
}

// Lead records that a node leads a queue in a term, unless that is recorded already.
func (h *History) Lead(queue string, node int, term uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	terms := h.led[queue]
	if terms == nil {
		terms = map[uint64]bool{}
		h.led[queue] = terms
	}
	if !terms[term] {
		terms[term] = true
		h.Leaders = append(h.Leaders, Led{Queue: queue, Node: node, Term: term, At: h.Now()})
	}
}

// Sample records the longest stall since the last sample.
func (h *History) Sample(longest time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Stalls = append(h.Stalls, Stalled{At: h.Now(), Longest: longest})
}

// Counts are numbers of attempts and deliveries.
type Counts struct {
	Published   int `json:"published"`
	Confirmed   int `json:"confirmed"`
	Delivered   int `json:"delivered"`
	Redelivered int `json:"redelivered,omitempty"` // of those delivered, marked as such; only if they were counted one by one
}

// Add counts what is in another history, which may then be forgotten.
func (h *History) Add(other *History) {
	confirmed := other.Confirmed()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Past.Published += len(other.Attempts)
	h.Past.Confirmed += confirmed
	h.Past.Delivered += len(other.Deliveries)
}

// Missing counts confirmed attempts that no consumer has received yet.
func (h *History) Missing() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if a.Result != OK {
			continue
		}
		if !strings.Contains(a.Queue, " ") {
			if !h.seen[a.Queue][a.Key] {
				n++
			}
			continue
		}
		for q := range strings.SplitSeq(a.Queue, " ") {
			if !h.seen[q][a.Key] {
				n++
				break
			}
		}
	}
	return n
}

// Confirmed counts confirmed attempts.
func (h *History) Confirmed() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for i := range h.Attempts {
		if h.Attempts[i].Result == OK {
			n++
		}
	}
	return n
}

// Received counts the distinct messages delivered from a queue.
func (h *History) Received(queue string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.seen[queue])
}

// LongestGap returns the longest time between two confirms, that is, how long
// publishing stood still. The first publish counts as a confirm. 0: nothing was
// confirmed.
func (h *History) LongestGap() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	var returns []time.Duration
	for i := range h.Attempts {
		if a := &h.Attempts[i]; a.Result == OK {
			returns = append(returns, a.Return)
		}
	}
	if len(returns) == 0 {
		return h.counted.longest
	}
	slices.Sort(returns)
	longest := returns[0] - h.Attempts[0].Call
	for i := 1; i < len(returns); i++ {
		longest = max(longest, returns[i]-returns[i-1])
	}
	return max(longest, h.counted.longest)
}
