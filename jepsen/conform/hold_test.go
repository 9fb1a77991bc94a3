package conform

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

func TestHold(t *testing.T) { holdRows.run(t) }

var holdRows = suite{test: "TestHold", title: "Deadlines and hold queues", rows: []row{
	{id: "T-1", what: "a queue with a TTL empties itself with no client connected", run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int32(1000))
		at := t.publishN(q, 10)
		t.must(t.conn(0).Close())
		t.main = nil
		t.holdsUntil(at.Add(ms(1000)), func() error {
			info, err := t.Nodes[1].Queue(t.ctx, q)
			if err == nil && info.Messages != 10 {
				err = fmt.Errorf("%d messages", info.Messages)
			}
			return err
		})
		t.by(at.Add(ms(1000))).quietly(q, 0)
		t.settled(q)
		info, err := t.Nodes[1].Queue(t.ctx, q)
		t.must(err)
		t.equal("bytes", info.Bytes, 0)
	}},
	{id: "T-3", what: "got, and acked after its TTL: removed", long: true, lives: true, run: func(t *T) {
		_, d, q := t.mortal(500)
		t.must(t.holdBeyond(q, d, ms(1500)).Ack(false))
		t.settled(q)
		t.equal("dead", t.ready(d), 0)
	}},
	{id: "T-5", what: "got, and the channel closed after its TTL: expired", long: true, run: func(t *T) {
		_, d, q := t.mortal(500)
		t.holdBeyond(q, d, ms(1500))
		t.must(t.main.Close())
		t.now().take(d, 1)
		t.settled(q)
	}},
	{id: "T-6", what: "got, and the connection lost after its TTL: expired", long: true, run: func(t *T) {
		_, d, q := t.mortal(500)
		at := t.publish(q)
		r, err := client.DialRaw(t.ctx, t.Nodes[0].AMQP)
		t.must(err)
		t.must(r.Consume(q))
		_, err = r.Expect(60<<16 | 60)
		t.must(err)
		t.waitUntil(at.Add(ms(1500)))
		t.must(r.Close())
		t.now().take(d, 1)
	}},
	{id: "T-8", what: "a consumer timeout after the TTL: basic.cancel, expired, not redelivered", long: true, run: func(t *T) {
		_, d, q := t.deadly("x-message-ttl", int32(500), "x-consumer-timeout", int32(1500))
		ch := t.open()
		cancelled := ch.NotifyCancel(make(chan string, 1))
		t.must(ch.Qos(1, 0, false))
		from, err := ch.Consume(q, "worker", false, false, false, false, nil)
		t.must(err)
		t.publish(q)
		t.next(from)
		tag, _ := within(t.by(time.Now().Add(ms(1500))), "basic.cancel", cancelled)
		t.equal("cancelled", tag, "worker")
		t.now().take(d, 1)
		t.settled(q)
	}},
	{id: "T-9", what: "a message expires between two that do not", run: func(t *T) {
		q := t.queue("q")
		_, from := t.consume(q, 1)
		t.publish(q, body("A"))
		a := t.next(from)
		at := t.publish(q, body("B"), expiration("300"))
		t.publish(q, body("C"))
		t.soonReady(q, 1, at.Add(ms(300)))
		t.must(a.Ack(false))
		t.equal("next", string(t.next(from).Body), "C")
	}},
	{id: "T-10", what: "one hold queue, four delays: each at its time", run: func(t *T) {
		_, d, q := t.deadly()
		at := time.Now()
		for i, life := range []string{"60000", "1000", "30000", "500"} {
			t.publish(q, expiration(life), body(fmt.Sprint(i+1)))
		}
		sent := time.Now()
		first := t.by(sent.Add(ms(500))).take(d, 1)
		t.notBefore(at, 500)
		second := t.by(sent.Add(ms(1000))).take(d, 1)
		t.notBefore(at, 1000)
		t.equal("order", bodies(append(first, second...)), "4 2")
		t.settledTo(q, 2)
	}},
	{id: "T-11", what: "queue TTL below the expiration", run: func(t *T) { t.dies(1000, "10000", ms(1000)) }},
	{id: "T-12", what: "expiration below the queue TTL", run: func(t *T) { t.dies(10000, "500", ms(500)) }},
	{id: "T-13", what: "exchange TTL and queue TTL: the shorter applies", run: func(t *T) {
		for i, ttl := range [][2]int32{{500, 5000}, {5000, 500}} {
			x := t.exchange(fmt.Sprint("x", i), "fanout", "x-message-ttl", ttl[0])
			q := t.queue(fmt.Sprint("q", i), "x-message-ttl", ttl[1])
			t.bind(q, "", x)
			at := time.Now()
			t.equal("acked", t.send(x, ""), true)
			t.readyUntil(q, 1, at.Add(ms(500)))
			t.soonReady(q, 0, at.Add(ms(500)))
		}
	}},
	{id: "T-14", what: "one fanout copy expires, the other does not", run: func(t *T) {
		x, q1, q2 := t.exchange("x", "fanout"), t.queue("q1", "x-message-ttl", int32(500)), t.queue("q2")
		t.bind(q1, "", x)
		t.bind(q2, "", x)
		at := time.Now()
		t.send(x, "")
		t.soonReady(q1, 0, at.Add(ms(500)))
		t.equal("other", t.ready(q2), 1)
	}},
	{id: "T-15", what: "an expired message has its death record, and does not expire again", long: true, run: func(t *T) {
		_, d, q := t.deadly()
		at := t.publish(q, expiration("500"))
		t.soonReady(d, 1, at.Add(ms(500)))
		t.readyUntil(d, 1, time.Now().Add(ms(1000)))
		m := t.take(d, 1)[0]
		t.expired(m, "500")
		t.equal("x-first-death-reason", m.Headers["x-first-death-reason"], "expired")
	}},
	{id: "T-16", what: "rejected and expired letters can be distinguished", run: func(t *T) {
		_, d, q := t.deadly()
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		t.equal("first", t.take(d, 1)[0].Headers["x-first-death-reason"], "rejected")
		at := t.publish(q, expiration("100"))
		t.equal("second", t.by(at.Add(ms(100))).take(d, 1)[0].Headers["x-first-death-reason"], "expired")
	}},
	{id: "T-17", what: "a return within the TTL: redelivered, and expired at the original deadline", long: true, run: func(t *T) {
		_, d, q := t.mortal(1500)
		at := t.publish(q)
		held := t.mustGet(q)
		t.waitUntil(at.Add(ms(800)))
		t.must(held.Nack(false, true))
		t.soonReady(q, 1, time.Now())
		t.readyUntil(d, 0, at.Add(ms(1500)))
		t.by(at.Add(ms(1500))).take(d, 1)
	}},
	{id: "T-20", what: "TTL 0 and a waiting consumer: delivered", run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int32(0))
		_, from := t.consume(q, 1)
		t.publish(q, body("now"))
		t.equal("body", string(t.next(from).Body), "now")
	}},
	{id: "T-21", what: "TTL 0 and no consumer: expired at once", run: func(t *T) {
		_, d, q := t.mortal(0)
		t.publish(q)
		t.equal("ready", t.ready(q), 0)
		t.now().take(d, 1)
	}},
	{id: "T-22", what: "a job with a deadline: processed, or dead-lettered with the properties needed to answer", run: func(t *T) {
		_, d, q := t.deadly()
		job := func(p *amqp.Publishing) { p.ReplyTo, p.CorrelationId = "answers", "job 7" }
		ch, from := t.consume(q, 1)
		t.publish(q, expiration("1000"), body("in time"), job)
		m := t.next(from)
		t.must(m.Ack(false))
		t.must(ch.Close())
		at := t.publish(q, expiration("1000"), body("too late"), job)
		late := t.by(at.Add(ms(1000))).take(d, 1)[0]
		t.equal("letter", strings.Join([]string{string(late.Body), late.ReplyTo, late.CorrelationId}, ", "), "too late, answers, job 7")
	}},
	{id: "T-25", what: "dead letters are in the order of their deadlines, equal ones in that of their enqueue", run: func(t *T) {
		_, d, q := t.deadly()
		_, from := t.consume(d, 4)
		lives := []int{900, 300, 600, 300}
		ch := t.open() // in a transaction, their lives begin at once however slow the machine is
		t.must(ch.Tx())
		for i, life := range lives {
			t.must(ch.PublishWithContext(t.ctx, "", q, false, false, amqp.Publishing{Expiration: fmt.Sprint(life), Body: fmt.Append(nil, i+1)}))
		}
		at := time.Now()
		t.must(ch.TxCommit())
		for _, n := range []int{2, 4, 3, 1} {
			life := lives[n-1]
			m := t.by(at.Add(ms(life))).next(from)
			t.equal("order", string(m.Body), fmt.Sprint(n))
			t.notBefore(at, life)
		}
	}},
	{id: "T-41", what: "a hold queue exists as long as it is declared again, and delays in order", long: true, run: func(t *T) {
		work := t.orders()
		hold := func() string { return t.hold("hold", 2000, 5000) }
		_, from := t.consume(work, 20)
		var sent []time.Time
		t.every(ms(1000), ms(11500), func() {
			sent = append(sent, t.publish(hold(), body(fmt.Sprint(len(sent)))))
		})
		for i, at := range sent {
			m := t.by(at.Add(ms(2000))).next(from)
			t.equal("order", string(m.Body), fmt.Sprint(i))
			if early := time.Until(at.Add(ms(2000))); early > slack {
				t.Errorf("message %d is %v early", i, early)
			}
			t.must(m.Ack(false))
		}
	}},
	{id: "T-42", what: "a hold queue whose lease is shorter than its TTL is deleted with its messages", run: func(t *T) {
		work := t.orders()
		at := time.Now()
		hold := t.hold("hold", 60000, 1000)
		t.publishN(hold, 10)
		t.existsUntil(hold, at.Add(ms(1000)))
		t.soonGone(hold, at.Add(ms(1000)))
		t.equal("work", t.ready(work), 0)
	}},
	{id: "T-43", what: "a mandatory publish to an expired hold queue: 312, then ack", run: func(t *T) {
		t.orders()
		at := time.Now()
		hold := t.hold("hold", 200, 500)
		t.soonGone(hold, at.Add(ms(500)))
		ch := t.ch()
		returned := ch.NotifyReturn(make(chan amqp.Return, 1))
		c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", hold, true, false, amqp.Publishing{})
		t.must(err)
		if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
			t.Fatalf("acked: %v, %v", ok, err)
		}
		if len(returned) != 1 {
			t.Fatal("not returned")
		}
		t.equal("reply code", (<-returned).ReplyCode, uint16(amqp.NoRoute))
	}},
	{id: "T-44", what: "many hold queues at once: each message at its time, each queue deleted in the end", long: true, run: manyHolds,
		but: "300 queues, not 5,000, for the time it takes; `-holds N` for more"},
	{id: "T-45", what: "a hold queue declared with another TTL: 406, and nothing is lost", long: true, run: func(t *T) {
		work := t.orders()
		hold := t.hold("hold", 1500, 10000)
		at := t.publish(hold)
		t.refuseDeclare("hold", "inequivalent arg 'x-message-ttl'", "x-message-ttl", int32(3000), "x-expires", int32(10000),
			"x-dead-letter-exchange", t.name("orders"), "x-dead-letter-routing-key", "ship")
		t.by(at.Add(ms(1500))).take(work, 1)
	}},
	{id: "T-47", what: "a cycle of expiries alone ends", run: func(t *T) {
		a := t.name("a")
		b := t.queue("b", "x-message-ttl", int32(100), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", a, "x-dead-letter-strategy", "at-most-once")
		t.queue("a", "x-message-ttl", int32(100), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", b, "x-dead-letter-strategy", "at-most-once")
		at := t.publish(a)
		t.by(at.Add(ms(200))).eventually("both are empty", func() error {
			for _, q := range []string{a, b} {
				info, err := t.Nodes[0].Queue(t.ctx, q)
				if err != nil || info.Messages > 0 {
					return errors.Join(err, fmt.Errorf("%s: %d messages", q, info.Messages))
				}
			}
			return nil
		})
	}},
	{id: "T-48", what: "one hold queue for all delays and keys", run: func(t *T) {
		orders := t.exchange("orders", "direct")
		in, hold := t.exchange("hold.in", "topic"), t.queue("hold", "x-dead-letter-exchange", orders)
		t.bind(hold, "#", in)
		work := t.queue("work")
		due := map[string]time.Time{}
		_, from := t.consume(work, 20)
		for _, key := range []string{"a", "b", "c"} {
			t.bind(work, key, orders)
			for _, delay := range []int{900, 300, 1200, 600} {
				name := fmt.Sprint(key, delay)
				due[name] = time.Now().Add(ms(delay))
				t.send(in, key, expiration(fmt.Sprint(delay)), body(name))
			}
		}
		looked := time.Now()
		for range len(due) {
			m := t.next(from)
			name := string(m.Body)
			if early := time.Until(due[name]); early > slack {
				t.Errorf("%s is %v early", name, early)
			}
			t.by(due[name]).inTime(name, looked)
			if m.RoutingKey != name[:1] || m.Exchange != orders {
				t.Errorf("%s comes by %q, %q", name, m.Exchange, m.RoutingKey)
			}
			delete(due, name)
		}
	}},
	{id: "T-49", what: "Symfony Messenger's delay and retry queues, declared literally", long: true, run: symfony},
	{id: "T-50", what: "kombu's 28 levels of delay, declared literally: 5 s and 1 s", long: true, run: kombu},
	{id: "T-23", what: "viewing messages over HTTP never shows an expired one", long: true, run: func(t *T) {
		q := t.queue("q")
		const n = 200
		at := t.publishN(q, n, expiration("1500"))
		dead := 0
		for dead < n {
			page := t.peek(q, "limit=1000")
			seen := time.Now()
			for _, m := range page.Items {
				if shown := page.requested; m.ExpiresAt <= shown.UnixMilli() {
					t.Fatalf("message %d is shown %d ms after its time", m.Number, shown.UnixMilli()-m.ExpiresAt)
				}
			}
			if dead = n - len(page.Items); dead > 0 && seen.Before(at.Add(ms(1500)-slack)) {
				t.Fatalf("%d messages are not shown early", dead)
			}
		}
		t.by(at.Add(ms(1500))).inTime("none is shown", at)
	}},
	{id: "T-90", what: "x-opt-delivery-delay to a plain queue: normal messages go first, counts are separate", long: true, run: func(t *T) {
		q := t.queue("q")
		at := t.publish(q, body("late"), headers("x-opt-delivery-delay", int32(1500)))
		t.publish(q, body("one"))
		t.publish(q, body("two"))
		info, err := t.Nodes[0].Queue(t.ctx, q)
		t.must(err)
		t.equal("scheduled, all", fmt.Sprint(info.Scheduled, info.Messages), "1 3")
		t.readyUntil(q, 2, at.Add(ms(1500)))
		t.soonReady(q, 3, at.Add(ms(1500)))
		all := t.take(q, 3)
		t.equal("order", bodies(all), "one two late")
		t.absent(all[2].Headers, "x-opt-delivery-delay")
		if _, ok := all[2].Headers["x-scheduled-for"].(int64); !ok {
			t.Errorf("x-scheduled-for is %v", all[2].Headers["x-scheduled-for"])
		}
	}},
	{id: "T-91", what: "x-opt-delivery-time, in the future and in the past", long: true, run: func(t *T) {
		q := t.queue("q")
		due := time.Now().Add(ms(1500))
		t.publish(q, body("later"), headers("x-opt-delivery-time", due.UnixMilli()))
		t.publish(q, body("past"), headers("x-opt-delivery-time", fmt.Sprint(due.UnixMilli()-3_600_000)))
		t.equal("at once", bodies(t.take(q, 1)), "past")
		t.readyUntil(q, 0, due)
		t.equal("in time", bodies(t.by(due).take(q, 1)), "later")
	}},
	{id: "T-92", what: "x-delay on a normal exchange does nothing", run: func(t *T) {
		q := t.queue("q")
		t.publish(q, headers("x-delay", int32(60000)))
		t.equal("ready", t.ready(q), 1)
	}},
	{id: "T-93", what: "a TTL counts from the time a message is scheduled for", long: true, run: func(t *T) {
		_, d, q := t.mortal(1500)
		at := t.publish(q, headers("x-opt-delivery-delay", int64(1000)))
		t.readyUntil(q, 0, at.Add(ms(1000)))
		t.readyUntil(d, 0, at.Add(ms(2500)))
		t.by(at.Add(ms(2500))).take(d, 1)
	}},
	{id: "T-53", what: "the dead-letter exchange is missing at the expiry and declared later: the letter arrives", run: func(t *T) {
		x := t.exchange("x", "fanout")
		q := t.queue("q", "x-message-ttl", int32(300), "x-dead-letter-exchange", x, "x-dead-letter-strategy", "at-least-once")
		t.must(t.ch().ExchangeDelete(x, false, false))
		at := t.publish(q)
		t.by(at.Add(ms(300))).pending(q, 1)
		t.exchange("x", "fanout")
		d := t.queue("D")
		t.bind(d, "", x)
		t.take(d, 1)
	}},
}}

