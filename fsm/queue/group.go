package queue

import "github.com/quorate/quorate/fsm"

// group is one group of messages: those with its id that are ready, wait to be
// retried, or are checked out. At most one consumer holds it, and only that one is
// handed its messages, in the order of their numbers.
//
// Invariants, once groups.settle has run:
//
//	members = |{(no, ·)} of groups.order|; head = the least number of them, 0 if
//	there is none; headReady ⇔ that message is Grouped
//	out = number of its messages that are checked out
//	protected = number of its Grouped messages that are due and do not expire
//	in groups.byID ⇔ members > 0, out > 0, held, or it has a state; unless ended
//	listed ≠ 0 ⇔ it waits to be served: then in waiting of to, or in groups.free if
//	to is nil
//	idle ⇔ it has a state and is neither held nor busy; stateUntil ≠ 0 ⇒ idle
//	ended: nothing of it is handed out; what is left of it dies
//
// How long a state lasts is decided when its group becomes idle, and ends when that
// gets a message or a holder, even within one command.
//
// id never changes, since snapshots read it while commands are applied. no orders
// nothing that anyone sees: it differs from replica to replica.
type group struct {
	id string
	no uint64 // key of its messages in groups.order; 0: it was never in byID

	members   int
	out       int
	protected int
	head      uint64
	headReady bool
	ended     bool
	endNo     uint64 // orders the groups that end
	touched   bool   // it is in groups.touched

	hold *hold // nil: nobody holds it

	listed uint64      // the number under which it waits to be served; 0: it does not
	to     *groupTaker // who alone is to be served; nil: anybody

	state      string
	idle       bool
	stateUntil fsm.Time // on the machine's clock; 0: never
	stateOrder uint64
}

// busy reports whether messages of the group are in the queue.
func (g *group) busy() bool { return g.members > 0 || g.out > 0 }

// rests reports whether the group has a state and nothing else.
func (g *group) rests() bool { return g.state != "" && g.hold == nil && !g.busy() }

// hold is the lock of a group. It ends at until or linger, on the clock of held
// messages, by a Tick; or its holder gives it up.
//
// Invariant: the group's deliveries to the holder that are not settled are in ids.
// ids may have others that it has settled and that have not ended.
type hold struct {
	of    *groupTaker
	order uint64 // of all holds; the key in of.holds, and the tie-break of ends
	// until is when the lock ends; 0: never. linger is when the holder of an empty
	// group loses it; 0: the group is not empty, or that is not timed.
	until  fsm.Time
	linger fsm.Time
	ids    sorted[struct{}] // keys have at = 0 and seq = the delivery
}

// end is when a Tick ends the hold; 0: never.
func (h *hold) end() fsm.Time {
	if h.until == 0 || h.linger != 0 && h.linger < h.until {
		return h.linger
	}
	return h.until
}

// groupTaker is what one consumer, or the gets of a session, holds and may hold of
// groups.
//
// Invariants:
//
//	holds = {g.hold.order → g : g.hold.of is the taker}
//	waiting = {g.listed → g : g.to is the taker}
//	owed = the first key of waiting, if the consumer wants messages; else 0
//	taking ⇔ it wants messages, takes any group, and holds fewer than max
//
// It is a record of its own, so that consumers of queues without groups cost
// nothing.
type groupTaker struct {
	c     *consumer
	max   int    // how many groups it may hold; gets: no limit
	only  string // the only group that it takes; empty: any
	turn  uint64 // the one with the lowest takes the next free group
	wants bool   // it may be served and has credit
	going bool   // it takes nothing new: cancelled

	holds   sorted[*group]
	waiting sorted[*group]
	owed    uint64
	taking  bool
	level   fsm.Time // of its entry in groups.takers, while taking
}

// passes reports whether the holder keeps a group only while something of it is
// not settled: gets, and consumers that are cancelled.
func (t *groupTaker) passes() bool { return t.going || t.c.isGets() }

// mayTake reports whether the consumer could be given a free group, if it wants
// messages: any group, and holds fewer than it may.
func (t *groupTaker) mayTake() bool {
	return t.c.isGets() || t.only == "" && !t.going && t.holds.len() < t.max
}
