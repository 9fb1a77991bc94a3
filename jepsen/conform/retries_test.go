package conform

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestRetries(t *testing.T) { retryRows.run(t) }

var retryRows = suite{test: "TestRetries", title: "Retries and deferred messages", rows: []row{
	{id: "T-140", what: "delayed retry of all, 200 to 500 ms: rejects wait 200, 400, 500, 500", long: true, run: func(t *T) {
		q := t.queue("q", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(200), "x-delayed-retry-max", int32(500))
		t.publish(q)
		_, in := t.consume(q, 1)
		t.waits(in, t.next(in), reject, 200, 400, 500, 500)
	}},
	{id: "T-141", what: "the same with nack: 200 each; with x-delayed-retry-count acquired 200, 400, 500", long: true, run: func(t *T) {
		for name, c := range map[string]struct {
			count string
			waits []int
		}{"f": {"failed", []int{200, 200, 200}}, "a": {"acquired", []int{200, 400, 500}}} {
			q := t.queue(name, "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(200), "x-delayed-retry-max", int32(500), "x-delayed-retry-count", c.count)
			t.publish(q)
			_, in := t.consume(q, 1)
			t.waits(in, t.next(in), nack, c.waits...)
		}
	}},
	{id: "T-142", what: "exponential: 100, 200, 400, 500; list: 100, 500, 1000, 1000; jitter 20 %: each within it, and equal at all nodes", long: true, run: func(t *T) {
		exponential := t.queue("e", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(100), "x-delayed-retry-max", int32(500), "x-delayed-retry-strategy", "exponential", "x-delayed-retry-multiplier", int32(200))
		list := t.queue("l", "x-delayed-retry-type", "all", "x-delayed-retry-strategy", "list", "x-delayed-retry-steps", "100,500,1000")
		for q, waits := range map[string][]int{exponential: {100, 200, 400, 500}, list: {100, 500, 1000, 1000}} {
			t.publish(q)
			_, in := t.consume(q, 1)
			t.waits(in, t.next(in), reject, waits...)
		}
		t.jitters()
	}},
	{id: "T-143", what: "a TTL that ends during a delayed retry: dead-lettered at the TTL", long: true, run: func(t *T) {
		q, dead := t.retried(20_000)
		at := t.publish(q, expiration("2000"))
		t.must(t.mustGet(q).Reject(true))
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 1 })
		m := t.by(at.Add(ms(2000))).take(dead, 1)[0]
		if gone := time.Since(at); gone < ms(2000)-slack {
			t.Errorf("it dies after %v", gone)
		}
		t.expired(m, "2000")
		t.settled(q)
	}},
	{id: "T-152", what: "ten delayed by 60 s: kick 3, then all; they become ready at once, in the order of their due times", long: true, run: func(t *T) {
		q := t.queue("q", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(60_000))
		t.publishN(q, 10)
		var held []*amqp.Delivery
		for range 10 {
			held = append(held, t.mustGet(q))
		}
		slices.Reverse(held)
		for i, d := range held {
			t.must(d.Nack(false, true))
			t.awaitQueue(q, func(c counts) bool { return c.Delayed == i+1 })
		}
		kick := "/api/queues/%2F/" + q + "/kick"
		t.equal("kicked", t.http(http.MethodPost, kick, map[string]any{"count": 3})["messages"], 3.0)
		t.equal("first", bodies(t.now().take(q, 3)), "10 9 8")
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 7 })
		t.equal("kicked", t.http(http.MethodPost, kick, nil)["messages"], 7.0)
		t.equal("others", bodies(t.now().take(q, 7)), "7 6 5 4 3 2 1")
		t.equal("kicked", t.http(http.MethodPost, kick, nil)["messages"], 0.0)
	}},
	{id: "T-100", what: "a purge of 2 ready, 3 scheduled, 1 delayed and 1 unacknowledged message counts 6, and leaves the last", run: func(t *T) {
		q := t.queue("q", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(600_000))
		t.publish(q, body("held"))
		held := t.mustGet(q)
		t.publish(q)
		t.must(t.mustGet(q).Nack(false, true))
		for range 3 {
			t.publish(q, headers("x-opt-delivery-delay", int32(600_000)))
		}
		t.publishN(q, 2)
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 4 && c.Ready == 2 && c.Unacknowledged == 1 })
		n, err := t.ch().QueuePurge(q, false)
		t.must(err)
		t.equal("purged", n, 6)
		t.awaitQueue(q, func(c counts) bool { return c == counts{Messages: 1, Unacknowledged: 1} })
		t.must(held.Ack(false))
		t.settled(q)
	}},
	{id: "T-128", what: "message.retry with x-delay: hidden for so long, counted as delayed, then redelivered as failed", long: true, run: func(t *T) {
		q := t.queue("q")
		t.publish(q)
		ch, in := t.consume(q, 1)
		c, d := t.commander(ch), t.next(in)
		at := time.Now()
		c.do("message.retry", 0, true, "x-delivery-tag", int64(d.DeliveryTag), "x-delay", int32(2000))
		answered := time.Now()
		t.awaitQueue(q, func(c counts) bool { return c == counts{Messages: 1, Delayed: 1} })
		d = t.by(answered.Add(ms(2000))).next(in)
		if gone := time.Since(at); gone < ms(2000)-slack {
			t.Errorf("it comes after %v", gone)
		}
		t.counted(&d, "x-delivery-count", 1)
	}},
	{id: "Q-R5", what: "message.retry takes precedence over a longer delay of the queue, and over none; a time that has passed means at once", run: func(t *T) {
		q := t.queue("q", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(600_000))
		t.publish(q)
		ch, in := t.consume(q, 1)
		c, d := t.commander(ch), t.next(in)
		c.do("message.retry", 0, true, "x-delivery-tag", int64(d.DeliveryTag), "x-delay", int32(0))
		d = t.now().next(in)
		c.do("message.retry", 0, true, "x-delivery-tag", int64(d.DeliveryTag), "x-opt-delivery-time", time.Now().UnixMilli()-5000, "x-delivery-failed", false)
		d = t.now().next(in)
		t.counted(&d, "x-delivery-count", 1)
		c.do("message.retry", amqp.PreconditionFailed, false, "x-delivery-tag", int64(d.DeliveryTag))
		t.must(d.Ack(false))
		c.do("message.retry", amqp.NotFound, false, "x-delivery-tag", int64(d.DeliveryTag), "x-delay", int32(0))
		t.settled(q)
	}},
	{id: "T-129", what: "message.defer: not delivered until message.receive-deferred asks for the token; unknown token: 404; it expires meanwhile", long: true, run: func(t *T) {
		x, dead := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		t.publishN(q, 2)
		ch, in := t.consume(q, 1)
		c, d := t.commander(ch), t.next(in)
		c.do("message.defer", 0, true, "x-delivery-tag", int64(d.DeliveryTag), "x-deferral-token", "step 5")
		two := t.next(in)
		t.equal("meanwhile", string(two.Body), "2")
		t.awaitDeferred(q, "step 5")
		t.must(two.Ack(false))
		t.nothingNext(in, time.Now().Add(ms(300)))
		c.do("message.receive-deferred", amqp.NotFound, false, "x-queue", q, "x-consumer-tag", d.ConsumerTag, "x-deferral-token", "step 6")
		c.do("message.receive-deferred", 0, true, "x-queue", q, "x-consumer-tag", d.ConsumerTag, "x-deferral-token", "step 5")
		one := t.now().next(in)
		t.equal("asked for", fmt.Sprintf("%s %v", one.Body, one.Redelivered), "1 true")
		t.counted(&one, "x-acquired-count", 1)
		t.must(one.Ack(false))
		at := t.publish(q, expiration("2000"))
		d = t.next(in)
		c.do("message.defer", 0, true, "x-delivery-tag", int64(d.DeliveryTag), "x-deferral-token", "step 5")
		t.expired(t.by(at.Add(ms(2000))).take(dead, 1)[0], "2000")
		if gone := time.Since(at); gone < ms(2000)-slack {
			t.Errorf("it dies after %v", gone)
		}
		c.do("message.receive-deferred", amqp.NotFound, false, "x-queue", q, "x-consumer-tag", d.ConsumerTag, "x-deferral-token", "step 5")
		t.settled(q)
	}},
	{id: "Q-R6", what: "a token in use: 405, and the message stays with its consumer; deferred ones go beyond the prefetch, and count in it", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 3)
		ch, in := t.consume(q, 1)
		c, one := t.commander(ch), t.next(in)
		c.do("message.defer", 0, true, "x-delivery-tag", int64(one.DeliveryTag), "x-deferral-token", "a")
		two := t.next(in)
		c.do("message.defer", amqp.ResourceLocked, false, "x-delivery-tag", int64(two.DeliveryTag), "x-deferral-token", "a")
		c.do("message.receive-deferred", 0, true, "x-queue", q, "x-consumer-tag", one.ConsumerTag, "x-deferral-token", "a")
		again := t.now().next(in)
		t.equal("beyond the prefetch", string(again.Body), "1")
		t.must(two.Ack(false))
		t.nothingNext(in, time.Now().Add(ms(300)))
		t.must(again.Ack(false))
		t.equal("then", string(t.next(in).Body), "3")
	}},
	{id: "Q-R7", what: "a deferred message returns by itself, and outlives the channel; a purge takes it", long: true, run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 2)
		ch, in := t.consume(q, 1)
		c, d := t.commander(ch), t.next(in)
		at := time.Now()
		c.do("message.defer", 0, true, "x-delivery-tag", int64(d.DeliveryTag), "x-deferral-token", "a", "x-delay", int32(2000))
		answered := time.Now()
		d = t.next(in)
		c.do("message.defer", 0, true, "x-delivery-tag", int64(d.DeliveryTag), "x-deferral-token", "b")
		t.must(ch.Close())
		t.awaitDeferred(q, "a", "b")
		t.soonReady(q, 1, answered.Add(ms(2000)))
		if gone := time.Since(at); gone < ms(2000)-slack {
			t.Errorf("it returns after %v", gone)
		}
		t.awaitDeferred(q, "b")
		n, err := t.ch().QueuePurge(q, false)
		t.must(err)
		t.equal("purged", n, 2)
		t.settled(q)
	}},
	{id: "Q-R8", what: "quoratectl lists deferred messages, and kicks delayed ones", run: func(t *T) {
		q := t.queue("q", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(600_000))
		t.publishN(q, 4)
		ch, in := t.consume(q, 4)
		c, all := t.commander(ch), t.nextN(in, 4)
		c.do("message.defer", 0, true, "x-delivery-tag", int64(all[0].DeliveryTag), "x-deferral-token", "step-5")
		t.must(all[3].Nack(true, true))
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 3 })
		if listed := t.mustCtl(1, "list_deferred", q); !strings.Contains(listed, "step-5") {
			t.Errorf("no token in\n%s", listed)
		}
		t.equal("kicked", t.mustCtl(1, "kick", q, "1"), "1")
		t.equal("kicked", t.mustCtl(1, "kick", q), "2")
		t.equal("again", len(t.nextN(in, 3)), 3)
	}},
}}

