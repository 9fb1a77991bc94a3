package queue

import (
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestExpireBy: the counts are those of messages that nobody holds and that expire at an instant or
// before it, however many there are.
func TestExpireBy(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	instants := func(after ...int64) (list []fsm.Time) {
		for _, ms := range after {
			list = append(list, d.meta.Now+fsm.Time(ms))
		}
		return list
	}
	const n = 3 * blockLen
	at := instants(-1, 0, 9, 10, 11, 10*blockLen, 10*n-1, 10*n, 10*n+1)
	if got := AheadBy(d.m, at, 1000).Expire; !slices.Equal(got, make([]uint64, len(at))) {
		t.Fatalf("empty: %d", got)
	}
	d.enqueue(t, 0) // never
	for i := range n {
		d.enqueue(t, uint64(10*(n-i)+1)) // the last one first
	}
	if got := AheadBy(d.m, at, 1000).Expire; !slices.Equal(got, []uint64{0, 0, 0, 1, 1, blockLen, n - 1, n, n}) {
		t.Fatalf("many: %d", got)
	}
	d.cmd = logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Tag: "holds", Prefetch: 2}}
	d.do(t, taker)
	d.finish(t) // it gets the one that never expires, and the first of the others
	if got := AheadBy(d.m, at, 1000).Expire; !slices.Equal(got, []uint64{0, 0, 0, 1, 1, blockLen, n - 1, n - 1, n - 1}) {
		t.Fatalf("two are held: %d", got)
	}
}

// TestOutlook: the instants are those at which the machine expires a message and ends the queue, and
// are gone with what they were about.
func TestOutlook(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{Expires: 5000, SingleActive: true, DeliveryLimit: 20})
	start := d.meta.Now
	if o := d.m.Outlook(); o != (Outlook{LeaseEnd: start + 5001}) || o.LeaseEnd != d.m.NextDeadline() {
		t.Fatalf("empty: %+v, next is %d", o, d.m.NextDeadline())
	}
	d.enqueue(t, 0)
	d.enqueue(t, 3001)
	d.enqueue(t, 1001)
	if o := d.m.Outlook(); o.NextExpiry != start+1000 || o.NextExpiry != d.m.NextDeadline() {
		t.Fatalf("three messages: %+v, next is %d", o, d.m.NextDeadline())
	}
	d.meta.Now += 1000
	d.tick(t)
	if o := d.m.Outlook(); o.NextExpiry != start+3000 || o.Returned != 0 {
		t.Fatalf("one has expired: %+v", o)
	}
	d.cmd = logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Tag: "active", Prefetch: 2}}
	d.do(t, taker)
	d.finish(t)
	if o := d.m.Outlook(); o != (Outlook{SingleActive: "active", Consumers: 1}) {
		t.Fatalf("in use, all held: %+v", o)
	}
	d.cmd = logpb.Command{Kind: logpb.Command_SESSION_DOWN}
	d.do(t, taker)
	d.finish(t)
	if o := d.m.Outlook(); o.Returned != 2 || o.NextExpiry != start+3000 || o.LeaseEnd != d.meta.Now+5001 || o.SingleActive != "" {
		t.Fatalf("all are back: %+v", o)
	}
	d.meta.Now += 5001
	d.finish(t)
	if o := d.m.Outlook(); o != (Outlook{}) {
		t.Fatalf("gone: %+v", o)
	}
}
