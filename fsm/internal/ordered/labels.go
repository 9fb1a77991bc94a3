package ordered

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"sort"

	"github.com/quorate/quorate/fsm"
)

// labelsPerChunk is how many labels a chunk has at most: one bit of dead each.
const labelsPerChunk = 64

// Labels remember what publishers call their messages: the message id and the
// correlation id of each message that has one, by its number.
//
// They are bytes in chunks, in the order of the numbers of the messages, so that
// the garbage collector finds no pointer per message. A message without a label
// has nothing here. A chunk goes with the last of its labels, and one with few left
// is rewritten, so what is kept is at most about four times what is live.
//
// Invariants:
//
//	chunks ascend, as do the numbers in each; every chunk has a live label, except
//	an only one
//	live = labels of all chunks that are not dead
//	a chunk whose epoch is not the table's is shared, and never written to
type Labels struct {
	chunks []*labelChunk
	live   int
	epoch  uint64
	coming []label // in any order, while a snapshot is restored
}

// label is one label that a snapshot has.
type label struct {
	seq                      uint64
	messageID, correlationID string
}

// labelChunk holds the labels of the messages seqs, ascending. That of seqs[i] is
// text[ends[i-1]:ends[i]]: the length of the message id in one byte, the message
// id, the correlation id.
//
// Text is appended to and never changed, so a frozen chunk may share it.
type labelChunk struct {
	seqs  []uint64
	ends  []uint16
	text  []byte
	dead  uint64 // bit i: message seqs[i] is gone
	epoch uint64
	// made is the epoch in which the slices were allocated: older ones may be
	// shared.
	made uint64
}

func (c *labelChunk) live() int { return len(c.seqs) - bits.OnesCount64(c.dead) }

// at returns what is stored for the i-th message.
func (c *labelChunk) at(i int) []byte {
	from := uint16(0)
	if i > 0 {
		from = c.ends[i-1]
	}
	return c.text[from:c.ends[i]]
}

// CutLabel cuts a text to what a label may have.
func CutLabel(s string) string { return s[:min(len(s), fsm.MaxLabel)] }

// Add stores the label of message seq, whose number is above all others. It
// reports false, and stores nothing, if both texts are empty.
func (l *Labels) Add(seq uint64, messageID, correlationID string) bool {
	if messageID == "" && correlationID == "" {
		return false
	}
	messageID, correlationID = CutLabel(messageID), CutLabel(correlationID)
	n := len(l.chunks)
	if n == 0 || len(l.chunks[n-1].seqs) == labelsPerChunk {
		c := &labelChunk{epoch: l.epoch, made: l.epoch}
		if n > 0 {
			c.seqs, c.ends = make([]uint64, 0, labelsPerChunk), make([]uint16, 0, labelsPerChunk)
			c.text = make([]byte, 0, len(l.chunks[n-1].text))
		}
		l.chunks = append(l.chunks, c)
		n++
	}
	c := l.own(n - 1)
	c.text = append(append(append(c.text, byte(len(messageID))), messageID...), correlationID...)
	c.seqs, c.ends = append(c.seqs, seq), append(c.ends, uint16(len(c.text)))
	l.live++
	return true
}

// own makes chunk i writable.
func (l *Labels) own(i int) *labelChunk {
	c := l.chunks[i]
	if c.epoch != l.epoch {
		clone := *c
		c = &clone
		c.epoch = l.epoch
		l.chunks[i] = c
	}
	return c
}

// find returns where the label of message seq is.
func (l *Labels) find(seq uint64) (i, at int, ok bool) {
	if len(l.chunks) == 0 {
		return 0, 0, false
	}
	if len(l.chunks) > 1 && seq >= l.chunks[1].seqs[0] {
		i = sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].seqs[0] > seq }) - 1
	}
	c := l.chunks[i]
	at, ok = slices.BinarySearch(c.seqs, seq)
	return i, at, ok && c.dead>>at&1 == 0
}

