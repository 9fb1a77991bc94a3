package queue

import "github.com/quorate/quorate/fsm"

// choice is the part of deliveries that chooses what is handed out next, and to
// whom. It has no state of its own.
type choice struct{ *deliveries }

// first returns the message to hand out next, and to whom; 0: none. It expires due
// messages that are in the way, and gives up when the command may expire no more.
//
// Ensures: the result is still in its list, and not due unless it is
// scratch.fresh. It may expire others although nobody is served in the end, up
// to scratch.budget; what has expired is in eff.
func (ds choice) first(eff *fsm.Effects) (uint32, *consumer) {
	for {
		ds.passOver()
		h, c := ds.candidate()
		if h == 0 || ds.mayGive(h) {
			return h, c
		}
		if !ds.expireNext(eff) {
			return 0, nil
		}
	}
}

// mayGive reports whether message h, which is next, may be handed out. While
// anything is due that would end its group, if that is free, nobody gets the group:
// what is due would be covered by the hold.
func (ds choice) mayGive(h uint32) bool {
	if !ds.members.mayGo(h) {
		return false
	}
	g := ds.members.of(h)
	if g == nil || g.hold != nil || !ds.settings.GroupExpiry {
		return true
	}
	first, _, ok := ds.timers.expiry()
	return (!ok || first.at > ds.clock.now()) && !overdueTimed(ds.shared, ds.timers)
}

// candidate returns the message to hand out next, due or not, and to whom: the
// older one of those that are of no group and those of groups. 0: there is none, or
// more is to be passed over.
//
// Nothing of a group is handed out while something is on its way back, which may be
// an older message of the group.
func (ds choice) candidate() (h uint32, c *consumer) {
	if least, ok := ds.consumers.leastServed(); ok {
		if h = ds.cursors.first(least, ds.messages); h != 0 {
			c = ds.consumers.nextServed(h)
		}
	}
	if !ds.groups.servesAny() || ds.returning.len() > 0 {
		return h, c
	}
	if g, t := ds.groups.nextServed(); h == 0 || g.listed < ds.messages.get(h).seq {
		return ds.groups.first(g), t.c
	}
	return h, c
}

// passOver finds the next message for the least demanding consumer with credit, as
// far as the command may.
func (ds choice) passOver() {
	if !ds.cursors.any() {
		return
	}
	if least, ok := ds.consumers.leastServed(); ok {
		ds.cursors.passOver(least, ds.messages)
	}
}

// firstForGet is like first for a get of c, which may be nil.
func (ds choice) firstForGet(c *consumer, eff *fsm.Effects) uint32 {
	for {
		h := ds.members.nextForGet(c, ds.returning.len() == 0)
		if h == 0 || ds.mayGive(h) {
			return h
		}
		if !ds.expireNext(eff) {
			return 0
		}
	}
}

// ready returns the message of no group that is next; 0: none. It expires due
// messages that are in the way, and gives up when the command may expire no more.
func (ds choice) ready(eff *fsm.Effects) uint32 {
	for {
		h := ds.messages.nextReady()
		if h == 0 || ds.members.mayGo(h) {
			return h
		}
		if !ds.expireNext(eff) {
			return 0
		}
	}
}

// oldest returns the message that a queue drops that is too long: the one to be
// handed out next of those of no group, or the oldest of groups if that is older,
// whoever holds its group and whatever it waits for; 0: nothing is ready. It expires due messages that are in the way; ok is false if the command may
// expire no more.
func (ds choice) oldest(eff *fsm.Effects) (h uint32, ok bool) {
	for {
		h = ds.messages.nextReady()
		if g := ds.groups.oldest(); g != 0 && (h == 0 || ds.messages.get(g).seq < ds.messages.get(h).seq) {
			h = g
		}
		if h == 0 || ds.members.mayGo(h) && !ds.members.doomed(h) {
			return h, true
		}
		if !ds.expireNext(eff) {
			return 0, false
		}
	}
}
