package queue

import (
	"math"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	maxPriority     = 31
	defaultPriority = 4

	// Lists of a machine: one per priority (0 … maxPriority) of what is Ready, and one for each
	// other place. Messages to be handed out are only in the lists 0 … returnedList, and in
	// groupedList.
	listsBehind   = maxPriority - int(Ready)
	returnedList  = listsBehind + int(Returned)
	outboxList    = listsBehind + int(Outbox)
	scheduledList = listsBehind + int(Scheduled)
	waitingList   = listsBehind + int(Waiting)
	purgedList    = listsBehind + int(Purged)
	delayedList   = listsBehind + int(Delayed)
	deferredList  = listsBehind + int(Deferred)
	groupedList   = listsBehind + int(Grouped)
	parkedList    = listsBehind + int(Parked)
	listCount     = listsBehind + placeCount

	// expirationBit of message.head: the payload has an expiration property.
	expirationBit = 1 << 15
	// labelBit of message.head: labels has something of the message.
	labelBit = 1 << 14
	headMask = labelBit - 1
)

// Place is where a message is. The values are in snapshots; 0 is no place. Live
// messages are in exactly one.
type Place uint8

const (
	// Ready messages wait in the list of their priority. They may be handed out
	// and may expire, as may Returned ones. Of the others, only Delayed, Deferred and
	// Parked ones expire.
	Ready Place = iota + 1
	// Returned messages are ready too, and are served before the others.
	Returned
	// CheckedOut messages are held by a consumer or a get.
	CheckedOut
	// Outbox messages are dead letters on their way.
	Outbox
	// Scheduled messages become ready at their time.
	Scheduled
	// Waiting messages are dead letters that have no destination for now.
	Waiting
	// Purged messages no longer count and are released step by step.
	Purged
	// Delayed messages were returned, and wait before they become ready again.
	Delayed
	// Deferred messages were put aside by a consumer under a token.
	Deferred
	// Grouped messages are ready and belong to a group.
	Grouped
	// Parked messages have failed more often than the default delivery limit allows.
	Parked

	placeCount = iota + 1
)

// aside reports whether messages here were set aside after a delivery.
func (p Place) aside() bool { return p == Delayed || p == Deferred }

// Count is a number of messages and the bytes of their properties and bodies.
type Count struct{ Messages, Bytes uint64 }

func (c *Count) add(o Count) { c.Messages, c.Bytes = c.Messages+o.Messages, c.Bytes+o.Bytes }
func (c *Count) sub(o Count) { c.Messages, c.Bytes = c.Messages-o.Messages, c.Bytes-o.Bytes }

func (c Count) plus(o Count) Count { return Count{c.Messages + o.Messages, c.Bytes + o.Bytes} }

// message is one record of the arena: 56 bytes, no pointers.
//
// Invariants:
//
//	1 ≤ seq; offset and size name bytes of the entry at index, 1 ≤ size
//	0 ≤ head&headMask ≤ size
//	expireAt is the due time in the places Scheduled, Delayed and Deferred, and
//	≠ 0 in the first two
//	acquired = failed = 0 in the place Ready; failed ≤ acquired, until one of them
//	saturates
//	place = 0 only while a command is moving the message
//
// Who keeps a handle must also keep the seq if the message may be freed
// meanwhile: handles are reused at once.
//
// It has no pointers so that the garbage collector does not scan a backlog, and
// TestMessageSize keeps it from growing. Lists, counts and timers each repeat
// something of it. Only messages changes place, links and number; store sets
// expireAt before the message is watched; settlements count acquired and failed.
type message struct {
	seq      uint64
	index    uint64   // of the log entry with the payload
	expireAt fsm.Time // of a scheduled, delayed or deferred message: when it is due
	offset   uint32
	size     uint32
	// next and prev are handles of the list that the place names, see message.list.
	// While a message is in no list both are 0, and so is next at the end of one.
	next uint32 // in its list; 0: last, or in no list
	prev uint32 // of a returned message: its slot in messages.returns
	// acquired counts deliveries that have ended without an ack, failed those of them
	// that ended in a failure. Both saturate.
	acquired uint32
	failed   uint32
	info     uint32 // handle in messages.extras; 0: none
	head     uint16 // bytes of the payload that no limit counts, expirationBit, labelBit
	priority uint8
	place    Place
}

// extra is what only some messages have. A message has one only if it is not empty: it has a death, a schedule, or a group, or was forwarded.
//
// It is in an arena of its own, under message.info, and dies with its message. A
// snapshot shares deaths, transfers and schedule with it; hence "never changed".
type extra struct {
	deaths []*logpb.Death // newest first; shared, never changed

	// The rest belongs to letters of the outbox. 0 and empty in all other
	// places. 1 ≤ letter < outbox.next.
	letter    uint64
	diedAt    fsm.Time
	transfers []Transfer // not settled; replaced, never changed
	reason    logpb.Death_Reason
	remark    *fsm.Remark // of who rejected it; shared, never changed; nil: none

	schedule *scheduleInfo // replaced, never changed; nil: nothing of it

	hops      uint8 // how often it was forwarded; ≤ maxHops+1
	forwarded bool  // a letter that has not died, but goes on to where the queue forwards

	// Only what group.id says may be read in a snapshot. Letters have no group.
	group     *group // of a message of a group; nil: none
	protected bool   // it is due and its group is held: it is in no timer
}

