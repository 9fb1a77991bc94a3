package session

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A message expires at the instant that its header names, whether it waits or not, however long it is on its way.
func TestExpireAt(t *testing.T) {
	const now = 1_000_000
	for _, c := range []struct {
		what  string
		e     *logpb.Enqueue
		at    fsm.Time
		delay fsm.Millis
		want  string // TTL + 1, from, due, delay + 1
	}{
		{"at once ready", &logpb.Enqueue{}, now + 500, 0, "501 1000000 0 0"},
		{"its own TTL is shorter", &logpb.Enqueue{TtlPlusOne: 101}, now + 500, 0, "101 1000000 0 0"},
		{"its own TTL is longer", &logpb.Enqueue{TtlPlusOne: 9001}, now + 500, 0, "501 1000000 0 0"},
		{"due before it expires", &logpb.Enqueue{DueAt: now + 300}, now + 500, 0, "201 0 1000300 0"},
		{"due long ago", &logpb.Enqueue{DueAt: 7}, now + 500, 0, "501 1000000 7 0"},
		{"due after a delay", &logpb.Enqueue{DelayPlusOne: 301}, now + 500, 0, "201 0 0 301"},
		{"the queue delays", &logpb.Enqueue{}, now + 500, 300, "201 0 0 0"},
		{"the queue does not delay it", &logpb.Enqueue{DueAt: now + 100}, now + 500, 300, "401 0 1000100 0"},
		{"expired long ago", &logpb.Enqueue{}, 5, 0, "2 1 0 1"},
		{"expired at the first instant", &logpb.Enqueue{}, 1, 0, "2 1 0 1"},
		{"expires now", &logpb.Enqueue{}, now, 0, "2 1 0 1"},
		{"expires before it is due", &logpb.Enqueue{DueAt: now + 600, ScheduleId: "x"}, now + 500, 0, "2 1 0 1"},
		{"expires before the queue's delay is over", &logpb.Enqueue{}, now + 200, 300, "2 1 0 1"},
	} {
		e := c.e
		expireAt(e, c.at, now, c.delay)
		if is := fmt.Sprint(e.TtlPlusOne, e.TtlFrom, e.DueAt, e.DelayPlusOne); is != c.want || e.ScheduleId != "" {
			t.Errorf("%s: %s, want %s", c.what, is, c.want)
		}
	}
}
