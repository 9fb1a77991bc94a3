package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// clock is the machine's time: the latest stamp it has seen. Held messages use
// a second time, which is behind by the lock credit: nobody can settle without
// a leader, so the holders are credited with that time.
//
// Invariant: 0 ≤ behind ≤ time ≤ fsm.MaxTime. Neither ever falls.
type clock struct {
	time   fsm.Time
	behind fsm.Time // lock credit given so far
	term   uint64   // of the last entry; 0: there was none
}

// advance moves the clock to the stamp of an entry. limit is the maximum lock
// credit for a change of term. It reports whether the term is new.
//
// Requires: limit ≥ 0. Several commands of one entry have the same term and
// stamp, so the credit is given at most once per term. It never exceeds what the
// clock has advanced by with this entry, which keeps behind ≤ time. The first
// entry of all gives none, since nobody held anything before it.
func (c *clock) advance(meta *fsm.Meta, limit fsm.Millis) (newTerm bool) {
	before := c.time
	c.time = max(c.time, min(meta.Now, fsm.MaxTime))
	if meta.Term == c.term {
		return false
	}
	if c.term != 0 {
		c.behind += min(c.time-before, fsm.Time(limit))
	}
	c.term = meta.Term
	return true
}

// now is never behind the stamp of any entry so far, except for stamps above
// fsm.MaxTime.
func (c *clock) now() fsm.Time { return c.time }

// lockCredit is how far the time of held messages is behind.
func (c *clock) lockCredit() fsm.Millis { return fsm.Millis(c.behind) }

// inTerm is the term of the last entry; 0: there was none.
func (c *clock) inTerm() uint64 { return c.term }

// deadline is the instant d from now. It is never 0, which means never.
// Requires: d ≥ 0. It saturates at fsm.MaxTime.
func (c *clock) deadline(d fsm.Millis) fsm.Time { return max(c.time.Add(d), 1) }

// atOnce is the deadline of work that is already due. It is now, unless that is
// 0.
func (c *clock) atOnce() fsm.Time { return max(c.time, 1) }

// heldDeadline is the instant d from now on the time of held messages. It is
// never 0. Requires: d ≥ 0.
//
// Ensures: heldUntil(heldDeadline(d)) = deadline(d) until more credit is given,
// except where one of them saturates or would be 0.
func (c *clock) heldDeadline(d fsm.Millis) fsm.Time { return max((c.time - c.behind).Add(d), 1) }

// heldNow is now on the time of held messages.
func (c *clock) heldNow() fsm.Time { return c.time - c.behind }

// heldUntil is when the clock reaches t, an instant on the time of held
// messages, unless more credit is given. 0 stays 0. More credit moves the
// instants of all held messages at once, in O(1), because none of them is
// stored.
func (c *clock) heldUntil(t fsm.Time) fsm.Time {
	if t == 0 {
		return 0
	}
	return t.Add(fsm.Millis(c.behind))
}

// save writes the clock's section of a snapshot's head.
func (c *clock) save(h *logpb.QueueSnapshot) {
	h.Clock, h.LockCredit, h.Term = int64(c.time), int64(c.behind), c.term
}

// restore is the inverse of save.
func (c *clock) restore(h *logpb.QueueSnapshot) {
	*c = clock{fsm.Time(h.Clock), fsm.Time(h.LockCredit), h.Term}
}

// check checks the invariant.
func (c *clock) check(k *checker) {
	k.that(0 <= c.behind && c.behind <= c.time && c.time <= fsm.MaxTime, "clock %d, credit %d", c.time, c.behind)
}