// scheduleInfo is what even fewer messages have: those that were scheduled or
// set aside, and letters that not all targets have.
//
// It is replaced as a whole (setScheduleInfo), since a snapshot may share it.
type scheduleInfo struct {
	scheduledFor fsm.Time // when it was to become ready; 0: it was never scheduled

	// Of delayed and deferred messages, see aside.
	expireAt fsm.Time // when it expires; 0: never
	deferral string   // the token of a deferred message; empty in other places

	// Of scheduled messages.
	id           string                   // its name; empty: none
	ttl, ceiling fsm.Optional[fsm.Millis] // as in the command

	// For letters: the targets that have it while others do not, and whether a
	// target has refused it.
	done    []fsm.QueueID
	refused bool
}

var noScheduleInfo scheduleInfo

// list is a doubly linked list of messages, so that removal from the middle
// leaves nothing behind. head = 0 ⇔ tail = 0 ⇔ it is empty. The returned list
// has no links back: its order is in returns.
type list struct{ head, tail uint32 }

// ref locates the payload; the machine never reads it.
func (x *message) ref() fsm.Ref { return fsm.Ref{Index: x.index, Offset: x.offset, Size: x.size} }

// list is the number of the list a message with this place is in.
//
// Requires: the place is none of 0 and CheckedOut, which have no list, and the
// record is not one of those that a purge has moved without touching them.
func (x *message) list() int {
	if x.place == Ready {
		return int(x.priority)
	}
	return listsBehind + int(x.place)
}

// placeOf is the place of the messages in a list.
func placeOf(list int) Place {
	if list <= maxPriority {
		return Ready
	}
	return Place(list - listsBehind)
}

// inOrder are the lists that come before what is held in a snapshot and in listings.
var inOrder = func() (order []int) {
	for no := maxPriority; no >= 0; no-- {
		order = append(order, no)
	}
	return append(order, returnedList, scheduledList, delayedList, deferredList, groupedList, parkedList)
}()

// bytes is the size that limits and counts use: properties and body.
func (x *message) bytes() uint64 { return uint64(x.size) - uint64(x.head&headMask) }

// hasExpiration reports whether the payload has an expiration property.
func (x *message) hasExpiration() bool { return x.head&expirationBit != 0 }

// labelled reports whether the message has a label.
func (x *message) labelled() bool { return x.head&labelBit != 0 }

// count is what the message adds to the counts of its place. It never changes.
// So a place may subtract it without knowing when it was added.
func (x *message) count() Count { return Count{1, x.bytes()} }

// waitsForTime reports whether expireAt is not the expiry but the due time.
func (x *message) waitsForTime() bool {
	return x.place == Scheduled || x.place.aside()
}

// ready reports whether the message may be handed out.
func (x *message) ready() bool {
	return x.place == Ready || x.place == Returned || x.place == Grouped
}

// due reports whether the instant of the message has come. A ready message that
// is due must not be handed out.
func (x *message) due(c fsm.Time) bool { return x.expireAt != 0 && x.expireAt <= c }

// extra returns that of message h for reading; never nil. It is good until the next change of any message. Those that have none
// share one empty record, which must not be written to.
func (ms *messages) extra(h uint32) *extra {
	if e := ms.Get(h).info; e != 0 {
		return ms.extras.Get(e)
	}
	return &noExtra
}

var noExtra extra

// scheduleInfo returns the scheduleInfo of message h for reading; never nil.
func (ms *messages) scheduleInfo(h uint32) *scheduleInfo {
	if r := ms.extra(h).schedule; r != nil {
		return r
	}
	return &noScheduleInfo
}

// setScheduleInfo replaces the scheduleInfo of message h. r is copied; its
// slices are not.
func (ms *messages) setScheduleInfo(h uint32, r scheduleInfo) { ms.editExtra(h).schedule = &r }

// editExtra returns that of message h for writing, a new one if needed. It is good until the next alloc or freeze. The caller must
// leave something in it that makes it worth having: a death or a schedule, see
// Check.
func (ms *messages) editExtra(h uint32) *extra {
	x := ms.Mut(h)
	if x.info == 0 {
		x.info = ms.extras.Alloc()
	}
	return ms.extras.Mut(x.info)
}

// bump increments n and saturates.
func bump(n *uint32) {
	if *n < math.MaxUint32 {
		*n++
	}
}
