package jepsen

import (
	"context"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

// lifetimes are the TTLs of flipPlay's messages; 0: none, a nanosecond: 0 ms.
var lifetimes = []time.Duration{time.Nanosecond, time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second, 0}

// flipPlay publishes messages with and without a TTL to a queue whose policy has another
// TTL every few seconds. They are taken from it, or die and are consumed where they go.
func (r *run) flipPlay(draw *rand.Rand, name, strategy string) *play {
	d := seeded(draw, 18)
	dead := name + "-dead"
	p := &play{History: r.beside(name), name: name, serves: []string{name}}
	p.queues = []workload.Queue{{Name: dead}, {Name: name, Arguments: amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-dead-letter-strategy": strategy, "x-overflow": "reject-publish",
	}}}
	p.publisher(r, "publisher", 1, bounded(30), func() client.Message {
		return client.Message{RoutingKey: name, Queue: name, TTL: lifetimes[d.below(len(lifetimes))], Size: 64}
	})
	p.getter(r, workload.Getter{Name: "getter", First: 2, Queue: name, Pause: func() time.Duration { return d.within(0, 100*time.Millisecond) }})
	p.consumer(r, client.Consumer{Name: "consumer", First: 1, Queue: dead, As: name})
	p.consume = append(p.consume, func(ctx context.Context) error { return r.flip(ctx, p, d) })
	p.over = func() bool {
		q, err := r.Nodes[0].Queue(r.ctx, name)
		return err == nil && q.Messages == 0 && q.DeadLetters == 0 && r.isEmpty(dead) && (strategy == "at-most-once" || p.Missing() == 0)
	}
	p.checks = []check{
		checker.Unanswered, checker.Ghosts, checker.Doubled,
		func(h *history.History) checker.Verdict { return checker.Flips(h, recovering) },
	}
	if strategy == "at-least-once" {
		p.checks = append(p.checks, checker.Lost)
	}
	return p
}

// flip changes the TTL of a play's queue, through one node after the other.
func (r *run) flip(ctx context.Context, p *play, d *dice) error {
	nodes := r.Nodes[:3]
	for i := 0; ctx.Err() == nil; i++ {
		policy := cluster.Policy{Name: p.name, Pattern: "^" + p.name + "$", ApplyTo: "queues", Definition: map[string]any{}}
		ttl := []time.Duration{300 * time.Millisecond, 0, 2 * time.Second}[d.below(3)]
		policy.Definition["delivery-limit"] = 1000 + d.below(1000) // a policy needs a key
		if ttl != 0 {
			policy.Definition["message-ttl"] = ttl.Milliseconds()
		}
		o := history.Op{Kind: history.Policy, Client: "admin", Due: ttl, Call: p.Now(), Result: history.Unknown}
		if nodes[i%len(nodes)].SetPolicy(ctx, policy) == nil {
			o.Result, o.Return = history.OK, p.Now()
		}
		p.Did(o)
		workload.Wait(ctx, d.within(time.Second, 4*time.Second))
	}
	return nil
}