// orders declares the exchange that hold queues deliver to, and the queue
// behind it.
func (t *T) orders() (work string) {
	t.Helper()
	x, work := t.exchange("orders", "direct"), t.queue("work")
	t.bind(work, "ship", x)
	return work
}

// hold declares a hold queue for orders, again if it is there.
func (t *T) hold(name string, delay, lease int32) string {
	t.Helper()
	return t.queue(name, "x-message-ttl", delay, "x-expires", lease,
		"x-dead-letter-exchange", t.name("orders"), "x-dead-letter-routing-key", "ship")
}

var holds = flag.Int("holds", 300, "hold queues of row T-44")

// manyHolds delays one message in each of many queues.
func manyHolds(t *T) {
	n := *holds
	work := t.orders()
	_, from := t.consume(work, n)
	due := map[string]time.Time{}
	var all []string
	var ends []time.Time
	for i := range n {
		delay := int32(1000 + i%900*10)
		hold := t.hold(fmt.Sprint("hold", i), delay, delay+4000)
		all = append(all, hold)
		ends = append(ends, time.Now().Add(ms(int(delay)+4000)))
		due[fmt.Sprint(i)] = time.Now().Add(ms(int(delay)))
		t.publish(hold, body(fmt.Sprint(i)))
	}
	looked := time.Now()
	for range n {
		m := t.next(from)
		at, ok := due[string(m.Body)]
		if !ok {
			t.Fatalf("message %s came twice", m.Body)
		}
		if early := time.Until(at); early > slack {
			t.Errorf("message %s is %v early", m.Body, early)
		}
		t.by(at).inTime("message "+string(m.Body), looked)
		delete(due, string(m.Body))
		t.must(m.Ack(false))
	}
	for i, hold := range all {
		t.soonGone(hold, ends[i])
	}
}

