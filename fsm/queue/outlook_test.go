package queue

import (
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

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
	if o := d.m.Outlook(); o != (Outlook{SingleActive: "active"}) {
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
