package stats

import (
	"runtime"
	"sync"
	"testing"
)

// TestRunnable: goroutines that wait for a processor are counted.
func TestRunnable(t *testing.T) {
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 2*runtime.GOMAXPROCS(0) + 1 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	defer busy.Wait()
	defer close(stop)
	for runnable() == 0 {
		runtime.Gosched()
	}
}
