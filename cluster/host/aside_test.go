package host

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// Data of a queue that the catalog does not know is kept for a day, under its number: for that queue if it is known again,
// and for no other one.
func TestAside(t *testing.T) {
	began, passed := time.Now(), atomic.Int64{}
	since := func() time.Duration { return time.Since(began) + time.Duration(passed.Load()) }
	n := mustHost(t, t.TempDir(), func(c *Config) {
		c.Clock = clock.New(clock.Config{
			Node: "n1", Nodes: []string{"n1"}, Logger: c.Logger, Monotonic: since, MaxSkew: func() fsm.Millis { return 1000 },
			Wall: func() time.Time { return began.Add(since()) },
		})
	})
	spec := group.Spec{Group: 1, Queue: 7 << 16, VHost: "/", Name: "q", Members: []string{"n1"}, Config: &group.QueueConfig{DeliveryLimit: 20}}
	other := spec
	other.Queue, other.Name = 8<<16, "r"
	open := func(spec group.Spec, messages uint64) {
		t.Helper()
		g, err := n.Open(spec)
		if err != nil {
			t.Fatal(err)
		}
		await(t, "it leads", func() bool { return g.Leading() != 0 })
		if got := ready(g); got != messages {
			t.Errorf("%s has %d messages, want %d", spec.Name, got, messages)
		}
	}
	aside := func(scarce bool, want time.Duration) {
		t.Helper()
		if left, err := n.PutAside(1, scarce); left.Round(time.Hour) != want || err != nil || n.Group(1) != nil {
			t.Fatalf("kept for %v (%v), want %v", left, err, want)
		}
	}
	open(spec, 0)
	mustSubmit(t, n.Group(1), enqueues(1, -1, "a", "b"))
	await(t, "there are messages", func() bool { return ready(n.Group(1)) == 2 })
	aside(false, AsideTime)
	passed.Add(int64(time.Hour))
	aside(false, AsideTime-time.Hour)
	if _, err := n.Open(other); !errors.Is(err, ErrAside) {
		t.Fatalf("another queue of its number opens: %v", err)
	}
	open(spec, 2)
	aside(false, AsideTime) // anew
	passed.Add(int64(AsideTime))
	open(other, 0) // nothing is kept any more
	mustSubmit(t, n.Group(1), enqueues(1, -1, "a"))
	await(t, "there is a message", func() bool { return ready(n.Group(1)) == 1 })
	aside(false, AsideTime)
	aside(true, 0)
	if ids, err := n.store.GroupIDs(); err != nil || slices.Contains(ids, 1) {
		t.Errorf("without space there are %v (%v)", ids, err)
	}
	aside(false, 0) // of what there is nothing, nothing is kept
}
