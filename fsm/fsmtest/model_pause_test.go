package fsmtest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// modelPause is whether the queue's consumers are handed nothing.
type modelPause struct{ pause queue.Pause }

func (q *model) isPaused() bool { return q.pause.Since != 0 || q.config.Paused }

// pauseOrResume performs a Pause.
func (q *model) pauseOrResume(c *logpb.Pause) fsm.Result {
	if q.version < 3 || c.GetUntil() < 0 || len(c.GetBy()) > 255 || len(c.GetReason()) > 255 {
		return fsm.Result{Code: fsm.Invalid}
	}
	was := q.pause.Since
	switch {
	case c.Resume || c.Until != 0 && fsm.Time(c.Until) <= q.clock:
		q.pause = queue.Pause{}
	default:
		q.pause = queue.Pause{Since: cmp.Or(was, q.clock), Until: fsm.Time(c.Until), By: c.By, Reason: c.Reason}
	}
	q.active = q.clock
	q.serveAnew()
	if (was != 0) != (q.pause.Since != 0) {
		return fsm.Result{Count: 1}
	}
	return fsm.Result{}
}

// endPause ends a pause at its time.
func (q *model) endPause() {
	if q.pause.Until != 0 && q.pause.Until <= q.clock {
		q.pause = queue.Pause{}
		q.serveAnew()
	}
}

// serveAnew serves those that may be, and nobody else.
func (q *model) serveAnew() {
	q.service = slices.DeleteFunc(q.service, func(c *consumer) bool { return !q.hasCredit(c) })
	for _, c := range q.consumers {
		q.serve(c)
	}
}

func (g *generator) pauseOrResume() *logpb.Command {
	c := &logpb.Pause{By: "somebody", Reason: fmt.Sprint("reason ", g.n("reason", 3)), Resume: g.oneIn("resume", 2)}
	switch g.n("until", 3) {
	case 1:
		c.Until = int64(g.q.clock) + int64(g.n("for", 3000))
	case 2:
		c.Until = int64(g.n("past", 3)) - 1
	}
	cmd := &logpb.Command{Kind: logpb.Command_PAUSE, Pause: c}
	if g.oneIn("in the stream", 3) {
		return g.client().send(cmd)
	}
	return cmd
}
