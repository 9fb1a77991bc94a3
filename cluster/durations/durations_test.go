package durations

import (
	"slices"
	"testing"
	"time"
)

// TestHistogram: a duration counts with those up to the next bound, the bound included.
func TestHistogram(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{-1, 0, 10 * time.Microsecond, 10*time.Microsecond + 1, 10 * time.Second, 10*time.Second + 1} {
		h.Observe(d)
	}
	last := len(Bounds)
	want := Counts{Sum: 20*time.Second + 20*time.Microsecond + 2}
	want.Of[0], want.Of[1], want.Of[last-1], want.Of[last] = 3, 1, 1, 1
	if got := h.Read(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if !slices.IsSorted(Bounds[:]) {
		t.Error("the bounds are not in order")
	}
}

func BenchmarkObserve(b *testing.B) {
	var h Histogram
	for b.Loop() {
		h.Observe(time.Millisecond)
	}
}
