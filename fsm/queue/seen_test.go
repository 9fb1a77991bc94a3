package queue

import (
	"bytes"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// takeIn publishes messages with ids of one byte each at an instant.
func (d *driver) takeIn(t *testing.T, now fsm.Time, ids string) {
	t.Helper()
	d.meta.Now = now
	for _, id := range ids {
		d.mustAnswer(t, fsm.OK, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1, MessageId: string(id)}})
	}
}

func (d *driver) window(t *testing.T, now fsm.Time, window uint64) {
	t.Helper()
	d.meta.Now = now
	d.mustAnswer(t, fsm.OK, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{DedupWindow: window}}})
}

// An id that was outside of a shorter window has no duplicate, even after a
// snapshot, and is forgotten at once instead of when the longer window ends.
func TestWiderWindow(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DedupWindow: 100})
	d.m.bounds.Before = 1
	d.takeIn(t, 2_000_000, "abcd")
	d.takeIn(t, 2_000_050, "e")
	d.window(t, 2_000_100, 10_000) // forgets a
	if d.stats().IDs != 4 || d.m.NextDeadline() != 2_000_100 {
		t.Fatalf("%d ids, next %d", d.stats().IDs, d.m.NextDeadline())
	}
	var b bytes.Buffer
	if _, err := d.m.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := d.m.Restore(&b); err != nil {
		t.Fatal(err)
	}
	d.takeIn(t, 2_000_100, "de")
	if n := d.m.counters.SameID; n != 1 {
		t.Errorf("%d duplicates, not only e", n)
	}
	d.mustAnswer(t, fsm.OK, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_TICK})
	if d.stats().IDs != 2 || d.m.NextDeadline() != fsm.Time(2_000_050).Add(10_000+forgetLate) {
		t.Errorf("%d ids, next %d", d.stats().IDs, d.m.NextDeadline())
	}
}

// What makes room for others without having had a chance is counted; an id that is
// outside of the window had its chance, whether or not a tick has forgotten it.
func TestForgottenEarly(t *testing.T) {
	for ticks := range 2 {
		d := newDriver(&logpb.QueueConfig{DedupWindow: 100})
		d.m.bounds.IDs, d.m.bounds.Before = 2, 1
		d.takeIn(t, 2_000_000, "ab")
		d.meta.Now = 2_000_100
		for range ticks {
			d.mustAnswer(t, fsm.OK, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_TICK})
		}
		d.takeIn(t, 2_000_100, "cd")
		if n := d.m.counters.IDsForgotten; n != 0 {
			t.Errorf("%d ids forgotten early after %d ticks", n, ticks)
		}
		d.takeIn(t, 2_000_100, "e")
		if n := d.m.counters.IDsForgotten; n != 1 {
			t.Errorf("%d ids forgotten early after %d ticks, not one", n, ticks)
		}
	}
}
