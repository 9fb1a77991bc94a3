package migrate

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestLeft(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_250)
	for _, row := range []struct {
		name                  string
		expiration            string
		queue                 int64
		headers               amqp.Table
		age                   time.Duration // of the property timestamp; negative: none
		want                  string
		wantKept, wantStarted int64
	}{
		{"no lifetime", "", -1, nil, time.Hour, "", 0, 0},
		{"its own, of unknown age", "5000", -1, nil, -1, "5000", 0, 1},
		{"its own", "5000", -1, nil, time.Second, "4000", 1, 0},
		{"the queue's", "", 5000, nil, 2 * time.Second, "3000", 1, 0},
		{"the queue's, of unknown age", "", 5000, nil, -1, "", 0, 1},
		{"the lesser of both", "9000", 5000, nil, 2 * time.Second, "3000", 1, 0},
		{"just over", "5000", -1, nil, 7 * time.Second, "0", 1, 0},
		{"zero", "0", -1, nil, 0, "0", 1, 0},
		{"a timestamp that is not of the publish", "5000", -1, nil, 24 * time.Hour, "5000", 0, 1},
		{"a clock that is ahead", "5000", -1, nil, -time.Hour, "5000", 1, 0},
		{"milliseconds before seconds", "5000", -1, amqp.Table{"timestamp_in_ms": now.UnixMilli() - 1234}, time.Hour, "3766", 1, 0},
		{"the broker's before the plugin's", "5000", -1, amqp.Table{"timestamp_in_ms": int64(1), "x-opt-rabbitmq-received-time": now.UnixMilli() - 1000}, -1, "4000", 1, 0},
		{"not a number", "soon", -1, nil, time.Second, "soon", 0, 0},
	} {
		d := &amqp.Delivery{Expiration: row.expiration, Headers: row.headers}
		if row.age != -1 {
			d.Timestamp = now.Add(-row.age)
		}
		var c TTL
		if got := c.left(d, row.queue, now); got != row.want || c.Kept != row.wantKept || c.Restarted != row.wantStarted {
			t.Errorf("%s: %q %+v, want %q", row.name, got, c, row.want)
		}
	}
}
