package main

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"
)

// A body begins with publisher (4 bytes), sequence (8) and two times of the publisher's clock: when
// publish was called, and when the message is due (8 each, nanoseconds).
const bodyHead = 28

// epoch is the origin of the bench's clock, which never runs back.
var epoch = time.Now()

func clock() time.Duration { return time.Since(epoch) }

// stamp writes the head of a body.
func stamp(body []byte, publisher uint32, sequence uint64, call, due time.Duration) {
	binary.BigEndian.PutUint32(body, publisher)
	binary.BigEndian.PutUint64(body[4:], sequence)
	binary.BigEndian.PutUint64(body[12:], uint64(call))
	binary.BigEndian.PutUint64(body[20:], uint64(due))
}

// ledger knows which messages of each publisher have been delivered.
type ledger struct {
	size    int // of every body
	entries []*entry
}

// entry is one publisher's part: bit n is message n.
type entry struct {
	mu      sync.Mutex
	seen    []uint64
	count   uint64
	doubled uint64
}

func newLedger(publishers, size int) *ledger {
	l := &ledger{size: size, entries: make([]*entry, publishers)}
	for i := range l.entries {
		l.entries[i] = &entry{}
	}
	return l
}

// take records a delivery and returns when it was due. ok false: the body is not one of this run's.
func (l *ledger) take(body []byte) (due time.Duration, ok bool) {
	if len(body) != l.size {
		return 0, false
	}
	p := binary.BigEndian.Uint32(body)
	if int(p) >= len(l.entries) {
		return 0, false
	}
	l.entries[p].enter(binary.BigEndian.Uint64(body[4:]))
	return time.Duration(binary.BigEndian.Uint64(body[20:])), true
}

func (e *entry) enter(sequence uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	word, bit := sequence/64, uint64(1)<<(sequence%64)
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

// received counts the distinct messages delivered.
func (l *ledger) received() uint64 {
	var n uint64
	for _, e := range l.entries {
		e.mu.Lock()
		n += e.count
		e.mu.Unlock()
	}
	return n
}

// check returns an error if of the messages published – by each publisher all up to its number –
// some did not arrive, some arrived twice, or others arrived.
func (l *ledger) check(published []uint64) error {
	for p, e := range l.entries {
		e.mu.Lock()
		var missing uint64
		for n := range published[p] {
			if n/64 >= uint64(len(e.seen)) || e.seen[n/64]&(1<<(n%64)) == 0 {
				missing++
			}
		}
		count, doubled := e.count, e.doubled
		e.mu.Unlock()
		if missing > 0 || doubled > 0 || count != published[p] {
			return fmt.Errorf("publisher %d published %d messages: %d lost, %d came twice, %d distinct ones came",
				p, published[p], missing, doubled, count)
		}
	}
	return nil
}
