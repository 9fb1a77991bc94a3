//go:build race

package worker

import "runtime"

// Under the race detector these tests have one processor. The timers of a bubble
// share one context of the detector, and a channel's timer that is due runs in
// whatever goroutine looks at it: two at a time, such as of workers that start,
// corrupt the detector (https://github.com/golang/go/issues/78156).
func init() { runtime.GOMAXPROCS(1) }
