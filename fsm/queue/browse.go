package queue

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// A browser sees ready messages by number, each once, and changes nothing. It keeps
// the number up to which it has seen them, and nobody keeps anything for it. So the
// lists of ready messages can be entered at a number: the returned ones and those of
// groups have such an order anyway, and those of a priority, which ascend, have a mark
// at the first message of each block of numbers. The first of a list needs none: so
// handing out from there, which is what queues do, changes a mark once in a block.

// markBits says how many numbers a block has: 2^markBits.
const markBits = 8

func blockOf(seq uint64) uint64 { return seq >> markBits }

// markKey is the key of the mark of a block: the newest block of a list comes first.
func markKey(list int, block uint64) key { return key{At: fsm.Time(list), Seq: ^block} }

// marks are where the lists of priorities can be entered: messages has the invariant.
type marks struct{ sorted[uint32] }

// added is called with message h, which has become the last one of a list.
func (t *marks) added(ms *messages, list int, h uint32) {
	x := ms.Get(h)
	if x.prev != 0 && blockOf(ms.Get(x.prev).seq) != blockOf(x.seq) {
		t.Put(markKey(list, blockOf(x.seq)), h)
	}
}

// removed is called when the message with a number has left a list, in which prev and
// next were beside it.
func (t *marks) removed(ms *messages, list int, seq uint64, prev, next uint32) {
	block, first, same := blockOf(seq), prev == 0, false
	if next != 0 {
		same = blockOf(ms.Get(next).seq) == block
	}
	switch {
	case first && next != 0 && !same: // it is the first of the list now
		t.Remove(markKey(list, blockOf(ms.Get(next).seq)))
	case first || blockOf(ms.Get(prev).seq) == block:
	case same:
		*t.Edit(markKey(list, block)) = next
	default:
		t.Remove(markKey(list, block))
	}
}

// above returns the first message of a list with a number above a given one; 0: there
// is none. It walks over less than two blocks of numbers.
func (t *marks) above(ms *messages, list int, after uint64) uint32 {
	l := ms.lists[list]
	if l.head == 0 || ms.Get(l.tail).seq <= after {
		return 0
	}
	h := l.head
	if ms.Get(h).seq <= after {
		for k, at := range t.From(markKey(list, blockOf(after+1))) {
			if k.At == fsm.Time(list) {
				h = *at
			}
			break
		}
	}
	for ms.Get(h).seq <= after {
		h = ms.Get(h).next
	}
	return h
}

// numbered iterates over the messages of a list of ready ones with a number above a
// given one: by number, or in the order of the returned ones.
func (ms *messages) numbered(list int, after uint64) iter.Seq2[uint64, uint32] {
	return func(yield func(uint64, uint32) bool) {
		switch list {
		case groupedList:
			ms.groups.byAge(after+1, yield)
		case returnedList:
			for h, at := range ms.returns.All() {
				if at.Number > after && !yield(at.Number, h) {
					return
				}
			}
		default:
			for h := ms.marks.above(ms, list, after); h != 0 && yield(ms.Get(h).seq, h); h = ms.Get(h).next {
			}
		}
	}
}

// byAge calls yield for the Grouped messages from a number on, until that returns false.
func (gs *groups) byAge(from uint64, yield func(uint64, uint32) bool) {
	for k, h := range gs.ages.From(key{Seq: from}) {
		if !yield(k.Seq, *h) {
			return
		}
	}
}

func (t *marks) check(k *checker, ms *messages) {
	n := 0
	for list := range maxPriority + 1 {
		last := uint64(0)
		for h := ms.lists[list].head; h != 0; h = ms.Get(h).next {
			x := ms.Get(h)
			if x.prev != 0 && blockOf(x.seq) != last {
				n++
				k.that(t.Value(markKey(list, blockOf(x.seq))) == h, "message %d has no mark", x.seq)
			}
			last = blockOf(x.seq)
		}
	}
	k.that(n == t.Len(), "%d marks, %d blocks", t.Len(), n)
}

