package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
)

// maxCredit is the credit of a consumer that asks for no limit. A higher
// prefetch counts as this.
const maxCredit = fsm.MaxHeld

// consumer is one registered consumer, or the gets of a session (number 0).
// consumers maintains its tables and its service, deliveries what it holds and
// what is late. Its session decides whether it can be found.
//
// Invariants:
//
//	1 ≤ next; ids of held and of late ascend, are < next, and none is in both
//	held.len() ≤ maxCredit, except for gets, which have no limit
//	timed out ⇔ len(late) > 0 and it is not cancelled
//	finished ⇔ cancelled and held.len() = 0; it stays while it is remembered for late
//	or revoked, and is removed otherwise
//	revoked ⇒ cancelled; gets are neither cancelled, finished nor in a level
//
// A snapshot has ConsumerState for it: what a Consume gave, next, registered,
// late, lateAcks, revoked, and whether it is cancelled. Its suspicion follows
// from the session, finished from cancelled and held; the head has the rings.
type consumer struct {
	// session is nil from unregister on; dropEnded then drops the consumer, which may
	// be detached.
	id         fsm.ConsumerID
	session    *session
	registered uint64 // orders consumers by age
	next       uint64 // number of the next delivery
	held       held
	// late has the deliveries taken back and not settled, ascending. The slice
	// is replaced, never changed.
	late []lateness
	// lateAcks only grows.
	lateAcks uint64 // settlements of late deliveries

	tag string
	// As the last Consume gave them, undecoded. Unused by gets.
	quota
	priority   int32
	noAck      bool
	exclusive  bool
	cancelled  bool
	revoked    bool                     // cancelled by the queue, see revokeAllBut: its session may not know
	finished   bool                     // cancelled and holds nothing: kept only for late or revoked
	ownTimeout fsm.Optional[fsm.Millis] // not given: the queue's applies
	lockTerms
	least fsm.Millis // messages with less left of their TTL are not for c; 0: all are

	turn
}

// turn is the position of a consumer in the order of service. service maintains
// it.
type turn struct {
	level              *level // nil: cancelled, or gets
	serviced           bool   // in the ring of its level
	nextRing, prevRing *consumer
	waits              uint64 // orders the consumers of a level and of those equal to it in other services
}

// isGets reports whether c stands for the gets of its session, which is never
// served by assignment. Its prefetch means nothing: each get is a command.
func (c *consumer) isGets() bool { return c.id.Number == 0 }

// status is the status for listings, except for Quiescing, which only the
// single active consumer has. Only consumers that are Up are handed messages.
// It is derived each time, from the consumer and the life of its node.
// Cancelled hides a suspicion, which in turn hides a timeout.
func (c *consumer) status() Status {
	if !c.cancelled && (c.session.life.suspected || c.session.life.over) {
		return Suspected
	}
	return c.lasting()
}

// lasting is the status without suspicion, which belongs to the node. It is
// what a snapshot holds.
func (c *consumer) lasting() Status {
	switch {
	case c.cancelled:
		return Cancelled
	case len(c.late) > 0:
		return TimedOut
	}
	return Up
}

// credit is how many more messages c may hold. It is not positive when c has
// lowered its prefetch below what it holds.
func (c *consumer) credit() int {
	return c.quota.limit() - c.held.len()
}

// lateConsumers bounds how many cancelled consumers of a session are kept only
// to count late settlements, or to report that they are revoked. The newest
// ones are kept.
const lateConsumers = 64

// remembered reports whether c must be kept although it holds nothing.
func (c *consumer) remembered() bool { return len(c.late) > 0 || c.revoked }

// forgive removes the ids first … last from the late deliveries of c and
// appends them to forgiven.
//
// Requires: first ≤ last. forgiven belongs to the caller. late is cut or
// replaced, so a snapshot that shares it does not change. Once late is empty c
// may be served again; the caller refreshes it.
func (c *consumer) forgive(first, last uint64, forgiven []lateness) []lateness {
	i, _ := slices.BinarySearchFunc(c.late, first, compareLate)
	j := i
	for j < len(c.late) && c.late[j].id <= last {
		j++
	}
	forgiven = append(forgiven, c.late[i:j]...)
	switch {
	case i == j:
	case j-i == len(c.late):
		c.late = nil
	case i == 0:
		c.late = c.late[j:]
	default:
		c.late = slices.Concat(c.late[:i], c.late[j:])
	}
	return forgiven
}
