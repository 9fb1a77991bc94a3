package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
)

// keyBits are the lower bits of a message's key, which hold its number; the others hold that of its publisher,
// from 1.
const keyBits = 40

// smallest is the size of the smallest body.
var smallest = len(client.Body(0, 0))

func keyOf(publisher int, message uint64) uint64 { return uint64(publisher+1)<<keyBits | message }

var (
	errNacked  = errors.New("the broker refused a message")
	errClosed  = errors.New("the broker closed the channel")
	errForeign = errors.New("a body that is not of this run")
)

// ledger counts which messages of each publisher have been confirmed and delivered.
type ledger struct {
	entries []*entry
	foreign atomic.Int64 // deliveries that are no message of this run
	// late, if set, gets how long after it was due each message arrived.
	late *samples
}

// entry is one publisher's part, and what its client records in. A consumer's client may record in any of them.
type entry struct {
	*ledger
	publisher int
	// taken, if set, gets the time from each publish to its confirm.
	taken *samples
	// fail ends the publisher when a message is refused.
	fail func(error)

	mu             sync.Mutex
	next           uint64
	calls, dues    []time.Duration // of messages by their numbers, if they are needed
	seen           []uint64        // bit n is message n
	count, doubled uint64
	confirmed      uint64
	last, gap      time.Duration // of confirms: the last one, and the longest time without one
}

func newLedger(publishers int) *ledger {
	l := &ledger{entries: make([]*entry, publishers)}
	for i := range l.entries {
		l.entries[i] = &entry{ledger: l, publisher: i}
	}
	return l
}

// NextMessage is of no use here: a message has one attempt.
func (e *entry) NextMessage() uint64 { return 0 }

// Begin numbers a message.
func (e *entry) Begin(a history.Attempt) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := clock()
	if e.next == 0 {
		e.last = now
	}
	if e.taken != nil || e.late != nil {
		e.calls, e.dues = append(e.calls, now), append(e.dues, now+a.TTL+a.Wait)
	}
	e.next++
	return keyOf(e.publisher, e.next-1)
}

// End records a confirm, of the messages in their order.
func (e *entry) End(key uint64, r history.Result) {
	if r != history.OK {
		e.fail(errNacked)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := clock()
	if e.taken != nil {
		e.taken.add(now - e.calls[key&(1<<keyBits-1)])
	}
	e.confirmed++
	e.gap, e.last = max(e.gap, now-e.last), now
}

// Deliver records a delivery.
func (e *entry) Deliver(d history.Delivery) int {
	e.take(d.Key)
	return 0
}

// Acked and Settled record nothing: a message that is acked in vain comes twice.
func (e *entry) Acked([]int) {}

// Settled is like Acked.
func (e *entry) Settled([]int) {}

// take records a delivery by the key in its body.
func (l *ledger) take(key uint64) {
	p, n := int(key>>keyBits)-1, key&(1<<keyBits-1)
	if p < 0 || p >= len(l.entries) {
		l.foreign.Add(1)
		return
	}
	e := l.entries[p]
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.late != nil && n < uint64(len(e.dues)) {
		l.late.add(clock() - e.dues[n])
	}
	word, bit := n/64, uint64(1)<<(n%64)
	for uint64(len(e.seen)) <= word {
		e.seen = append(e.seen, 0)
	}
	if e.seen[word]&bit != 0 {
		e.doubled++
		return
	}
	e.seen[word] |= bit
	e.count++
}

// sums counts the distinct messages confirmed and delivered.
func (l *ledger) sums() (confirmed, delivered uint64) {
	for _, e := range l.entries {
		e.mu.Lock()
		confirmed, delivered = confirmed+e.confirmed, delivered+e.count
		e.mu.Unlock()
	}
	return confirmed, delivered
}

// check returns an error if of the messages confirmed – of each publisher all up to that number – some did not
// arrive, some arrived twice, or others arrived.
func (l *ledger) check() error {
	if n := l.foreign.Load(); n > 0 {
		return fmt.Errorf("%w came %d times", errForeign, n)
	}
	for p, e := range l.entries {
		e.mu.Lock()
		missing := uint64(0)
		for n := range e.confirmed {
			if n/64 >= uint64(len(e.seen)) || e.seen[n/64]&(1<<(n%64)) == 0 {
				missing++
			}
		}
		confirmed, count, doubled := e.confirmed, e.count, e.doubled
		e.mu.Unlock()
		if missing > 0 || doubled > 0 || count != confirmed {
			return fmt.Errorf("publisher %d published %d messages: %d lost, %d came twice, %d distinct ones came", p, confirmed, missing, doubled, count)
		}
	}
	return nil
}
