package conform

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestLease(t *testing.T) { leaseRows.run(t) }

var leaseRows = suite{test: "TestLease", title: "Queue leases", rows: []row{
	{id: "E01", what: "x-expires 0: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-expires' for queue 'E01.q' in vhost '/': {value_zero,0}", "x-expires", int32(0))
	}},
	{id: "E02", what: "x-expires -1, above ten years, or text: 406", run: func(t *T) {
		t.refuseDeclare("q", "{value_negative,-1}", "x-expires", int32(-1))
		t.refuseDeclare("q", "{value_too_large,315360000001}", "x-expires", int64(maxTTL+1))
		t.refuseDeclare("q", "expected integer, got longstr", "x-expires", "x")
	}},
	{id: "E03", what: "an unused queue is deleted", long: true, run: func(t *T) {
		at := time.Now()
		q := t.queue("q", "x-expires", int32(1500))
		t.existsUntil(q, at.Add(ms(1500)))
		t.soonGone(q, at.Add(ms(1500)))
	}},
	{id: "E04", what: "a consumer keeps a queue; the lease starts when it ends", long: true, run: func(t *T) {
		q := t.queue("q", "x-expires", int32(1500))
		ch, _ := t.consume(q, 1)
		t.existsUntil(q, time.Now().Add(ms(4000)))
		at := time.Now()
		t.must(ch.Close())
		t.existsUntil(q, at.Add(ms(1500)))
		t.soonGone(q, at.Add(ms(1500)))
	}},
	{id: "E05", what: "basic.get keeps a queue, even an empty one", long: true, run: func(t *T) {
		q := t.queue("q", "x-expires", int32(1500))
		last := t.every(ms(700), ms(4000), func() { t.mustNotGet(q) })
		t.existsUntil(q, last.Add(ms(1500)))
		t.soonGone(q, last.Add(ms(1500)))
	}},
	{id: "E06", what: "an active redeclare keeps a queue", long: true, run: func(t *T) {
		last := t.every(ms(700), ms(4000), func() { t.queue("q", "x-expires", int32(1500)) })
		t.existsUntil(t.name("q"), last.Add(ms(1500)))
		t.soonGone(t.name("q"), last.Add(ms(1500)))
	}},
	{id: "E07", what: "a passive declare does not keep a queue", long: true, run: func(t *T) {
		at := time.Now()
		q := t.queue("q", "x-expires", int32(1500))
		t.soonGone(q, at.Add(ms(1500))) // asks passively, and often
	}},
	{id: "E08", what: "a publish does not keep a queue", long: true, run: func(t *T) {
		at := time.Now()
		q := t.queue("q", "x-expires", int32(1500))
		t.every(poll, ms(1000), func() { t.publish(q) })
		t.soonGone(q, at.Add(ms(1500)))
	}},
	{id: "E09", what: "the messages of an expired queue are not dead-lettered", long: true, run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-expires", int32(1000), "x-dead-letter-exchange", x)
		at := t.publishN(q, 3)
		t.soonGone(q, at.Add(ms(1000)))
		t.readyUntil(d, 0, time.Now().Add(ms(500)))
	}},
	{id: "E10", what: "the shorter of argument and policy applies", long: true, run: func(t *T) {
		at := time.Now()
		q := t.queue("q", "x-expires", int32(2500))
		t.policy("p", q, 0, map[string]any{"expires": 100000})
		t.existsUntil(q, at.Add(ms(2500)))
		t.soonGone(q, at.Add(ms(2500)))
		q = t.queue("long", "x-expires", int32(100000))
		at = time.Now()
		t.policy("short", q, 0, map[string]any{"expires": 1500})
		t.existsUntil(q, at.Add(ms(1500)))
		t.soonGone(q, at.Add(ms(1500)))
	}},
	{id: "E11", what: "an unsettled message of a get keeps a queue", long: true, run: func(t *T) {
		q := t.queue("q", "x-expires", int32(1000))
		t.publish(q)
		d := t.mustGet(q)
		t.existsUntil(q, time.Now().Add(ms(4000)))
		at := time.Now()
		t.must(d.Ack(false))
		t.soonGone(q, at.Add(ms(1000)))
	}},
	{id: "E12", what: "a cancelled consumer with an unsettled message keeps a queue", long: true, run: func(t *T) {
		q := t.queue("q", "x-expires", int32(1000))
		ch := t.open()
		from, err := ch.Consume(q, "c", false, false, false, false, nil)
		t.must(err)
		t.publish(q)
		d := t.next(from)
		t.must(ch.Cancel("c", false))
		t.existsUntil(q, time.Now().Add(ms(4000)))
		at := time.Now()
		t.must(d.Ack(false))
		t.soonGone(q, at.Add(ms(1000)))
	}},
	{id: "E13", what: "a lease set by a policy starts at that time", long: true, run: func(t *T) {
		q := t.queue("q")
		t.waitUntil(time.Now().Add(ms(3000)))
		at := time.Now()
		t.policy("p", q, 0, map[string]any{"expires": 2000})
		t.existsUntil(q, at.Add(ms(2000)))
		t.soonGone(q, at.Add(ms(2000)))
	}},
	{id: "E15", what: "a hold queue, declared again with each publish, loses nothing", long: true, run: func(t *T) {
		x, d := t.dead()
		_, from := t.consume(d, 10)
		hold := func() string {
			return t.queue("hold", "x-message-ttl", int32(500), "x-dead-letter-exchange", x, "x-expires", int32(3000))
		}
		var sent []time.Time
		last := t.every(ms(1000), ms(4500), func() {
			sent = append(sent, t.publish(hold(), body(fmt.Sprint(len(sent)+1))))
		})
		for i := range sent {
			m := t.by(sent[i].Add(ms(500))).next(from)
			t.equal("order", string(m.Body), fmt.Sprint(i+1))
			t.must(m.Ack(false))
		}
		t.soonGone(t.name("hold"), last.Add(ms(3000)))
	}},
	{id: "E16", what: "an expired queue has no route", run: func(t *T) {
		at := time.Now()
		q := t.queue("q", "x-expires", int32(500))
		t.soonGone(q, at.Add(ms(500)))
		ch := t.ch()
		returned := ch.NotifyReturn(make(chan amqp.Return, 1))
		c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", q, true, false, amqp.Publishing{})
		t.must(err)
		if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
			t.Fatalf("acked: %v, %v", ok, err)
		}
		select {
		case r := <-returned:
			t.equal("reply code", r.ReplyCode, uint16(amqp.NoRoute))
		default: // a return comes before its ack
			t.Error("not returned")
		}
	}},
}}

// every does something at once and then again after each pause, until the time
// is over, and returns when it did so last.
func (t *T) every(pause, during time.Duration, do func()) (last time.Time) {
	t.Helper()
	for end := time.Now().Add(during); ; {
		last = time.Now()
		do()
		next := last.Add(pause)
		if next.After(end) {
			return last
		}
		t.waitUntil(next)
	}
}
