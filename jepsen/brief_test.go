package jepsen

import (
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/nemesis"
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
	r.mustKeepWhile("brief", briefQueues, rollRate, true, func() error {
		for _, f := range []nemesis.Fault{
			nemesis.KillLeader("brief-1"),
			nemesis.StopOne(func(nodes int) int { return nodes }),
		} {
			if err := f.Run(r.ctx, r.Cluster, r.History); err != nil {
				return err
			}
			if err := r.awaitConfirms(r.ctx, rollRate); err != nil {
				return err
			}
		}
		return r.cycleAll(false)
	})
	if want := 1 + 1 + len(r.Nodes); len(r.History.Faults) != want {
		r.Errorf("%d faults applied, not %d: %+v", len(r.History.Faults), want, r.History.Faults)
	}
}
