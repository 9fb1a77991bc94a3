package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// dueBefore bounds the expiries before a command, and separately those
	// during its assignment; a Tick has dueInTick for both together.
	dueBefore = 64
	dueInTick = 4096

	// dropsAtOnce bounds what one command drops from the head of a queue that
	// is too long. A Tick or a Purge releases up to sweepInTick purged
	// messages, any other command dueBefore.
	dropsAtOnce = 4096
	sweepInTick = 16384

	// handOutsAtOnce bounds how many messages one command hands out.
	handOutsAtOnce = 2048

	// maxConsumers bounds the consumers of a queue, including gets and
	// cancelled ones that still hold messages: some commands scan all of them.
	maxConsumers = 8192

	// skipsAtOnce bounds how many messages one command passes over because they
	// have too little left of their TTL.
	skipsAtOnce = 4096

	// maxStates bounds the states of all groups of a queue together, in bytes.
	maxStates = 256 << 20
)

// shared is what all parts of a machine read, and where they count what they
// do. It has no rules of its own. Each machine has one, and every part points
// to it. Only the machine changes clock, settings and bounds, between two
// rules; a part changes scratch as its contract says.
type shared struct {
	// name and id never change. clock, settings and counters are state and in every
	// snapshot; bounds, which the program sets, and scratch are in none.
	name     string // name of the queue, recorded in deaths
	id       fsm.QueueID
	clock    clock
	settings settings
	counters Counters
	bounds   Bounds
	scratch  scratch
	// A snapshot holds version only if it is above 1, so that version 1 keeps its bytes.
	version uint32 // highest of the entries, at least 1
}

// since reports whether the machine is of version v or later.
func (s *shared) since(v uint32) bool { return s.version >= v }

// refusedRuns is how many runs of refused commands a session remembers.
func (s *shared) refusedRuns() int {
	if s.since(3) {
		return refusedRuns
	}
	return fewerRuns
}

// Bounds limit the work of one command. What is left is due at once, and done
// by ticks. They are equal on all replicas.
//
// Invariant: all are at least 1, or a command that leaves work would make no
// progress and the leader would tick forever. They are not in the log: to change
// one is to change what an entry does, so it needs a new machine version.
type Bounds struct {
	Before   int // due actions before a command, and leftover work that other commands do
	Tick     int // due actions of a tick, and the work of ending a session, a node or deliveries
	Drops    int // messages dropped from the head of a queue that is too long
	Sweep    int // purged messages that a tick or a purge releases
	HandOuts int // messages handed out
	// Consumers is the maximum number of a queue, including gets and cancelled
	// ones that still hold messages: any command may scan all of them.
	Consumers int
	IDs       int // remembered against duplicates
	Skips     int // messages passed over for consumers that ask for a least TTL
	States    int // bytes of the states of all groups, from version 3 on
}

var defaultBounds = Bounds{dueBefore, dueInTick, dropsAtOnce, sweepInTick, handOutsAtOnce, maxConsumers, maxSeen, skipsAtOnce, maxStates}

// Back is how many deliveries a tick, or the end of a session or a node, brings
// back, and how many transfers to targets that are gone it ends. Each may be a
// death, which costs twice as much as other actions. It is at least 1 if Tick
// is.
func (b Bounds) Back() int { return (b.Tick + 1) / 2 }

// due is how many due actions a command of this kind may perform.
func (b *Bounds) due(kind logpb.Command_Kind) int {
	if kind == logpb.Command_TICK {
		return b.Tick
	}
	return b.Before
}

// scratch is the temporary data of a command being applied. It is not state: it
// has no meaning between two commands, and is in no snapshot.
//
// Invariant: budget, handOuts and skips are not negative. taken and overdue are reused, so
// slices of them must not be retained.
//
// steps measures the work of one command independently of the processor. Parts
// add to it wherever the work is proportional to something that may be large.
type scratch struct {
	budget    int    // due actions that may still be performed
	handOuts  int    // messages that may still be handed out
	skips     int    // messages that may still be passed over
	steps     int    // steps taken so far, for tests
	fresh     uint32 // a message with TTL 0 that is being offered; 0: none
	ended     bool   // the queue has ended: nothing becomes ready
	delivered uint64 // number of the delivery of a get; 0: none
	taken     []checkout
	overdue   []checkout
	// by is who held the message that is dying; zero: nobody. holders are those of
	// taken and overdue, see checkout.by.
	by      lastHolder
	holders []lastHolder
}

// holder returns the number of a holder of messages in taken, for checkout.by.
func (s *scratch) holder(id fsm.ConsumerID, tag string) uint32 {
	s.holders = append(s.holders, lastHolder{id, tag})
	return uint32(len(s.holders))
}

// heldBy sets by for a message of taken or overdue.
func (s *scratch) heldBy(no uint32) {
	if s.by = (lastHolder{}); no > 0 {
		s.by = s.holders[no-1]
	}
}

// begin starts a command of an active queue.
func (s *scratch) begin(kind logpb.Command_Kind, b *Bounds) {
	s.budget, s.handOuts, s.steps, s.taken = b.due(kind), b.HandOuts, 0, s.taken[:0]
	s.skips = b.Skips
	s.by = lastHolder{}
}

// end frees memory that only a large command needs. The memory is kept
// otherwise: commands that take a few deliveries allocate none.
func (s *scratch) end() {
	if cap(s.taken) > dueInTick {
		s.taken, s.overdue = nil, nil
	}
	if len(s.holders) > 0 {
		clear(s.holders)
		s.holders = s.holders[:0]
	}
}

// dueAt is when a message becomes ready: at an instant, or so long from now,
// as the log has it, or as long as the queue lets messages wait. 0: it was asked
// for none of them.
//
// Ensures: 0 ≤ result ≤ fsm.MaxTime. It may be in the past; the caller decides
// what that means.
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

// expiry returns when a message expires whose TTL counts from an instant in the
// past; 0: from now.
//
// An instant in the future counts as now: the clock of another queue, from which
// it comes, may be ahead. Ensures: 1 ≤ result ≤ fsm.MaxTime.
func (s *shared) expiry(from int64, ttl fsm.Millis) fsm.Time {
	if from <= 0 {
		return s.clock.deadline(ttl)
	}
	return max(min(fsm.Time(from), s.clock.now()).Add(ttl), 1)
}
