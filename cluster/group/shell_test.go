package group

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestReadsWhileItFallsAsleep: whoever reads a group gets its record or its instance, also while it changes between
// these, and no instance that does not lead yet.
func TestReadsWhileItFallsAsleep(t *testing.T) {
	g, r := &Group{}, &Record{}
	wake := func() {
		i := &Instance{}
		g.running.Store(i)
		i.leadership.term.Store(2)
		g.asleep.Store(nil)
	}
	wake()
	var over atomic.Bool
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for !over.Load() {
				switch i, r := g.read(); {
				case i == nil && r == nil:
					t.Error("neither")
					over.Store(true)
				case i != nil && i.leadership.term.Load() == 0:
					t.Error("one that is being woken")
					over.Store(true)
				}
			}
		})
	}
	for began := time.Now(); !over.Load() && time.Since(began) < time.Second/2; {
		for range 1000 {
			g.asleep.Store(r)
			g.running.Store(nil)
			wake()
		}
	}
	over.Store(true)
	readers.Wait()
}
