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
	held  bool // those checked out are looked at, too
	owed  bool // of those, only the ones that their consumers have to settle
	group string
	after uint64
	limit int
	now   fsm.Time
	left  int // messages and consumers to walk over

	// lists, at, seq and purged are for places with lists, which come first; holder and
	// delivery are for CheckedOut.
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

// NewPeek returns a Peek for up to limit messages of some places with a number
// above after, none of which has expired at now. Requires: limit ≥ 0. Letters
// cannot be peeked at: other places find nothing.
func NewPeek(in []Place, after uint64, limit int, now fsm.Time) *Peek {
	p := &Peek{after: after, limit: limit, now: now, left: peekWalk}
	for _, place := range in {
		switch place {
		case Ready:
			for no := range returnedList {
				p.lists = append(p.lists, no)
			}
			p.lists = append(p.lists, returnedList, groupedList)
		case Scheduled, Delayed, Deferred, Parked:
			p.lists = append(p.lists, listsBehind+int(place))
		case CheckedOut:
			p.held = true
		}
	}
	return p
}

// OfGroup leaves out messages that are not of a group. It is called before the first Step.
func (p *Peek) OfGroup(id string) { p.group = id }

// OnlyOwed leaves out messages that consumers need not settle: they have them, which the queue
// is to be told yet. It is called before the first Step.
func (p *Peek) OnlyOwed() { p.owed = true }

