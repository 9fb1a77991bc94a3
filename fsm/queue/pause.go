package queue

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// pause says that consumers are handed nothing, and who wants that. What they hold stays with them, and
// goes on to time out; publishes, expiries and schedules go on, too. So does what names messages: peeks,
// and receipts of deferred ones. The settings may say so as well, which nothing here ends.
//
// Invariants: since = 0 ⇒ all else is zero; since ≤ clock; until is 0 or later than since.
type pause struct {
	*shared
	since, until fsm.Time // since 0: nobody has paused the queue; until 0: until it is resumed
	by, reason   string
}

// on reports whether the queue is paused.
func (p *pause) on() bool { return p.since != 0 || p.settings.Paused }

// over reports whether the pause has reached its end.
func (p *pause) over() bool { return p.until != 0 && p.until <= p.clock.now() }

func (p *pause) end() { *p = pause{shared: p.shared} }

// begin replaces a pause that there is, which keeps its beginning.
func (p *pause) begin(cmd *logpb.Pause) {
	if p.since == 0 {
		p.since = max(p.clock.now(), 1)
	}
	p.by, p.reason, p.until = cmd.By, cmd.Reason, fsm.Time(cmd.Until)
}

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
	k.that(p.since != 0 || p.until == 0 && p.by+p.reason == "", "a pause that nobody has begun: %v", p)
	k.that(0 <= p.since && p.since <= max(p.clock.now(), 1) && (p.until == 0 || p.until > p.since), "clock %d, the pause: %v", p.clock.now(), p)
	k.that(max(len(p.by), len(p.reason)) <= fsm.MaxPauseText, "the pause says too much")
}

func (p *pause) String() string {
	if p.since == 0 {
		return ""
	}
	return fmt.Sprintf("paused since=%d until=%d by=%q reason=%q", p.since, p.until, p.by, p.reason)
}

// pauseConsumers begins, changes or ends a pause. Count is 1 if the queue was not paused by anybody before,
// or is not any more. An end that has passed ends the pause.
//
// Invalid before version 3, for a text that is too long and for a time before 1970.
func (m *Machine) pauseConsumers(cmd *logpb.Pause) fsm.Result {
	if !m.since(3) || max(len(cmd.GetBy()), len(cmd.GetReason())) > fsm.MaxPauseText || cmd.GetUntil() < 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	before, r := m.pause.since != 0, fsm.Result{}
	if m.pause.begin(cmd); cmd.Resume || m.pause.over() {
		m.pause.end()
	}
	if before != (m.pause.since != 0) {
		r.Count = 1
	}
	m.lease.touch()
	m.consumers.reconsider(false)
	return r
}

// resume ends a pause whose end has come.
func (m *Machine) resume() {
	if m.pause.over() {
		m.pause.end()
		m.consumers.reconsider(false)
	}
}

// Pause is why a queue's consumers are handed nothing, and since when. Zero: nobody has paused it.
type Pause struct {
	Since, Until fsm.Time // Until 0: until it is resumed
	By, Reason   string
}

// PauseOf returns the pause of a queue; policy: its settings pause it, too. O(1).
func PauseOf(m *Machine) (p Pause, policy bool) {
	return Pause{m.pause.since, m.pause.until, m.pause.by, m.pause.reason}, m.settings.Paused
}