func reject(d amqp.Delivery) error { return d.Reject(true) }
func nack(d amqp.Delivery) error   { return d.Nack(false, true) }

// waits returns a delivery again and again, and checks after how many
// milliseconds it is back each time.
func (t *T) waits(in <-chan amqp.Delivery, d amqp.Delivery, settle func(amqp.Delivery) error, waits ...int) {
	t.Helper()
	for i, wait := range waits {
		at := time.Now()
		t.must(settle(d))
		d = t.by(time.Now().Add(ms(wait))).next(in)
		if gone := time.Since(at); gone < ms(wait)-slack {
			t.Errorf("try %d comes after %v, not %d ms", i+2, gone, wait)
		}
	}
}

// jitters checks the waits of a queue with jitter by the due times that each node
// shows: they are equal, within 20 % of 60 s, and not always the same.
func (t *T) jitters() {
	t.Helper()
	q := t.queue("j", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(60_000), "x-delayed-retry-jitter", int32(20))
	t.publish(q)
	waits := map[int64]bool{}
	for range 5 {
		d := t.mustGet(q)
		before := time.Now().UnixMilli()
		t.must(d.Reject(true))
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 1 })
		after := time.Now().UnixMilli()
		var due int64
		for i, n := range t.Nodes {
			var page struct {
				Items []struct {
					DueAt int64 `json:"due_at"`
				} `json:"items"`
			}
			t.must(n.Call(t.ctx, http.MethodGet, "/api/queues/%2F/"+q+"/messages/peek?state=delayed", nil, &page))
			t.equal("delayed messages", len(page.Items), 1)
			if at := page.Items[0].DueAt; i > 0 && at != due {
				t.Errorf("node %d shows %d, the first one %d", i+1, at, due)
			} else {
				due = at
			}
		}
		// Without a longest wait there is none but the shortest.
		if due < before+48_000-slack.Milliseconds() || due > after+72_000 {
			t.Errorf("rejected at %d … %d, due at %d", before, after, due)
		}
		waits[(due-before)/1000] = true
		t.equal("kicked", t.http(http.MethodPost, "/api/queues/%2F/"+q+"/kick", nil)["messages"], 1.0)
	}
	if len(waits) < 2 {
		t.Errorf("all waits are alike: %v", waits)
	}
}

