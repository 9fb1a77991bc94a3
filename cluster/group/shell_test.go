package group

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestReadsWhileItFallsAsleep: whoever reads a group gets its record or its instance, also while it changes between
// these.
func TestReadsWhileItFallsAsleep(t *testing.T) {
	g, i, r := &Group{}, &Instance{}, &Record{}
	g.running.Store(i)
	var over atomic.Bool
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for !over.Load() {
				if i, r := g.read(); i == nil && r == nil {
					t.Error("neither")
					over.Store(true)
				}
			}
		})
	}
	for began := time.Now(); !over.Load() && time.Since(began) < time.Second/2; {
		for range 1000 {
			g.asleep.Store(r)
			g.running.Store(nil)
			g.running.Store(i)
			g.asleep.Store(nil)
		}
	}
	over.Store(true)
	readers.Wait()
}
