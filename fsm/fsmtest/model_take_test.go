package fsmtest

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// taken is what a letter has that somebody sends to a queue.
type taken struct {
	takenTo uint64 // 0: nobody does
	takenAs logpb.Take_Action
}

// take deletes, moves or copies what is ready and named.
func (q *model) take(c *logpb.Take) fsm.Result {
	if q.version < 3 || len(c.GetMessages()) > 1000 || !slices.IsSorted(c.GetMessages()) || c.GetTarget() == uint64(machineID) ||
		c.GetAction() < 0 || c.GetAction() > logpb.Take_REDRIVE || (c.GetAction() == logpb.Take_DELETE) != (c.GetTarget() == 0) {
		return fsm.Result{Code: fsm.Invalid}
	}
	var r fsm.Result
	for _, n := range c.Messages {
		i := slices.IndexFunc(q.messages, func(x *message) bool {
			return x.seq == n && slices.Contains([]place{ready, returned, grouped}, x.place) && !x.expired(q.clock) && x.ending == 0
		})
		if i < 0 {
			continue
		}
		x := q.messages[i]
		if c.Action == logpb.Take_DELETE {
			x.heldBy = lastHolder{}
			q.noteEnd(x, logpb.EndState_DELETED, queue.Dropped, false)
			q.counters.Deleted++
			q.remove(x)
		} else if x = q.toSend(x, c.Action == logpb.Take_COPY); x != nil {
			x.letterState = letterState{diedAt: q.clock, forwarded: true, taken: taken{c.Target, c.Action}}
			x.hops = 1
			q.post(x)
		} else {
			continue
		}
		r.Count++
	}
	if r.Count > 0 {
		q.active = q.clock
	}
	return r
}

// toSend returns x, which is in no place then, or a copy of it; nil: that has no room.
func (q *model) toSend(x *message, copied bool) *message {
	if !copied {
		q.leave(x)
		return x
	}
	all := q.total(ready, returned, grouped, delayed, parked)
	if !q.fits(plus(plus(q.kept(), all), queue.Count{Messages: 1, Bytes: x.bytes()})) {
		return nil
	}
	y := *x
	y.seq, y.acquired, y.failed, y.tally = q.nextMessage, 0, 0, tally{}
	y.schedule, y.delivered, y.member = schedule{scheduledFor: x.scheduledFor}, delivered{}, member{}
	q.nextMessage++
	q.messages = append(q.messages, &y)
	return &y
}

// take draws what is taken: much of what there is, of which some is ready.
func (g *generator) take() *logpb.Command {
	c := &logpb.Take{Action: logpb.Take_Action(g.n("take", 4)), Target: uint64(500 + g.n("take to", 3))}
	if c.Action == logpb.Take_DELETE {
		c.Target = 0
	}
	for _, x := range g.q.messages {
		if g.oneIn("taken", 3) {
			c.Messages = append(c.Messages, x.seq)
		}
	}
	slices.Sort(c.Messages)
	if g.oneIn("odd take", 20) {
		c.Target = uint64(of(g, "odd target", 0, uint64(machineID), 501))
	}
	cmd := &logpb.Command{Kind: logpb.Command_TAKE, Take: c}
	if g.oneIn("taken in the stream", 3) {
		return g.client().send(cmd)
	}
	return cmd
}