// browseWalk bounds how many messages of a list one Browse looks at.
const browseWalk = 2048

// Part is a part of what is ready.
type Part uint8

// Parts.
const (
	Whole Part = iota
	First      // never handed out, and of no group
	Again      // returned, and of no group
)

// Browse asks for ready messages of all places, by number.
type Browse struct {
	After uint64 // only those with a number above this one
	Limit int    // at most so many; 0: only the counts. ≤ browseWalk
	Now   fsm.Time
	In    Part // of the ready ones

	// Found ascends by number, and has not expired at Now. All that is ready up to the
	// number Seen is in it: everything, if that is Newest. The list is the caller's,
	// except for Deaths, which are shared and never changed.
	Found  []Message
	Seen   uint64
	Newest uint64 // the highest number that a message has had
	Ready  uint64 // messages
	// CameBack is how many messages were returned so far, in this machine.
	CameBack uint64
}

// Scan answers. It changes nothing. It takes at most browseWalk steps for each list that
// has messages, and reads the number of each returned message.
func (b *Browse) Scan(m *Machine) {
	b.Newest, b.Ready, b.CameBack = m.messages.nextSeq()-1, m.messages.readyCount(), m.messages.timesBack()
	if b.Limit <= 0 {
		return
	}
	x := browsing{messages: m.messages, after: b.After, limit: b.Limit, now: b.Now, seen: b.Newest}
	if b.In != Again {
		for list := range maxPriority + 1 {
			x.ascending(list)
		}
	}
	if b.In == Whole {
		x.ascending(groupedList)
	}
	if b.In != First {
		x.returned()
	}
	slices.SortFunc(x.found, func(x, y numbered) int { return cmp.Compare(x.seq, y.seq) })
	for _, of := range x.found {
		if of.seq > x.seen || len(b.Found) == b.Limit {
			x.seen = min(x.seen, of.seq-1)
			break
		}
		d := m.messages.describe(of.handle)
		d.EnqueuedAt = m.messages.enqueuedAt(of.handle)
		b.Found = append(b.Found, d)
	}
	b.Seen = x.seen
}

// browsing is the state of one Browse.
//
// Invariant: found has all messages of the lists looked at so far with numbers from
// after+1 to seen that have not expired at now.
type browsing struct {
	messages    *messages
	after, seen uint64
	limit       int
	now         fsm.Time
	found       []numbered
}

type numbered struct {
	seq    uint64
	handle uint32
}

// ascending adds those of a list whose numbers ascend.
func (b *browsing) ascending(list int) {
	steps, some := 0, 0
	for seq, h := range b.messages.numbered(list, b.after) {
		if !b.takes(&steps, &some, seq, h) {
			return
		}
	}
}

// takes adds the next message of a list whose numbers ascend. some counts those that have not expired.
// false: it and those behind it are not looked at.
func (b *browsing) takes(steps, some *int, seq uint64, h uint32) bool {
	if *steps == browseWalk || *some == b.limit || seq > b.seen {
		b.seen = min(b.seen, seq-1)
		return false
	}
	*steps++
	if !b.messages.Get(h).due(b.now) {
		*some++
		b.found = append(b.found, numbered{seq, h})
	}
	return true
}

// returned adds those of the returned messages, which are in no order, that have the lowest numbers.
func (b *browsing) returned() {
	var some []numbered
	below := uint64(math.MaxUint64) // of this number and above some are left out
	cut := func() {
		slices.SortFunc(some, func(x, y numbered) int { return cmp.Compare(x.seq, y.seq) })
		if len(some) > b.limit {
			below = some[b.limit].seq
			some = some[:b.limit]
		}
	}
	for seq, h := range b.messages.numbered(returnedList, b.after) {
		if seq < below && !b.messages.Get(h).due(b.now) {
			if some = append(some, numbered{seq, h}); len(some) == 4*b.limit {
				cut()
			}
		}
	}
	cut()
	b.seen = min(b.seen, below-1)
	b.found = append(b.found, some...)
}
