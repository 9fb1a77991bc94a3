package queue

import (
	"math"

	"github.com/quorate/quorate/fsm"
)

// budget is how many more steps may be taken. short says that one more was wanted.
type budget struct {
	left  int
	short bool
}

// take reports whether one more step may be taken.
func (b *budget) take() bool {
	if b.left == 0 {
		b.short = true
		return false
	}
	b.left--
	return true
}

// Ahead counts what of a queue is due at or before each of some instants.
type Ahead struct {
	Expire  []uint64 // messages that Outlook's NextExpiry is about
	Fire    []uint64 // scheduled messages
	TimeOut []uint64 // deliveries that were held for too long by then
	Unlock  []uint64 // deliveries whose locks end, before they were held for too long
	Retry   []uint64 // delayed messages
	Return  []uint64 // deferred messages
	Steps   int      // that it took
	AtLeast bool     // there may be more, as more steps were not allowed
}

// AheadBy counts what is due at or before each of some instants, ascending. It looks at no message: a step
// passes a block of an index, of which a million messages have some ten thousand, or heldAtOnce deliveries
// if some are locked. It takes at most so many steps as are allowed, besides a search in one block for each
// instant. What has not happened yet is not foreseen: a message that becomes ready counts once, though it may
// expire later.
func AheadBy(m *Machine, instants []fsm.Time, steps int) (a Ahead) {
	left, held := &budget{left: steps}, until(instants, m.clock.lockCredit())
	a = m.timers.ahead(until(instants, 0), left)
	if m.deadlines.locked() > 0 {
		a.TimeOut, a.Unlock = m.heldAhead(held, left)
	} else {
		a.TimeOut, a.Unlock = m.deadlines.timeouts(held, left), make([]uint64, len(held))
	}
	a.Steps, a.AtLeast = steps-left.left, left.short
	return a
}

// ExpiringBy is Expire of AheadBy alone, however many steps that takes.
func ExpiringBy(m *Machine, instants []fsm.Time) []uint64 {
	return m.timers.expiring(until(instants, 0), &budget{left: math.MaxInt})
}

// ahead counts what is due before some keys.
func (t *timers) ahead(before []key, left *budget) Ahead {
	return Ahead{
		Expire: t.expiring(before, left), Fire: t.schedules.Counts(before, left.take),
		Retry: t.delays.Counts(before, left.take), Return: t.returns.Counts(before, left.take),
	}
}

// expiring counts the messages that expire before some keys.
func (t *timers) expiring(before []key, left *budget) []uint64 {
	return t.expiries.Counts(before, left.take)
}

// timeouts counts the deliveries that time out before some keys. Requires: none is locked.
func (ds *deadlines) timeouts(before []key, left *budget) []uint64 {
	return ds.due.Counts(before, left.take)
}

// heldAtOnce is how many deliveries are looked at in one step.
const heldAtOnce = 8

// heldAhead counts the deliveries whose consumer timeout, and those whose lock, comes before some keys. Both
// are counted of a delivery that has both: deadlines knows only when the first one comes.
func (m *Machine) heldAhead(before []key, left *budget) (timeOut, unlock []uint64) {
	timeOut, unlock = make([]uint64, len(before)), make([]uint64, len(before))
	count := func(list []uint64, at fsm.Time) {
		for i := len(before) - 1; at != 0 && i >= 0 && at < before[i].At; i-- {
			list[i]++
		}
	}
	n := 0
	for _, all := range m.holders() {
		for held := range all.from(0) {
			if n++; n%heldAtOnce == 0 && !left.take() {
				return timeOut, unlock
			}
			count(timeOut, held.deadline)
			count(unlock, m.deadlines.unlocks(held.lock))
		}
	}
	return timeOut, unlock
}

// until are the keys behind all that is due at some instants, of a time that is behind the clock.
func until(instants []fsm.Time, behind fsm.Millis) []key {
	keys := make([]key, len(instants))
	for i, at := range instants {
		keys[i] = key{At: at + 1 - fsm.Time(behind)}
	}
	return keys
}
