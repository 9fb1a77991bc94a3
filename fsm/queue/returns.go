package queue

// returnsLen is how many messages one block of returns may have.
const returnsLen = 128

// stepsPerScan is how many blocks are scanned in the time of one step.
const stepsPerScan = 16

// returnsBlock is a run of the returned messages, in order: handles[head:tail],
// and their numbers, which are in no particular order. Entries before head are
// left over: removing the first one, which is what handing out does, only moves
// head.
type returnsBlock struct {
	head, tail int
	seqs       [returnsLen]uint64
	handles    [returnsLen]uint32
}

func (b *returnsBlock) len() int { return b.tail - b.head }

// returnsSlot is the position of a block in the ring of blocks. Slot 0 has no
// block: it precedes the first and follows the last. The slot stays where it is
// for as long as the block is in use, so messages can name it. A free slot is
// zero.
type returnsSlot struct {
	least      uint64 // least number in the block
	prev, next uint32
	block      *returnsBlock
}

// returns is an index of the list of returned messages. Without walking the
// list it finds the last message that is older than a given one, and the
// predecessor of a message. message.prev is the slot of a returned message.
//
// Invariants:
//
//	slots form a ring by prev and next, through slot 0, in the order of the list
//	1 ≤ block.len() ≤ returnsLen; slot 0 and those in free have no block
//	least = the least of seqs[head:tail]
//	a message of the list is in the block of the slot that its prev names
//
// It holds nothing that the list does not say, is in no snapshot, and is built
// again by appending. Blocks may be cut differently then; the order is the same.
// An empty returns has no slots.
//
// It is not a sorted table, because the list is not in the order of numbers,
// since requeued messages go to its end, and positions have no keys that could
// stay valid.
type returns struct {
	// free are the slots without a block except slot 0; spare is one empty block for
	// the next newSlot.
	slots []returnsSlot
	free  []uint32
	spare *returnsBlock
}

// newSlot inserts an empty block after slot at. The caller fills the block
// before anything else happens: an empty block is invalid.
func (r *returns) newSlot(at uint32) uint32 {
	if len(r.slots) == 0 {
		r.slots = append(r.slots, returnsSlot{})
	}
	no := uint32(len(r.slots))
	if n := len(r.free); n > 0 {
		no, r.free = r.free[n-1], r.free[:n-1]
	} else {
		r.slots = append(r.slots, returnsSlot{})
	}
	b := r.spare
	if r.spare = nil; b == nil {
		b = &returnsBlock{}
	}
	b.head, b.tail = 0, 0
	next := r.slots[at].next
	r.slots[no] = returnsSlot{least: ^uint64(0), prev: at, next: next, block: b}
	r.slots[at].next, r.slots[next].prev = no, no
	return no
}

// drop removes slot no, whose block is empty, from the ring. If no block is
// left the table is given up.
func (r *returns) drop(no uint32) {
	s := &r.slots[no]
	r.slots[s.prev].next, r.slots[s.next].prev = s.next, s.prev
	r.spare = s.block
	*s = returnsSlot{}
	if r.free = append(r.free, no); len(r.free) == len(r.slots)-1 {
		r.slots, r.free = nil, nil
	}
}

// measure computes the least number of slot no.
func (r *returns) measure(no uint32) {
	s := &r.slots[no]
	s.least = ^uint64(0)
	for _, seq := range s.block.seqs[s.block.head:s.block.tail] {
		s.least = min(s.least, seq)
	}
}

// spot is a position in the order of the returned messages: between at-1 and at
// in the block of a slot. Slot 0 stands for an empty list.
type spot struct {
	slot uint32
	at   int
}

// end is the position after the last message.
func (r *returns) end() spot {
	if len(r.slots) == 0 {
		return spot{}
	}
	no := r.slots[0].prev
	if no == 0 {
		return spot{}
	}
	return spot{no, r.slots[no].block.tail}
}

// behindOlder returns the position after the last message before p that is
// older than seq, and the number of steps taken.
//
// Requires: p is a valid position. Ensures: all messages between the result and p
// are younger than seq. If none before p is older, the result is the position
// before all messages. O(blocks between the two + returnsLen).
func (r *returns) behindOlder(p spot, seq uint64) (spot, int) {
	steps := 0
	for p.slot != 0 {
		s := &r.slots[p.slot]
		if steps++; s.least < seq {
			for at := p.at; at > s.block.head; at-- {
				if s.block.seqs[at-1] < seq {
					return spot{p.slot, at}, steps
				}
			}
		}
		if p.slot = s.prev; p.slot != 0 {
			p.at = r.slots[p.slot].block.tail
		}
	}
	if len(r.slots) == 0 {
		return spot{}, steps
	}
	first := r.slots[0].next
	return spot{first, r.slots[first].block.head}, steps
}

// seqBefore returns the number of the message before a position; 0: there is
// none.
func (r *returns) seqBefore(p spot) uint64 {
	if p.slot == 0 || p.at == r.slots[p.slot].block.head {
		return 0 // behindOlder returns a position at a block's head only before all messages
	}
	return r.slots[p.slot].block.seqs[p.at-1]
}

