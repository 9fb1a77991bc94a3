package election

import (
	"testing"
	"time"
)

// Campaigns that are decided in time make room for more; those that are late for fewer, once for all that
// are late together.
func TestWindow(t *testing.T) {
	w, now := newWindow(), time.Unix(1000, 0)
	fill := func() (list []*campaign) {
		for !w.full() {
			list = append(list, w.begin(now, 2))
		}
		return list
	}
	end := func(list []*campaign) {
		for _, c := range list {
			w.decided(now, c)
		}
	}
	for _, step := range []struct {
		what string
		took time.Duration
		size int // afterwards
	}{
		{"quick", time.Millisecond, 2 * firstWindow},
		{"in time", inTime - 1, 4 * firstWindow},
		{"late", inTime, 2 * firstWindow},
		{"late again, in the same slot", inTime, 2 * firstWindow},
		{"late again", inTime, firstWindow},
		{"very late", time.Minute, firstWindow / 2},
		{"very late", time.Minute, minWindow},
		{"for ever late", time.Minute, minWindow},
		{"quick", 0, 2 * minWindow},
	} {
		list := fill()
		now = now.Add(step.took)
		for _, c := range list {
			w.check(now, c)
		}
		end(list)
		if w.size != step.size || w.under != 0 {
			t.Errorf("%s: %d may be under way and %d are, want %d", step.what, w.size, w.under, step.size)
		}
	}
	for range 20 {
		end(fill())
	}
	if w.size != maxWindow {
		t.Errorf("%d may be under way, want %d", w.size, maxWindow)
	}
}
