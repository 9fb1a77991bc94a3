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
	check(t, 2, func(t *rapid.T) {
		s := newDeadSim(t, 3)
		g := &generator{t: t}
		// Letters only travel to later queues, so that they all come to rest.
		choose := func(q *simQueue) []uint64 {
			var targets []uint64
			for _, other := range s.queues {
				if other.id > q.id && g.n("target", 3) != 2 {
					targets = append(targets, uint64(other.id))
				}
			}
			return targets
		}
		queueOf := func() *simQueue { return s.queues[g.n("queue", len(s.queues))] }
		packetOf := func(t *rapid.T) int {
			if len(s.net) == 0 {
				t.Skip("nothing is under way")
			}
			return g.n("packet", len(s.net))
		}
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(*rapid.T) { s.publish(queueOf(), uint64(of(g, "ttl", 0, 0, 101, 1))) },
			"refuse": func(*rapid.T) {
				s.refuse(queueOf(), of(g, "outcome", logpb.Settle_DISCARD, logpb.Settle_DISCARD, logpb.Settle_REQUEUE_FAILED, logpb.Settle_ACK))
			},
			"pass": func(*rapid.T) { s.pass(queueOf(), fsm.Millis(g.n("ms", 300))) },
			"route": func(*rapid.T) {
				q := queueOf()
				s.route(q, 1+g.n("letters", 5), func() []uint64 { return choose(q) })
			},
			"forward": func(t *rapid.T) {
				q := queueOf()
				targets := q.m.Targets()
				if len(targets) == 0 {
					t.Skip("nothing was routed")
				}
				to := targets[g.n("target", len(targets))]
				s.forward(q, to.ID, to.Settled+uint64(g.n("from", 3)), 1+g.n("transfers", 4))
			},
			"deliver": func(t *rapid.T) { s.deliver(packetOf(t), false) },
			"repeat":  func(t *rapid.T) { s.deliver(packetOf(t), true) },
			"lose":    func(t *rapid.T) { s.lose(packetOf(t)) },
			"elect":   func(*rapid.T) { s.elect(queueOf()) },
			"drop": func(t *rapid.T) {
				if g.n("really", 128) != 77 {
					t.Skip("most queues stay")
				}
				s.drop(s.queues[len(s.queues)-1])
			},
		})
		s.settle(choose)
		s.check()
	})
}
