package fsmtest

import (
	"cmp"

	"github.com/quorate/quorate/proto/logpb"
)

// hasWill reports whether what is left when the queue ends is dead-lettered.
func (q *model) hasWill() bool {
	return q.version >= 3 && q.config.DeadLetterOnDelete && q.config.DeadLetter
}

// isWhole reports whether the queue has all that belongs to its messages.
func (q *model) isWhole() bool { return q.phase == live || q.phase == draining && q.hasWill() }

// unwilled is how many messages of an ended queue are to become letters.
func (q *model) unwilled() uint64 {
	if !q.hasWill() {
		return 0
	}
	return q.left() - q.total(outbox, waiting).Messages
}

// beginWill ends all but the messages.
func (q *model) beginWill() {
	q.cancelAll()
	for _, c := range q.consumers {
		q.detach(c, false)
		q.dropGroups(c)
	}
	for _, d := range q.detachedOnes {
		q.detach(d.c, false)
	}
	q.detachedOnes = nil
	q.sessions, q.consumers, q.service, q.suspected, q.single = nil, nil, nil, nil, nil
	q.phase, q.goneAt = draining, q.clock.Add(drainTime)
	q.touched = true
}

// carriesOn reports whether the next command makes letters.
func (q *model) carriesOn() bool {
	return q.hasWill() && (q.unfinished() || q.unwilled() > 0 && q.takesWill())
}

// takesWill reports whether there is space for one more letter.
func (q *model) takesWill() bool {
	limit := q.config.DeadLetterMaxPlusOne
	return q.total(outbox).Messages < uint64(q.bounds.Tick) &&
		(limit <= 1 || q.total(outbox, waiting).Messages-q.underWay().Messages < limit-1)
}

// carryOut makes letters of what is left.
func (q *model) carryOut(k logpb.Command_Kind) {
	q.budget = q.bounds.Before
	if k == logpb.Command_TICK {
		q.budget = q.bounds.Tick
	}
	q.bringBack(k)
	n := q.bounds.Before
	if k == logpb.Command_TICK {
		n = min(q.budget, q.bounds.Back())
	}
	for ; n > 0 && !q.unfinished() && q.unwilled() > 0 && q.takesWill(); n-- {
		x := cmp.Or(q.nextToDrop(), firstOf(q.groupedOnes), firstOf(q.delayedOnes), firstOf(q.deferrals), firstOf(q.parkedOnes))
		if x == nil {
			x = q.in(scheduled)[0]
			q.counters.Unscheduled++
			x.id, x.ttl, x.ceiling, x.expireAt = "", 0, 0, 0
		}
		q.die(x, logpb.Death_QUEUE_DELETED)
	}
	q.settleGroups()
}
