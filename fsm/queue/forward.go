package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// maxHops is how often a message is forwarded. The next time it dies.
const maxHops = 4

// forward makes letters of what is ready in a queue that forwards, in the order in
// which it would be handed out, and as many as a command may hand out.
//
// It runs once after each command and, for messages that cannot wait, within an
// Enqueue. Ensures: nothing is ready, or handOuts = 0, or the command may expire no
// more, or sessions are ending. In the last three cases NextDue is at once if
// something is left.
func (it *intake) forward(eff *fsm.Effects) {
	for it.settings.forwards() && it.scratch.handOuts > 0 && !it.deliveries.sessionsEnd() {
		h := choice{it.deliveries}.ready(eff)
		if h == 0 {
			return
		}
		it.scratch.handOuts--
		it.messages.remove(h)
		if hops := uint32(it.messages.deadLetterInfo(h).hops); hops < maxHops {
			setHops(it.messages, h, hops+1)
			it.outbox.forward(h, eff)
		} else {
			it.outbox.die(h, logpb.Death_MAXHOPS, eff)
		}
	}
}

// setHops records how often message h was forwarded.
func setHops(ms *messages, h, hops uint32) {
	ms.editDeadLetterInfo(h).hops = uint8(min(hops, maxHops+1))
}

// forwardedCounts are the letters that are forwarded, by place.
type forwardedCounts struct{ posted, waiting Count }

// of is the count for a place: Outbox or Waiting.
func (f *forwardedCounts) of(p Place) *Count {
	if p == Waiting {
		return &f.waiting
	}
	return &f.posted
}

// all is the number and size of the letters that are forwarded.
func (f *forwardedCounts) all() Count { return f.posted.plus(f.waiting) }

// underWay is the number and size of the letters that are forwarded. O(1).
func (o *outbox) underWay() Count { return o.forwarded.all() }

// forward posts message h, which is in no place, as a letter that has not died. It
// keeps its expiry, which counts again if it comes back.
func (o *outbox) forward(h uint32, eff *fsm.Effects) {
	e := o.messages.editDeadLetterInfo(h)
	e.reason, e.diedAt, e.forwarded = logpb.Death_NONE, o.clock.now(), true
	o.post(h, eff)
	o.recount(h, 0, Outbox)
}

// recount moves letter h from a place, or none, to another, or none, in the counts of
// what is forwarded. It does nothing for a letter that has died.
func (o *outbox) recount(h uint32, from, to Place) {
	if !o.messages.deadLetterInfo(h).forwarded {
		return
	}
	if from != 0 {
		o.forwarded.of(from).sub(o.messages.get(h).count())
	}
	if to != 0 {
		o.forwarded.of(to).add(o.messages.get(h).count())
	}
}

// arrives reports whether letter h stays until it has arrived everywhere: it is
// forwarded, or its queue delivers dead letters at least once.
func (o *outbox) arrives(h uint32) bool {
	return o.messages.deadLetterInfo(h).forwarded || o.strategy() == AtLeastOnce
}

// comeBack makes letter h, which was to be forwarded and is in the outbox without
// transfers, ready again behind all others: its queue no longer forwards.
func (o *outbox) comeBack(h uint32) {
	o.recount(h, Outbox, 0)
	o.messages.remove(h)
	e := o.messages.editDeadLetterInfo(h)
	e.letter, e.diedAt, e.forwarded, e.hops = 0, 0, false, e.hops-1
	due := o.messages.scheduleInfo(h).scheduledFor
	if e.schedule = nil; due != 0 {
		e.schedule = &scheduleInfo{scheduledFor: due}
	}
	o.messages.dropInfo(h)
	x := o.messages.mut(h)
	x.acquired, x.failed = 0, 0
	o.messages.renew(h)
	o.messages.put(h, Ready)
	o.messages.watch(h)
}

// settleWaiting drops dead letters that wait although the queue no longer delivers
// at least once. While something that is forwarded is left, they stay.
func (o *outbox) settleWaiting() {
	if o.messages.count(Waiting).Messages > 0 && o.strategy() != AtLeastOnce && o.forwarded.all().Messages == 0 {
		o.counters.DeadDropped += o.purge()
	}
}
