package watchdog

import (
	"testing"
	"time"
)

// A disk that hangs again soon must be calm for longer before the node returns,
// and one that was well for long is trusted as at first.
func TestDiskState(t *testing.T) {
	v := diskState{bounds: Bounds{Disk: 2 * time.Second, DiskExit: 30 * time.Second}, calm: calmTime}
	now := time.Hour
	for _, step := range []struct {
		after, waiting time.Duration
		want           action
	}{
		{0, 0, none},
		{time.Second, 1900 * time.Millisecond, none},
		{time.Second, 2 * time.Second, withdraw},
		{time.Second, 29 * time.Second, none},
		{time.Second, 0, none},
		{calmTime / 2, 1500 * time.Millisecond, none}, // not calm
		{calmTime / 2, time.Second, none},
		{calmTime - 1, 0, none},
		{1, 0, comeBack},
		{time.Second, 3 * time.Second, withdraw},
		{time.Second, 0, none},
		{calmTime, 0, none},
		{calmTime, 0, comeBack},
		{goodTime + 1, 3 * time.Second, withdraw},
		{time.Second, 0, none},
		{calmTime, 0, comeBack},
		{time.Second, 2 * time.Second, withdraw},
		{time.Second, 30 * time.Second, exit},
	} {
		now += step.after
		if got := v.evaluate(step.waiting, now); got != step.want {
			t.Fatalf("at %v, waiting for %v: %d, want %d", now-time.Hour, step.waiting, got, step.want)
		}
	}
	v = diskState{bounds: Bounds{Disk: 2 * time.Second, DiskExit: -1}, calm: calmTime}
	v.evaluate(3*time.Second, now)
	if v.evaluate(time.Hour, now) != none {
		t.Error("a node ends that is to wait for ever")
	}
	for range 10 {
		v.evaluate(0, now)
		now += time.Minute / 2
		v.evaluate(0, now)
		v.evaluate(3*time.Second, now)
	}
	if v.calm != maxCalmTime {
		t.Errorf("it must be calm for %v", v.calm)
	}
}
