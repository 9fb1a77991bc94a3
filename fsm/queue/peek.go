package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

const (
	// peekWalk bounds how many messages a Peek walks over, and how many
	// consumers.
	peekWalk = 100_000

	// peekStep bounds one step.
	peekStep = 2048
)

// Peek finds messages that are Ready (returned ones included), CheckedOut,
// Scheduled, Delayed, Deferred or Parked, by number, starting above a given number. Expired
// messages are left out. It walks the first 100,000 messages of the place in
// several steps; messages after those are not shown. Others may use the machine
// between two steps, so messages that come or go meanwhile may or may not be
// shown.
//
// It keeps no pointer into the machine, only handles and numbers that it checks
// before it uses them. What it has found belongs to it, except for Deaths,
// which are shared and never changed.
type Peek struct {
	in    Place
	after uint64
	limit int
	now   fsm.Time
	left  int // messages and consumers to walk over

	// lists, at, seq and purged are for places with lists; holder and delivery
	// are for CheckedOut.
	lists []int // still to walk over
	here  int   // found in the first of them
	// The message of that list to continue with (0: the first), and its number.
	at     uint32
	seq    uint64
	purged uint64 // messages the machine had purged at that time

	holder, delivery uint64 // continue after this delivery of this consumer
	detached         bool   // which is one of the detached; these come last
	found            []Message
}

// NewPeek returns a Peek for up to limit messages of a place with a number
// above after, none of which has expired at now. Requires: limit ≥ 0. Letters
// cannot be peeked at: other places find nothing.
func NewPeek(in Place, after uint64, limit int, now fsm.Time) *Peek {
	p := &Peek{in: in, after: after, limit: limit, now: now, left: peekWalk}
	switch in {
	case Ready:
		for no := range returnedList {
			p.lists = append(p.lists, no)
		}
		p.lists = append(p.lists, returnedList, groupedList)
	case Scheduled:
		p.lists = []int{scheduledList}
	case Delayed:
		p.lists = []int{delayedList}
	case Deferred:
		p.lists = []int{deferredList}
	case Parked:
		p.lists = []int{parkedList}
	}
	return p
}

// Step continues, and reports whether it is finished. Requires: nobody else
// uses m meanwhile. It walks over at most peekStep messages or consumers, and
// changes nothing.
func (p *Peek) Step(m *Machine) (done bool) {
	n := min(peekStep, p.left)
	p.left -= n
	if p.in == CheckedOut {
		n = p.held(m, n)
	} else {
		n = p.walk(m, n)
	}
	p.cut()
	return n > 0 || p.left == 0
}

// Result returns what was found. more says that there may be others after the
// last one. It may be called once done. The list belongs to the caller.
func (p *Peek) Result() (list []Message, more bool) {
	p.sort()
	n := min(p.limit, len(p.found))
	return p.found[:n], len(p.found) > n
}

// sort orders what was found, and removes duplicates.
func (p *Peek) sort() {
	slices.SortFunc(p.found, func(a, b Message) int { return cmp.Compare(a.Seq, b.Seq) })
	p.found = slices.CompactFunc(p.found, func(a, b Message) bool { return a.Seq == b.Seq })
}

// cut drops what will not be shown, once that is much. So found never has more
// than 2*(limit+1) + peekStep messages. The lowest limit+1 are enough: one more
// than is shown, for more.
func (p *Peek) cut() {
	if len(p.found) > 2*(p.limit+1) {
		p.sort()
		p.found = p.found[:min(p.limit+1, len(p.found))]
	}
}

// walk continues with the lists, over up to n messages. It returns how many are
// left of n: 0 if there are more. Lists of ready messages are ordered by
// number, so that the first ones suffice.
func (p *Peek) walk(m *Machine, n int) (left int) {
	for ; len(p.lists) > 0; p.lists, p.at, p.here = p.lists[1:], 0, 0 {
		no := p.lists[0]
		for h := p.resume(m, no); h != 0 && (no >= returnedList || p.here <= p.limit); h = m.messages.get(h).next {
			if n == 0 {
				p.at, p.seq, p.purged = h, m.messages.get(h).seq, m.counters.Purged
				return 0
			}
			n--
			if x := m.messages.describe(h); p.shows(&x) {
				p.here++
				p.found = append(p.found, x)
			}
		}
	}
	return max(n, 1)
}

// resume returns the message of a list to continue with: where the last step
// ended, if that message is still there, otherwise the first.
func (p *Peek) resume(m *Machine, no int) uint32 {
	if h := p.at; h != 0 && p.purged == m.counters.Purged && h < m.messages.end() {
		if x := m.messages.get(h); x.seq == p.seq && x.place != CheckedOut && x.list() == no {
			return h
		}
	}
	p.here = 0
	return m.messages.head(no)
}

// held continues with what consumers hold, in the same way as walk.
func (p *Peek) held(m *Machine, n int) (left int) {
	holders := m.consumers.from(p.holder)
	if p.detached {
		holders = m.detached.from(p.holder)
	}
	for c := range holders {
		if c.registered != p.holder {
			p.holder, p.delivery = c.registered, 0
		}
		for held := range c.held.from(p.delivery + 1) {
			if n == 0 {
				return 0
			}
			n--
			p.delivery = held.id
			x := m.deliveries.describe(c.id, &held)
			if p.shows(&x) {
				p.found = append(p.found, x)
			}
		}
		if n == 0 {
			return 0
		}
		n--
	}
	if !p.detached {
		p.detached, p.holder, p.delivery = true, 0, 0
		return p.held(m, n)
	}
	return max(n, 1)
}

// shows reports whether a message is to be shown.
func (p *Peek) shows(x *Message) bool {
	return x.Seq > p.after && (x.ExpireAt == 0 || x.ExpireAt > p.now)
}
