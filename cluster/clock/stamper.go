package clock

import (
	"time"

	"github.com/quorate/quorate/fsm"
)

// AgreementWait is how long new leaders wait for a majority of the clocks to agree, from the moment when that majority
// has been read.
const AgreementWait = 2 * time.Second

// Stamper stamps the entries of one group. One goroutine at a time uses it.
//
// Stamps never run back. While a majority of the wall clocks agrees they
// follow the corrected clock; while it is behind them they go at half its
// speed; steps ahead by more than the clocks may differ are followed only at
// the beginning of a term. Without agreement stamps go on from the last one by
// monotonic time, except for the first one of a term: it is not behind the lowest
// clock that the log does not refute.
type Stamper struct {
	clock *Clock
	last  fsm.Time      // the newest stamp
	at    time.Duration // Monotonic up to which last counts the time
	began time.Duration // the term, Monotonic
	// young: the term's step ahead, if one is due, is still to come.
	young   bool
	first   bool // nothing has been stamped in this term
	refused bool // the last stamp did not follow a step ahead
}

// Begin starts a term. last is the largest stamp in the log; 0:
// there is none.
func (s *Stamper) Begin(c *Clock, last fsm.Time) {
	now := c.Monotonic()
	*s = Stamper{clock: c, last: last, at: now, began: now, young: true, first: true}
	if st := c.state.Load(); st.agreed {
		c.began(max(0, last-instant(c.anchor+now+st.offset)), st.maxSkew)
	}
}

// Next stamps an entry.
func (s *Stamper) Next() fsm.Time {
	n := s.next()
	if n.refused && !s.refused {
		s.clock.refuse(n.wanted - n.last)
	}
	*s = n.Stamper
	s.first = false
	return s.last
}

// Last is the newest stamp; 0: none yet.
func (s *Stamper) Last() fsm.Time { return s.last }

// Peek is the stamp that an entry would get now.
func (s *Stamper) Peek() fsm.Time {
	n := s.next()
	return n.last
}

// Wait is how long at least it takes until stamps reach t; 0: they have.
func (s *Stamper) Wait(t fsm.Time) time.Duration {
	n := s.next()
	if n.last >= t {
		return 0
	}
	return min(time.Duration(min(t-n.last, fsm.Time(time.Hour/time.Millisecond)))*time.Millisecond, time.Hour)
}

// stamped is a Stamper after its next stamp, and what the corrected clock shows.
type stamped struct {
	Stamper
	wanted fsm.Time
}

func (s *Stamper) next() stamped {
	now, st := s.clock.Monotonic(), s.clock.state.Load()
	n := stamped{Stamper: *s, wanted: instant(s.clock.anchor + now + st.offset)}
	passed := max(0, now-s.at)
	if s.last == 0 { // nothing to go on from
		n.last, n.at, n.young = n.wanted, now, s.young && !st.agreed
		return n
	}
	steady := fsm.Time(passed / time.Millisecond)
	ahead := n.wanted > s.last+steady+fsm.Time(st.maxSkew)
	n.refused = ahead && st.agreed && !s.young
	switch half := steady / 2; {
	case !st.agreed, n.refused:
		n.last, n.at = s.last+steady, s.at+time.Duration(steady)*time.Millisecond
	case n.wanted > s.last+half:
		n.last, n.at = n.wanted, now
	default:
		n.last, n.at = s.last+half, s.at+time.Duration(2*half)*time.Millisecond
	}
	if s.first && st.sampled && !st.agreed {
		if t := s.clock.lowest(n.last); t > n.last {
			n.last, n.at = t, now
		}
	}
	if st.agreed || st.sampled && now-s.began > AgreementWait {
		n.young = false
	}
	return n
}
