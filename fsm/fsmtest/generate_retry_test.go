package fsmtest

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/proto/logpb"
)

// tokens are those that deferrals are made under.
var tokens = []string{"u", "v", "w", "x"}

// backoff draws how delays grow.
func (g *generator) backoff(c *logpb.QueueConfig) {
	c.RetryCountsAcquired = g.oneIn("acquired counts", 3)
	c.RetryJitter = uint32(of(g, "jitter", 0, 0, 20, 100, 300))
	switch c.RetryStrategy = of(g, "backoff", logpb.QueueConfig_LINEAR, logpb.QueueConfig_EXPONENTIAL, logpb.QueueConfig_STEPS); c.RetryStrategy {
	case logpb.QueueConfig_EXPONENTIAL:
		c.RetryMultiplier = uint32(of(g, "multiplier", 0, 150, 100, 1000, 50))
	case logpb.QueueConfig_STEPS:
		for range g.n("steps", 4) {
			c.RetrySteps = append(c.RetrySteps, uint64(of(g, "step", 100, 500, 0, 1000)))
		}
	}
}

// parks lets a settlement say when returned messages are ready again, and
// completes one that defers.
func (g *generator) parks(d *logpb.Settle) {
	if g.oneIn("at a time", 5) {
		switch g.n("time", 3) {
		case 0:
			d.DueAt = int64(g.meta.Now) + int64(of(g, "due in", 500, 1, -5, 5000))
		default:
			d.DelayPlusOne = 1 + uint64(of(g, "delay", 500, 0, 1, 5000))
		}
	}
	if d.Outcome != logpb.Settle_DEFER {
		return
	}
	d.Ranges = []uint64{d.Ranges[0], 1}
	switch d.Deferral = of(g, "token", tokens...); {
	case g.oneIn("no token", 20):
		d.Deferral = of(g, "which", "", strings.Repeat("x", 256))
	case g.oneIn("several", 20):
		d.Ranges[1] = 2
	}
}

// defers draws the deferral of something that is held.
func (g *generator) defers() *logpb.Command { return g.settleWith(logpb.Settle_DEFER) }

// receiveDeferred asks for deferred messages.
func (g *generator) receiveDeferred() *logpb.Command {
	cl := g.client()
	r := &logpb.ReceiveDeferred{Consumer: uint64(g.n("consumer", int(cl.consumers)+2))}
	if len(g.q.consumers) > 0 && !g.oneIn("anybody's", 6) {
		c := g.q.consumers[g.n("which", len(g.q.consumers))]
		cl, r.Consumer = g.owner(c.id.Session), c.id.Number
	}
	for range g.n("tokens", 4) {
		r.Tokens = append(r.Tokens, of(g, "token", tokens...))
	}
	if len(g.q.deferrals) > 0 && !g.oneIn("in any case", 6) {
		r.Tokens = append(r.Tokens, g.q.deferrals[g.n("deferred", len(g.q.deferrals))].deferral)
	}
	if g.oneIn("without consumer", 3) {
		r.Consumer, r.NoAck = 0, g.oneIn("no ack", 4)
		r.Lock = uint64(of(g, "lock", 500, 0, 2000))
		if n := len(r.Tokens); g.oneIn("all that is there", 2) && len(g.q.deferrals) > 0 {
			r.Tokens = r.Tokens[n-1:]
		}
	}
	return cl.send(&logpb.Command{Kind: logpb.Command_RECEIVE_DEFERRED, ReceiveDeferred: r})
}

// retryNow draws that delayed messages are retried, or, if there are none, another
// return.
func (g *generator) retryNow() *logpb.Command {
	if len(g.q.delayedOnes) == 0 && !g.oneIn("in any case", 6) {
		return g.giveBack()
	}
	c := &logpb.Command{Kind: logpb.Command_KICK, Kick: &logpb.Kick{Count: uint64(g.n("count", 4))}}
	if g.oneIn("in the stream", 2) {
		return g.client().send(c)
	}
	return c
}

// unpark draws that parked messages become ready, or, if there are none, another
// return.
func (g *generator) unpark() *logpb.Command {
	if len(g.q.parkedOnes) == 0 && !g.oneIn("in any case", 6) {
		return g.giveBack()
	}
	c := &logpb.Command{Kind: logpb.Command_UNPARK, Unpark: &logpb.Unpark{Count: uint64(g.n("count", 4))}}
	if g.oneIn("in the stream", 2) {
		return g.client().send(c)
	}
	return c
}

// discard discards something, now and then with a remark.
func (g *generator) discard() *logpb.Command {
	c := g.settleWith(logpb.Settle_DISCARD)
	if s := c.GetSettle(); s.GetOutcome() == logpb.Settle_DISCARD && g.oneIn("remark", 3) {
		s.Reason, s.Description = "r", fmt.Sprint("d", g.n("description", 3))
	}
	return c
}
