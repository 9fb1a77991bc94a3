package cluster

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/fsm"
)

// A loop of the node that panics goes on after a pause, and ends with the node.
func TestLoopGoesOnAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{slog: slog.New(slog.DiscardHandler)}
		n.life, n.end = context.WithCancel(context.Background())
		began, turns := time.Now(), 0
		n.keep("test", func() {
			if turns++; turns < 3 {
				panic("a fault of the program")
			}
		})
		if took := time.Since(began); turns != 3 || took != 2*loopPause || n.panics.Load() != 2 {
			t.Errorf("%d turns in %v, %d panics", turns, took, n.panics.Load())
		}
		n.end()
		n.keep("test", func() { panic("a fault of the program") })
		if time.Since(began) != 2*loopPause {
			t.Error("a node that has ended goes on")
		}
	})
}

// Work on one replica that panics leaves the work on others alone, and is done
// again.
func TestWorkOnReplicasPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{slog: slog.New(slog.DiscardHandler)} // without a host and a catalog: all work on replicas panics
		n.life, n.end = context.WithCancel(context.Background())
		p := newPlacer(n)
		p.open = true
		p.check(1, 2)
		p.launch()
		p.done.Wait()
		if got := n.panics.Load(); got != 2 || len(p.active) > 0 {
			t.Errorf("placer: %d panics, active %v", got, p.active)
		}
		r := newReconciler(n)
		r.self = fsm.NodeID(1)
		r.check(1, 2)
		synctest.Wait()
		if got := n.panics.Load(); got != 4 {
			t.Errorf("reconciler: %d panics", got)
		}
		time.Sleep(loopPause)
		synctest.Wait()
		if got := n.panics.Load(); got != 6 {
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
