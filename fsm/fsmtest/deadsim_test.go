package fsmtest

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestDeadLettersArriveOnce holds three queues whose letters travel over a bad
// network to promise S8: exactly once at each routed target, in order.
func TestDeadLettersArriveOnce(t *testing.T) {
	check(t, 4, func(t *rapid.T) {
		d := &deadDraw{deadSim: newDeadSim(t, 3), g: &generator{t: t}}
		t.Repeat(map[string]func(*rapid.T){"step": func(*rapid.T) { d.step() }})
		d.settle(d.choose)
		d.check()
	})
}

// deadDraw draws what happens in a simulation.
type deadDraw struct {
	*deadSim
	g *generator
}

// choose draws where a letter goes. Letters only travel to later queues, so
// that they all come to rest.
func (d *deadDraw) choose(q *simQueue) []uint64 {
	var targets []uint64
	for _, other := range d.queues {
		if other.id > q.id && d.g.n("target", 3) != 2 {
			targets = append(targets, uint64(other.id))
		}
	}
	return targets
}

func (d *deadDraw) step() {
	q := d.queues[d.g.n("queue", len(d.queues))]
	action := d.g.n("action", 32)
	if len(d.net) == 0 && (action == 2 || action == 4 || action == 6 || action >= 20) {
		action = 0
	}
	switch {
	case action == 0 || action == 16 || action == 17:
		d.publish(q, uint64(of(d.g, "ttl", 0, 0, 101, 1)))
	case action == 1 || action == 18:
		d.refuse(q, of(d.g, "outcome", logpb.Settle_DISCARD, logpb.Settle_DISCARD, logpb.Settle_REQUEUE_FAILED, logpb.Settle_ACK))
	case action == 2 || action >= 26:
		d.deliver(d.g.n("packet", len(d.net)), false)
	case action == 3 || action >= 11 && action <= 13:
		d.route(q, 1+d.g.n("letters", 5), func() []uint64 { return d.choose(q) })
	case action == 4 || action >= 20 && action <= 22: // the network repeats
		d.deliver(d.g.n("packet", len(d.net)), true)
	case action == 6 || action >= 23:
		d.lose(d.g.n("packet", len(d.net)))
	case action == 5 || action == 7 || action == 14 || action == 15:
		d.forwardSome(q)
	case action == 8 || action == 19:
		d.pass(q, fsm.Millis(d.g.n("ms", 300)))
	case action == 9:
		d.elect(q)
	case action == 10 && d.g.oneIn("try again", 2):
		d.retry(q, func() []uint64 { return d.choose(q) })
	case action == 10 && d.g.oneIn("really", 16):
		d.drop(d.queues[len(d.queues)-1])
	}
}

// forwardSome sends a few transfers, possibly not the oldest ones.
func (d *deadDraw) forwardSome(q *simQueue) {
	targets := q.m.DeadLetterTargets(0, 1<<20)
	if len(targets) == 0 {
		return
	}
	to := targets[d.g.n("target", len(targets))]
	d.forward(q, to.ID, to.Confirmed+uint64(d.g.n("from", 3)), 1+d.g.n("transfers", 4))
}
