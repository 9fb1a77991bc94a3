package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// expire is the end of message h, which is due, unless its group is held and covers
// it. If the messages of a group expire together, all of them will die; what is
// set aside is not covered, and deferred and parked messages die by themselves.
func (ds *deliveries) expire(h uint32, eff *fsm.Effects) {
	in, g := ds.messages.get(h).place, ds.members.of(h)
	switch {
	case g == nil || !ds.settings.GroupExpiry || in == Deferred || in == Parked || in == Delayed && g.hold != nil:
		ds.endWaiting(h, logpb.Death_EXPIRED, eff)
	case g.hold != nil:
		ds.messages.protect(h)
	default:
		ds.groups.end(g)
	}
}

// endWaiting is the end of message h, which is ready, set aside or parked.
func (ds *deliveries) endWaiting(h uint32, reason logpb.Death_Reason, eff *fsm.Effects) {
	leaveWaiting(ds, h)
	ds.outbox.die(h, reason, eff)
}

// leaveWaiting leaves message h, which is ready, set aside or parked, in no place.
func leaveWaiting(ds *deliveries, h uint32) {
	if ds.messages.get(h).place == Delayed {
		ds.lease.touch()
	}
	ds.aside.takeWaiting(h)
}

// giveUp ends the hold of g. What its holder has not settled goes back, as failed
// if the lock was lost. It returns how much that is.
func (ds *deliveries) giveUp(g *group, failed bool) int {
	c := g.hold.of.c
	r := &returning{of: c.id, tag: c.tag, failed: failed, group: true}
	for id := range g.hold.ids.all() {
		ds.scratch.steps++
		if held, ok := c.held.remove(id); ok {
			if failed {
				c.loses(id.seq)
			}
			r.held.push(checkout{id: id.seq, grip: held})
		}
	}
	ds.groups.release(g)
	if r.held.len() > 0 {
		ds.consumers.holds(c, -r.held.len())
		ds.addReturning(r)
	}
	n := r.held.len()
	ds.startOldest(c)
	ds.consumers.refresh(c)
	return n
}

// endHolds ends the holds that are over: locks that were not renewed, and those of
// groups that have been empty for long enough.
func (ds overtime) endHolds() {
	var done []*consumer
	for ds.scratch.budget > 0 {
		g := groupEnds{ds.groups}.overdue()
		if g == nil {
			break
		}
		ds.scratch.budget--
		lost := g.hold.until != 0 && ds.clock.heldUntil(g.hold.until) <= ds.clock.now()
		if lost {
			ds.counters.GroupsLost++
		}
		done = append(done, g.hold.of.c)
		n := ds.giveUp(g, lost)
		if ds.since(3) { // each counts; those of one group go together
			ds.scratch.budget -= min(n, ds.scratch.budget)
		}
	}
	ds.consumers.removeFinished(done...)
}
