package queue

import (
	"strings"

	"github.com/quorate/quorate/fsm"
)

// Arrival is a queue that has a letter, and the entry of the sender's log that
// said so.
type Arrival struct {
	Queue fsm.QueueID
	Index uint64
}

// End describes how a message ended otherwise than by an ack.
type End struct {
	Number      uint64 // of the record, ascending
	Reason      EndReason
	At          fsm.Time
	Index, Term uint64 // of the entry that ended it
	// Count is the number of messages, if the record is about several; 0: it is
	// about one.
	Count                    uint64
	Seq                      uint64  // of the message; 0: it was refused, or there are several
	Ref                      fsm.Ref // of its payload, which is gone
	MessageID, CorrelationID string
	EnqueuedAt               fsm.Time // 0: not known
	ExpireAt                 fsm.Time // 0: never
	Acquired, Failed         uint32
	// Holder is who held it when it ended, with its tag; zero: nobody did.
	Holder      fsm.ConsumerID
	Tag         string
	Disposition Disposition
	// Letter is its number in the outbox; 0: it is in none. Settled is the entry
	// that ended the letter; 0: it has not ended. A letter that has ended without
	// an arrival was dropped.
	Letter   uint64
	Settled  uint64
	Arrivals []Arrival // the first few; shared, never changed
}

// ReasonName is the name of a reason in listings.
func ReasonName(r EndReason) string { return strings.ToLower(r.String()) }

// shown is r as listings have it.
func (r *end) shown(number uint64) End {
	e := End{
		Number: number, Reason: EndReason(r.reason), At: r.at, Index: r.index, Term: r.term, Count: r.count, Seq: r.seq, Ref: r.ref,
		EnqueuedAt: r.enqueuedAt, ExpireAt: r.expireAt, Acquired: r.acquired, Failed: r.failed, Holder: r.holder,
		Disposition: r.disposition, Settled: r.settled, Arrivals: r.arrivals,
	}
	e.MessageID, e.CorrelationID, e.Tag = r.strings()
	if r.posted {
		e.Letter = r.letter
	}
	return e
}

// Ends reads the record of ends of a machine. It is good for as long as nobody
// changes the machine.
type Ends struct{ of *ends }

// EndsOf returns the record of ends of m.
func EndsOf(m *Machine) Ends { return Ends{m.ends} }

// KeepEnds makes m remember at least n ends, whatever its settings say. It is for
// machines that are no replicas: the states of those must not differ.
func KeepEnds(m *Machine, n int) { m.ends.keep(n) }

// Next is the number of the next record.
func (e Ends) Next() uint64 { return e.of.next }

// From calls yield with the records from number on, until that returns false.
func (e Ends) From(number uint64, yield func(End) bool) {
	ring := &e.of.ring
	first := e.of.next - uint64(ring.len())
	for i := int(max(number, first) - first); i < ring.len(); i++ {
		if !yield(ring.item(i).shown(first + uint64(i))) {
			return
		}
	}
}
