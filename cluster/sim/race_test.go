//go:build race

package sim

import "runtime"

// Under the race detector the simulation has one processor. The timers of a
// bubble share one context of the detector, and a channel's timer may run in
// whatever goroutine looks at it: two at a time corrupt the detector, and the
// process dies in its C code (https://github.com/golang/go/issues/78156).
// Races are found all the same: the detector goes by what is ordered, not by
// what runs at once.
func init() { runtime.GOMAXPROCS(1) }
