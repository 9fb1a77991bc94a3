package jepsen

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/workload"
)

const (
	// catchUpSize is that of each message; so many wait in the queue, and so
	// many pass through it while a member is away, and again when it is back.
	catchUpSize    = 16 << 10
	catchUpBacklog = 1500
	catchUpPassed  = 4000
	// catchUpInstalls is how many snapshots a member may need: one, and another
	// for each that was out of date when it had come, which are ever smaller.
	catchUpInstalls = 4
)

// A member of a busy queue with a backlog, which was away for longer than its
// log is kept, catches up while the load goes on: by few snapshots, without what
// it has, and with nothing lost.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 2*time.Minute, "--set", "raft.retained_bytes=1048576")
	r.mustDeclare(0, "orders")
	p := client.Publisher{Name: "first", URIs: r.URIs()}
	r.must(p.Run(r.ctx, r.History, workload.Count(catchUpBacklog**scale, plain("orders", catchUpSize))))

	stop, passed := make(chan struct{}), new(atomic.Int64)
	next := plain("orders", catchUpSize)
	counted := func() client.Message {
		passed.Add(1)
		return next()
	}
	f := workload.Flow{
		URIs: r.URIs(), PublishAt: 0, ConsumeAt: 1, Queue: "orders",
		Next: workload.Until(stop, counted), Patience: time.Minute,
	}
	r.must(f.Run(r.ctx, r.History, func(ctx context.Context) error {
		defer close(stop)
		return r.awayAndBack(ctx, passed)
	}))
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h))
	r.mustConverge()
	var installs, sent, leftOut float64
	for _, n := range r.Nodes[:2] {
		for name, sum := range map[string]*float64{
			"quorate_raft_snapshots_sent_total": &installs, "quorate_raft_snapshots_sent_bytes_total": &sent,
			"quorate_raft_snapshots_left_out_bytes_total": &leftOut,
		} {
			v, err := n.Metric(r.ctx, name)
			r.must(err)
			*sum += v
		}
	}
	r.Logf("%.0f snapshots, %.1f MB sent, %.1f MB left out", installs, sent/1e6, leftOut/1e6)
	if installs > catchUpInstalls {
		r.Errorf("%.0f snapshots were sent, at most %d should be", installs, catchUpInstalls)
	}
}

// awayAndBack kills the third node, lets messages pass, starts it again, and
// waits until its replica is as far as the leader's was, with the load going on.
func (r *run) awayAndBack(ctx context.Context, passed *atomic.Int64) error {
	away := r.Nodes[2]
	defer r.Fault("kill", away.Number)()
	if err := away.Kill(ctx); err != nil {
		return err
	}
	pass := func(what string) error {
		from := passed.Load()
		return await.Until(ctx, 10*time.Millisecond, what, func() (bool, error) {
			return passed.Load() >= from+int64(catchUpPassed**scale), nil
		})
	}
	if err := pass("messages to pass while a member is away"); err != nil {
		return err
	}
	if err := away.Restart(); err != nil {
		return err
	}
	if err := away.AwaitReady(ctx); err != nil {
		return err
	}
	leader, err := r.Nodes[0].ReplicasOf(ctx, "orders")
	if err != nil {
		return err
	}
	began, goal := time.Now(), leader[0].AppliedIndex
	err = await.Until(ctx, 50*time.Millisecond, "the member to catch up", func() (bool, error) {
		got, err := away.ReplicasOf(ctx, "orders")
		return err == nil && len(got) == 1 && got[0].AppliedIndex >= goal, nil
	})
	r.Logf("caught up after %v, %d messages passed", time.Since(began).Round(time.Millisecond), passed.Load())
	if err != nil {
		return err
	}
	return pass("messages to pass when it is back")
}
