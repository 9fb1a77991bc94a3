package queue

import (
	"math"
	"math/bits"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	maxPriority     = 31
	defaultPriority = 4

	// Lists of a machine: one per priority, and two more.
	returnedList = maxPriority + 1
	outboxList   = returnedList + 1
	// Those below hold what is ready.
	scheduledList = outboxList + 1
	waitingList   = scheduledList + 1
	purgedList    = waitingList + 1
	delayedList   = purgedList + 1
	listCount     = delayedList + 1

	// expirationBit of message.head: the payload has an expiration property.
	expirationBit = 1 << 15
)

// message is one record of the arena: 56 bytes, no pointers.
type message struct {
	seq      uint64
	index    uint64   // of the log entry with the payload
	expireAt fsm.Time // of a scheduled or delayed message: when it is due
	offset   uint32
	size     uint32
	next     uint32 // in its list; 0: last, or in no list
	prev     uint32 // of a returned message: its slot in Machine.returns
	acquired uint32
	failed   uint32
	extra    uint32 // handle in Machine.extras; 0: none
	head     uint16 // bytes of the payload that no limit counts, and expirationBit
	priority uint8
	place    Place
}

// extra holds what few messages have.
type extra struct {
	deaths []*logpb.Death // newest first; shared, never changed

	// The rest belongs to letters of the outbox.
	letter    uint64
	diedAt    fsm.Time
	transfers []Transfer // not settled; replaced, never changed
	reason    logpb.Death_Reason

	rare *rare // replaced, never changed; nil: nothing of it
}

// rare is the part of an extra that even fewer messages have.
type rare struct {
	scheduledFor fsm.Time // when it was to become ready; 0: it never was scheduled

	expireAt fsm.Time // of a delayed message: when it expires; 0: never

	// Of scheduled messages.
	id           string // its name; empty: none
	ttl, ceiling uint64 // + 1, as in the command; 0: none

	// Of letters: targets that have it while others do not, and whether one
	// has refused it.
	done    []fsm.QueueID
	refused bool
}

var noRare rare

// list is a doubly linked list of messages: taking one out of the middle
// leaves nothing behind.
type list struct{ head, tail uint32 }

func (x *message) ref() fsm.Ref { return fsm.Ref{Index: x.index, Offset: x.offset, Size: x.size} }

// list is the number of the list a message with this place is in.
func (x *message) list() int {
	switch x.place {
	case Returned:
		return returnedList
	case Outbox:
		return outboxList
	case Scheduled:
		return scheduledList
	case Waiting:
		return waitingList
	case Purged:
		return purgedList
	case Delayed:
		return delayedList
	}
	return int(x.priority)
}

// bytes is what limits and counts see of the payload: properties and body.
func (x *message) bytes() uint64 { return uint64(x.size) - uint64(x.head&^expirationBit) }

// hasExpiration reports whether the payload has an expiration property.
func (x *message) hasExpiration() bool { return x.head&expirationBit != 0 }

func (x *message) count() Count { return Count{1, x.bytes()} }

// ready reports whether the message may be handed out, and may expire.
func (x *message) ready() bool { return x.place == Ready || x.place == Returned }

func (x *message) due(c fsm.Time) bool { return x.expireAt != 0 && x.expireAt <= c }

// setPlace moves x to another place in the books. Lists are the caller's work.
func (m *Machine) setPlace(x *message, p Place) {
	m.scratch.steps++
	m.counts[x.place].sub(x.count())
	x.place = p
	m.counts[p].add(x.count())
}

// append puts message h, whose place is set, at the end of its list.
func (m *Machine) append(h uint32) {
	x := m.messages.get(h)
	m.insertAfter(m.lists[x.list()].tail, h)
}

// insertAfter puts message h, whose place is set, behind at in its list; at 0
// is before the first. Returned messages go through insertReturned.
func (m *Machine) insertAfter(at, h uint32) {
	x := m.messages.mut(h)
	no := x.list()
	l := &m.lists[no]
	next := l.head
	if at != 0 {
		next = m.messages.get(at).next
	}
	x.prev, x.next = at, next
	if at == 0 {
		l.head = h
	} else {
		m.messages.mut(at).next = h
	}
	if next == 0 {
		l.tail = h
	} else {
		m.messages.mut(next).prev = h
	}
	if no <= maxPriority {
		m.waiting |= 1 << no
	}
}

