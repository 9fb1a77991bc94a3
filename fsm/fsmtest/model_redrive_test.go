package fsmtest

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// modelRedrive is the last redrive of a queue.
type modelRedrive struct {
	redrive *logpb.RedriveState // nil: there was none
	toGoOn  bool                // the leader is told so by this command
}

// changeRedrive performs a Redrive.
func (q *model) changeRedrive(c *logpb.Redrive) fsm.Result {
	if q.version < 3 || len(c.GetBy()) > 255 || len(c.GetWhy()) > 255 || len(c.GetTo()) > 255 || len(c.GetConditions()) > 4096 || c.GetTarget() == uint64(machineID) {
		return fsm.Result{Code: fsm.Invalid}
	}
	on := q.redrive != nil && q.redrive.Ended == 0
	switch now := int64(max(q.clock, 1)); {
	case on && (c.GetCancels() || c.GetEnds() != 0 && q.redrive.Number == c.Ends):
		q.redrive.Ended, q.redrive.Why = now, c.Why
	case c.GetCancels() || c.GetEnds() != 0:
		return fsm.Result{}
	case on:
		return fsm.Result{Code: fsm.InUse}
	default:
		q.active = q.clock
		q.redrive = &logpb.RedriveState{Redrive: c, Number: q.redrive.GetNumber() + 1, Since: now, Paced: now, UpTo: q.nextMessage - 1}
		if q.total(ready, returned, grouped).Messages == 0 {
			q.redrive.Next = q.nextMessage - 1
		}
		q.endOfRedrive()
		return fsm.Result{Count: q.redrive.Number}
	}
	return fsm.Result{Count: 1}
}

// redriveStep performs a RedriveStep.
func (q *model) redriveStep(c *logpb.RedriveStep) fsm.Result {
	var all []uint64
	for _, t := range c.GetTakes() {
		if t.Action != logpb.Take_REDRIVE || t.Target == 0 || t.Target == uint64(machineID) || !slices.IsSorted(t.Messages) {
			return fsm.Result{Code: fsm.Invalid}
		}
		all = append(all, t.Messages...)
	}
	if q.version < 3 || len(all) > 1000 || c.GetNext() < c.GetAfter() {
		return fsm.Result{Code: fsm.Invalid}
	}
	r := q.redrive
	if r == nil || r.Ended != 0 || r.Number != c.Number || r.Next != c.After {
		return fsm.Result{}
	}
	var sum fsm.Result
	for _, t := range c.Takes {
		sum.Count += q.take(t).Count
	}
	r.Next, r.Taken = min(c.Next, r.UpTo), r.Taken+sum.Count
	r.SourceGone += c.SourceGone
	r.NoSource += c.NoSource
	r.Refused += c.Refused
	if rate := r.Redrive.Rate; rate != 0 {
		from := max(r.Paced, int64(q.clock)-100)
		for ; uint64(from-max(r.Paced, int64(q.clock)-100))*rate < sum.Count*1000; from++ { // the time that they take
		}
		r.Paced = from
	}
	q.endOfRedrive()
	return sum
}

func (q *model) endOfRedrive() {
	r := q.redrive
	if r.Next >= r.UpTo || r.Redrive.Limit != 0 && r.Taken >= r.Redrive.Limit {
		r.Ended = int64(max(q.clock, 1))
		return
	}
	q.toGoOn = true
}

func compareRedrive(d *diffs, q *model, m *queue.Machine) {
	if got := m.Outlook().Redrive; q.phase == live && !proto.Equal(q.redrive, got) && (q.redrive != nil || got != nil) {
		d.add("redrive", q.redrive, got)
	}
}

// redriveCommand draws a beginning, an end or a step of a redrive.
func (g *generator) redriveCommand() *logpb.Command {
	r := g.q.redrive
	if on := r != nil && r.Ended == 0; !on || g.oneIn("another redrive", 8) {
		return g.inOrOut(&logpb.Command{Kind: logpb.Command_REDRIVE, Redrive: &logpb.Redrive{
			By: "somebody", Rate: of(g, "rate of a redrive", 0, 1, 7, uint64(3000)), Limit: uint64(g.n("limit of a redrive", 4)),
			Target: of(g, "target of a redrive", 0, 501, uint64(machineID)), Conditions: []byte(fmt.Sprint(g.n("conditions", 3))),
		}})
	}
	if g.oneIn("end of a redrive", 8) {
		return g.inOrOut(&logpb.Command{Kind: logpb.Command_REDRIVE, Redrive: &logpb.Redrive{Ends: r.Number + uint64(g.n("another number", 2)), Cancels: g.oneIn("cancels", 3), Why: "enough"}})
	}
	c := &logpb.RedriveStep{
		Number: r.Number, After: r.Next, Next: r.Next + uint64(g.n("seen", 4)), SourceGone: uint64(g.n("gone", 2)), NoSource: uint64(g.n("no letters", 2)), Refused: uint64(g.n("refused letters", 2)),
	}
	for i := range g.n("targets", 3) {
		t := &logpb.Take{Action: logpb.Take_REDRIVE, Target: uint64(500 + i)}
		for _, x := range g.q.messages {
			if x.seq > c.After && x.seq <= c.Next && g.oneIn("in the step", 2) {
				t.Messages = append(t.Messages, x.seq)
			}
		}
		slices.Sort(t.Messages)
		c.Takes = append(c.Takes, t)
	}
	switch g.n("odd step", 12) {
	case 1:
		c.Number++
	case 2:
		c.After++
	case 3:
		c.Next = 0
	case 4:
		for _, t := range c.Takes {
			t.Action = logpb.Take_MOVE
		}
	}
	return &logpb.Command{Kind: logpb.Command_REDRIVE_STEP, RedriveStep: c}
}

// inOrOut is a command in the stream of a client, or of none.
func (g *generator) inOrOut(c *logpb.Command) *logpb.Command {
	if g.oneIn("redrive in the stream", 3) {
		return g.client().send(c)
	}
	return c
}
