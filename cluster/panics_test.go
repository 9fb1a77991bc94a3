package cluster

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

// Work on one replica that panics leaves the work on others alone, and is done
// again.
func TestWorkOnReplicasPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		n := &Node{slog: log, guard: worker.NewGuard(log)} // without a host and a catalog: all work on replicas panics
		n.life, n.end = context.WithCancel(context.Background())
		p := newPlacer(n)
		p.open = true
		p.check(1, 2)
		p.launch()
		p.done.Wait()
		if got := n.guard.Panics(); got != 2 || len(p.active) > 0 {
			t.Errorf("placer: %d panics, active %v", got, p.active)
		}
		r := newReconciler(n)
		r.self = fsm.NodeID(1)
		r.check(1, 2)
		synctest.Wait()
		if got := n.guard.Panics(); got != 4 {
			t.Errorf("reconciler: %d panics", got)
		}
		time.Sleep(worker.PanicPause)
		synctest.Wait()
		if got := n.guard.Panics(); got != 6 {
			t.Errorf("reconciler a second later: %d panics", got)
		}
		n.end()
		n.work.Wait()
		r.stop()
	})
}

// A node whose check of memory panics lives on, and checks again.
func TestNodeSurvivesPanicInLoop(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, func(c *nodes) { c.first = names[:1]; c.through = "n1" })
	n := c.all["n1"]
	c.machine("n1").fault.Store(true)
	until(t, "a panic is counted", func() bool { return n.figures().LoopPanics > 0 })
	c.machine("n1").fault.Store(false)
	c.machine("n1").used.Store(600)
	until(t, "the node notices that it is short", func() bool { return len(n.alarms()) > 0 })
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
}
