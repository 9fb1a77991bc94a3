package jepsen

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

// deadKills is how long TestDeadLettersUnderKills kills leaders, at scale 1.
const deadKills = 20 * time.Second

// Messages die all the time in one replicated queue and go to another, while
// the leaders of both are killed in turn: each letter arrives, and once.
func TestDeadLettersUnderKills(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 5*time.Minute)
	r.mustExpireWhile(func(ctx context.Context) error {
		const least = 2 // on a slow machine, too
		for n, end := 0, time.Now().Add(deadKills*time.Duration(*scale)); n < least || time.Now().Before(end); n++ {
			for _, queue := range []string{"waiting", "dead"} {
				if err := nemesis.KillLeader(queue).Run(ctx, r.Cluster, r.History); err != nil {
					return err
				}
				if err := r.awaitDead(ctx, 300); err != nil {
					return err
				}
			}
		}
		return nil
	})
	h := r.History
	late := checker.Lateness(h)
	t.Logf("%d kills, %d messages, lateness: %s", len(h.Faults), h.Confirmed(), checker.Percentiles(late))
	if len(late) == 0 || len(h.Faults) < 4 {
		t.Fatal("nothing was tried")
	}
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h),
		checker.Early(h), r.late(h, electing), checker.Deaths(h, checker.Expired("waiting")))
	r.mustConverge()
}

// Queues with a TTL by policy and no messages, some of them used before, write
// nothing while nobody uses them.
func TestIdleQueuesWriteNothing(t *testing.T) {
	t.Parallel()
	const queues, quiet = 200, 12 * time.Second
	r := mustStart(t, 3*time.Minute)
	r.must(r.Nodes[0].SetPolicy(r.ctx, cluster.Policy{
		Name: "ttl", Pattern: "^idle-", ApplyTo: "queues",
		Definition: map[string]any{"message-ttl": 500, "max-length": 1000},
	}))
	var all []workload.Queue
	for i := range queues {
		all = append(all, workload.Queue{Name: fmt.Sprintf("idle-%d", i)})
	}
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), all...))
	r.must(workload.Use(r.ctx, r.Nodes[0].URI(), "idle-0", "idle-1", "idle-2"))

	r.mustConverge()
	for compared := 0; compared < queues/2; {
		before := r.mustStopAnswering()
		select {
		case <-r.ctx.Done():
			t.Fatal(r.ctx.Err())
		case <-time.After(quiet):
		}
		after := r.mustIndexes()
		if len(before) != queues || len(after) != queues {
			t.Logf("%d and then %d queues of %d have a leader", len(before), len(after), queues)
			continue
		}
		compared = 0
		for queue, now := range after {
			if was := before[queue]; was.term == now.term { // an election writes an entry
				compared++
				if was.index != now.index {
					t.Errorf("%s has written %d entries", queue, now.index-was.index)
				}
			}
		}
	}
}

// position is how far a queue's leader has applied its log, and in which term.
type position struct{ term, index uint64 }

// mustStopAnswering waits until no queue writes any more, and returns where their
// logs are.
func (r *run) mustStopAnswering() (at map[string]position) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	r.must(await.Until(ctx, time.Second, "no new entries", func() (bool, error) {
		now := r.mustIndexes()
		same := fmt.Sprint(now) == fmt.Sprint(at)
		at = now
		return same, nil
	}))
	return at
}

// mustIndexes returns how far each queue's leader has applied its log.
func (r *run) mustIndexes() map[string]position {
	r.Helper()
	at := map[string]position{}
	for _, n := range r.Nodes {
		var replicas []cluster.Replica
		r.must(await.Until(r.ctx, 100*time.Millisecond, "the replicas of "+n.Name(), func() (bool, error) {
			var err error
			replicas, err = n.Replicas(r.ctx)
			return err == nil, err
		}))
		for _, replica := range replicas {
			if replica.Leader {
				at[replica.Name] = position{replica.Term, replica.AppliedIndex}
			}
		}
	}
	return at
}