// commander publishes commands on a channel, whose deliveries they are about.
type commander struct {
	*T
	ch      *amqp.Channel
	returns chan amqp.Return
}

// commander puts a channel into confirm mode.
func (t *T) commander(ch *amqp.Channel) *commander {
	t.Helper()
	t.must(ch.Confirm(false))
	return &commander{t, ch, ch.NotifyReturn(make(chan amqp.Return, 1))}
}

// do publishes a command, mandatory, and checks the code it is returned with (0:
// it is not) and whether it is acked.
func (c *commander) do(verb string, code int, acked bool, pairs ...any) {
	c.Helper()
	defer c.begins()()
	p, err := c.ch.PublishWithDeferredConfirmWithContext(c.ctx, "amq.quorate.command", verb, true, false, amqp.Publishing{Headers: args(pairs...)})
	c.must(err)
	ok, err := p.WaitContext(c.ctx)
	c.must(err)
	returned, text := 0, ""
	select {
	case r := <-c.returns:
		returned, text = int(r.ReplyCode), r.ReplyText
	default:
	}
	if returned != code || ok != acked {
		c.Fatalf("%s: returned with %d %q, acked %v; not %d, %v", verb, returned, text, ok, code, acked)
	}
}

// awaitDeferred waits until the messages of a queue are deferred under these
// tokens and no others, as the list and the counts say.
func (t *T) awaitDeferred(queue string, tokens ...string) {
	t.Helper()
	t.eventually("the deferred messages of "+queue, func() error {
		var page struct {
			Items []struct {
				Token string `json:"deferral_token"`
			} `json:"items"`
		}
		var q struct {
			Deferred int `json:"messages_deferred"`
		}
		if err := t.Nodes[0].Call(t.ctx, http.MethodGet, "/api/queues/%2F/"+queue+"/deferred", nil, &page); err != nil {
			return err
		}
		if err := t.Nodes[0].Call(t.ctx, http.MethodGet, "/api/queues/%2F/"+queue, nil, &q); err != nil {
			return err
		}
		var have []string
		for _, x := range page.Items {
			have = append(have, x.Token)
		}
		if !slices.Equal(have, tokens) || q.Deferred != len(tokens) {
			return fmt.Errorf("%d are deferred, as %q", q.Deferred, have)
		}
		return nil
	})
}
