package traffic

import (
	"testing"
	"time"

	"github.com/quorate/quorate/proto/peerpb"
)

// slotTime is the beginning of a slot.
func slotTime(slot int64) time.Time { return time.UnixMilli(TimeOf(slot)) }

// TestForget: the first rate after samples are dropped is that of the time since.
func TestForget(t *testing.T) {
	table := NewTable()
	ch := table.Open("/", AMQP091, nil)
	rate := func() float64 { return report(table, 1000, Range{}).Rate[Publish] }
	table.ForgetSamples(slotTime(100).Add(-time.Minute))
	publish(table, ch, 7, 100)
	table.Sample(slotTime(100), nil, all)
	if got := rate(); got != 20 {
		t.Errorf("without samples before: %v", got)
	}
	publish(table, ch, 7, 1000)
	table.ForgetSamples(slotTime(100).Add(4 * time.Second))
	if got := rate(); got != 0 {
		t.Errorf("without samples since: %v", got)
	}
	publish(table, ch, 7, 100)
	table.Sample(slotTime(101), nil, all)
	if got := rate(); got != 100 {
		t.Errorf("100 messages in the second since: %v", got)
	}
}

// TestElapsed: a rate is a change divided by the time between the samples, however late they are,
// and is never taken over less than a second. A node that does not tell the time has samples at each
// slot.
func TestElapsed(t *testing.T) {
	table := NewTable()
	ch := table.Open("/", AMQP091, nil)
	rate := func() float64 { return report(table, 1000, Range{}).Rate[Publish] }
	for _, c := range []struct {
		what string
		at   time.Duration // since slot 100
		over time.Duration
	}{
		{"the first", 0, Interval},
		{"a slot later", Interval, Interval},
		{"three slots missed", 5 * Interval, 4 * Interval},
		{"late in its slot", 6*Interval + 4900*time.Millisecond, Interval + 4900*time.Millisecond},
		{"in time", 8 * Interval, 5100 * time.Millisecond},
		{"at the end of its slot", 10*Interval - time.Millisecond, 9999 * time.Millisecond},
		{"a millisecond after that", 10 * Interval, time.Second},
	} {
		publish(table, ch, 7, 100)
		table.Sample(slotTime(100).Add(c.at), nil, all)
		if got, want := rate(), 100/c.over.Seconds(); got != want {
			t.Errorf("%s: %v, want %v", c.what, got, want)
		}
	}
	publish(table, ch, 7, 100)
	table.Sample(slotTime(100), nil, all)
	if got := rate(); got != 100 {
		t.Errorf("the clock was set back: %v", got)
	}
	r := NewReport(&Query{})
	r.Add("n1", &peerpb.TrafficReply{Objects: []*peerpb.ObjectTraffic{{Queue: 7, Steps: []int32{100}}}})
	r.Add("n1", &peerpb.TrafficReply{ElapsedMs: 10_000, Objects: []*peerpb.ObjectTraffic{{Queue: 7, Steps: []int32{100}}}})
	if got := r.Queues[7].Rate[Publish]; got != 30 {
		t.Errorf("of two nodes: %v", got)
	}
}
