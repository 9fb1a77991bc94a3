package ordered

import (
	"fmt"
	"iter"
	"slices"
)

// runLen is how many items one block of a sequence may have.
const runLen = 128

// run is a run of the items, in order: handles[head:tail], and their numbers, which are
// in no particular order. Entries before head are
// left over: removing the first one, which is what handing out does, only moves
// head.
type run struct {
	head, tail int
	seqs       [runLen]uint64
	handles    [runLen]uint32
}

func (b *run) len() int { return b.tail - b.head }

// slot is the position of a block in the ring of blocks. Slot 0 has no
// block: it precedes the first and follows the last. The slot stays where it is
// for as long as the block is in use, so items can name it. A free slot is
// zero.
type slot struct {
	least      uint64 // least number in the block
	prev, next uint32
	block      *run
}

// Sequence is an order of items that have a number each, in which those that are added
// may get any position. Without walking over the items it finds the last one whose number
// is less than a given one, and the one before another. Items are handles, from 1; each is
// told its slot whenever that changes, and is found by it.
//
// Invariants:
//
//	slots form a ring by prev and next, through slot 0, in the order of the items
//	1 ≤ block.len() ≤ runLen; slot 0 and those in free have no block
//	least = the least of seqs[head:tail]
//
// Built again by appending, blocks may be cut differently; the order is the same. An
// empty Sequence has no slots. It is no Table, because positions have no keys that could
// stay valid.
type Sequence struct {
	// free are the slots without a block except slot 0; spare is one empty block for
	// the next newSlot.
	slots []slot
	free  []uint32
	spare *run
}

// newSlot inserts an empty block after slot at. The caller fills the block
// before anything else happens: an empty block is invalid.
func (r *Sequence) newSlot(at uint32) uint32 {
	if len(r.slots) == 0 {
		r.slots = append(r.slots, slot{})
	}
	no := uint32(len(r.slots))
	if n := len(r.free); n > 0 {
		no, r.free = r.free[n-1], r.free[:n-1]
	} else {
		r.slots = append(r.slots, slot{})
	}
	b := r.spare
	if r.spare = nil; b == nil {
		b = &run{}
	}
	b.head, b.tail = 0, 0
	next := r.slots[at].next
	r.slots[no] = slot{least: ^uint64(0), prev: at, next: next, block: b}
	r.slots[at].next, r.slots[next].prev = no, no
	return no
}

// drop removes slot no, whose block is empty, from the ring. If no block is
// left the sequence is given up.
func (r *Sequence) drop(no uint32) {
	s := &r.slots[no]
	r.slots[s.prev].next, r.slots[s.next].prev = s.next, s.prev
	r.spare = s.block
	*s = slot{}
	if r.free = append(r.free, no); len(r.free) == len(r.slots)-1 {
		r.slots, r.free = nil, nil
	}
}

func (r *Sequence) measure(no uint32) {
	s := &r.slots[no]
	s.least = ^uint64(0)
	for _, seq := range s.block.seqs[s.block.head:s.block.tail] {
		s.least = min(s.least, seq)
	}
}

// Place is a position in a sequence, until that changes: between at-1 and at in the block
// of a slot. Slot 0 stands for an empty sequence.
type Place struct {
	slot uint32
	at   int
}

// End is the position after the last item.
func (r *Sequence) End() Place {
	if len(r.slots) == 0 {
		return Place{}
	}
	no := r.slots[0].prev
	if no == 0 {
		return Place{}
	}
	return Place{no, r.slots[no].block.tail}
}

// BehindOlder returns the position after the last item before p whose number is less than
// seq, and the number of blocks that were looked at. If there is none, it is the position
// before all items. O(blocks between the two + runLen).
func (r *Sequence) BehindOlder(p Place, seq uint64) (Place, int) {
	steps := 0
	for p.slot != 0 {
		s := &r.slots[p.slot]
		if steps++; s.least < seq {
			for at := p.at; at > s.block.head; at-- {
				if s.block.seqs[at-1] < seq {
					return Place{p.slot, at}, steps
				}
			}
		}
		if p.slot = s.prev; p.slot != 0 {
			p.at = r.slots[p.slot].block.tail
		}
	}
	if len(r.slots) == 0 {
		return Place{}, steps
	}
	first := r.slots[0].next
	return Place{first, r.slots[first].block.head}, steps
}

// NumberBefore returns the number of the item before a position that BehindOlder has
// found; 0: there is none.
func (r *Sequence) NumberBefore(p Place) uint64 {
	if p.slot == 0 || p.at == r.slots[p.slot].block.head {
		return 0 // a block's head is found only before all items
	}
	return r.slots[p.slot].block.seqs[p.at-1]
}

// Before returns the item before a position; 0: there is none.
func (r *Sequence) Before(p Place) uint32 {
	if p.slot == 0 {
		return 0
	}
	s := &r.slots[p.slot]
	if p.at > s.block.head {
		return s.block.handles[p.at-1]
	}
	if s.prev == 0 {
		return 0
	}
	b := r.slots[s.prev].block
	return b.handles[b.tail-1]
}