// symfony declares what Symfony Messenger declares: an exchange of delays, and
// a queue for each delay, again before each message and without waiting.
func symfony(t *T) {
	messages, queue := t.exchange("messages", "fanout"), t.queue("messages")
	t.bind(queue, "", messages)
	delays := t.exchange("delays", "direct")
	ch := t.ch()
	path := func(name, exchange, key string, delay int32) {
		q := t.name(name)
		_, err := ch.QueueDeclare(q, true, false, false, true, amqp.Table{
			"x-message-ttl": delay, "x-expires": delay + 10000,
			"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key,
		})
		t.must(err)
		t.must(ch.QueueBind(q, q, delays, true, nil))
		at := time.Now()
		t.equal("acked", t.send(delays, q, body(name)), true)
		m := t.by(at.Add(ms(int(delay)))).take1(queue)
		if early := time.Until(at.Add(ms(int(delay)))); early > slack {
			t.Errorf("%s is %v early", name, early)
		}
		t.equal("message", string(m.Body), name)
		t.equal("key", m.RoutingKey, key)
		t.must(m.Ack(false))
	}
	for range 2 {
		path("delay_messages__1000_delay", messages, "", 1000)
		path("delay_messages__1000_retry", "", queue, 1000)
	}
}

// kombu declares kombu's native delayed delivery: a topic exchange and a queue
// for each binary digit of the delay in seconds, the highest first.
func kombu(t *T) {
	const top = 27
	ch := t.ch()
	level := func(n int) string { return fmt.Sprint("celery_delayed_", n) }
	const delivery = "celery_delayed_delivery"
	t.must(ch.ExchangeDeclare(delivery, "topic", true, false, false, false, nil))
	for n := top; n >= 0; n-- {
		t.must(ch.ExchangeDeclare(level(n), "topic", true, false, false, false, nil))
	}
	for n := top; n >= 0; n-- {
		next := delivery
		if n > 0 {
			next = level(n - 1)
		}
		_, err := ch.QueueDeclare(level(n), true, false, false, false, amqp.Table{
			"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once",
			"x-dead-letter-exchange": next, "x-message-ttl": int64(1000) << n,
		})
		t.must(err)
		before := strings.Repeat("*.", top-n)
		t.must(ch.QueueBind(level(n), before+"1.#", level(n), false, nil))
		t.must(ch.ExchangeBind(next, before+"0.#", level(n), false, nil))
	}
	tasks := t.queue("tasks")
	t.must(ch.QueueBind(tasks, "#."+tasks, delivery, false, nil))
	for _, seconds := range []int{5, 1} {
		digits := strings.Split(fmt.Sprintf("%028b", seconds), "")
		at := time.Now()
		t.send(level(top), strings.Join(digits, ".")+"."+tasks, body(fmt.Sprint(seconds)))
		m := t.by(at.Add(time.Duration(seconds)*time.Second)).take(tasks, 1)[0]
		late := time.Since(at) - time.Duration(seconds)*time.Second
		if late < -slack {
			t.Errorf("%d s: %v early", seconds, -late)
		}
		t.equal("task", string(m.Body), fmt.Sprint(seconds))
		t.Logf("%d s through %d levels: %v late", seconds, top+1, late.Round(time.Millisecond))
	}
	t.readyUntil(tasks, 0, time.Now().Add(ms(500)))
}
