package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// peekWalk bounds how many messages a Peek walks over.
const peekWalk = 100_000

// Peek returns up to limit messages that are Ready (returned ones included),
// CheckedOut, Scheduled or Delayed, by number, of those with a number above
// after. Messages that have expired at now are left out. more says that there
// may be others behind the last one. It walks over the first 100,000 messages
// of the place: those behind them are not shown.
func (m *Machine) Peek(in Place, after uint64, limit int, now fsm.Time) (list []Message, more bool) {
	p := peek{m: m, after: after, now: now, left: peekWalk}
	switch in {
	case Ready:
		for no := range returnedList { // each is in the order of the numbers
			p.walk(no, limit+1)
		}
		p.walk(returnedList, peekWalk)
	case Scheduled:
		p.walk(scheduledList, peekWalk)
	case Delayed:
		p.walk(delayedList, peekWalk)
	case CheckedOut:
		p.held()
	}
	slices.SortFunc(p.found, func(a, b peeked) int { return cmp.Compare(a.seq, b.seq) })
	more = len(p.found) > limit
	for _, f := range p.found[:min(limit, len(p.found))] {
		d := m.describeMessage(f.h)
		if f.c != nil {
			d.Holder, d.Delivery, d.Deadline = f.c.id, f.held.id, m.heldUntil(f.held.deadline)
		}
		list = append(list, d)
	}
	return list, more
}

// peek is a walk for Peek.
type peek struct {
	m     *Machine
	after uint64
	now   fsm.Time
	left  int // steps
	found []peeked
}

type peeked struct {
	seq  uint64
	h    uint32
	c    *consumer // nil: nobody holds it
	held checkout
}

// walk finds up to limit messages of one list.
func (p *peek) walk(no, limit int) {
	for h := p.m.lists[no].head; h != 0 && limit > 0 && p.left > 0; h = p.m.messages.get(h).next {
		if p.take(peeked{h: h}) {
			limit--
		}
	}
}

// held finds what consumers hold.
func (p *peek) held() {
	for _, c := range p.m.consumers {
		for held := range c.held.from(0) {
			if p.left == 0 {
				return
			}
			p.take(peeked{h: held.handle, c: c, held: held})
		}
	}
}

// take takes a message if it is to be shown.
func (p *peek) take(f peeked) bool {
	p.left--
	x := p.m.messages.get(f.h)
	expireAt := x.expireAt
	if x.place == Scheduled || x.place == Delayed {
		expireAt = p.m.rareOf(f.h).expireAt
	}
	if x.seq <= p.after || expireAt != 0 && expireAt <= p.now {
		return false
	}
	f.seq = x.seq
	p.found = append(p.found, f)
	return true
}
