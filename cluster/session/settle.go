package session

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// settling is a settlement of which the client may be told what has become of it. It is the note of its commands: one,
// or one for each delivery if it is exact, whose number is then the delivery.
//
// An exact one costs no memory that the queue does not have for strict settlements anyway: it remembers which of
// these commands it has refused, so that a repetition after a change of leaders is answered as the first was.
type settling struct {
	number   uint64
	consumer uint64
	defers   bool
	says     bool     // its commands count in saying
	ids      []uint64 // of one command; nil: each has its own
	left     int      // commands without an answer
	lost     []uint64
	gone     bool // the queue is
}

// SettleAs settles deliveries for a client that has more to say than an outcome.
func (x *consumers) SettleAs(number uint64, ids []uint64, how *fsm.Settlement) error {
	if limit, now := x.node.View().Setting(catalog.ScheduleMaxDelay), x.node.Now(); int64(how.DueAt)-now > limit {
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid x-opt-delivery-time '%d': it must be at most %d ms from now", how.DueAt, limit))
	}
	if int64(how.DueAt) <= x.node.Now() {
		how.DueAt = 0
	}
	if len(how.Edit) > fsm.MaxEdit {
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("an edit of %d bytes exceeds the limit of %d", len(how.Edit), fsm.MaxEdit))
	}
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	c := x.known[number]
	if says(how) && x.saying >= fsm.MaxUnanswered {
		return fsm.Refuse(fsm.Unavailable, "too many settlements of this session that say something about a message wait for an answer")
	}
	if c == nil {
		x.orphanSettled(number, len(ids))
	} else {
		c.at.settleAs(number, ids, how)
		c.at.countSettled(len(ids), how.Outcome)
		x.settled(number, len(ids))
	}
	x.rebalance()
	return nil
}

// says reports whether a settlement has words of the client, which are kept until it is answered.
func says(how *fsm.Settlement) bool {
	return how.Reason != "" || how.Description != "" || how.Annotations != nil || how.Edit != nil
}

// annotationsOf returns what a settlement adds to messages, in the form of the log.
func annotationsOf(how *fsm.Settlement) []*logpb.Annotation {
	if how.Edit == nil {
		return how.Annotations
	}
	return append(slices.Clone(how.Annotations), &logpb.Annotation{Value: how.Edit})
}

// settleAs sends a settlement. The lock is held.
func (q *sessionQueue) settleAs(number uint64, ids []uint64, how *fsm.Settlement) {
	if q.stream.Over() {
		return
	}
	a := &settling{number: how.Number, consumer: number, defers: how.Outcome == fsm.Defer, left: len(ids)}
	add := func(id uint64, ranges ...uint64) {
		q.stream.Add(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{
			Outcome: how.Outcome, Consumer: number, Ranges: ranges, DueAt: int64(how.DueAt), Deferral: how.Deferral,
			Reason: how.Reason, Description: how.Description, Strict: how.Exact, Annotations: annotationsOf(how),
		}}, stream.Pending{Number: id, Note: a})
	}
	defer func() {
		if a.says = says(how); a.says {
			q.session.saying += a.left
		}
	}()
	if !how.Exact {
		a.ids, a.left = slices.Clone(ids), 1
		add(0, stream.AppendRanges(nil, ids)...)
		return
	}
	for _, id := range ids {
		add(id, id, 1)
	}
}

// settled takes the answer to a command of a settlement, and tells the client with the last one. A delivery that cannot
// be deferred goes back. The lock is held.
func (q *sessionQueue) settled(a *settling, id uint64, r fsm.Result) {
	if a.says {
		q.session.saying--
	}
	if !a.answered(id, r) {
		return
	}
	if a.defers && len(a.lost) > 0 {
		q.session.notDeferred = append(q.session.notDeferred, notDeferred{q, a.consumer, a.lost})
	}
	if a.number != 0 {
		q.session.add(event{kind: eventSettled, first: a.number, ids: a.lost})
	}
}

// notDeferred are deliveries that go back, once the stream has reported its answers.
type notDeferred struct {
	at       *sessionQueue
	consumer uint64
	ids      []uint64
}

// returnNotDeferred returns them. The lock is held.
func (x *consumers) returnNotDeferred() {
	for _, d := range x.notDeferred {
		d.at.stream.AddSettle(d.consumer, d.ids, fsm.Requeue)
	}
	x.notDeferred = x.notDeferred[:0]
}

// answered records the answer to a command, and reports whether all have one, from a queue that is there.
func (a *settling) answered(id uint64, r fsm.Result) bool {
	switch {
	case r.Code == fsm.Gone:
		a.gone = true
	case r.Code != fsm.OK && a.ids != nil:
		a.lost = a.ids
	case r.Code != fsm.OK:
		a.lost = append(a.lost, id)
	}
	a.left--
	return a.left == 0 && !a.gone
}
