package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// members says which message belongs to which group, and what follows from that for
// the message. It connects messages and groups and has no state of its own: the
// record of a message names its group.
type members struct {
	*shared
	groups   *groups
	messages *messages
}

// of returns the group of message h; nil: it has none.
func (mb *members) of(h uint32) *group { return mb.messages.deadLetterInfo(h).group }

// set makes message h, which is in no place, one of g.
func (mb *members) set(h uint32, g *group) { mb.messages.editDeadLetterInfo(h).group = g }

// place is where message h, which is in no place, waits to be handed out for the
// first time. A queue without groups forgets the group of the message.
func (mb *members) place(h uint32) Place {
	g := mb.of(h)
	switch {
	case g == nil:
		return Ready
	case !mb.settings.grouped():
		mb.messages.ungroup(h)
		return Ready
	case g.ended:
		mb.set(h, mb.groups.find(g.id)) // it was scheduled meanwhile
	}
	return Grouped
}

// putBack puts those messages back that belong to a group, and returns the others
// in their order. They are in no place. The first ones of the place are then those
// that were put back.
func (mb *members) putBack(kept []checkout) []checkout {
	if !mb.groups.any() {
		return kept
	}
	return mb.regroup(kept)
}

// regroup is putBack for messages whose groups may not be known.
func (mb *members) regroup(kept []checkout) []checkout {
	var run []checkout
	kept = slices.DeleteFunc(kept, func(held checkout) bool {
		if mb.of(held.handle) == nil || mb.place(held.handle) != Grouped {
			return false
		}
		run = append(run, held)
		return true
	})
	slices.SortFunc(run, func(a, b checkout) int { return compare(a.seq, b.seq) })
	for _, held := range slices.Backward(run) {
		mb.messages.putAfter(0, held.handle, Grouped)
	}
	for _, held := range run {
		if mb.messages.get(held.handle).due(mb.clock.now()) && mb.covered(held.handle) {
			mb.messages.protect(held.handle)
		} else {
			mb.messages.watch(held.handle)
		}
	}
	return kept
}

// lift tells the group of message h that it is not checked out any more.
func (mb *members) lift(h uint32) {
	if g := mb.of(h); g != nil {
		mb.groups.addOut(g, -1)
	}
}

// handOut is groups.handOut for message h of g, which c is handed next. Deferred messages
// of g that c has received while another consumer held it are part of a hold that
// begins.
func (mb *members) handOut(h uint32, g *group, c *consumer, lock fsm.Millis) {
	free := mb.groups.held(g.id) == nil
	g = mb.groups.handOut(g, c, c.next, lock)
	mb.set(h, g)
	if !free || g.out == 1 || g.hold == nil || g.hold.of.c != c {
		return
	}
	for held := range c.held.from(0) {
		mb.scratch.steps++
		if mb.of(held.handle) == g {
			g.hold.ids.put(key{seq: held.id}, struct{}{})
		}
	}
}

// covered reports whether message h does not expire because its group is held. One
// that was due while that was so remains covered, whatever the settings say since.
func (mb *members) covered(h uint32) bool {
	g := mb.of(h)
	return g != nil && g.hold != nil && (mb.settings.GroupExpiry || mb.messages.deadLetterInfo(h).protected)
}

// doomed reports whether message h dies because its group has ended.
func (mb *members) doomed(h uint32) bool {
	g := mb.of(h)
	return g != nil && g.ended
}

// death is why message h dies whose group has ended. It is in no place, so that its
// expiry is known.
func (mb *members) death(h uint32) logpb.Death_Reason {
	if mb.messages.get(h).due(mb.clock.now()) {
		return logpb.Death_EXPIRED
	}
	return logpb.Death_GROUP_EXPIRED
}

// endOverdue ends the groups of messages that come back past their expiry, if nobody
// holds them and their messages expire together. The messages are in no place.
func (mb *members) endOverdue(back []checkout) {
	if !mb.settings.GroupExpiry || !mb.groups.any() {
		return
	}
	for _, held := range back {
		g := mb.of(held.handle)
		if g != nil && g.hold == nil && !g.ended && mb.messages.get(held.handle).due(mb.clock.now()) {
			mb.groups.end(mb.groups.known(g))
		}
	}
}

// mayGo reports whether message h, which is ready, may be handed out: it is not due,
// or that has no effect.
func (mb *members) mayGo(h uint32) bool {
	return !mb.messages.get(h).due(mb.clock.now()) || h == mb.scratch.fresh || mb.covered(h)
}

// settled is called with the deliveries in scratch.taken and rest, which c has settled:
// that renews the locks of their groups. rest may be nil.
func (mb *members) settled(c *consumer, rest *held) {
	if !mb.groups.any() {
		return
	}
	lock := mb.settings.groupLock(c)
	for _, held := range mb.scratch.taken {
		g := mb.of(held.handle)
		if g == nil || g.hold == nil || g.hold.of.c != c {
			continue
		}
		g.hold.ids.remove(key{seq: held.id})
		mb.groups.lock(g, lock)
	}
	if rest != nil && rest.len() > 0 {
		groupEnds{mb.groups}.renew(c, rest, lock)
	}
}

// concluded is called with deliveries that of had settled beyond the bound of one
// command, and that have ended.
func (mb *members) concluded(of fsm.ConsumerID, some []checkout) {
	if !mb.groups.any() {
		return
	}
	for _, held := range some {
		if g := mb.of(held.handle); g != nil {
			mb.groups.forget(g, of, held.id)
		}
	}
}

// nextForGet returns the message that a get of c is handed next; 0: there is none.
// c may be nil; open says that nothing is on its way back. A get takes the oldest message that it can: of no group, of a free
// group, or of one that its session's gets hold.
func (mb *members) nextForGet(c *consumer, open bool) uint32 {
	h := mb.messages.nextReady()
	if !mb.groups.any() || !open {
		return h
	}
	if g := mb.groups.nextFor(c); g != nil && (h == 0 || g.listed < mb.messages.get(h).seq) {
		return mb.groups.first(g)
	}
	return h
}

// lockedUntil is when the lock of the group of message h ends; 0: it has none, or c
// does not hold it for a time.
func (mb *members) lockedUntil(h uint32, c *consumer) fsm.Time {
	if g := mb.of(h); g != nil && g.hold != nil && g.hold.of.c == c {
		return mb.clock.heldUntil(g.hold.until)
	}
	return 0
}
