package jepsen

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
	amqp "github.com/rabbitmq/amqp091-go"
)

const expiringMessages = 5000

// expiring are the queues of a flow whose messages die in one queue, which
// nobody consumes, and are consumed in another.
var expiring = []workload.Queue{
	{Name: "dead"},
	{Name: "waiting", Arguments: amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}},
}

// shortLived makes messages with a TTL of 200 ms to 5 s.
func shortLived() client.Message {
	ttl := time.Duration(200+rand.IntN(4800)) * time.Millisecond
	return client.Message{RoutingKey: "waiting", Queue: "dead", TTL: ttl, Size: 100}
}

// mustExpireWhile lets messages die and consumes the dead letters for as long as
// something is done, and until all have come.
func (r *run) mustExpireWhile(do func(ctx context.Context) error) {
	r.Helper()
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), expiring...))
	stop := make(chan struct{})
	f := workload.Flow{
		URIs: r.URIs(), PublishAt: 0, ConsumeAt: 1, Queue: "dead", Rate: 300,
		Next: workload.Until(stop, shortLived), Patience: time.Minute,
	}
	r.must(f.Run(r.ctx, r.History, func(ctx context.Context) error {
		defer close(stop)
		return do(ctx)
	}))
}

// Messages of very different lifetimes share one queue: each leaves it at its
// own time, never early, and arrives among the dead letters once.
func TestExpiry(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 3*time.Minute)
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), expiring...))
	f := workload.Flow{
		URIs: r.URIs(), PublishAt: 1, ConsumeAt: 2, Queue: "dead",
		Next: workload.Count(expiringMessages, shortLived), Patience: time.Minute,
	}
	r.must(f.Run(r.ctx, r.History, nil))
	r.checkExpiry()
	r.mustConverge()
}

// The same, and the leader of the queue is killed while half of its messages
// are still to die: still each arrives once, late by an election at most.
func TestExpiryWithKilledLeader(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 3*time.Minute)
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), expiring...))
	leader, err := nemesis.AwaitLeader(r.ctx, r.Cluster, "waiting", nil)
	r.must(err)
	at := slices.Index(r.Nodes, leader)
	f := workload.Flow{
		URIs: uris(r.Nodes, (at+1)%3, (at+2)%3), PublishAt: 0, ConsumeAt: 1, Queue: "dead",
		Next: workload.Count(expiringMessages, shortLived), Patience: time.Minute,
	}
	r.must(f.Run(r.ctx, r.History, func(ctx context.Context) error {
		err := await.Until(ctx, 10*time.Millisecond, "half of the dead letters", func() (bool, error) {
			return r.Received("dead") >= expiringMessages/2, nil
		})
		if err != nil {
			return err
		}
		return nemesis.KillLeader("waiting").Run(ctx, r.Cluster, r.History)
	}))
	if len(r.Faults) != 1 || r.Faults[0].Node != leader.Number {
		t.Errorf("faults applied: %+v; wanted one kill of node %d", r.Faults, leader.Number)
	}
	r.checkExpiry()
	r.mustConverge()
}

func (r *run) checkExpiry() {
	r.Helper()
	h := r.History
	r.Logf("lateness: %s", checker.Percentiles(checker.Lateness(h)))
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Redelivered(h),
		checker.Early(h), r.late(h, electing), checker.Deaths(h, checker.Expired("waiting")))
}

// uris are the addresses of some nodes, by position.
func uris(nodes []*cluster.Node, positions ...int) []string {
	var out []string
	for _, p := range positions {
		out = append(out, nodes[p].URI())
	}
	return out
}
