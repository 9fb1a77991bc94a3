package placement

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/worker"
)

// Work on one group that panics leaves the work on others alone, and is done
// again.
func TestPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		n := &node{Config: Config{Guard: worker.NewGuard(log), Logger: log}} // without a host and a catalog: all work panics
		expect := func(what string, want uint64) {
			t.Helper()
			synctest.Wait()
			if got := n.Guard.Panics(); got != want {
				t.Errorf("%s: %d panics, not %d", what, got, want)
			}
		}
		r := newReconciler(n)
		r.queue.Start()
		r.Check(1, 2)
		expect("members", 2)
		time.Sleep(worker.PanicPause)
		expect("members a second later", 4)
		r.Stop()
		l := newLocalReplicas(n)
		l.Check(1, 2)
		l.queue.Start()
		time.Sleep(time.Hour)
		expect("replicas before the node has its number", 4)
		l.self = 1
		l.Check(1, 2)
		expect("replicas", 6)
		time.Sleep(shortestRetry)
		expect("replicas a moment later", 8)
		time.Sleep(2*shortestRetry - 1)
		expect("replicas before the next attempt", 8)
		time.Sleep(1)
		expect("replicas at the next attempt", 10)
		l.Stop()
	})
}