// remove takes message h out of its list and leaves it in no place.
func (m *Machine) remove(h uint32) {
	x := m.messages.mut(h)
	no := x.list()
	l := &m.lists[no]
	prev, next := x.prev, x.next
	m.unindex(h)
	if no == returnedList {
		prev = m.removeReturned(h)
		x = m.messages.mut(h)
	}
	x.prev, x.next = 0, 0
	m.setPlace(x, 0)
	if prev == 0 {
		l.head = next
	} else {
		m.messages.mut(prev).next = next
	}
	if next == 0 {
		l.tail = prev
	} else if no != returnedList {
		m.messages.mut(next).prev = prev
	}
	if no <= maxPriority && l.head == 0 {
		m.waiting &^= 1 << no
	}
}

// unindex takes message h out of the indexes that belong to its place.
func (m *Machine) unindex(h uint32) {
	switch x := m.messages.get(h); x.place {
	case Ready, Returned:
		if x.expireAt != 0 {
			m.expiries.remove(key{x.expireAt, x.seq})
		}
	case Scheduled:
		m.schedules.remove(key{x.expireAt, x.seq})
		m.numbers.remove(key{seq: x.seq})
	case Delayed:
		m.delays.remove(key{x.expireAt, x.seq})
	case Waiting:
		m.patient.remove(key{seq: m.extraOf(h).letter})
	}
}

// front is the message to hand out next, due or not; 0: none.
func (m *Machine) front() uint32 {
	if h := m.lists[returnedList].head; h != 0 {
		return h
	}
	if m.waiting == 0 {
		return 0
	}
	return m.lists[bits.Len32(m.waiting)-1].head
}

// readyCount is the number of ready messages, returned ones included.
func (m *Machine) readyCount() uint64 {
	return m.counts[Ready].Messages + m.counts[Returned].Messages
}

// free forgets message h, which is in no place.
func (m *Machine) free(h uint32, eff *fsm.Effects) {
	m.scratch.steps++
	x := m.messages.get(h)
	index := x.index
	m.counts[0].sub(x.count())
	if x.extra != 0 {
		m.extras.release(x.extra)
	}
	m.messages.release(h)
	if m.live.drop(index) {
		eff.Released = append(eff.Released, index)
		m.revivable = m.revivable || index == m.index
	}
}

// keepEntry counts a new message of the entry that is being applied. If the
// messages that came before it with this entry have all gone already, or were
// refused, what was said of that is taken back: all of it, for it may have been
// said more than once.
func (m *Machine) keepEntry(eff *fsm.Effects) {
	m.live.add(m.index)
	if !m.revivable {
		return
	}
	m.revivable = false
	eff.Released = slices.DeleteFunc(eff.Released, func(index uint64) bool { return index == m.index })
}

// extraOf returns the extra of message h for reading; never nil.
func (m *Machine) extraOf(h uint32) *extra {
	if e := m.messages.get(h).extra; e != 0 {
		return m.extras.get(e)
	}
	return &noExtra
}

var noExtra extra

// rareOf returns the rare part of message h for reading; never nil.
func (m *Machine) rareOf(h uint32) *rare {
	if r := m.extraOf(h).rare; r != nil {
		return r
	}
	return &noRare
}

// setRare replaces the rare part of message h.
func (m *Machine) setRare(h uint32, r rare) { m.mutExtra(h).rare = &r }

// mutExtra returns the extra of message h for writing, a new one if needed.
func (m *Machine) mutExtra(h uint32) *extra {
	x := m.messages.mut(h)
	if x.extra == 0 {
		x.extra = m.extras.alloc()
	}
	return m.extras.mut(x.extra)
}

// bump adds one and saturates.
func bump(n *uint32) {
	if *n < math.MaxUint32 {
		*n++
	}
}
