package conform

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestLimits(t *testing.T) { limitRows.run(t) }

var limitRows = suite{test: "TestLimits", title: "Length limits", rows: []row{
	{id: "M01", what: "max-length 3: of five, the last three stay, five acks", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(3))
		t.publishN(q, 5)
		t.equal("ready", t.ready(q), 3)
		t.equal("kept", bodies(t.take(q, 3)), "3 4 5")
	}},
	{id: "M02", what: "max-length 0: dropped, or delivered to a waiting consumer", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(0))
		t.publish(q)
		t.equal("ready", t.ready(q), 0)
		_, from := t.consume(q, 1)
		t.publish(q, body("taken"))
		t.equal("delivered", string(t.next(from).Body), "taken")
	}},
	{id: "M03", what: "unsettled messages do not count", run: func(t *T) { t.overfull("x-max-length", int32(2)) }},
	{id: "M04", what: "returned messages count again", run: func(t *T) {
		q, held := t.overfull("x-max-length", int32(2))
		t.must(held.Nack(true, true))
		t.soonReady(q, 2, time.Now())
	}},
	{id: "M05", what: "reject-publish is exact", run: func(t *T) {
		q := t.full(2)
		t.equal("ready", t.ready(q), 2)
	}},
	{id: "M06", what: "reject-publish accepts as soon as there is space", run: func(t *T) {
		q := t.full(2)
		t.take(q, 1)
		t.settledTo(q, 1)
		t.equal("acked", t.send("", q), true)
	}},
	{id: "M07", what: "one full queue of two: a nack, and the other has the message", run: func(t *T) {
		x, q, free := t.exchange("x", "fanout"), t.full(1), t.queue("free")
		t.bind(q, "", x)
		t.bind(free, "", x)
		t.equal("acked", t.send(x, ""), false)
		t.take(free, 1)
		t.equal("ready", t.ready(q), 1)
	}},
	{id: "M08", what: "a full queue and mandatory: a nack, no return", run: func(t *T) {
		q, ch := t.full(1), t.ch()
		returned := ch.NotifyReturn(make(chan amqp.Return, 1))
		c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", q, true, false, amqp.Publishing{})
		t.must(err)
		acked, err := c.WaitContext(t.ctx)
		t.must(err)
		t.equal("acked", acked, false)
		t.equal("returns", len(returned), 0)
	}},
	{id: "M09", what: "messages refused by reject-publish are not dead-lettered", run: func(t *T) {
		x, d := t.dead()
		t.full(1, "x-dead-letter-exchange", x)
		t.readyUntil(d, 0, time.Now().Add(ms(500)))
	}},
	{id: "M10", what: "messages refused by reject-publish-dlx are dead-lettered", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-max-length", int32(1), "x-overflow", "reject-publish-dlx", "x-dead-letter-exchange", x)
		t.equal("acked", t.send("", q, body("1")), true)
		t.equal("acked", t.send("", q, body("2")), false)
		m := t.take(d, 1)[0]
		t.equal("dead", string(m.Body), "2")
		t.equal("reason", t.death(m, 0)["reason"], "maxlen")
		t.equal("left", bodies(t.take(q, 1)), "1")
	}},
	{id: "M11", what: "max-length-bytes includes properties", run: func(t *T) {
		big := headers("h", strings.Repeat("x", 2000))
		drop := t.queue("drop", "x-max-length-bytes", int32(1000))
		t.publish(drop, body("b"), big)
		t.equal("ready", t.ready(drop), 0)
		refuse := t.queue("refuse", "x-max-length-bytes", int32(1000), "x-overflow", "reject-publish")
		t.equal("acked", t.send("", refuse, body("b"), big), false)
	}},
	{id: "M12", what: "wrong values: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-max-length' for queue 'M12.q' in vhost '/': {value_negative,-5}", "x-max-length", int32(-5))
		t.refuseDeclare("q", "expected integer, got longstr", "x-max-length", "5")
		t.refuseDeclare("q", "invalid_overflow", "x-overflow", "x")
		t.refuseDeclare("q", "{unacceptable_type,", "x-overflow", int32(1))
	}},
	{id: "M13", what: "drop-head drops the message that would be delivered next", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(2))
		t.publish(q, priority(9), body("nine"))
		t.publish(q, priority(1), body("one"))
		t.publish(q, priority(1), body("two"))
		t.equal("left", bodies(t.take(q, 2)), "one two")
	}},
	{id: "M14", what: "a full queue accepts again after an expiry", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(1), "x-overflow", "reject-publish")
		t.publish(q, expiration("500"))
		t.equal("acked", t.send("", q), false)
		t.soonReady(q, 0, time.Now())
		t.equal("acked", t.send("", q), true)
	}},
}}

// overfull fills a queue of two messages with two more that are unsettled, and
// returns the last of those.
func (t *T) overfull(pairs ...any) (q string, held *amqp.Delivery) {
	t.Helper()
	q = t.queue("q", pairs...)
	t.publishN(q, 2)
	t.mustGet(q)
	held = t.mustGet(q)
	t.publishN(q, 2)
	t.equal("ready", t.ready(q), 2)
	t.settledTo(q, 4)
	return q, held
}

// full fills a queue that refuses what is too much, and sees it refuse twice.
func (t *T) full(n int, pairs ...any) (q string) {
	t.Helper()
	q = t.queue("q", append(pairs, "x-max-length", int32(n), "x-overflow", "reject-publish")...)
	t.publishN(q, n)
	for range 2 {
		t.equal("acked", t.send("", q, body("too much")), false)
	}
	return q
}

// settledTo waits until a queue holds n messages in all.
func (t *T) settledTo(queue string, n int) {
	t.Helper()
	t.eventually(fmt.Sprintf("%s holds %d messages", queue, n), func() error {
		q, err := t.Nodes[0].Queue(t.ctx, queue)
		if err == nil && q.Messages != n {
			err = fmt.Errorf("%d messages", q.Messages)
		}
		return err
	})
}
