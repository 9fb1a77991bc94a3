package queue

import (
	"cmp"
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// pause says that consumers are handed nothing, and who wants that. What they hold stays with them, and
// goes on to time out; publishes, expiries, schedules and peeks go on, too. The settings may say so as well,
// which nothing here ends.
//
// Invariants: since = 0 ⇒ all else is zero; since ≤ clock; until is 0 or later than since.
type pause struct {
	since, until fsm.Time // since 0: nobody has paused the queue; until 0: until it is resumed
	by, reason   string
}

// paused reports whether consumers are handed nothing.
func (s *shared) paused() bool { return s.pause.since != 0 || s.settings.Paused }

// over reports whether the pause has reached its end.
func (p *pause) over(now fsm.Time) bool { return p.until != 0 && p.until <= now }

func (p *pause) save(h *logpb.QueueSnapshot) {
	if p.since != 0 {
		h.Pause, h.PausedSince = &logpb.Pause{By: p.by, Reason: p.reason, Until: int64(p.until)}, int64(p.since)
	}
}

func (p *pause) restore(h *logpb.QueueSnapshot) {
	p.since, p.until = fsm.Time(h.PausedSince), fsm.Time(h.Pause.GetUntil())
	p.by, p.reason = h.Pause.GetBy(), h.Pause.GetReason()
}

func (p *pause) check(k *checker) {
	now := max(k.m.clock.now(), 1)
	k.that(p.since != 0 || *p == pause{}, "a pause that nobody has begun: %v", p)
	k.that(0 <= p.since && p.since <= now && (p.until == 0 || p.until > p.since), "clock %d, the pause: %v", now, p)
	k.that(max(len(p.by), len(p.reason)) <= fsm.MaxPauseText, "the pause says too much")
}

func (p *pause) String() string {
	if p.since == 0 {
		return ""
	}
	return fmt.Sprintf("paused since=%d until=%d by=%q reason=%q", p.since, p.until, p.by, p.reason)
}

// changePause begins, changes or ends the pause. Count is 1 if the queue was not paused by anybody before, or is
// not any more. An end that has passed ends the pause.
//
// Invalid, and nothing has changed, before version 3, for a text that is too long and for a time before 1970.
func (s *shared) changePause(cmd *logpb.Pause) (r fsm.Result) {
	if !s.since(3) || max(len(cmd.GetBy()), len(cmd.GetReason())) > fsm.MaxPauseText || cmd.GetUntil() < 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	before, now := s.pause.since, max(s.clock.now(), 1)
	s.pause = pause{cmp.Or(before, now), fsm.Time(cmd.Until), cmd.By, cmd.Reason}
	if cmd.Resume || s.pause.over(now) {
		s.pause = pause{}
	}
	if (before != 0) != (s.pause.since != 0) {
		r.Count = 1
	}
	return r
}

// Pause is why a queue's consumers are handed nothing, and since when.
type Pause struct {
	Since, Until fsm.Time // Since 0: nobody has paused it; Until 0: until it is resumed
	By, Reason   string
	BySettings   bool // they pause it, too
}
