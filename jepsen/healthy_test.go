package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/workload"
)

const (
	// segment is how many messages of a queue at full speed are checked, and forgotten, at
	// a time.
	segment = 100_000
	// firstSegment is shorter, so that a slow machine checks one, too.
	firstSegment = 5_000
)

// Nothing is broken: all workloads run at the same time, and beside them three queues as
// fast as clients can. Nothing is late, nothing comes twice, everything is in order.
func TestHealthy(t *testing.T) {
	t.Parallel()
	lasts := *chaosTime
	if short() {
		lasts = 5 * time.Second
	}
	r := mustStartWith(t, lasts+6*time.Minute, cluster.Options{})
	plays := r.chaosPlays(rand.New(rand.NewPCG(r.draws("jepsen.seed", *chaosSeed), 0)))
	t.Cleanup(r.printSums)
	r.mustPlayWhile(plays, func(ctx context.Context) error {
		end := time.Now().Add(lasts)
		return all([]int{1, 2, 3}, func(number int) error { return r.fullSpeed(ctx, number, end) })
	})
}

// fullSpeed publishes to one queue and consumes from it, and checks what was published
// in segments, so that a long run needs no more memory than a short one.
func (r *run) fullSpeed(ctx context.Context, number int, end time.Time) error {
	name := fmt.Sprint("full-", number)
	sum := r.beside(name)
	if err := workload.Declare(ctx, r.Nodes[0].URI(), workload.Queue{Name: name}); err != nil {
		return err
	}
	for size := firstSegment; time.Now().Before(end); size = segment {
		h := r.Beside()
		f := workload.Flow{
			URIs: r.URIs(), PublishAt: number, ConsumeAt: number + 1, Queue: name, Window: 1000, Patience: time.Minute,
			Next: workload.Before(end, workload.Count(size, mixed(name, 12, 100))),
		}
		if err := f.Run(ctx, h, nil); err != nil {
			return err
		}
		sum.Add(h)
		for _, check := range []check{checker.Lost, checker.Unanswered, checker.Ghosts, checker.Doubled, checker.Disorder} {
			r.check(named(name, check(h)))
		}
	}
	if sum.Past.Confirmed == 0 {
		return errors.New(name + ": nothing was tried")
	}
	return nil
}
