package queue

import (
	"cmp"
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Pause says that consumers are handed nothing, and who wants that. What they hold stays with them, and
// goes on to time out; publishes, expiries, schedules and peeks go on, too. The settings may say so as well,
// which nothing here ends.
//
// Invariants: Since = 0 ⇒ all else is zero; Since ≤ clock; Until is 0 or later than Since.
type Pause struct {
	Since, Until fsm.Time // Since 0: nobody has paused the queue; Until 0: until it is resumed
	By, Reason   string
}

// paused reports whether consumers are handed nothing.
func (s *shared) paused() bool { return s.pause.Since != 0 || s.settings.Paused }

// over reports whether the pause has reached its end.
func (p *Pause) over(now fsm.Time) bool { return p.Until != 0 && p.Until <= now }

func (p *Pause) save(h *logpb.QueueSnapshot) {
	if p.Since != 0 {
		h.Pause, h.PausedSince = &logpb.Pause{By: p.By, Reason: p.Reason, Until: int64(p.Until)}, int64(p.Since)
	}
}

func (p *Pause) restore(h *logpb.QueueSnapshot) {
	p.Since, p.Until = fsm.Time(h.PausedSince), fsm.Time(h.Pause.GetUntil())
	p.By, p.Reason = h.Pause.GetBy(), h.Pause.GetReason()
}

func (p *Pause) check(k *checker) {
	now := max(k.m.clock.now(), 1)
	k.that(p.Since != 0 || *p == Pause{}, "a pause that nobody has begun: %v", p)
	k.that(0 <= p.Since && p.Since <= now && (p.Until == 0 || p.Until > p.Since), "clock %d, the pause: %v", now, p)
	k.that(max(len(p.By), len(p.Reason)) <= fsm.MaxPauseText, "the pause says too much")
}

// String says it in a dump; nobody has paused the queue: nothing.
func (p *Pause) String() string {
	if p.Since == 0 {
		return ""
	}
	return fmt.Sprintf("paused since=%d until=%d by=%q reason=%q", p.Since, p.Until, p.By, p.Reason)
}

// changePause begins, changes or ends the pause. Count is 1 if the queue was not paused by anybody before, or is
// not any more. An end that has passed ends the pause.
//
// Invalid, and nothing has changed, before version 3, for a text that is too long and for a time before 1970.
func (s *shared) changePause(cmd *logpb.Pause) (r fsm.Result) {
	if !s.since(3) || max(len(cmd.GetBy()), len(cmd.GetReason())) > fsm.MaxPauseText || cmd.GetUntil() < 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	before, now := s.pause.Since, max(s.clock.now(), 1)
	s.pause = Pause{cmp.Or(before, now), fsm.Time(cmd.Until), cmd.By, cmd.Reason}
	if cmd.Resume || s.pause.over(now) {
		s.pause = Pause{}
	}
	if (before != 0) != (s.pause.Since != 0) {
		r.Count = 1
	}
	return r
}
