package conform

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestDelivery(t *testing.T) { deliveryRows.run(t) }

// pour publishes n messages on a channel of its own and waits for all confirms in the end.
func (t *T) pour(conn *amqp.Connection, queue string, n int) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	waits := make([]*amqp.DeferredConfirmation, n)
	for i := range waits {
		if waits[i], err = ch.PublishWithDeferredConfirmWithContext(t.ctx, "", queue, false, false, amqp.Publishing{Body: make([]byte, 100)}); err != nil {
			return err
		}
	}
	for i, w := range waits {
		if ok, err := w.WaitContext(t.ctx); err != nil || !ok {
			return fmt.Errorf("message %d: %v, %w", i+1, ok, err)
		}
	}
	return ch.Close()
}

// ackEach takes n deliveries and acks each.
func (t *T) ackEach(from <-chan amqp.Delivery, n int) error {
	for range n {
		select {
		case d, ok := <-from:
			if !ok {
				return errors.New("the consumer has ended")
			}
			if err := d.Ack(false); err != nil {
				return err
			}
		case <-t.ctx.Done():
			return t.ctx.Err()
		}
	}
	return nil
}

var deliveryRows = suite{test: "TestDelivery", title: "Delivery, settling, order", rows: []row{
	{id: "Q-D1", what: "100 messages, prefetch 10: in order, never more than 10 unacknowledged", run: func(t *T) {
		q := t.queue("q")
		t.publishMany(q, 100)
		_, in := t.consume(q, 10)
		for i := range 100 {
			if i%10 == 0 {
				t.awaitQueue(q, func(c counts) bool { return c.Unacknowledged == min(10, 100-i) && c.Ready == 100-i-c.Unacknowledged })
			}
			d := t.next(in)
			t.equal("body", string(d.Body), fmt.Sprint(i+1))
			t.must(d.Ack(false))
		}
		t.awaitQueue(q, func(c counts) bool { return c.Messages == 0 })
	}},
	{id: "Q-D2", what: "nack of 100 at once: all are redelivered in order, marked", run: func(t *T) {
		q := t.queue("q")
		t.publishMany(q, 100)
		_, in := t.consume(q, 100)
		held := t.nextN(in, 100)
		t.must(held[99].Nack(true, true))
		for i, d := range t.nextN(in, 100) {
			t.equal("body", string(d.Body), fmt.Sprint(i+1))
			t.equal("redelivered", d.Redelivered, true)
		}
	}},
	{id: "Q-D3", what: "nacks of m3, m2, m1 one by one: redelivered in this order, before m4", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 4)
		_, in := t.consume(q, 3)
		held := t.nextN(in, 3)
		for _, i := range []int{2, 1, 0} {
			t.must(held[i].Nack(false, true))
		}
		again := t.nextN(in, 3)
		t.equal("order", deliveredBodies(again), "3 2 1")
		t.must(again[2].Ack(true))
		t.equal("then", string(t.next(in).Body), "4")
	}},
	{id: "Q-D4", what: "get and nack in a loop over returned messages rotates", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 5)
		var last *amqp.Delivery
		for range 5 {
			last = t.mustGet(q)
		}
		t.must(last.Nack(true, true))
		var seen []string
		for range 7 {
			d := t.mustGet(q)
			seen = append(seen, string(d.Body))
			t.must(d.Nack(false, true))
		}
		t.equal("order", strings.Join(seen, " "), "1 2 3 4 5 1 2")
	}},
	{id: "Q-D5", what: "21 rejects with the default limit: x-delivery-count 1 … 20, then dead-lettered", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		t.publish(q)
		for i := range 21 {
			m := t.mustGet(q)
			t.counted(m, "x-delivery-count", i)
			t.must(m.Reject(true))
		}
		t.mustNotGet(q)
		death := t.death(t.take(d, 1)[0], 0)
		t.equal("reason", death["reason"], "delivery_limit")
		t.equal("count", death["count"], int64(1))
	}},
	{id: "Q-D6", what: "50 nacks: the message stays, x-acquired-count is 50, no x-delivery-count", run: func(t *T) {
		q := t.queue("q")
		t.publish(q)
		for range 50 {
			t.must(t.mustGet(q).Nack(false, true))
		}
		m := t.mustGet(q)
		t.counted(m, "x-acquired-count", 50)
		t.counted(m, "x-delivery-count", 0)
	}},
	{id: "Q-D7", what: "x-delivery-limit 0: the first reject dead-letters", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x, "x-delivery-limit", int32(0))
		t.publish(q)
		t.must(t.mustGet(q).Reject(true))
		t.equal("reason", t.death(t.take(d, 1)[0], 0)["reason"], "delivery_limit")
		t.mustNotGet(q)
	}},
	{id: "Q-D8", what: "x-delivery-limit -1: 100 rejects, the message stays", run: func(t *T) {
		q := t.queue("q", "x-delivery-limit", int32(-1))
		t.publish(q)
		for range 100 {
			t.must(t.mustGet(q).Reject(true))
		}
		t.counted(t.mustGet(q), "x-delivery-count", 100)
	}},
	{id: "Q-D9", what: "a channel closes with 5 unacknowledged: redelivered in order, x-delivery-count 1", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 5)
		ch, in := t.consume(q, 5)
		t.nextN(in, 5)
		t.must(ch.Close())
		t.comeBack(q, 5)
	}},
	{id: "Q-D10", what: "a client dies with 5 unacknowledged: the same, without waiting for a heartbeat", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 5)
		c := t.cuttable()
		t.nextN(t.consumeOn(c, q, 5), 5)
		c.cut()
		t.comeBack(q, 5)
	}},
	{id: "Q-D11", what: "basic.recover(true) redelivers all without counting a failure; recover(false): 540", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 2)
		ch, in := t.consume(q, 2)
		t.nextN(in, 2)
		//lint:ignore SA1019 the row is about this method
		t.must(ch.Recover(true))
		again := t.nextN(in, 2)
		t.equal("order", deliveredBodies(again), "1 2")
		for _, d := range again {
			t.equal("redelivered", d.Redelivered, true)
			t.counted(&d, "x-delivery-count", 0)
		}
		c := t.cuttable()
		//lint:ignore SA1019 and so here
		t.mustBe(c.ended(func(ch *amqp.Channel) { _ = ch.Recover(false) }), amqp.NotImplemented, "requeue=false")
	}},
	{id: "Q-D12", what: "an ack of an unknown tag, and a second ack: 406", run: func(t *T) {
		q := t.queue("q")
		t.publish(q)
		t.refusedLater(amqp.PreconditionFailed, "unknown delivery tag 7", func(ch *amqp.Channel) { t.must(ch.Ack(7, false)) })
		t.refusedLater(amqp.PreconditionFailed, "unknown delivery tag 1", func(ch *amqp.Channel) {
			d, ok, err := ch.Get(q, false)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			t.must(d.Ack(false))
			t.must(d.Ack(false))
		})
	}},
	{id: "Q-D13", what: "one ack with multiple settles deliveries from two queues", run: func(t *T) {
		q1, q2 := t.queue("q1"), t.queue("q2")
		t.publishN(q1, 3)
		t.publishN(q2, 2)
		var last *amqp.Delivery
		for _, q := range []string{q1, q2, q1, q2, q1} {
			last = t.mustGet(q)
		}
		t.must(last.Ack(true))
		for _, q := range []string{q1, q2} {
			t.awaitQueue(q, func(c counts) bool { return c.Messages == 0 })
		}
	}},
	{id: "Q-D14", what: "x-priority 10 and 0, prefetch 2 each: the first two messages go to the higher one", run: func(t *T) {
		q := t.queue("q")
		_, low := t.consume(q, 2, "x-priority", int32(0))
		_, high := t.consume(q, 2, "x-priority", int32(10))
		t.publishN(q, 3)
		t.equal("high", deliveredBodies(t.nextN(high, 2)), "1 2")
		t.equal("low", string(t.next(low).Body), "3")
	}},
	{id: "Q-D15", what: "two equal consumers with prefetch 1 take turns", run: func(t *T) {
		q := t.queue("q")
		ch := t.open() // one channel: their acks keep their order
		t.must(ch.Qos(1, 0, false))
		var in [2]<-chan amqp.Delivery
		for i := range in {
			var err error
			in[i], err = ch.Consume(q, "", false, false, false, false, nil)
			t.must(err)
		}
		for i := range 100 {
			t.publish(q, body(fmt.Sprint(i+1)))
			d := t.next(in[i%2])
			t.equal("body", string(d.Body), fmt.Sprint(i+1))
			t.must(d.Ack(false))
		}
	}},
	{id: "Q-D16", what: "x-priority as text: 406", run: func(t *T) {
		q := t.queue("q")
		t.refuseConsume(q, amqp.PreconditionFailed, "invalid arg 'x-priority' for queue", false, "x-priority", "important")
	}},
	{id: "Q-D17", what: "mixed priorities: higher ones first, in order within one", run: func(t *T) {
		q := t.queue("q")
		for round := range 2 {
			for _, p := range []uint8{5, 1, 9, 3, 7, 2, 8, 4, 6} {
				t.publish(q, priority(p), body(fmt.Sprintf("%d.%d", p, round)))
			}
		}
		var want []string
		for p := 9; p >= 1; p-- {
			want = append(want, fmt.Sprintf("%d.0 %d.1", p, p))
		}
		t.equal("order", bodies(t.take(q, 18)), strings.Join(want, " "))
	}, but: "1 … 9: the stock client cannot send priority 0"},
	{id: "Q-D18", what: "no priority counts as 4", run: func(t *T) {
		q := t.queue("q")
		for _, p := range []uint8{3, 0, 5, 4} {
			t.publish(q, priority(p), body(fmt.Sprint(p)))
		}
		t.equal("order", bodies(t.take(q, 4)), "5 0 4 3")
	}},
	{id: "Q-D19", what: "priorities 200 and 40 both count as 31", run: func(t *T) {
		q := t.queue("q")
		for _, p := range []uint8{30, 40, 200, 31} {
			t.publish(q, priority(p), body(fmt.Sprint(p)))
		}
		t.equal("order", bodies(t.take(q, 4)), "40 200 31 30")
	}},
	{id: "Q-D20", what: "a returned message is delivered before ready ones of any priority", run: func(t *T) {
		q := t.queue("q")
		t.publish(q, priority(1), body("low"))
		d := t.mustGet(q)
		t.publish(q, priority(9), body("high"))
		t.must(d.Nack(false, true))
		t.equal("order", bodies(t.take(q, 2)), "low high")
	}},
	{id: "Q-D21", what: "a consumer beside an exclusive one, or an exclusive one beside another: 403", run: func(t *T) {
		q := t.queue("q")
		ch := t.open()
		_, err := ch.Consume(q, "", false, true, false, false, nil)
		t.must(err)
		words := fmt.Sprintf("queue '%s' in vhost '/' in exclusive use", q)
		t.refuseConsume(q, amqp.AccessRefused, words, false)
		t.refuseConsume(q, amqp.AccessRefused, words, true)
		t.must(ch.Close())
		_, in := t.consume(q, 1)
		t.refuseConsume(q, amqp.AccessRefused, words, true)
		t.publish(q)
		t.next(in)
	}},
	{id: "Q-D22", what: "single active consumer: its connection dies with 2 unacknowledged, the next one gets them first", run: func(t *T) {
		q := t.single("q")
		c := t.cuttable()
		first := t.consumeOn(c, q, 2)
		_, second := t.consume(q, 10)
		t.publishN(q, 4)
		t.nextN(first, 2)
		c.cut()
		got := t.nextN(second, 4)
		t.equal("order", deliveredBodies(got), "1 2 3 4")
		for i, failed := range []int{1, 1, 0, 0} {
			t.counted(&got[i], "x-delivery-count", failed)
		}
	}},
	{id: "Q-D23", what: "single active consumer: a higher priority takes over when the active one holds nothing", run: func(t *T) {
		q := t.single("q")
		_, first := t.consume(q, 10)
		t.publishN(q, 3)
		held := t.nextN(first, 3)
		_, second := t.consume(q, 10, "x-priority", int32(10))
		t.publish(q, body("4"))
		t.must(held[0].Ack(false))
		t.must(held[1].Ack(false))
		t.awaitQueue(q, func(c counts) bool { return c.Unacknowledged == 1 && c.Ready == 1 })
		t.must(held[2].Ack(false))
		t.equal("second", string(t.next(second).Body), "4")
		t.publish(q, body("5"))
		t.equal("second", string(t.next(second).Body), "5")
		t.nothingNext(first, time.Now())
	}},
	{id: "Q-D24", what: "single active consumer: basic.get 405, exclusive consumption 403", run: func(t *T) {
		q := t.single("q")
		t.publish(q)
		t.refused(amqp.ResourceLocked, "cannot obtain access to locked queue 'Q-D24.q' in vhost '/'. basic.get operations are not supported",
			func(ch *amqp.Channel) error {
				_, _, err := ch.Get(q, false)
				return err
			})
		t.refuseConsume(q, amqp.AccessRefused, "in exclusive use", true)
		t.equal("ready", t.ready(q), 1)
	}},
	{id: "Q-D25", what: "basic.cancel with 3 unacknowledged: they can be acked, and no other consumer gets them", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 3)
		ch := t.open()
		in, err := ch.Consume(q, "tag", false, false, false, false, nil)
		t.must(err)
		held := t.nextN(in, 3)
		t.must(ch.Cancel("tag", false))
		_, other := t.consume(q, 10)
		t.publish(q, body("4"))
		t.equal("other", string(t.next(other).Body), "4")
		t.must(held[2].Ack(true))
		t.awaitQueue(q, func(c counts) bool { return c.Messages == 1 })
		t.nothingNext(other, time.Now())
	}},
	{id: "Q-D26", what: "a purge counts and removes ready messages; unacknowledged ones can still be settled", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 7)
		one, two := t.mustGet(q), t.mustGet(q)
		n, err := t.ch().QueuePurge(q, false)
		t.must(err)
		t.equal("purged", n, 5)
		t.must(one.Ack(false))
		t.must(two.Nack(false, true))
		t.equal("left", bodies(t.take(q, 1)), "2")
		t.mustNotGet(q)
	}},
	{id: "Q-D27", what: "prefetch 0: 5,000 messages are delivered without an ack", run: func(t *T) {
		q := t.queue("q")
		_, in := t.consume(q, 0)
		t.publishMany(q, 5000)
		for i, d := range t.nextN(in, 5000) {
			if string(d.Body) != fmt.Sprint(i+1) {
				t.Fatalf("delivery %d is %q", i+1, d.Body)
			}
		}
	}},
	{id: "Q-D28", what: "delayed retry of all, 1 s to 2.5 s: rejects wait 1, 2 and 2.5 s", long: true, run: func(t *T) {
		q := t.queue("q", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(1000), "x-delayed-retry-max", int32(2500))
		t.publish(q)
		_, in := t.consume(q, 1)
		d := t.next(in)
		for i, wait := range []int{1000, 2000, 2500} {
			at := time.Now()
			t.must(d.Reject(true))
			d = t.by(time.Now().Add(ms(wait))).next(in)
			if gone := time.Since(at); gone < ms(wait)-slack {
				t.Errorf("try %d comes after %v", i+2, gone)
			}
			t.counted(&d, "x-delivery-count", i+1)
		}
	}},
	{id: "Q-D29", what: "delayed retry of failures: a nacked message is redelivered at once, a rejected one waits", run: func(t *T) {
		q := t.queue("q", "x-delayed-retry-type", "failed", "x-delayed-retry-min", int32(600_000))
		t.publish(q)
		_, in := t.consume(q, 1)
		t.must(t.nextP(in).Nack(false, true))
		t.must(t.nextP(in).Reject(true))
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 1 && c.Messages == 1 && c.Ready == 0 })
		n, err := t.ch().QueuePurge(q, false)
		t.must(err)
		t.equal("purged", n, 1)
	}},
	{id: "Q-D30", what: "a length limit counts delayed messages: ready ones are dropped before them", run: func(t *T) {
		q, d := t.retried(600_000, "x-max-length", int32(1))
		t.publish(q, body("1"))
		t.must(t.mustGet(q).Nack(false, true))
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 1 })
		t.publish(q, body("2"))
		dropped := t.take(d, 1)
		t.equal("dropped", bodies(dropped), "2")
		t.equal("reason", t.death(dropped[0], 0)["reason"], "maxlen")
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 1 && c.Messages == 1 })
	}},
	{id: "Q-D31", what: "two nacked messages, space for one, nothing ready: one is dropped, the other redelivered", run: func(t *T) {
		q, d := t.retried(1000, "x-max-length", int32(1))
		_, in := t.consume(q, 2)
		t.publishN(q, 2)
		held := t.nextN(in, 2)
		at := time.Now()
		t.must(held[1].Nack(true, true))
		dropped := t.take(d, 1)
		t.equal("reason", t.death(dropped[0], 0)["reason"], "maxlen")
		again := t.by(at.Add(ms(1000))).next(in)
		if gone := time.Since(at); gone < ms(1000)-slack {
			t.Errorf("it comes after %v", gone)
		}
		t.equal("dropped", bodies(dropped), "1")
		t.equal("again", string(again.Body), "2")
		t.equal("ready", t.ready(q), 0)
	}},
	{id: "Q-R1", what: "delayed retries of returns only: a rejected message is redelivered at once, a nacked one waits", run: func(t *T) {
		q := t.queue("q", "x-delayed-retry-type", "returned", "x-delayed-retry-min", int32(600_000))
		t.publish(q)
		_, in := t.consume(q, 1)
		t.must(t.nextP(in).Reject(true))
		t.must(t.nextP(in).Nack(false, true))
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 1 })
	}},
	{id: "Q-R2", what: "delayed retries by policy, of a queue in use", run: func(t *T) {
		q := t.queue("q")
		t.publish(q)
		t.must(t.mustGet(q).Nack(false, true))
		t.policy("p", q, 0, map[string]any{"delayed-retry-type": "all", "delayed-retry-min": 600_000})
		t.eventually("the policy is in force", func() error {
			if d := t.get(q); d != nil {
				t.must(d.Nack(false, true))
			}
			return t.hasCounts(q, func(c counts) bool { return c.Delayed == 1 })
		})
	}},
	{id: "Q-R3", what: "invalid arguments of delayed retries: 406", run: func(t *T) {
		const kind, low, high = "x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"
		t.refuseDeclare("q", "invalid arg 'x-delayed-retry-type' for queue 'Q-R3.q' in vhost '/': delayed_retry_min_required", kind, "all")
		t.refuseDeclare("q", "invalid_delayed_retry_type", kind, "some", low, int32(5))
		t.refuseDeclare("q", "{value_zero,0}", kind, "all", low, int32(0))
		t.refuseDeclare("q", "{value_too_small,4}", kind, "all", low, int32(5), high, int32(4))
		t.refuseDeclare("q", "expected integer", kind, "all", low, "5")
	}},
	{id: "Q-S1", what: "single active consumer: a waiting one keeps the queue's lease", long: true, run: func(t *T) {
		q := t.single("q", "x-expires", int32(1000))
		active, _ := t.consume(q, 1)
		waits, _ := t.consume(q, 1)
		t.must(active.Close())
		t.existsUntil(q, time.Now().Add(ms(3000)))
		at := time.Now()
		t.must(waits.Close())
		t.soonGone(q, at.Add(ms(1000)))
	}},
	{id: "Q-S2", what: "single active consumer: cancelled with unacknowledged messages, the next one is served at once", run: func(t *T) {
		q := t.single("q")
		ch := t.open()
		first, err := ch.Consume(q, "tag", false, false, false, false, nil)
		t.must(err)
		_, second := t.consume(q, 10)
		t.publish(q, body("1"))
		held := t.next(first)
		t.must(ch.Cancel("tag", false))
		t.publish(q, body("2"))
		t.equal("second", string(t.next(second).Body), "2")
		t.must(held.Nack(false, true))
		t.equal("second", string(t.next(second).Body), "1")
	}},
	{id: "Q-S3", what: "x-single-active-consumer that is not a boolean, or differs on a redeclare: 406", run: func(t *T) {
		t.refuseDeclare("q", "{unacceptable_type,longstr}", "x-single-active-consumer", "true")
		t.single("q")
		t.refuseDeclare("q", "inequivalent arg 'x-single-active-consumer'")
	}},
	{id: "Q-F1", what: "a consumer that holds all it may, or settles one after the other, stops no publisher", run: func(t *T) {
		q := t.queue("q")
		_, in := t.consume(q, 10)
		conn := t.connect(1)
		t.must(t.pour(conn, q, 2000))
		t.awaitQueue(q, func(c counts) bool { return c.Unacknowledged == 10 && c.Ready == 1990 })
		settled := make(chan error, 1)
		go func() { settled <- t.ackEach(in, 3000) }()
		t.must(t.pour(conn, q, 1000))
		t.must(<-settled)
		t.awaitQueue(q, func(c counts) bool { return c.Messages == 0 })
	}},
	{id: "Q-F2", what: "a connection that publishes without waiting, and consumes what it publishes one by one, stops nowhere", long: true, run: func(t *T) {
		q := t.queue("q")
		_, held := t.consume(q, 10)
		conn := t.connect(1)
		poured, settled := make(chan error, 1), make(chan error, 1)
		go func() { poured <- t.pour(conn, q, 3000) }()
		t.next(held)
		ch, err := conn.Channel()
		t.must(err)
		t.must(ch.Qos(1, 0, false))
		in, err := ch.Consume(q, "", false, false, false, false, nil)
		t.must(err)
		go func() { settled <- t.ackEach(in, 2990) }()
		t.must(<-poured)
		t.must(<-settled)
		t.awaitQueue(q, func(c counts) bool { return c.Ready == 0 && c.Unacknowledged == 10 })
	}},
	{id: "Q-F3", what: "while consumers are fast, no more than they hold again is ready: confirms wait", test: "cluster/group: TestConsumersFirst, TestBackpressure"},
	{id: "Q-P1", what: "x-max-priority 5 without a queue type: higher priorities count as 5", run: func(t *T) {
		q := t.queue("q", "x-queue-type", "classic", "x-max-priority", int32(5))
		for _, p := range []uint8{5, 9, 4, 200} {
			t.publish(q, priority(p), body(fmt.Sprint(p)))
		}
		t.equal("order", bodies(t.take(q, 4)), "5 9 200 4")
	}},
	{id: "Q-P2", what: "basic.qos: global counts all consumers of the channel; a size: 540", run: func(t *T) {
		q := t.queue("q")
		p := t.limited(2)
		p.consumeAs(q, "one")
		p.consumeAs(q, "two")
		t.publishN(q, 5)
		p.take(2)
		p.quiet()
		t.equal("ready", t.ready(q), 3)
		c := t.cuttable()
		t.mustBe(c.ended(func(ch *amqp.Channel) { _ = ch.Qos(1, 1, false) }), amqp.NotImplemented, "prefetch_size!=0")
	}},
}}
