package queue

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// maxMinTTLs is how many different least lives the consumers of a queue may ask for.
const maxMinTTLs = 8

// lives reports whether message x has this much left of its TTL. What is not so
// now never will be.
func (x *message) lives(now fsm.Time, least fsm.Millis) bool {
	return x.expireAt == 0 || x.expireAt >= now.Add(least)
}

// cursors find the next message for consumers that take only messages with
// enough left of their TTL, without going over the others again. There is one
// for each least life that a consumer which is not cancelled asks for.
//
// Invariants:
//
//	all ascends by least, and has those of services.demanding
//	no message in front of a cursor, in its list, lives for least
//	bit i of waiting = at[i] ≠ 0
//
// messages calls added, inserted and removed with every change of the lists of
// ready messages while there are cursors. A queue that goes by deadlines does
// not need them: its cursors stay at the heads.
//
// A snapshot names the messages at which cursors stand: how far a cursor has
// come depends on the bounds of the commands before.
type cursors struct {
	*shared
	timers    *timers
	all       []*cursor
	restoring []*logpb.CursorState // what is being restored; nil: nothing
}

// cursor is how far the lists of ready messages have been passed over.
type cursor struct {
	least   fsm.Millis
	waiting uint64                   // lists that are not at their end
	at      [returnedList + 1]uint32 // the first message that may live for least; 0: none does
	next    []uint64                 // while restoring: the messages at which it stands, by number
}

// set moves a cursor in one list.
func (c *cursor) set(no int, h uint32) {
	c.at[no] = h
	if h != 0 {
		c.waiting |= 1 << no
	} else {
		c.waiting &^= 1 << no
	}
}

// list is the list from which comes what is handed out next. Requires: waiting ≠ 0.
// Returned messages have the highest number.
func (c *cursor) list() int { return bits.Len64(c.waiting) - 1 }

// clear removes all cursors.
func (cs *cursors) clear() { cs.all, cs.restoring = nil, nil }

// any reports whether there are cursors.
func (cs *cursors) any() bool { return len(cs.all) > 0 }

// len is the number of cursors.
func (cs *cursors) len() int { return len(cs.all) }

// of returns the cursor of a least life; nil: there is none.
func (cs *cursors) of(least fsm.Millis) *cursor {
	for _, c := range cs.all {
		if c.least == least {
			return c
		}
	}
	return nil
}

// open adds a cursor. It stands at the heads of the lists, or where it is to be
// restored.
func (cs *cursors) open(least fsm.Millis, ms *messages) {
	c := &cursor{least: least}
	for no := range c.at {
		c.set(no, ms.head(no))
	}
	for _, st := range cs.restoring {
		if st.MinTtl == uint64(least) {
			c.next = st.Next
		}
	}
	i := 0
	for i < len(cs.all) && cs.all[i].least < least {
		i++
	}
	cs.all = slices.Insert(cs.all, i, c)
}

// close removes a cursor.
func (cs *cursors) close(least fsm.Millis) {
	cs.all = slices.DeleteFunc(cs.all, func(c *cursor) bool { return c.least == least })
}

// added is called with message h, which has become the last one of a list; what
// follows it there is new, too.
func (cs *cursors) added(no int, h uint32, seq uint64) {
	for _, c := range cs.all {
		switch {
		case cs.restoring == nil:
			if c.at[no] == 0 {
				c.set(no, h)
			}
		case len(c.next) > 0 && c.next[0] == seq:
			c.set(no, h)
			c.next = c.next[1:]
		}
	}
}

// inserted is called with messages that have got a place among the returned ones,
// in front of others. If one of them lives long enough that list is gone over
// again.
func (cs *cursors) inserted(run []checkout, ms *messages) {
	for _, c := range cs.all {
		if slices.ContainsFunc(run, func(held checkout) bool { return ms.get(held.handle).lives(cs.clock.now(), c.least) }) {
			c.set(returnedList, ms.head(returnedList))
		}
	}
}

