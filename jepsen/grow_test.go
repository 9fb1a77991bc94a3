package jepsen

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/workload"
)

// A node that is in use gets a second and a third one beside it. Every queue,
// also one that nobody has used, has three members in the end without anybody's
// doing, publishing never fails, and nothing is lost or comes twice.
func TestGrowFromOneNode(t *testing.T) {
	t.Parallel()
	r := mustStartWith(t, 2*time.Minute, cluster.Options{Nodes: 1, More: 2})
	const queues = 24
	names, unused := make([]string, queues), make([]string, queues)
	var declared []workload.Queue
	for i := range names {
		names[i], unused[i] = fmt.Sprint("grow", i), fmt.Sprint("unused", i)
		declared = append(declared, workload.Queue{Name: names[i]}, workload.Queue{Name: unused[i]})
	}
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), declared...))
	stopped := r.publishInTurn(names, 1000, 256)
	for range 2 {
		r.must(r.awaitConfirms(r.ctx, 500))
		_, err := r.AddNode(r.ctx)
		r.must(err)
	}
	r.must(r.awaitMembers(r.ctx, slices.Concat(names, unused), 3))
	r.must(r.awaitConfirms(r.ctx, 500))
	r.must(stopped())
	r.must(workload.Use(r.ctx, r.Nodes[2].URI(), unused[:queues/2]...))
	for _, q := range names {
		r.must(workload.Drain(r.ctx, r.Nodes[2].URI(), q, "drain "+q, r.History))
	}
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Redelivered(h))
	t.Logf("%d attempts, %d confirmed, %d deliveries, longest time without a confirm %v",
		len(h.Attempts), h.Confirmed(), len(h.Deliveries), h.LongestGap().Round(time.Millisecond))
	if n := len(h.Attempts); n != h.Confirmed() {
		t.Errorf("%d publishes, %d confirmed", n, h.Confirmed())
	}
	r.mustConverge()
	r.must(r.Nodes[0].Kill(r.ctx)) // all of them are there without the first one
	r.must(workload.Use(r.ctx, r.Nodes[1].URI(), unused...))
	r.must(r.Nodes[0].Restart())
	r.must(r.Nodes[0].AwaitReady(r.ctx))
	r.mustConverge()
}

// awaitMembers waits until each of the queues has a replica on so many nodes,
// all of them voters.
func (r *run) awaitMembers(ctx context.Context, queues []string, want int) error {
	return await.Until(ctx, 100*time.Millisecond, fmt.Sprintf("%d members of each queue", want), func() (bool, error) {
		for _, q := range queues {
			n, err := r.Nodes[0].Voters(ctx, q)
			if err != nil || n < want {
				return false, fmt.Errorf("%s has %d voters, %w", q, n, err)
			}
		}
		return true, nil
	})
}
