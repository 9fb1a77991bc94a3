package fsmtest

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// modelEnds are the last messages that ended otherwise than by an ack.
type modelEnds struct {
	ends    []queue.End // oldest first
	nextEnd uint64
	index   uint64 // of the entry under way
}

// label is what the publisher of a message calls it.
type label struct{ messageID, correlationID string }

// lastHolder is who held a message that dies.
type lastHolder struct {
	of  fsm.ConsumerID
	tag string
}

// holderOf is who holds x, or held it until now.
func (x *message) holderOf() lastHolder {
	if x.holder == nil {
		return lastHolder{}
	}
	tag := x.holder.tag
	if x.tagThen != nil {
		tag = *x.tagThen
	}
	return lastHolder{x.holder.id, tag[:min(len(tag), 48)]}
}

func cut(s string) string { return s[:min(len(s), 128)] }

// endsLimit is how many ends are remembered.
func (q *model) endsLimit() int {
	if q.config.AuditMaxPlusOne == 0 {
		return 1000
	}
	return int(min(q.config.AuditMaxPlusOne-1, 100_000))
}

func (q *model) trimEnds() {
	if n := len(q.ends) - q.endsLimit(); n > 0 {
		q.ends = q.ends[n:]
	}
}

func (q *model) note(e queue.End) {
	if q.endsLimit() == 0 {
		return
	}
	e.Number, e.At, e.Index, e.Term = q.nextEnd, q.clock, q.index, q.term
	q.nextEnd++
	q.ends = append(q.ends, e)
	q.trimEnds()
}

// noteEnd notes the end of x. posted: it is about to become a letter.
func (q *model) noteEnd(x *message, reason queue.EndReason, fate queue.Disposition, posted bool) {
	e := queue.End{
		Reason: reason, Seq: x.seq, Ref: x.ref, MessageID: x.messageID, CorrelationID: x.correlationID,
		EnqueuedAt: x.came, ExpireAt: x.expireAt, Acquired: x.acquired, Failed: x.failed,
		Holder: x.heldBy.of, Tag: x.heldBy.tag, Disposition: fate,
	}
	if posted {
		e.Letter = q.nextLetter
	}
	q.note(e)
}

// endedMany notes the end of n messages.
func (q *model) endedMany(n uint64, reason queue.EndReason) {
	if n > 0 {
		q.note(queue.End{Reason: reason, Count: n})
	}
}

// recordOf is the record of a letter; nil: it is gone.
func (q *modelEnds) recordOf(x *message) *queue.End {
	for i := range q.ends {
		if q.ends[i].Letter == x.letter && x.letter != 0 {
			return &q.ends[i]
		}
	}
	return nil
}

func (q *modelEnds) arrived(x *message, at fsm.QueueID) {
	if e := q.recordOf(x); e != nil && len(e.Arrivals) < 4 {
		e.Arrivals = append(e.Arrivals, queue.Arrival{Queue: at, Index: q.index})
	}
}

func (q *modelEnds) letterEnded(x *message) {
	if e := q.recordOf(x); e != nil {
		e.Settled = q.index
	}
}
