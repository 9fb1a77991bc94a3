package watchdog

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A process is dead if its watchdog does not run, or if it goes on long after a hanging disk should
// have ended it. Until then it deals with the disk itself.
func TestDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, bound := range []time.Duration{20 * time.Second, -1} {
			var ended atomic.Bool
			w := New(Config{Bounds: Bounds{DiskExit: bound}, Exit: func(int) { ended.Store(true) }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
			if why := w.Dead(); why != "" {
				t.Errorf("before it has started: %s", why)
			}
			nothing := func() {}
			w.Start(Actions{Withdraw: nothing, Return: nothing, Refuse: nothing, Shut: func(_ context.Context, _ string) {}})
			time.Sleep(time.Hour + diskEvery/2)
			if why := w.Dead(); why != "" {
				t.Errorf("it runs: %s", why)
			}
			slot := w.disk.begin()
			time.Sleep(20 * time.Second)
			if why := w.Dead(); why != "" {
				t.Errorf("the disk hangs, and it has not had its time: %s", why)
			}
			time.Sleep(standstillTime + time.Second)
			if why := w.Dead(); ended.Load() != (bound > 0) || (why != "") != ended.Load() {
				t.Errorf("with a bound of %v it has ended: %t, and says %q", bound, ended.Load(), why)
			}
			w.disk.end(slot)
			w.Stop()
			if time.Sleep(standstillTime + time.Second); !strings.Contains(w.Dead(), "not run") {
				t.Errorf("it does not run: %q", w.Dead())
			}
		}
	})
}

// A disk that hangs after a long rest is noticed as soon as one that was busy, and so is its return; and
// while it rests, it is looked at rarely.
func TestHangAfterRest(t *testing.T) {
	for _, bound := range []time.Duration{300 * time.Millisecond, DefaultDiskBound} {
		synctest.Test(t, func(t *testing.T) {
			w := New(Config{Bounds: Bounds{Disk: bound, DiskExit: -1}, Logger: slog.New(slog.DiscardHandler)})
			left, back := make(chan time.Time, 1), make(chan time.Time, 1)
			w.Start(Actions{Withdraw: func() { left <- time.Now() }, Return: func() { back <- time.Now() }})
			defer w.Stop()
			for range 7 {
				time.Sleep(2*goodTime + 77*time.Millisecond)
				slot, begun := w.disk.begin(), time.Now()
				if d := (<-left).Sub(begun); d < bound || d > bound+2*diskEvery {
					t.Errorf("the bound is %v, the node has left after %v", bound, d)
				}
				w.disk.end(slot)
				ended := time.Now()
				if d := (<-back).Sub(ended); d < calmTime || d > calmTime+3*diskEvery {
					t.Errorf("the node is back after %v", d)
				}
			}
			if time.Sleep(time.Second); !w.clock.resting.Load() {
				t.Error("it does not rest when nothing is written")
			}
		})
	}
}

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
