package fsmtest

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// maxHops is how often a message is forwarded.
const maxHops = 4

// forward sends on what waits.
func (q *model) forward() {
	for q.config.Forward && q.phase == live && q.handOuts > 0 && q.ending() == nil {
		x, _ := q.withoutDue(func() *message { return q.nextReady(0) })
		if x == nil {
			return
		}
		q.handOuts--
		if x.hops >= maxHops {
			q.die(x, logpb.Death_MAXHOPS)
			continue
		}
		q.leave(x)
		x.hops++
		x.reason, x.diedAt, x.forwarded = logpb.Death_NONE, q.clock, true
		q.post(x)
	}
}

// underWay are the letters that have not died.
func (q *model) underWay() (c queue.Count) {
	for _, x := range q.messages {
		if x.forwarded && (x.place == outbox || x.place == waiting) {
			c.Messages++
			c.Bytes += x.bytes()
		}
	}
	return c
}

// comeBack makes a letter ready, as a new message, that is no longer to go on.
func (q *model) comeBack(x *message) {
	q.remove(x)
	x.letterState = letterState{}
	x.hops--
	x.acquired, x.failed = 0, 0
	x.seq, x.place = q.nextMessage, ready
	q.nextMessage++
	q.messages = append(q.messages, x)
}

// hasGone is the end of a message that has arrived where it was forwarded to.
func (q *model) hasGone(x *message) {
	if x.takenAs == logpb.Take_COPY {
		q.counters.Copied++
		q.remove(x)
		return
	}
	q.counters.Forwarded++
	if x.takenAs == logpb.Take_REDRIVE {
		q.counters.Redriven++
	}
	if x.heldBy = (lastHolder{}); q.endsLimit() > 0 {
		q.noteEnd(x, logpb.EndState_FORWARDED, queue.AtLeastOnce, false)
		e := &q.ends[len(q.ends)-1]
		for _, id := range x.done[:min(len(x.done), 4)] {
			e.Arrivals = append(e.Arrivals, queue.Arrival{Queue: fsm.QueueID(id), Index: q.index})
		}
	}
	q.remove(x)
}

// dropIdle forgets letters that wait for nothing.
func (q *model) dropIdle() {
	if !q.atLeastOnce() && q.underWay().Messages == 0 {
		q.counters.DeadDropped += q.count(waiting)
		q.discardAll(q.in(waiting))
	}
}
