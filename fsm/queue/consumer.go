package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// maxCredit is the credit of a consumer that asks for no limit. A higher
// prefetch counts as this.
const maxCredit = fsm.MaxHeld

// Status is the status of a consumer.
type Status uint8

const (
	// Up consumers are served while they have credit.
	Up Status = iota
	// TimedOut consumers get nothing until they have settled what was taken
	// back from them.
	TimedOut
	// Cancelled consumers only settle what they hold, or held.
	Cancelled
	// Quiescing consumers get nothing new, because a consumer with a higher
	// priority takes over once they hold nothing.
	Quiescing
	// Suspected consumers get nothing because their node is suspected.
	Suspected
)

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
	return c.quota.limit() - c.held.Len()
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

// grip is the record of one message held by a consumer. Its deadline is fixed
// when it is handed out, and moves when it is renewed: later settings do not
// affect it. limit ≠ 0 ⇐ deadline ≠ 0.
type grip struct {
	// Invariant: 0 ≤ deadline, 0 ≤ limit. The command that handed the message out
	// has computed all three; a snapshot holds them.
	deadline fsm.Time   // of the consumer timeout, see clock.heldUntil; 0: never
	limit    fsm.Millis // the timeout behind deadline
	since    fsm.Time   // when it was handed out; 0: not known
	// In the arena of messages. The handle is valid as long as the message is held.
	handle uint32
	lock   uint32 // handle in locks; 0: it has none
}

// checkout is one delivery that a consumer holds or held. Its seq is known only
// after the message was lifted, see Machine.lift. It is a copy: changing it
// changes nothing of what is held.
type checkout struct {
	// 1 ≤ id < consumer.next: the number of the delivery.
	id uint64
	grip
	seq    uint64 // of the message, see Machine.lift
	by     uint32 // who held it, see scratch.holder; 0: not noted
	failed bool   // it goes back as failed; set when it does
	// Its lock has ended: a Retry of failures alone does not delay it, even if that
	// counts as one.
	lapsed bool
}

// lateness is a delivery that was taken back from a consumer. The message has a
// place of its own again, so there is no handle: all that is left is the id
// that the consumer may still settle.
type lateness struct {
	id    uint64
	since fsm.Time   // when it was handed out; 0: not known
	limit fsm.Millis // its timeout; 0: not known
}

// compareLate orders late deliveries by their ids.
func compareLate(l lateness, id uint64) int { return cmp.Compare(l.id, id) }

// describeLate returns the ids of late deliveries, at least one, their smallest
// limit, and for how long the oldest has been held now. ids has the order of
// late and belongs to the caller. held is 0 if no instant is known.
func describeLate(late []lateness, now fsm.Time) (ids []uint64, limit, held fsm.Millis) {
	ids, limit = make([]uint64, len(late)), late[0].limit
	for i, l := range late {
		ids[i], limit = l.id, min(limit, l.limit)
		if l.since != 0 {
			held = max(held, fsm.Millis(now-l.since))
		}
	}
	return ids, limit, held
}

// held is what a consumer holds, ascending by delivery id.
//
// Keys have at = 0 and seq = id. It is shared with snapshots by block, so a
// million deliveries freeze in the time of their table of blocks.
type held struct{ sorted[grip] }

// push adds a checkout with an id above all others.
func (d *held) push(c checkout) { d.Put(key{Seq: c.id}, c.grip) }

// find returns the checkout with this id.
func (d *held) find(id uint64) (checkout, bool) {
	if g := d.Get(key{Seq: id}); g != nil {
		return checkout{id: id, grip: *g}, true
	}
	return checkout{}, false
}

// take removes the checkouts first … last and appends them to dst. Ids that are
// not there are left out. O(log n + what is taken).
func (d *held) take(first, last uint64, dst []checkout) []checkout {
	d.Cut(key{Seq: first}, key{Seq: last}, func(k key, g grip) { dst = append(dst, checkout{id: k.Seq, grip: g}) })
	return dst
}

// takeFirst removes the first checkout, which must exist, and appends it to
// dst.
func (d *held) takeFirst(dst []checkout) []checkout {
	k, _ := d.First()
	g, _ := d.Remove(k)
	return append(dst, checkout{id: k.Seq, grip: g})
}

// from iterates over what is held with an id of at least id, ascending.
func (d *held) from(id uint64) iter.Seq[checkout] {
	return func(yield func(checkout) bool) {
		for k, g := range d.sorted.From(key{Seq: id}) {
			if !yield(checkout{id: k.Seq, grip: *g}) {
				return
			}
		}
	}
}

// within appends what is held of some ranges to dst, which is empty, but no more
// than limit. next is the first delivery that is left out; 0: there is none.
func (d *held) within(ranges []uint64, limit int, dst []checkout) (_ []checkout, next uint64) {
	for ; len(ranges) > 0; ranges = ranges[2:] {
		first, last, ok := span(ranges)
		if !ok {
			continue
		}
		for held := range d.from(first) {
			if held.id > last {
				break
			}
			if len(dst) == limit {
				return dst, held.id
			}
			dst = append(dst, held)
		}
	}
	return dst, 0
}

// span decodes the first of some ranges; false: it is empty.
func span(ranges []uint64) (first, last uint64, ok bool) {
	first, length := ranges[0], ranges[1]
	if last = first + length - 1; last < first {
		last = ^uint64(0)
	}
	return first, last, length != 0
}