// Of returns the label of message seq, or empty texts. They are good until the
// next change.
func (l *Labels) Of(seq uint64) (messageID, correlationID []byte) {
	i, at, ok := l.find(seq)
	if !ok {
		return nil, nil
	}
	text := l.chunks[i].at(at)
	n := 1 + int(text[0])
	return text[1:n], text[n:]
}

// Drop removes the label of message seq, which must have one.
func (l *Labels) Drop(seq uint64) {
	i, at, ok := l.find(seq)
	if !ok {
		return
	}
	c := l.own(i)
	c.dead |= 1 << at
	l.live--
	switch n := c.live(); {
	case n == 0 && len(l.chunks) > 1:
		l.remove(i)
	case n == 0 && c.made == l.epoch:
		c.seqs, c.ends, c.text, c.dead = c.seqs[:0], c.ends[:0], c.text[:0], 0
	case n == 0:
		l.chunks = nil
	case i > 0 && i < len(l.chunks)-1 && n <= len(c.seqs)/4:
		l.chunks[i] = l.rewrite(c, n)
	}
}

// remove removes chunk i.
func (l *Labels) remove(i int) {
	if i > 0 {
		l.chunks = slices.Delete(l.chunks, i, i+1)
		return
	}
	l.chunks[0] = nil
	l.chunks = l.chunks[1:]
}

// rewrite returns a chunk with the n labels of c that are live.
func (l *Labels) rewrite(c *labelChunk, n int) *labelChunk {
	r := &labelChunk{epoch: l.epoch, made: l.epoch, seqs: make([]uint64, 0, n), ends: make([]uint16, 0, n)}
	for i, seq := range c.seqs {
		if c.dead>>i&1 == 0 {
			r.text = append(r.text, c.at(i)...)
			r.seqs, r.ends = append(r.seqs, seq), append(r.ends, uint16(len(r.text)))
		}
	}
	return r
}

// Move gives the label of a message, which must have one, to its new number,
// which is above all others.
func (l *Labels) Move(from, to uint64) {
	a, b := l.Of(from)
	messageID, correlationID := string(a), string(b)
	l.Drop(from)
	l.Add(to, messageID, correlationID)
}

// Clear removes all labels.
func (l *Labels) Clear() { *l = Labels{epoch: l.epoch} }

// Capture returns the labels as they are now; unless keep, until the next change.
// O(chunks).
func (l *Labels) Capture(keep bool) Labels {
	if !keep {
		return *l
	}
	l.epoch++
	return Labels{chunks: slices.Clone(l.chunks), live: l.live}
}

// Expect takes in a label of a snapshot. They come in any order; restore follows.
func (l *Labels) Expect(seq uint64, messageID, correlationID string) {
	l.coming = append(l.coming, label{seq, messageID, correlationID})
}

// Restore stores what is coming. Two labels of one number leave one: Check finds
// that the snapshot is damaged.
func (l *Labels) Restore() {
	slices.SortFunc(l.coming, func(a, b label) int { return cmp.Compare(a.seq, b.seq) })
	for i, c := range l.coming {
		if i == 0 || c.seq != l.coming[i-1].seq {
			l.Add(c.seq, c.messageID, c.correlationID)
		}
	}
	l.coming = nil
}

// Check returns what is wrong with the chunks. found is the number of messages that have a
// label.
func (l *Labels) Check(found int) error {
	live, last := 0, uint64(0)
	for i, c := range l.chunks {
		live += c.live()
		if c.live() == 0 && len(l.chunks) > 1 || len(c.seqs) != len(c.ends) || len(c.seqs) > labelsPerChunk {
			return fmt.Errorf("chunk %d has %d of %d labels", i, c.live(), len(c.seqs))
		}
		for _, seq := range c.seqs {
			if seq <= last {
				return fmt.Errorf("the label of message %d is out of order", seq)
			}
			last = seq
		}
	}
	if live != l.live || live != found {
		return fmt.Errorf("%d labels, counted %d, found %d", live, l.live, found)
	}
	return nil
}
