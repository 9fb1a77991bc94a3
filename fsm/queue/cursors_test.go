package queue

import (
	"bytes"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestPassOver: a command passes over no more messages than it may, and the next one
// goes on from there, on a restored machine as well; nobody ticks at the end.
func TestPassOver(t *testing.T) {
	const short, skips = 10, 3
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	for i := range short + 1 {
		ttl := uint64(1000)
		if i == short {
			ttl = 5000
		}
		d.mustAnswer(t, fsm.OK, publisher, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 100, TtlPlusOne: ttl + 1}})
	}
	d.m.bounds.Skips = skips
	d.mustAnswer(t, fsm.OK, taker, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, MinTtl: 2000}})
	ticks := 0
	for next, due := d.m.NextDue(); due == WorkDue && next <= d.meta.Now; next, due = d.m.NextDue() {
		if len(d.eff.Deliveries) > 0 {
			t.Fatal("handed out, and work is due")
		}
		var b bytes.Buffer
		if _, err := d.m.Snapshot().WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		before := d.m.Hash()
		if err := d.m.Restore(&b); err != nil || d.m.Hash() != before {
			t.Fatalf("restored: %v", err)
		}
		d.mustAnswer(t, fsm.OK, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_TICK})
		ticks++
	}
	if ticks != short/skips || len(d.eff.Deliveries) != 1 || d.stats().Ready.Messages != short {
		t.Errorf("%d ticks, %d deliveries, %d ready", ticks, len(d.eff.Deliveries), d.stats().Ready.Messages)
	}
}
