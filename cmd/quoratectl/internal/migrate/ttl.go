package migrate

import (
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// plausible is how far behind its deadline a message may be that the source has delivered: it was
// alive then. An age beyond it is not the time since the message was published.
const plausible = 5 * time.Second

// TTL counts what became of the lifetimes of messages. AMQP does not tell how old a message is: a
// broker starts a lifetime anew for each message it gets. What is left is known of those that say
// when they were published:
//
//   - the header x-opt-rabbitmq-received-time or timestamp_in_ms, in ms, which RabbitMQ adds if it is
//     configured to (message_interceptors.incoming.set_header_timestamp);
//   - the property timestamp, in s, by the publisher's clock. As it has no fractions, the message may
//     die up to 1 s early, and not late.
type TTL struct {
	// Kept have what is left as their expiration, whether it was the message's own or the queue's.
	Kept int64 `json:"ttl_kept"`
	// Restarted say nothing of their age, or of one at which they would be dead for long: their whole
	// lifetime begins again.
	Restarted int64 `json:"ttl_restarted"`
}

// left returns the expiration that a message gets: what is left of its own lifetime and of the
// queue's (ms; negative: none), whichever is less.
func (t *TTL) left(d *amqp.Delivery, queue int64, now time.Time) string {
	whole := queue
	if own, err := strconv.ParseInt(d.Expiration, 10, 64); err == nil && own >= 0 && (whole < 0 || own < whole) {
		whole = own
	}
	if whole < 0 {
		return d.Expiration
	}
	since, known := published(d)
	left := whole - max(0, now.Sub(since).Milliseconds())
	if !known || left < -plausible.Milliseconds() {
		t.Restarted++
		return d.Expiration
	}
	t.Kept++
	return strconv.FormatInt(max(0, left), 10)
}

// published returns when a message says it was published.
func published(d *amqp.Delivery) (at time.Time, known bool) {
	for _, header := range []string{"x-opt-rabbitmq-received-time", "timestamp_in_ms"} {
		switch v := d.Headers[header].(type) {
		case int64:
			return time.UnixMilli(v), true
		case time.Time: // of seconds
			return v, true
		}
	}
	return d.Timestamp, !d.Timestamp.IsZero()
}
