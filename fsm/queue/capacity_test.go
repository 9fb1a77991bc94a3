package queue

import (
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestCapacity: what counts is the time, of the last seconds with consumers, in which one of them had
// credit.
func TestCapacity(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	start := d.meta.Now
	type share struct{ able, serving fsm.Millis }
	check := func(when string, after fsm.Time, want share) {
		t.Helper()
		if able, serving := CapacityOf(d.m).At(start + after); (share{able, serving}) != want {
			t.Errorf("%s: %d of %d, want %d of %d", when, able, serving, want.able, want.serving)
		}
	}
	check("without consumers", 0, share{0, 0})
	d.meta.Now = start + 1000
	d.consume(t, 1)
	check("a consumer has come", 1000, share{1, 1})
	check("it has waited for 1 s", 2000, share{1000, 1000})
	d.meta.Now = start + 3000
	d.enqueue(t, 0)
	check("after 2 s it holds what it may", 3000, share{2000, 2000})
	check("and 1 s later still does", 4000, share{2000, 3000})
	d.meta.Now = start + 4500
	d.ack(t, 1, 1)
	check("it has settled", 4500, share{2000, 3500})
	d.meta.Now = start + 6000
	d.enqueue(t, 0)
	check("and waited for 1.5 s", 6000, share{3500, 5000})
	check("5 s after the beginning the span is over", 10_999, share{3500, 9999})
	check("what was in the one before is forgotten", 11_000, share{0, 5000})
	check("as it is after an hour", 3_600_000, share{0, 5000})
	d.meta.Now = start + 3_600_000
	d.ack(t, 2, 1)
	check("an hour of nothing weighs no more than a span", 3_605_000-1, share{4999, 9999})
	d.cmd = logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}}
	d.do(t, taker)
	check("there is no consumer any more", 3_605_000, share{0, 0})
}

// TestReadyByPriority: ready messages count by their priorities wherever they are, and no others do.
func TestReadyByPriority(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20, MaxPriorityPlusOne: 11})
	check := func(when string, want ...uint64) {
		t.Helper()
		if got := ReadyByPriority(d.m); !slices.Equal(got, want) {
			t.Errorf("%s: %d, want %d", when, got, want)
		}
	}
	check("empty")
	for _, p := range []uint32{3, 3, 1, 200, 0} { // stored plus one
		d.enq = logpb.Enqueue{Size: 100, PriorityPlusOne: p}
		d.cmd = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &d.enq}
		d.do(t, publisher)
	}
	check("five", 1, 0, 2, 0, 1, 0, 0, 0, 0, 0, 1)
	d.consume(t, 2)
	check("two are held", 1, 0, 2)
	d.cmd = logpb.Command{Kind: logpb.Command_SESSION_DOWN}
	d.do(t, taker)
	d.finish(t)
	check("they are back", 1, 0, 2, 0, 1, 0, 0, 0, 0, 0, 1)
	if err := d.m.Check(); err != nil {
		t.Error(err)
	}
	d.cmd = logpb.Command{Kind: logpb.Command_PURGE}
	d.do(t, fsm.SessionID{})
	check("purged")
	if err := d.m.Check(); err != nil {
		t.Error(err)
	}
}
