package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// dueBefore bounds the expiries before a command, and once more those
	// that its assignment runs into; a Tick has dueInTick for all it does.
	dueBefore = 64
	dueInTick = 4096

	// dropsAtOnce bounds what one command drops from the head of a queue that
	// is too long; sweepInTick and dueBefore what a Tick or a Purge, and any
	// other command, forget of what was purged.
	dropsAtOnce = 4096
	sweepInTick = 16384

	// handOutsAtOnce bounds how many messages one command hands out.
	handOutsAtOnce = 2048

	// maxConsumers bounds the consumers of a queue, gets and cancelled ones that
	// still owe included: some commands look at all of them.
	maxConsumers = 8192
)

// shared is what all parts of a machine read, and where they count what they
// do. It has no rules of its own. There is one of each machine, and every part
// points to it; only the machine changes clock, settings and bounds, between two
// rules, and a part changes of scratch what its contract says.
type shared struct {
	name     string // of the queue: deaths tell it
	clock    clock
	settings settings
	counters Counters
	bounds   Bounds
	scratch  scratch
}

// Bounds are how much one command may do. What it leaves is due at once, and
// done by ticks. All replicas have the same.
type Bounds struct {
	Before   int // due actions before a command, and what others go on with that is left to do
	Tick     int // due actions of a tick, and what ends a session, a node or deliveries does itself
	Drops    int // messages dropped from the head of a queue that is too long
	Sweep    int // purged messages that a tick or a purge forgets
	HandOuts int // messages handed out
	// Consumers is how many a queue may have, gets and cancelled ones that still
	// owe included: to look at each of them is what any command may do.
	Consumers int
}

var defaultBounds = Bounds{dueBefore, dueInTick, dropsAtOnce, sweepInTick, handOutsAtOnce, maxConsumers}

// Back is how many deliveries a tick, or what ends a session or a node, brings
// back, and how many transfers to targets that are gone it ends. Each may be a
// death, which costs twice what other actions do.
func (b Bounds) Back() int { return (b.Tick + 1) / 2 }

// due is how many due actions a command of this kind may perform.
func (b *Bounds) due(kind logpb.Command_Kind) int {
	if kind == logpb.Command_TICK {
		return b.Tick
	}
	return b.Before
}

// scratch is what a command has in hand while it is applied. It is no state: of
// no meaning between two commands, and in no snapshot.
//
// Invariant: 0 ≤ budget and 0 ≤ handOuts. taken and overdue are reused, so
// nobody keeps a slice of them.
type scratch struct {
	budget    int    // due actions that may still be performed
	handOuts  int    // messages that may still be handed out
	steps     int    // that have been taken, for tests
	fresh     uint32 // a message with TTL 0 that is being offered; 0: none
	delivered uint64 // number of the delivery of a get; 0: none
	taken     []checkout
	overdue   []uint32
}

// begin is the beginning of a command of an active queue.
func (s *scratch) begin(kind logpb.Command_Kind, b *Bounds) {
	s.budget, s.handOuts, s.steps, s.taken = b.due(kind), b.HandOuts, 0, s.taken[:0]
}

// end lets go of what only a large command needs.
func (s *scratch) end() {
	if cap(s.taken) > dueInTick {
		s.taken, s.overdue = nil, nil
	}
}

// dueAt is when a message becomes ready: at an instant, or so long from now,
// as the log has it, or as long as the queue lets messages wait. 0: it was asked
// for none of them.
func (s *shared) dueAt(at int64, storedDelay, delay uint64) fsm.Time {
	switch d := millis(storedDelay); {
	case at > 0:
		return min(fsm.Time(at), fsm.MaxTime)
	case d.Given:
		return s.clock.deadline(d.Value)
	case delay > 0:
		return s.clock.deadline(duration(delay))
	}
	return 0
}

// expiry is when a message expires whose TTL counts from an instant that has
// passed; 0: from now.
func (s *shared) expiry(from int64, ttl fsm.Millis) fsm.Time {
	if from <= 0 {
		return s.clock.deadline(ttl)
	}
	return max(min(fsm.Time(from), s.clock.now()).Add(ttl), 1)
}
