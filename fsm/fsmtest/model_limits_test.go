package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// total counts the messages in the given places.
func (q *modelMessages) total(places ...place) (c queue.Count) {
	for _, x := range q.messages {
		if slices.Contains(places, x.place) {
			c.Messages++
			c.Bytes += x.bytes()
		}
	}
	return c
}

func plus(a, b queue.Count) queue.Count {
	return queue.Count{Messages: a.Messages + b.Messages, Bytes: a.Bytes + b.Bytes}
}

// pending are the letters that count: all, if they are delivered at least once,
// or those that have not died.
func (q *model) pending() queue.Count {
	if q.atLeastOnce() {
		return q.total(outbox, waiting)
	}
	return q.underWay()
}

func (q *model) atLeastOnce() bool {
	return q.config.DelayedStore || q.config.DeadLetter && q.config.DeadLetterStrategy == logpb.QueueConfig_AT_LEAST_ONCE
}

// kept counts and is never dropped.
func (q *model) kept() queue.Count {
	return plus(plus(q.pending(), q.total(scheduled, deferred)), q.stateSize())
}

// fits reports whether c is within the limits.
func (q *model) fits(c queue.Count) bool {
	within := func(n, limitPlusOne uint64) bool { return limitPlusOne == 0 || n <= limitPlusOne-1 }
	return within(c.Messages, q.config.MaxLengthPlusOne) && within(c.Bytes, q.config.MaxLengthBytesPlusOne)
}

func (q *model) drops() bool { return q.config.Overflow == logpb.QueueConfig_DROP_HEAD }

// full reports whether a message has no place.
func (q *model) full(e *logpb.Enqueue) bool { return !q.hasSpace && q.isFullFor(q.sizeOf(e)) }

// sizeOf is what a message counts that comes.
func (q *model) sizeOf(e *logpb.Enqueue) queue.Count {
	edit := fsm.EditOf((&message{added: q.brought(e)}).annotations())
	return queue.Count{Messages: 1, Bytes: uint64(e.Size-e.Head) + uint64(len(edit))}
}

// isFullFor is full for messages of this size.
func (q *model) isFullFor(size queue.Count) bool {
	if q.drops() {
		return q.kept() != (queue.Count{}) && q.fits(size) && !q.fits(plus(q.kept(), size))
	}
	return !q.fits(plus(plus(q.kept(), q.total(ready, returned, grouped, delayed, parked)), size))
}

// tooLong reports whether there is something to drop.
func (q *model) tooLong() bool {
	all := q.total(ready, returned, grouped, delayed, parked)
	return q.drops() && all.Messages > 0 && !q.fits(plus(q.kept(), all))
}

// trim drops from the head.
func (q *model) trim() {
	for n := q.bounds.Drops; n > 0 && q.tooLong(); n-- {
		x, ok := q.withoutDue(q.nextToDrop)
		if ok && q.tooLong() {
			x = cmp.Or(firstOf(q.parkedOnes), x, firstOf(q.delayedOnes))
		}
		if x == nil {
			return
		}
		if q.tooLong() { // nothing of what was in the way has died
			q.die(x, logpb.Death_MAXLEN)
		}
	}
}

// firstOf is the first message of a list; nil: there is none.
func firstOf(all []*message) *message {
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// refuse does not take a message in, and sends it away as a dead letter if the
// queue says so.
func (q *model) refuse(m fsm.Meta, e *logpb.Enqueue) fsm.Result {
	if q.config.Overflow == logpb.QueueConfig_REJECT_PUBLISH_DLX && q.config.DeadLetter && !(e.Kept && q.version >= 3) {
		x := q.newMessage(m, e)
		x.reason, x.diedAt, x.scheduledFor = logpb.Death_MAXLEN, q.clock, fsm.Time(e.ScheduledFor)
		q.counters.Deaths[logpb.Death_MAXLEN-1][queue.SentOnce]++
		x.label, x.came = label{cut(e.MessageId), cut(e.CorrelationId)}, 0
		q.noteEnd(x, logpb.EndState_MAXLEN, queue.SentOnce, false)
		q.out.DeadLetters = append(q.out.DeadLetters, q.letterOf(x).DeadLetter)
	}
	return q.reject(m)
}

func (q *model) reject(m fsm.Meta) fsm.Result {
	q.counters.Refused++
	q.unneeded = m.Index
	return fsm.Result{Code: fsm.Rejected}
}

// sweep forgets what was purged, some of it at a time.
func (q *model) sweep(k logpb.Command_Kind) {
	n := q.bounds.Before
	if k == logpb.Command_TICK || k == logpb.Command_PURGE {
		n = q.bounds.Sweep
	}
	for ; n > 0 && len(q.purgedOnes) > 0 && q.phase == live; n-- {
		if q.purgedOnes[0].stays {
			n -= 3 // it costs as much as four
		}
		q.remove(q.purgedOnes[0])
	}
	q.forgetIDs(k)
}

// discardAll makes messages purged ones.
func (q *modelMessages) discardAll(all []*message) {
	for _, x := range all {
		q.leave(x)
		x.place = purged
		q.purgedOnes = append(q.purgedOnes, x)
	}
}

// in lists the messages in a place, in the order of the place.
func (q *modelMessages) in(p place) []*message {
	switch p {
	case returned:
		return slices.Clone(q.returns)
	case outbox:
		return slices.Clone(q.letters)
	case waiting:
		return slices.Clone(q.waitingOnes)
	case delayed:
		return slices.Clone(q.delayedOnes)
	case deferred:
		return slices.Clone(q.deferrals)
	case grouped:
		return slices.Clone(q.groupedOnes)
	case parked:
		return slices.Clone(q.parkedOnes)
	}
	var all []*message
	for _, x := range q.messages {
		if x.place == p {
			all = append(all, x)
		}
	}
	return all
}

// dropWaiting forgets all that is ready, scheduled or set aside.
func (q *model) dropWaiting() {
	for _, x := range q.messages {
		x.stays = x.stays || q.version >= 3 && x.group != "" && (x.place == grouped || x.place == delayed)
	}
	for p := range uint32(maxPriority + 1) {
		q.discardAll(slices.DeleteFunc(q.in(ready), func(x *message) bool { return x.priority != p }))
	}
	q.discardAll(q.in(returned))
	if q.total(scheduled, delayed).Messages > 0 {
		q.active = q.clock
	}
	q.discardAll(q.in(scheduled))
	q.discardAll(q.in(delayed))
	q.discardAll(q.in(deferred))
	q.discardAll(q.in(grouped))
	q.discardAll(q.in(parked))
}