// add appends an item to slot no and returns its slot, which is a new one if that was full.
// O(1), but for moving the entries of a block that has been used up to its end.
func (r *Sequence) add(no, h uint32, seq uint64, moved func(h, slot uint32)) uint32 {
	if no == 0 || r.slots[no].block.len() == runLen {
		no = r.newSlot(no)
	}
	s := &r.slots[no]
	b := s.block
	if b.tail == runLen {
		n := copy(b.seqs[:], b.seqs[b.head:])
		copy(b.handles[:], b.handles[b.head:])
		b.head, b.tail = 0, n
	}
	b.seqs[b.tail], b.handles[b.tail] = seq, h
	b.tail++
	s.least = min(s.least, seq)
	moved(h, no)
	return no
}

// splitOff removes what follows a position in its block. What it returns is a
// copy. The block may be empty afterwards; the caller adds to it at once.
func (r *Sequence) splitOff(p Place) (handles []uint32, seqs []uint64) {
	if p.slot == 0 {
		return nil, nil
	}
	b := r.slots[p.slot].block
	if p.at == b.tail {
		return nil, nil
	}
	handles, seqs = slices.Clone(b.handles[p.at:b.tail]), slices.Clone(b.seqs[p.at:b.tail])
	b.tail = p.at
	r.measure(p.slot)
	return handles, seqs
}

// PlaceOf returns the position before item h, which is in slot no. O(runLen).
func (r *Sequence) PlaceOf(no, h uint32) Place {
	b := r.slots[no].block
	at := b.head
	for b.handles[at] != h {
		at++
	}
	return Place{no, at}
}

// Insert inserts n items, at least one, in this order at a position. moved tells an item its
// slot. O(n + runLen): what follows p in its block is moved at most once.
func (r *Sequence) Insert(p Place, n int, item func(i int) (h uint32, seq uint64), moved func(h, slot uint32)) {
	no := p.slot
	rest, seqs := r.splitOff(p)
	for i := range n {
		h, seq := item(i)
		no = r.add(no, h, seq, moved)
	}
	if len(rest) > runLen/2 && len(rest)+r.slots[no].block.len() > runLen {
		no = r.newSlot(no)
	}
	for i, h := range rest {
		no = r.add(no, h, seqs[i], moved)
	}
	r.join(no, moved)
	r.join(r.slots[no].prev, moved)
}

// join merges the block of a slot with the next one, if both are small. The half that is
// left free keeps one insertion from splitting it again.
func (r *Sequence) join(no uint32, moved func(h, slot uint32)) {
	next := r.slots[no].next
	if no == 0 || next == 0 || r.slots[no].block.len()+r.slots[next].block.len() > runLen/2 {
		return
	}
	b := r.slots[next].block
	for at := b.head; at < b.tail; at++ {
		r.add(no, b.handles[at], b.seqs[at], moved)
	}
	b.head, b.tail = 0, 0
	r.drop(next)
}

// Remove removes the item at a position, and returns the one before it; 0: there is none.
func (r *Sequence) Remove(p Place, moved func(h, slot uint32)) (before uint32) {
	no, at := p.slot, p.at
	s := &r.slots[no]
	b := s.block
	before = r.Before(p)
	seq := b.seqs[at]
	if at == b.head {
		b.head++
	} else {
		copy(b.seqs[at:], b.seqs[at+1:b.tail])
		copy(b.handles[at:], b.handles[at+1:b.tail])
		b.tail--
	}
	if b.len() == 0 {
		r.drop(no)
		return before
	}
	if s.least == seq {
		r.measure(no)
	}
	r.join(no, moved)
	return before
}

// Least returns the item with the least number; 0: there is none. O(blocks + runLen).
func (r *Sequence) Least() (h uint32) {
	least := ^uint64(0)
	var in *run
	for i := range r.slots {
		if s := &r.slots[i]; s.block != nil && s.least < least {
			least, in = s.least, s.block
		}
	}
	if in == nil {
		return 0
	}
	at := in.head
	for in.seqs[at] != least {
		at++
	}
	return in.handles[at]
}

// Item is what a sequence knows of an item.
type Item struct {
	Number uint64
	Slot   uint32
}

// All iterates over the items, in order.
func (r *Sequence) All() iter.Seq2[uint32, Item] {
	return func(yield func(uint32, Item) bool) {
		for no := uint32(0); len(r.slots) > 0; {
			if no = r.slots[no].next; no == 0 {
				return
			}
			b := r.slots[no].block
			for at := b.head; at < b.tail; at++ {
				if !yield(b.handles[at], Item{b.seqs[at], no}) {
					return
				}
			}
		}
	}
}

// Check returns what is wrong with the blocks.
func (r *Sequence) Check() error {
	for no, s := range r.slots {
		if b := s.block; b != nil && (b.len() < 1 || b.len() > runLen || s.least != slices.Min(b.seqs[b.head:b.tail])) {
			return fmt.Errorf("block %d of %d items: the least is %d", no, b.len(), s.least)
		}
	}
	return nil
}
