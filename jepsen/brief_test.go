package jepsen

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

// briefQueues are the queues of TestBrief.
const briefQueues = 10

// What makes a cluster one, in the time that `make test` has: three processes serve the examples,
// and messages flow while the leader of a queue is killed, a node is stopped and started, and all
// are restarted one by one. Nothing confirmed is lost, and what comes twice is marked or was
// published twice.
func TestBrief(t *testing.T) {
	r := mustStartBrief(t, 3*time.Minute, cluster.Options{})
	t.Run("examples", func(t *testing.T) { r.sub(t).checkExamples() })
	t.Run("restarts", func(t *testing.T) { r.sub(t).checkRestarts() })
}

func (r *run) checkRestarts() {
	r.Helper()
	names := make([]string, briefQueues)
	for i := range names {
		names[i] = fmt.Sprintf("brief-%d", i+1)
		r.must(workload.Declare(r.ctx, r.Nodes[i%len(r.Nodes)].URI(), workload.Queue{Name: names[i]}))
	}
	stop := make(chan struct{})
	published, consumed, leave := r.traffic(names, stop)
	err := r.restartAll(names[0])
	close(stop)
	r.must(published())
	leave()
	r.must(consumed())
	r.must(err)
	for _, name := range names {
		r.must(workload.Drain(r.ctx, r.Nodes[0].URI(), name, "drain "+name, r.History))
	}
	h := r.History
	h.Stall = machine.Longest(r.began)
	r.checkGap(h.LongestGap(), true, h.Stall)
	r.Logf("%d confirmed, %d attempts, longest time without a confirm %v", h.Confirmed(), len(h.Attempts), h.LongestGap().Round(time.Millisecond))
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h), checker.Returned(h, electing))
	if want := 1 + 1 + len(r.Nodes); len(h.Faults) != want {
		r.Errorf("%d faults applied, not %d: %+v", len(h.Faults), want, h.Faults)
	}
	r.mustConverge()
}

// restartAll kills the leader of a queue, stops and starts a node, and restarts all one by one.
func (r *run) restartAll(queue string) error {
	if err := r.awaitConfirms(r.ctx, rollRate); err != nil {
		return err
	}
	if err := nemesis.KillLeader(queue).Run(r.ctx, r.Cluster, r.History); err != nil {
		return err
	}
	if err := r.awaitConfirms(r.ctx, rollRate); err != nil {
		return err
	}
	if err := nemesis.StopOne(func(nodes int) int { return nodes }).Run(r.ctx, r.Cluster, r.History); err != nil {
		return err
	}
	if err := r.awaitConfirms(r.ctx, rollRate); err != nil {
		return err
	}
	return r.cycleAll(false)
}
