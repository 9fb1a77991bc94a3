package queue

import (
	"github.com/quorate/quorate/fsm"
)

// groupEnds is the part of groups that decides when holds and states end: what is empty
// ends after a while, and what is renewed later. It has no state of its own.
type groupEnds struct{ *groups }

// settleHold releases g if its holder does not keep it.
func (gs groupEnds) settleHold(g *group) {
	h, linger, stands := g.hold, duration(gs.settings.GroupLinger), gs.stands(g)
	switch {
	case h.of.passes() && g.out == 0, stands && linger == 0 && h.linger == 0:
		gs.release(g)
	case stands && h.linger == 0:
		gs.setEnd(g, h.until, gs.clock.heldDeadline(linger))
	case !stands && h.linger != 0 && gs.since(3): // what was first has gone
		gs.setEnd(g, h.until, 0)
	}
}

// stands reports whether the holder of g has nothing to do: nothing of it is out, and
// nothing can be handed out, since it is empty or its first message waits to be
// retried. Before version 3 only an empty group stands still.
func (gs groupEnds) stands(g *group) bool {
	if gs.since(3) {
		return g.out == 0 && !g.headReady
	}
	return !g.busy()
}

// wake is called when something has come to g: its state does not end, and its hold
// does not unless it still stands.
func (gs groupEnds) wake(g *group) {
	gs.untimeState(g)
	g.idle = false
	if g.hold != nil && g.hold.linger != 0 && !gs.stands(g) {
		gs.setEnd(g, g.hold.until, 0)
	}
}

// settleState times the state of a group that has become empty and is not held.
func (gs groupEnds) settleState(g *group) {
	if g.idle || !g.rests() {
		return
	}
	g.idle = true
	if ttl := duration(gs.settings.GroupStateTtl); ttl > 0 {
		gs.timeState(g, gs.clock.deadline(ttl), gs.number())
	}
}

// timeState makes the state of g, which is idle, end at until.
func (gs groupEnds) timeState(g *group, until fsm.Time, order uint64) {
	g.stateUntil, g.stateOrder = until, order
	gs.states.put(key{until, order}, g)
}

// untimeState makes the state of g last.
func (gs groupEnds) untimeState(g *group) {
	if g.stateUntil != 0 {
		gs.states.remove(key{g.stateUntil, g.stateOrder})
		g.stateUntil, g.stateOrder = 0, 0
	}
}

// expireStates ends states whose time is over, as far as the budget of the command
// allows.
func (gs groupEnds) expireStates() {
	for gs.states.len() > 0 && gs.scratch.budget > 0 {
		at, p := gs.states.first()
		if at.at > gs.clock.now() {
			return
		}
		gs.scratch.budget--
		gs.setState(*p, "")
	}
}

// emptiness is since when a group is empty, as far as that decides when something ends.
type emptiness struct {
	linger     fsm.Time // of its hold
	idle       bool
	stateUntil fsm.Time
	stateOrder uint64
}

// emptiness returns that of the group with this id, which may be unknown.
func (gs groupEnds) emptiness(id string) (e emptiness) {
	g := gs.byID[id]
	if g == nil || g.busy() {
		return e
	}
	e = emptiness{idle: g.idle, stateUntil: g.stateUntil, stateOrder: g.stateOrder}
	if g.hold != nil {
		e.linger = g.hold.linger
	}
	return e
}

// emptyAgain undoes what a message has changed that came to a group and was refused: it
// is as empty as it was before. Requires: nothing else has happened to the group.
func (gs groupEnds) emptyAgain(id string, e emptiness) {
	g := gs.byID[id]
	if g == nil {
		return
	}
	if e.linger != 0 && g.hold != nil {
		gs.setEnd(g, g.hold.until, e.linger)
	}
	if g.idle = e.idle; e.stateUntil != 0 && g.stateUntil == 0 {
		gs.timeState(g, e.stateUntil, e.stateOrder)
	}
}

// renew lets the locks of the groups begin anew of which c has settled some of
// rest.
func (gs groupEnds) renew(c *consumer, rest *held, lock fsm.Millis) {
	first, _ := rest.first()
	for _, g := range gs.takers.heldBy(c) {
		for id := range g.hold.ids.from(first) {
			gs.scratch.steps++
			if _, settled := rest.find(id.seq); settled {
				gs.lock(g, lock)
				break
			}
		}
	}
}

// nextEnds returns when the first hold ends, on the clock of held messages, and when
// the first state does; 0: none does.
func (gs groupEnds) nextEnds() (hold, state fsm.Time) {
	first, _, _ := firstOf(&gs.ends)
	k, _, _ := firstOf(&gs.states)
	return first.at, k.at
}

// overdue returns a group whose hold has ended; nil: there is none.
func (gs groupEnds) overdue() *group {
	if k, g, ok := firstOf(&gs.ends); ok && gs.clock.heldUntil(k.at) <= gs.clock.now() {
		return g
	}
	return nil
}

// end makes all messages of g die, step by step, see doomed. Nothing of it is
// handed out any more. Messages that come belong to another group of its id, which
// has the state. Requires: nobody holds g, and it is known.
func (gs *groups) end(g *group) {
	if g.ended {
		return
	}
	gs.unlist(g)
	state := g.state
	gs.setState(g, "")
	delete(gs.byID, g.id)
	gs.endAs(g)
	gs.keep(g)
	gs.touch(g)
	if state != "" {
		gs.setState(gs.known(g), state)
	}
}

// endAs makes g the last one of those that end.
func (gs *groups) endAs(g *group) {
	gs.lastEnd++
	g.ended, g.endNo = true, gs.lastEnd
	gs.ended.put(key{seq: g.endNo}, g)
	gs.mark(g)
}

// mark updates whether g is in dying, if it has ended.
func (gs *groups) mark(g *group) {
	if !g.ended {
		return
	}
	switch at := (key{seq: g.endNo}); {
	case g.members == 0 && gs.dying.get(at) != nil:
		gs.dying.remove(at)
	case g.members > 0 && gs.dying.get(at) == nil:
		gs.dying.put(at, g)
	}
}

// doomed returns a message that is to die because its group has ended; 0: there is
// none. The order is that of the groups, then of the messages.
func (gs *groups) doomed() uint32 {
	if _, g, ok := firstOf(&gs.dying); ok {
		return gs.first(g)
	}
	return 0
}