// before returns the message before a position; 0: there is none.
func (r *returns) before(p spot) uint32 {
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

// add appends a message to slot no and returns its slot, which is a new one if
// that was full. Requires: it goes after the last message of that slot. O(1),
// but for moving the entries of a block that has been used up to its end.
func (r *returns) add(no, h uint32, seq uint64) uint32 {
	if no == 0 || r.slots[no].block.len() == returnsLen {
		no = r.newSlot(no)
	}
	s := &r.slots[no]
	b := s.block
	if b.tail == returnsLen {
		n := copy(b.seqs[:], b.seqs[b.head:])
		copy(b.handles[:], b.handles[b.head:])
		b.head, b.tail = 0, n
	}
	b.seqs[b.tail], b.handles[b.tail] = seq, h
	b.tail++
	s.least = min(s.least, seq)
	return no
}

// insertReturned inserts messages, which are in no place, in this order at a
// position of the returned ones.
//
// Requires: run is not empty, and each of its seq is that of its message.
//
// Ensures: their place is Returned. The caller calls watch for them. p and all
// other positions are invalid. O(len(run) + returnsLen): what follows p in its
// block is moved at most once per call.
func (ms *messages) insertReturned(p spot, run []checkout) {
	r, l := &ms.returns, &ms.lists[returnedList]
	prev := r.before(p)
	next := l.head
	if prev != 0 {
		next = ms.get(prev).next
	}
	no := p.slot
	var rest []uint32
	if no != 0 {
		rest = r.splitOff(p)
	}
	for _, held := range run {
		no = ms.addReturned(no, held.handle, held.seq)
		ms.setPlace(ms.mut(held.handle), Returned)
		ms.link(prev, held.handle)
		prev = held.handle
	}
	ms.link(prev, next)
	if len(rest) > returnsLen/2 && len(rest)+r.slots[no].block.len() > returnsLen {
		no = r.newSlot(no)
	}
	for _, h := range rest {
		no = ms.addReturned(no, h, ms.get(h).seq)
	}
	ms.joinReturned(no)
	ms.joinReturned(r.slots[no].prev)
	switch {
	case !ms.cursors.any():
	case next == 0:
		ms.cursors.added(returnedList, run[0].handle, run[0].seq)
	default:
		ms.cursors.inserted(run, ms)
	}
}

// joinReturned merges the block of a slot with the next one, if both are small.
// The half that is left free keeps one insertion from splitting it again.
func (ms *messages) joinReturned(no uint32) {
	r := &ms.returns
	next := r.slots[no].next
	if no == 0 || next == 0 || r.slots[no].block.len()+r.slots[next].block.len() > returnsLen/2 {
		return
	}
	b := r.slots[next].block
	for at := b.head; at < b.tail; at++ {
		ms.addReturned(no, b.handles[at], b.seqs[at])
	}
	b.head, b.tail = 0, 0
	r.drop(next)
}

// returnAll appends messages, which are in no place, to the returned ones in
// this order. There must be some.
func (ms *messages) returnAll(run []checkout) { ms.insertReturned(ms.returns.end(), run) }

// returnLast appends message h, which is in no place, to the returned ones.
func (ms *messages) returnLast(h uint32) {
	ms.returnAll([]checkout{{grip: grip{handle: h}, seq: ms.get(h).seq}})
}

// addReturned is returns.add and sets the message's slot.
func (ms *messages) addReturned(no, h uint32, seq uint64) uint32 {
	ms.scratch.steps++
	no = ms.returns.add(no, h, seq)
	ms.mut(h).prev = no
	return no
}

// link links h after prev in the returned list; 0 stands for either end. The
// list has no links back: prev of a returned message is its slot.
func (ms *messages) link(prev, h uint32) {
	l := &ms.lists[returnedList]
	if prev == 0 {
		l.head = h
	} else {
		ms.mut(prev).next = h
	}
	if h == 0 {
		l.tail = prev
	}
}

// splitOff removes what follows a position in its block. What it returns is a
// copy. The block may be empty afterwards; the caller adds to it at once.
func (r *returns) splitOff(p spot) []uint32 {
	b := r.slots[p.slot].block
	if p.at == b.tail {
		return nil
	}
	rest := append([]uint32(nil), b.handles[p.at:b.tail]...)
	b.tail = p.at
	r.measure(p.slot)
	return rest
}

// spotOf returns the position before message h, which is one of the returned, in
// slot no. O(returnsLen).
func (r *returns) spotOf(no, h uint32) spot {
	b := r.slots[no].block
	at := b.head
	for b.handles[at] != h {
		at++
	}
	return spot{no, at}
}

// removeReturned removes message h from the order of the returned ones, and
// returns the message before it; 0: there is none.
//
// The links of the list are up to the caller, see remove. O(returnsLen).
func (ms *messages) removeReturned(h uint32) (prev uint32) {
	r := &ms.returns
	p := r.spotOf(ms.get(h).prev, h)
	no, at := p.slot, p.at
	s := &r.slots[no]
	b := s.block
	prev = r.before(p)
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
		return prev
	}
	if s.least == seq {
		r.measure(no)
	}
	ms.joinReturned(no)
	return prev
}

// putBack returns messages, ascending by number, each after the last one there
// that is older. It walks once from the end, and inserts runs that share a
// position.
//
// Requires: kept ascends by seq. It is not changed. O(blocks from the end to the
// oldest of kept + returnsLen for each run).
func (ms *messages) putBack(kept []checkout) {
	at := ms.returns.end()
	for len(kept) > 0 {
		i := len(kept) - 1
		spot, steps := ms.returns.behindOlder(at, kept[i].seq)
		ms.scratch.steps += steps / stepsPerScan
		older := ms.returns.seqBefore(spot)
		for i > 0 && kept[i-1].seq > older {
			i--
		}
		ms.insertReturned(spot, kept[i:])
		first := kept[i].handle
		at, kept = ms.returns.spotOf(ms.get(first).prev, first), kept[:i]
	}
}
