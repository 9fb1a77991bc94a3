package jepsen

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/workload"
	amqp "github.com/rabbitmq/amqp091-go"
)

// leasePatience is how long a test waits for a queue that is to be deleted by
// its lease.
const leasePatience = 30 * time.Second

// Delayed delivery by hold queues: each message arrives after its delay,
// unchanged, in order among those of its delay; the hold queues end by their
// lease and come back with the next publish.
func TestHoldQueues(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 3*time.Minute)
	w := &workload.Hold{
		URI: r.Nodes[1].URI(), Exchange: "orders", Key: "ship", Queue: "work",
		Delays: []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}, Each: 10 * *scale,
	}
	r.must(w.Setup(r.ctx))
	r.mustHold(w)
	r.mustConverge()
}

// mustHold publishes twice: the second time after all hold queues have gone.
func (r *run) mustHold(w *workload.Hold) {
	var came []amqp.Delivery
	c := client.Consumer{
		Name: "worker", URIs: []string{r.Nodes[2].URI()}, Queue: w.Queue,
		Each: func(d amqp.Delivery) { came = append(came, d) },
	}
	ctx, stop := context.WithCancel(r.ctx)
	consumed := make(chan error, 1)
	go func() { consumed <- c.Run(ctx, r.History) }()
	for range 2 {
		declared, err := w.Publish(r.ctx, r.History)
		r.must(err)
		for _, delay := range w.Delays {
			r.mustEndByLease(w.Name(delay), declared[delay].Add(w.Lease(delay)))
		}
	}
	waiting, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	_ = await.Until(waiting, 10*time.Millisecond, "all messages", func() (bool, error) { return r.Missing() == 0, nil })
	stop()
	r.must(<-consumed)

	h := r.History
	r.Logf("lateness: %s", checker.Percentiles(checker.Lateness(h)))
	r.check(checker.Lost(h), checker.Ghosts(h), checker.Redelivered(h), checker.Disorder(h),
		checker.Early(h), r.late(h, electing),
		checker.Deaths(h, func(a history.Attempt) history.Death {
			name := w.Name(a.TTL)
			return history.Death{Queue: name, Reason: "expired", RoutingKeys: []string{name}, Count: 1, Entries: 1}
		}))
	for _, d := range came {
		key, _ := client.Key(d.Body)
		if key == 0 || key > uint64(len(h.Attempts)) {
			continue // a ghost, reported above
		}
		if diff := w.Changed(d, h.Attempts[key-1]); diff != "" {
			r.Errorf("message %d: %s", key, diff)
		}
	}
}

// mustEndByLease waits until no node has the queue, and checks that this is
// not before its lease was over.
func (r *run) mustEndByLease(queue string, lease time.Time) {
	r.Helper()
	ctx, cancel := context.WithDeadline(r.ctx, lease.Add(leasePatience))
	defer cancel()
	r.must(await.Until(ctx, 10*time.Millisecond, "the lease of "+queue+" to end", func() (bool, error) {
		for _, n := range r.Nodes {
			replicas, err := n.Replicas(ctx)
			if err != nil {
				return false, err
			}
			for _, x := range replicas {
				if x.Name == queue {
					return false, nil
				}
			}
		}
		return true, nil
	}))
	r.notLate("the end of "+queue, lease, 0)
	var soon []string
	if early := time.Until(lease); early > checker.Grain {
		soon = append(soon, fmt.Sprintf("queue %s was deleted at least %v before its lease ended", queue, early))
	}
	r.found("lease", soon...)
}