// removed is called with message h, which is in its list no more; next follows it.
func (cs *cursors) removed(no int, h, next uint32) {
	for _, c := range cs.all {
		if c.at[no] == h {
			c.set(no, next)
		}
	}
}

// purged is called when nothing is ready any more.
func (cs *cursors) purged() {
	for _, c := range cs.all {
		c.at, c.waiting = [returnedList + 1]uint32{}, 0
	}
}

// passOver moves the cursor of a least life to the next message that lives so
// long, as far as the command may: scratch.skips.
func (cs *cursors) passOver(least fsm.Millis, ms *messages) {
	c := cs.of(least)
	if c == nil || cs.settings.DeadlineOrder {
		return
	}
	before := cs.scratch.skips
	for c.waiting != 0 && cs.scratch.skips > 0 {
		no := c.list()
		x := ms.get(c.at[no])
		if x.lives(cs.clock.now(), least) {
			break
		}
		c.set(no, x.next)
		cs.scratch.skips--
	}
	cs.scratch.steps += (before - cs.scratch.skips) / stepsPerScan
}

// first returns the message that a consumer with a least life is handed next, as
// far as passOver has found it; 0: none. Zero stands for consumers that take all.
func (cs *cursors) first(least fsm.Millis, ms *messages) uint32 {
	if least == 0 {
		return ms.nextReady()
	}
	if cs.settings.DeadlineOrder {
		return cs.timers.nextInOrder(cs.clock.now().Add(least))
	}
	c := cs.of(least)
	if c.waiting == 0 {
		return 0
	}
	if h := c.at[c.list()]; ms.get(h).lives(cs.clock.now(), least) {
		return h
	}
	return 0
}

// unsettled reports whether first has a message, or might have one if more is
// passed over.
func (cs *cursors) unsettled(least fsm.Millis, ms *messages) bool {
	if least == 0 || cs.settings.DeadlineOrder {
		return cs.first(least, ms) != 0
	}
	return cs.of(least).waiting != 0
}

// save writes where the cursors stand: their lists in the order of a snapshot.
func (cs *cursors) save(h *logpb.QueueSnapshot, ms *messages) {
	for _, c := range cs.all {
		st := &logpb.CursorState{MinTtl: uint64(c.least)}
		for no := maxPriority; no >= 0; no-- {
			if c.at[no] != 0 {
				st.Next = append(st.Next, ms.get(c.at[no]).seq)
			}
		}
		if at := c.at[returnedList]; at != 0 {
			st.Next = append(st.Next, ms.get(at).seq)
		}
		h.Cursors = append(h.Cursors, st)
	}
}

// restore begins to restore the cursors: the consumers open them, and the messages
// follow.
func (cs *cursors) restore(h *logpb.QueueSnapshot) { cs.restoring = h.Cursors }

// restored is called when all consumers and messages have been restored.
func (cs *cursors) restored() error {
	if len(cs.restoring) != len(cs.all) {
		return fmt.Errorf("%w: %d cursors", ErrSnapshot, len(cs.restoring))
	}
	for i, c := range cs.all {
		if cs.restoring[i].MinTtl != uint64(c.least) || len(c.next) > 0 {
			return fmt.Errorf("%w: a cursor is nowhere", ErrSnapshot)
		}
		c.next = nil
	}
	cs.restoring = nil
	return nil
}

// check checks that no cursor has passed over what it was to find.
func (cs *cursors) check(k *checker, ms *messages) {
	for i, c := range cs.all {
		k.that(i == 0 || cs.all[i-1].least < c.least, "cursor %d is out of order", c.least)
		for no, at := range c.at {
			h := ms.head(no)
			for ; h != at && h != 0; h = ms.get(h).next {
				if ms.get(h).lives(cs.clock.now(), c.least) {
					k.fail("message %d was passed over by cursor %d", ms.get(h).seq, c.least)
				}
			}
			k.that(h == at && (c.waiting>>no&1 == 1) == (at != 0), "list %d: cursor %d is lost", no, c.least)
		}
	}
}
