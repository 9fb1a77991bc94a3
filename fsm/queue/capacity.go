package queue

import "github.com/quorate/quorate/fsm"

// capacitySpan is the shortest time over which Capacity is measured, if the queue
// has existed for as long; the longest is twice that.
const capacitySpan fsm.Millis = 5000

// Capacity says for how long, of late, the queue could have handed messages to a
// consumer at once: one that takes any message had credit for more. It is taken by
// the machine's clock, between commands, so what changes within a millisecond does
// not count. The zero value knows nothing.
//
// It is in no snapshot, and nothing depends on it: a restored machine begins anew.
//
// Invariants: able ≤ serving ≤ 2 · capacitySpan for current and before; began ≤ until.
type Capacity struct {
	began, until    fsm.Time // of current; 0: there is none yet
	current, before servedTime
	present         presence // since until
}

// servedTime is how long there were consumers, and how long one of them had credit.
type servedTime struct{ serving, able fsm.Millis }

// presence is whether there are consumers, and whether one of them has credit.
type presence struct{ serving, able bool }

// advance goes on to an instant. is holds from the one before up to now. O(1).
func (c *Capacity) advance(now fsm.Time, is presence) {
	if c.until == 0 {
		c.began, c.until = now, now
		return
	}
	passed := fsm.Millis(now - c.until)
	if c.until = now; passed >= capacitySpan { // what was before is too long ago
		passed, c.current, c.before = capacitySpan, servedTime{}, servedTime{}
		c.began = now.Add(-passed)
	}
	if is.serving {
		c.current.serving += passed
		if is.able {
			c.current.able += passed
		}
	}
	if fsm.Millis(now-c.began) >= capacitySpan {
		c.before, c.current, c.began = c.current, servedTime{}, now
	}
}

// At returns the share of time in which the queue could hand messages out, of that in
// which it had consumers, over the last capacitySpan or up to twice that before an
// instant: able of serving. 0 of 0: it has no consumers.
func (c Capacity) At(now fsm.Time) (able, serving fsm.Millis) {
	if !c.present.serving {
		return 0, 0
	}
	if now > c.until && c.until != 0 {
		c.advance(now, c.present)
	}
	sum := servedTime{c.before.serving + c.current.serving, c.before.able + c.current.able}
	switch {
	case sum.serving > 0:
		return sum.able, sum.serving
	case c.present.able:
		return 1, 1
	}
	return 0, 1
}

// Share is At as a number from 0 to 1; 0 without consumers.
func (c Capacity) Share(now fsm.Time) float64 {
	able, serving := c.At(now)
	return float64(able) / float64(max(serving, 1))
}

// measure counts the time since the command before. It is called with each, before
// that changes anything.
func (cs *consumers) measure() {
	if now := cs.clock.now(); now != cs.capacity.until {
		cs.capacity.advance(now, cs.presence())
	}
}

// presence reports whether a consumer may be served, and has credit now. Those that
// take only one group do not count as able, nor does anybody while only such messages
// wait that nobody with credit may have.
func (cs *consumers) presence() presence {
	return presence{cs.serving > 0, cs.anyServed() && (cs.services.idle() || servable{cs}.any())}
}

// measured returns the capacity up to the last command, and what holds since then.
func (cs *consumers) measured() Capacity {
	c := cs.capacity
	c.present = cs.presence()
	return c
}
