package queue

import "github.com/quorate/quorate/fsm"

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
	Unlock  []uint64 // deliveries whose locks end
	Retry   []uint64 // delayed messages
	Return  []uint64 // deferred messages
	Steps   int      // that it took
	AtLeast bool     // there may be more, as more steps were not allowed
}

// AheadBy counts what is due at or before each of some instants, ascending. It looks at no message: a step
// passes a block of an index, of which a million messages have some ten thousand. It takes at most so many
// steps as are allowed, besides a search in one block for each instant. What has not happened yet is not
// foreseen: a message that becomes ready counts once, though it may expire later.
func AheadBy(m *Machine, instants []fsm.Time, steps int) (a Ahead) {
	left := &budget{left: steps}
	clock, held := until(instants, 0), until(instants, m.clock.lockCredit())
	a = m.timers.ahead(clock, held, left)
	a.Unlock = m.locks.ending(held, left)
	a.Steps, a.AtLeast = steps-left.left, left.short
	return a
}

// ahead counts what is due before some keys, of the clock and of the time of held messages.
func (t *timers) ahead(clock, held []key, left *budget) Ahead {
	return Ahead{
		Expire: t.expiries.Counts(clock, left.take), Fire: t.schedules.Counts(clock, left.take),
		Retry: t.delays.Counts(clock, left.take), Return: t.returns.Counts(clock, left.take), TimeOut: t.timeouts.Counts(held, left.take),
	}
}

// ending counts the locks that end before some keys.
func (ls *locks) ending(held []key, left *budget) []uint64 { return ls.due.Counts(held, left.take) }

// until are the keys behind all that is due at some instants, of a time that is behind the clock.
func until(instants []fsm.Time, behind fsm.Millis) []key {
	keys := make([]key, len(instants))
	for i, at := range instants {
		keys[i] = key{At: at + 1 - fsm.Time(behind)}
	}
	return keys
}
