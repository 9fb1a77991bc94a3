package jepsen

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

// plain makes messages for one queue.
func plain(queue string, size int) func() client.Message {
	return func() client.Message { return client.Message{RoutingKey: queue, Queue: queue, Size: size} }
}

// largeSize is the size of a message whose payload goes to a segment in any case.
const largeSize = 40 << 10

// sizeOf is the size of the nth message, of which one of so many is large.
func sizeOf(n, size, every int) int {
	if n%every == 0 {
		return largeSize
	}
	return size
}

// mixed makes messages for one queue, of which one of so many is large.
func mixed(queue string, size, every int) func() client.Message {
	n := 0
	return func() client.Message {
		n++
		return plain(queue, sizeOf(n, size, every))()
	}
}

// Nothing is broken: every message published through one node is consumed
// through another, once, unmarked, and in order.
func TestHealthyQueue(t *testing.T) {
	r := mustStart(t, 3*time.Minute)
	r.must(workload.Declare(r.ctx, r.Nodes[1].URI(), workload.Queue{Name: "orders"}))
	f := workload.Flow{
		URIs: r.URIs(), PublishAt: 0, ConsumeAt: 2, Queue: "orders",
		Next:     workload.Count(20_000**scale, plain("orders", 256)),
		Patience: time.Minute,
	}
	began := time.Now()
	r.must(f.Run(r.ctx, r.History, nil))
	t.Logf("%d messages in %v", r.Confirmed(), time.Since(began).Round(time.Millisecond))
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Redelivered(h), checker.Disorder(h))
	if n := len(h.Deliveries); n != 20_000**scale {
		t.Errorf("%d deliveries", n)
	}
	r.mustConverge()
}

// resumeBound is how long confirmed publishing may stand still when the leader
// of a queue is killed.
const resumeBound = 10 * time.Second

// The leader of the queue is killed again and again while messages flow:
// nothing confirmed is lost, and what comes twice is marked or was published
// twice.
func TestKilledLeader(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 3*time.Minute)
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: "orders"}))
	stop := make(chan struct{})
	f := workload.Flow{
		URIs: r.URIs(), PublishAt: 0, ConsumeAt: 1, Queue: "orders", Rate: 2000,
		Next:     workload.Until(stop, plain("orders", 256)),
		Patience: time.Minute,
	}
	kills := 5 * *scale
	r.must(f.Run(r.ctx, r.History, func(ctx context.Context) error {
		defer close(stop)
		for range kills {
			if err := r.awaitConfirms(ctx, 500); err != nil {
				return err
			}
			if err := nemesis.KillLeader("orders").Run(ctx, r.Cluster, r.History); err != nil {
				return err
			}
		}
		return r.awaitConfirms(ctx, 500)
	}))
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h), checker.Disorder(h))
	silence := h.LongestGap()
	t.Logf("%d kills, %d attempts, %d confirmed, %d deliveries, longest time without a confirm %v",
		len(h.Faults), len(h.Attempts), h.Confirmed(), len(h.Deliveries), silence.Round(time.Millisecond))
	var late []string
	if silence > resumeBound {
		late = append(late, fmt.Sprintf("no confirm for %v", silence))
	}
	r.found("resume", late...)
	if len(h.Faults) != kills {
		t.Errorf("%d faults applied, not %d", len(h.Faults), kills)
	}
	r.mustConverge()
}

// awaitConfirms waits until so many more messages are confirmed.
func (r *run) awaitConfirms(ctx context.Context, more int) error {
	from := r.Answers()
	return await.Until(ctx, 20*time.Millisecond, "confirms", func() (bool, error) {
		return r.Answers() >= from+more, nil
	})
}
