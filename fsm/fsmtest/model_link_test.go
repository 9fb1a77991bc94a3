package fsmtest

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// link is what a consumer in credit mode may be handed.
type link struct {
	mode  bool
	count uint64 // of deliveries and of what drains have used up; the last 32 bits are what is told
	left  uint64
}

func (l *link) used() {
	if !l.mode {
		return
	}
	l.count++
	if l.left > 0 {
		l.left--
	}
}

// giveCredit changes what a consumer may be handed.
func (q *model) giveCredit(s *session, c *logpb.Credit) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	if q.version < 3 {
		return fsm.Result{Code: fsm.Invalid}
	}
	have := q.consumer(fsm.ConsumerID{Session: s.id, Number: c.GetConsumer()})
	if have == nil || have.cancelled || have.id.Number == 0 {
		return fsm.Result{Code: fsm.NotFound}
	}
	if !have.link.mode {
		return fsm.Result{Code: fsm.Invalid}
	}
	// How far the count has come since the one that the receiver knows of, or how far it
	// has to come to get there, whichever is nearer.
	since, ahead := uint64(uint32(have.link.count)-c.GetDeliveryCount()), uint64(0)
	if since >= 1<<31 {
		since, ahead = 0, 1<<32-since
	}
	if !c.GetDrain() {
		have.drain = 0
	}
	switch given := uint64(c.GetCredit()) + ahead; {
	case given < since:
		have.link.left = 0
	default:
		have.link.left = min(given-since, 1<<32-1)
	}
	if !q.hasCredit(have) {
		q.unserve(have)
	}
	q.serve(have)
	return fsm.Result{}
}

// answerCredit ends a drain if nothing can come any more without anything new.
func (q *model) answerCredit(c *consumer, cmd *logpb.Credit, entry uint64) fsm.Result {
	next := q.nextScheduled()
	late := next != nil && next.dueAt <= q.clock || q.endingOne() != nil || q.unfinished()
	goesOn := q.hasCredit(c) && !q.config.Forward
	switch {
	case !cmd.Drain || !goesOn:
	case c.selector == "":
		goesOn = late || q.anythingFor(c)
	case c.drain == 0:
		c.drain = entry
		goesOn = c.searched < entry
	default:
		goesOn = c.searched < c.drain
	}
	if cmd.Drain && !goesOn {
		c.drain = 0
		c.link.count += c.link.left
		c.link.left = 0
		if !q.hasCredit(c) {
			q.unserve(c)
		}
	}
	return fsm.Result{Count: q.readyCount(), Next: c.next, DeliveryCount: uint32(c.link.count), Credit: uint32(c.link.left)}
}