// Step continues, and reports whether it is finished. Requires: nobody else
// uses m meanwhile. It walks over at most peekStep messages or consumers, and
// changes nothing.
func (p *Peek) Step(m *Machine) (done bool) {
	n := min(peekStep, p.left)
	p.left -= n
	n = p.walk(m, n)
	if n > 0 && p.held {
		n = p.walkHeld(m, n)
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

func (p *Peek) sort() {
	slices.SortFunc(p.found, func(a, b Message) int { return cmp.Compare(a.Seq, b.Seq) })
	p.found = slices.CompactFunc(p.found, func(a, b Message) bool { return a.Seq == b.Seq })
}

// cut drops what will not be shown, once that is much. The lowest limit+1 are enough: one more than
// is shown, for more.
func (p *Peek) cut() {
	if len(p.found) > 2*(p.limit+1) {
		p.sort()
		p.found = p.found[:min(p.limit+1, len(p.found))]
	}
}

// walk continues with the lists, over up to n messages. It returns how many are left of n: 0 if
// there are more.
func (p *Peek) walk(m *Machine, n int) (left int) {
	for ; len(p.lists) > 0; p.lists, p.at, p.here = p.lists[1:], 0, 0 {
		no := p.lists[0]
		for h := p.resume(m, no); h != 0 && (no >= returnedList || p.here <= p.limit); h = m.messages.Get(h).next {
			if n == 0 {
				p.at, p.seq, p.purged = h, m.messages.Get(h).seq, m.counters.Purged
				return 0
			}
			n--
			if x := m.messages.describe(h); p.shows(&x) {
				p.here++
				x.EnqueuedAt = m.messages.enqueuedAt(h)
				p.found = append(p.found, x)
			}
		}
	}
	return max(n, 1)
}

// resume returns the message of a list to continue with: where the last step
// ended, if that message is still there, otherwise the first.
func (p *Peek) resume(m *Machine, no int) uint32 {
	if h := p.at; h != 0 && p.purged == m.counters.Purged && h < m.messages.End() {
		if x := m.messages.Get(h); x.seq == p.seq && x.place != CheckedOut && x.list() == no {
			return h
		}
	}
	p.here = 0
	return m.messages.head(no)
}

// walkHeld continues with what consumers hold, in the same way as walk.
func (p *Peek) walkHeld(m *Machine, n int) (left int) {
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
			x := m.describeHeld(c.id, &held)
			if p.shows(&x) && !(p.owed && c.noAck) {
				x.EnqueuedAt = m.messages.enqueuedAt(held.handle)
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
		return p.walkHeld(m, n)
	}
	return max(n, 1)
}

func (p *Peek) shows(x *Message) bool {
	return x.Seq > p.after && (x.ExpireAt == 0 || x.ExpireAt > p.now) && (p.group == "" || x.Group == p.group)
}

// Follow finds one message again after each command, whatever becomes of it. It
// only reads. A message is known by its payload's place in the log, which never
// changes; its number may.
type Follow struct {
	ref    fsm.Ref
	handle uint32
	// The delivery that it was seen in last, see HandedTo.
	holder   fsm.ConsumerID
	delivery uint64
}

// Followed describes a message that is followed.
type Followed struct {
	Message
	// Leaving is set if it was handed out, and nobody holds it any more, but the
	// machine has not yet said what becomes of it.
	Leaving bool
}

// FollowRef begins to follow the message with this payload; false: the queue does
// not have it. O(messages).
func FollowRef(m *Machine, ref fsm.Ref) (Follow, bool) {
	for h := uint32(1); h < m.messages.End(); h++ {
		if x := m.messages.Get(h); x.seq != 0 && x.ref() == ref {
			return Follow{ref: ref, handle: h}, true
		}
	}
	return Follow{}, false
}

// Holder returns who held the message last, and in which delivery.
func (f *Follow) Holder() (of fsm.ConsumerID, delivery uint64) { return f.holder, f.delivery }

// HandedTo says in which delivery the message is now.
func (f *Follow) HandedTo(to fsm.ConsumerID, delivery uint64) { f.holder, f.delivery = to, delivery }

// Describe describes the message; false: the queue does not have it any more, or
// has purged it. A purged message may be described until it is released. m is the
// machine with which f began.
func (f *Follow) Describe(m *Machine) (d Followed, ok bool) {
	if f.handle >= m.messages.End() {
		return d, false
	}
	if x := m.messages.Get(f.handle); x.seq == 0 || x.ref() != f.ref {
		return d, false
	}
	d.Message = m.messages.describe(f.handle)
	if d.Place != CheckedOut {
		return d, true
	}
	d.Holder, d.Delivery, d.Leaving = f.holder, f.delivery, true
	if c := consumerOf(m, f.holder); c != nil {
		if held, ok := c.held.find(f.delivery); ok && held.handle == f.handle {
			d.Message, d.Leaving = m.describeHeld(f.holder, &held), false
		}
	}
	return d, true
}

type budget struct {
	left  int
	short bool
}

func (b *budget) take() bool {
	if b.left == 0 {
		b.short = true
		return false
	}
	b.left--
	return true
}

// Ahead counts what of a queue is due at or before each of some instants.
type Ahead struct {
	Expire  []uint64 // messages that Outlook's NextExpiry is about
	Fire    []uint64 // scheduled messages
	TimeOut []uint64 // deliveries that were held for too long by then
	Unlock  []uint64 // deliveries whose locks end, before they were held for too long
	Retry   []uint64 // delayed messages
	Return  []uint64 // deferred messages
	Steps   int      // that it took
	AtLeast bool     // there may be more, as more steps were not allowed
}

// AheadBy counts what is due at or before each of some instants, ascending. It looks at no message: a step
// passes a block of an index, of which a million messages have some ten thousand, or heldAtOnce deliveries
// if some are locked. It takes at most so many steps as are allowed, besides a search in one block for each
// instant. What has not happened yet is not foreseen: a message that becomes ready counts once, though it may
// expire later.
func AheadBy(m *Machine, instants []fsm.Time, steps int) (a Ahead) {
	left, held := &budget{left: steps}, until(instants, m.clock.lockCredit())
	a = m.timers.ahead(until(instants, 0), left)
	if m.deadlines.locked() > 0 {
		a.TimeOut, a.Unlock = m.heldAhead(held, left)
	} else {
		a.TimeOut, a.Unlock = m.deadlines.timeouts(held, left), make([]uint64, len(held))
	}
	a.Steps, a.AtLeast = steps-left.left, left.short
	return a
}

func (t *timers) ahead(before []key, left *budget) Ahead {
	return Ahead{
		Expire: t.expiring(before, left), Fire: t.schedules.Counts(before, left.take),
		Retry: t.delays.Counts(before, left.take), Return: t.returns.Counts(before, left.take),
	}
}

func (t *timers) expiring(before []key, left *budget) []uint64 {
	return t.expiries.Counts(before, left.take)
}

// timeouts counts the deliveries that time out before some keys. Requires: none is locked.
func (ds *deadlines) timeouts(before []key, left *budget) []uint64 {
	return ds.due.Counts(before, left.take)
}

// heldAtOnce is how many deliveries are looked at in one step.
const heldAtOnce = 8

// heldAhead counts the deliveries whose consumer timeout, and those whose lock, comes before some keys. Both
// are counted of a delivery that has both: deadlines knows only when the first one comes.
func (m *Machine) heldAhead(before []key, left *budget) (timeOut, unlock []uint64) {
	timeOut, unlock = make([]uint64, len(before)), make([]uint64, len(before))
	count := func(list []uint64, at fsm.Time) {
		for i := len(before) - 1; at != 0 && i >= 0 && at < before[i].At; i-- {
			list[i]++
		}
	}
	n := 0
	for _, all := range m.holders() {
		for held := range all.from(0) {
			if n++; n%heldAtOnce == 0 && !left.take() {
				return timeOut, unlock
			}
			count(timeOut, held.deadline)
			count(unlock, m.deadlines.unlocks(held.lock))
		}
	}
	return timeOut, unlock
}

// until are the keys behind all that is due at some instants, of a time that is behind the clock.
func until(instants []fsm.Time, behind fsm.Millis) []key {
	keys := make([]key, len(instants))
	for i, at := range instants {
		keys[i] = key{At: at + 1 - fsm.Time(behind)}
	}
	return keys
}
