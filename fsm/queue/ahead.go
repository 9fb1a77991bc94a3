package queue

import (
	"math"

	"github.com/quorate/quorate/fsm"
)

// aheadSteps bounds the steps of AheadBy. Full blocks, as messages with one time to live make them, hold a
// million messages in half of that.
const aheadSteps = 16384

// allowance is how many more steps may be taken. short says that one more was wanted.
type allowance struct {
	left  int
	short bool
}

// take reports whether one more step may be taken.
func (a *allowance) take() bool {
	if a.left == 0 {
		a.short = true
		return false
	}
	a.left--
	return true
}

// Ahead counts what of a queue is due at or before each of some instants.
type Ahead struct {
	Expire  []uint64 // messages that Outlook's NextExpiry is about
	Fire    []uint64 // scheduled messages
	TimeOut []uint64 // deliveries that were held for too long by then
	Unlock  []uint64 // deliveries whose locks end
	Retry   []uint64 // delayed messages
	Return  []uint64 // deferred messages
	// AtLeast: there may be more, as the bound of steps was met.
	AtLeast bool
}

// AheadBy counts what is due at or before each of some instants, ascending. It looks at no message, and
// takes at most aheadSteps, besides a search in one block for each instant. What has not happened yet is
// not foreseen: a message that becomes ready counts once, though it may expire later.
func AheadBy(m *Machine, instants []fsm.Time) Ahead {
	return aheadBy(m, instants, &allowance{left: aheadSteps})
}

func aheadBy(m *Machine, instants []fsm.Time, steps *allowance) (a Ahead) {
	clock, held := until(instants, 0), until(instants, m.clock.lockCredit())
	a.Expire, a.Fire = m.timers.expiries.counts(clock, steps), m.timers.schedules.counts(clock, steps)
	a.Retry, a.Return = m.timers.delays.counts(clock, steps), m.timers.returns.counts(clock, steps)
	a.TimeOut, a.Unlock = m.timers.timeouts.counts(held, steps), m.locks.due.counts(held, steps)
	a.AtLeast = steps.short
	return a
}

// until are the keys behind all that is due at some instants, of a time that is behind the clock.
func until(instants []fsm.Time, behind fsm.Millis) []key {
	keys := make([]key, len(instants))
	for i, at := range instants {
		keys[i] = key{at: at + 1 - fsm.Time(behind)}
	}
	return keys
}

// ExpiringBy returns Ahead.Expire, however many steps that takes: for a million messages some ten thousand.
func ExpiringBy(m *Machine, instants []fsm.Time) []uint64 {
	return m.timers.expiries.counts(until(instants, 0), &allowance{left: math.MaxInt})
}
