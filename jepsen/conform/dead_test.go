package conform

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestDeadLetters(t *testing.T) { deadRows.run(t) }

var deadRows = suite{test: "TestDeadLetters", title: "Dead letters", rows: []row{
	{id: "D01", what: "reject: the content of x-death", run: func(t *T) {
		_, d, q := t.deadly()
		t.publish(q)
		t.must(t.mustGet(q).Reject(false))
		m := t.take(d, 1)[0]
		t.deaths(m, 1)
		e := t.death(m, 0)
		t.equal("reason", e["reason"], "rejected")
		t.equal("queue", e["queue"], q)
		t.equal("exchange", e["exchange"], "")
		t.equal("routing-keys", e["routing-keys"], []any{q})
		t.equal("count", e["count"], int64(1))
		at, ok := e["time"].(time.Time)
		if ago := time.Since(at); !ok || ago < -time.Second || ago > patience {
			t.Errorf("time is %v", e["time"])
		}
		t.absent(e, "original-expiration")
	}},
	{id: "D02", what: "nack multiple: all, in order", run: func(t *T) {
		_, d, q := t.deadly()
		t.publishN(q, 3)
		t.mustGet(q)
		t.mustGet(q)
		t.must(t.mustGet(q).Nack(true, false))
		all := t.take(d, 3)
		t.equal("order", bodies(all), "1 2 3")
		for _, m := range all {
			t.equal("reason", t.death(m, 0)["reason"], "rejected")
		}
	}},
	{id: "D03", what: "queue TTL: expired, no original-expiration", run: func(t *T) {
		_, d, q := t.mortal(200)
		at := t.publish(q)
		e := t.death(t.by(at.Add(ms(200))).take(d, 1)[0], 0)
		t.equal("reason", e["reason"], "expired")
		t.absent(e, "original-expiration")
	}},
	{id: "D04", what: "expiration: kept as original-expiration", run: func(t *T) {
		_, d, q := t.deadly()
		at := t.publish(q, expiration("300"))
		t.expired(t.by(at.Add(ms(300))).take(d, 1)[0], "300")
	}},
	{id: "D05", what: "expiration, but rejected", run: func(t *T) {
		_, d, q := t.deadly()
		t.publish(q, expiration("60000"))
		t.must(t.mustGet(q).Reject(false))
		m := t.take(d, 1)[0]
		t.equal("reason", t.death(m, 0)["reason"], "rejected")
		t.equal("original-expiration", t.death(m, 0)["original-expiration"], "60000")
		t.equal("expiration", m.Expiration, "")
	}},
	{id: "D06", what: "max-length: the oldest is dead-lettered with the reason maxlen", run: func(t *T) {
		_, d, q := t.deadly("x-max-length", int32(1))
		t.publishN(q, 2)
		m := t.take(d, 1)[0]
		t.equal("dead", string(m.Body), "1")
		t.equal("reason", t.death(m, 0)["reason"], "maxlen")
		t.equal("left", bodies(t.take(q, 1)), "2")
	}},
	{id: "D07", what: "max-length-bytes: also maxlen", run: func(t *T) {
		_, d, q := t.deadly("x-max-length-bytes", int32(150))
		t.publish(q, body(fmt.Sprintf("%0100d", 1)))
		t.publish(q, body(fmt.Sprintf("%0100d", 2)))
		t.equal("reason", t.death(t.take(d, 1)[0], 0)["reason"], "maxlen")
	}},
	{id: "D08", what: "delivery limit 1: the second reject with requeue dead-letters", run: func(t *T) {
		_, d, q := t.deadly("x-delivery-limit", int32(1))
		t.publish(q)
		for range 2 {
			t.must(t.take1(q).Reject(true))
		}
		t.equal("reason", t.death(t.take(d, 1)[0], 0)["reason"], "delivery_limit")
	}},
	{id: "D09", what: "delivery limit 1: nack with requeue does not count", run: func(t *T) {
		_, d, q := t.deadly("x-delivery-limit", int32(1))
		t.publish(q)
		for range 5 {
			t.must(t.take1(q).Nack(false, true))
		}
		t.take(q, 1)
		t.equal("dead", t.ready(d), 0)
	}},
	{id: "D10", what: "delivery limit 0: a closed channel dead-letters", run: func(t *T) {
		_, d, q := t.deadly("x-delivery-limit", int32(0))
		t.publish(q)
		t.mustGet(q)
		t.must(t.main.Close())
		t.equal("reason", t.death(t.take(d, 1)[0], 0)["reason"], "delivery_limit")
	}},
	{id: "D11", what: "without a dead-letter key the message's own is used", run: func(t *T) {
		x, d := t.exchange("X", "direct"), t.queue("D")
		t.bind(d, "k", x)
		topic, q := t.exchange("T", "topic"), t.queue("q", "x-dead-letter-exchange", x)
		t.bind(q, "#", topic)
		t.send(topic, "k")
		t.must(t.take1(q).Reject(false))
		m := t.take(d, 1)[0]
		t.equal("exchange", m.Exchange, x)
		t.equal("routing key", m.RoutingKey, "k")
	}},
	{id: "D12", what: "dead-letter key: used, the old one is in x-death", run: func(t *T) {
		x, d := t.exchange("X", "direct"), t.queue("D")
		t.bind(d, "r", x)
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-routing-key", "r")
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		m := t.take(d, 1)[0]
		t.equal("routing key", m.RoutingKey, "r")
		t.equal("routing-keys", t.death(m, 0)["routing-keys"], []any{q})
	}},
	{id: "D13", what: "CC without a dead-letter key: the letter also goes there", run: func(t *T) {
		x, d := t.exchange("X", "direct"), t.queue("D")
		t.bind(d, "copy", x)
		q := t.queue("q", "x-dead-letter-exchange", x)
		t.publish(q, headers("CC", []any{"copy"}))
		t.must(t.take1(q).Reject(false))
		t.equal("CC", t.take(d, 1)[0].Headers["CC"], []any{"copy"})
	}},
	{id: "D14", what: "CC with a dead-letter key: routed by the key only", run: func(t *T) {
		x, d, c := t.exchange("X", "direct"), t.queue("D"), t.queue("C")
		t.bind(d, "r", x)
		t.bind(c, "copy", x)
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-routing-key", "r")
		t.publish(q, headers("CC", []any{"copy"}))
		t.must(t.take1(q).Reject(false))
		m := t.take(d, 1)[0]
		t.equal("CC", m.Headers["CC"], []any{"copy"})
		t.equal("routing-keys", t.death(m, 0)["routing-keys"], []any{q, "copy"})
		t.equal("copies", t.ready(c), 0)
	}},
	{id: "D15", what: "BCC without a dead-letter key: routed, and not shown", run: func(t *T) {
		x, d := t.exchange("X", "direct"), t.queue("D")
		t.bind(d, "blind", x)
		q := t.queue("q", "x-dead-letter-exchange", x)
		t.publish(q, headers("BCC", []any{"blind"}))
		t.must(t.take1(q).Reject(false))
		m := t.take(d, 1)[0]
		t.absent(m.Headers, "BCC")
		t.equal("routing-keys", t.death(m, 0)["routing-keys"], []any{q})
	}},
	{id: "D16", what: "two deaths in two queues: newest first, with the headers of the first and last", run: func(t *T) {
		x1, x2 := t.exchange("X1", "fanout"), t.exchange("X2", "fanout")
		q, d1, d2 := t.queue("q", "x-dead-letter-exchange", x1), t.queue("D1", "x-dead-letter-exchange", x2), t.queue("D2")
		t.bind(d1, "", x1)
		t.bind(d2, "", x2)
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		t.must(t.take1(d1).Reject(false))
		m := t.take(d2, 1)[0]
		t.deaths(m, 2)
		t.equal("newest", t.death(m, 0)["queue"], d1)
		t.equal("x-first-death-queue", m.Headers["x-first-death-queue"], q)
		t.equal("x-last-death-queue", m.Headers["x-last-death-queue"], d1)
		t.equal("x-last-death-exchange", m.Headers["x-last-death-exchange"], x1)
	}},
	{id: "D17", what: "the same death twice: counted, with the time of the first", long: true, run: func(t *T) {
		q := t.queue("q", "x-dead-letter-exchange", "")
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		m := t.take1(q)
		first := t.death(m, 0)["time"]
		t.waitUntil(time.Now().Add(ms(2000)))
		t.must(m.Reject(false))
		m = t.take1(q)
		t.deaths(m, 1)
		t.equal("count", t.death(m, 0)["count"], int64(2))
		t.equal("time", t.death(m, 0)["time"], first)
	}},
	{id: "D18", what: "a death of each reason in one queue: an entry for each, the latest first", long: true, run: func(t *T) {
		d := t.queue("D", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", t.name("q"))
		q := t.queue("q", "x-message-ttl", int32(2000), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", d)
		at := t.publish(q)
		t.must(t.by(at.Add(ms(2000))).take1(d).Reject(false)) // comes back to q
		t.must(t.take1(q).Reject(false))
		m := t.take1(d)
		t.deaths(m, 3)
		for i, want := range []string{q + " rejected", d + " rejected", q + " expired"} {
			e := t.death(m, i)
			t.equal("death", fmt.Sprint(e["queue"], " ", e["reason"]), want)
		}
	}},
	{id: "D19", what: "a forged x-death is passed on unchanged", run: func(t *T) {
		_, _, q := t.deadly()
		t.publish(q, forged(q))
		e := t.death(t.mustGet(q), 0)
		t.equal("count", e["count"], int64(7))
	}},
	{id: "D20", what: "a forged x-death is replaced by the first death", run: func(t *T) {
		_, d, q := t.deadly()
		t.publish(q, forged(q))
		t.must(t.take1(q).Reject(false))
		m := t.take(d, 1)[0]
		t.deaths(m, 1)
		t.equal("count", t.death(m, 0)["count"], int64(1))
		t.equal("x-first-death-queue", m.Headers["x-first-death-queue"], q)
	}},
	{id: "D21", what: "a republished dead letter starts a new x-death", run: func(t *T) {
		_, d, q := t.deadly()
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		m := t.take(d, 1)[0]
		at := t.publish(q, expiration("200"), func(p *amqp.Publishing) { p.Headers = m.Headers })
		m = t.by(at.Add(ms(200))).take(d, 1)[0]
		t.deaths(m, 1)
		t.equal("reason", t.death(m, 0)["reason"], "expired")
		t.equal("count", t.death(m, 0)["count"], int64(1))
	}},
	{id: "D22", what: "a cycle by TTL alone ends at once", run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int32(300), "x-dead-letter-exchange", "")
		at := t.publish(q)
		t.soonReady(q, 0, at.Add(ms(300)))
		t.readyUntil(q, 0, time.Now().Add(ms(700)))
		t.now().settled(q)
	}},
	{id: "D23", what: "a cycle by max-length alone ends at once", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(1), "x-dead-letter-exchange", "")
		t.publishN(q, 2)
		t.soonReady(q, 1, time.Now())
		t.readyUntil(q, 1, time.Now().Add(ms(500)))
		t.equal("left", bodies(t.take(q, 1)), "2")
	}},
	{id: "D24", what: "a cycle with a reject continues", run: func(t *T) {
		q := t.queue("q", "x-dead-letter-exchange", "")
		t.publish(q)
		for range 5 {
			t.must(t.take1(q).Reject(false))
		}
		t.take(q, 1)
	}},
	{id: "D25", what: "a cycle over three queues with one reject continues", run: func(t *T) {
		b := t.queue("b", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", t.name("a2"))
		t.queue("a2", "x-message-ttl", int32(50), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", t.name("a3"))
		t.queue("a3", "x-message-ttl", int32(50), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", b)
		t.publish(b)
		for range 3 {
			t.must(t.take1(b).Reject(false))
			t.by(time.Now().Add(ms(50+50))).eventually("it is back", func() error { return t.hasCounts(b, func(c counts) bool { return c.Ready == 1 }) })
		}
		t.take(b, 1)
	}},
	{id: "D26", what: "a forged x-death makes no cycle", run: func(t *T) {
		_, d, q := t.mortal(200)
		at := t.publish(q, forged(d))
		t.by(at.Add(ms(200))).take(d, 1)
	}},
	{id: "D27", what: "only the target that would close a cycle is left out", run: func(t *T) {
		_, d, q := t.mortal(200)
		t.bind(q, "", t.name("X"))
		at := t.publish(q)
		t.by(at.Add(ms(200))).take(d, 1)
		t.settled(q)
	}},
	{id: "D28", what: "at-most-once: a missing exchange loses the letter", run: func(t *T) {
		x := t.name("X")
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-strategy", "at-most-once")
		t.publish(q, body("first"))
		t.must(t.take1(q).Reject(false))
		t.settled(q)
		_, d := t.dead()
		t.publish(q, body("second"))
		t.must(t.take1(q).Reject(false))
		t.equal("letters", bodies(t.take(d, 1)), "second")
	}},
	{id: "D29", what: "at-least-once: a missing exchange keeps the letter until there is one", run: func(t *T) {
		q := t.queue("q", "x-dead-letter-exchange", t.name("X"), "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
		at := t.publish(q, expiration("100"))
		t.by(at.Add(ms(100))).pending(q, 1)
		_, d := t.dead()
		t.take(d, 1)
		t.settled(q)
	}},
	{id: "D30", what: "at-least-once: no route keeps the letter until there is one", run: func(t *T) {
		x := t.exchange("X", "fanout")
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
		at := t.publish(q, expiration("100"))
		t.by(at.Add(ms(100))).pending(q, 1)
		d := t.queue("D")
		t.bind(d, "", x)
		t.take(d, 1)
		t.settled(q)
	}},
	{id: "D31", what: "at-least-once with drop-head: a waiting letter is never dropped", run: func(t *T) {
		q := t.queue("q", "x-dead-letter-exchange", t.name("X"), "x-dead-letter-strategy", "at-least-once", "x-max-length", int32(2))
		t.publish(q, body("letter"))
		t.must(t.take1(q).Reject(false))
		t.pending(q, 1)
		t.publishN(q, 5)
		_, d := t.dead()
		t.equal("first letter", string(t.take(d, 1)[0].Body), "letter")
	}},
	{id: "D32", what: "at-least-once: waiting letters count against max-length", run: func(t *T) {
		x := t.exchange("X", "fanout")
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-strategy", "at-least-once",
			"x-overflow", "reject-publish", "x-max-length", int32(1))
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		t.pending(q, 1)
		t.equal("acked", t.send("", q), false)
		n, err := t.ch().QueuePurge(q, false)
		t.must(err)
		t.equal("purged", n, 1)
		t.equal("acked", t.send("", q), true)
	}},
	{id: "D33", what: "at-least-once: a full target gets the letter when it has space", run: func(t *T) {
		x := t.exchange("X", "fanout")
		d := t.queue("D", "x-max-length", int32(1), "x-overflow", "reject-publish")
		t.bind(d, "", x)
		t.publish(d, body("filler"))
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
		t.publish(q, body("letter"))
		t.must(t.take1(q).Reject(false))
		t.pending(q, 1)
		t.equal("in order", bodies(t.take(d, 2)), "filler letter")
		t.settled(q)
	}},
	{id: "D34", what: "at-least-once to at-most-once: waiting letters are dropped", run: func(t *T) {
		x := t.exchange("X", "fanout")
		q := t.queue("q", "x-overflow", "reject-publish")
		t.policy("p", q, 0, map[string]any{"dead-letter-exchange": x, "dead-letter-strategy": "at-least-once"})
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		t.pending(q, 1)
		t.policyAgain("p", q, 0, map[string]any{"dead-letter-exchange": x, "dead-letter-strategy": "at-most-once"})
		t.settled(q)
		d := t.queue("D")
		t.bind(d, "", x)
		t.readyUntil(d, 0, time.Now().Add(ms(500)))
	}},
	{id: "D35", what: "at-least-once: a cycle keeps the letter until a policy opens it", run: func(t *T) {
		d := t.queue("D")
		q := t.queue("q", "x-message-ttl", int32(100), "x-overflow", "reject-publish",
			"x-dead-letter-exchange", "", "x-dead-letter-strategy", "at-least-once")
		at := t.publish(q)
		t.by(at.Add(ms(100))).pending(q, 1)
		t.policy("p", q, 0, map[string]any{"dead-letter-routing-key": d})
		t.take(d, 1)
		t.settled(q)
	}},
	{id: "D36", what: "a dead-letter key without an exchange: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-dead-letter-routing-key' for queue 'D36.q' in vhost '/': routing_key_but_no_dlx_defined", "x-dead-letter-routing-key", "k")
	}},
	{id: "D37", what: "a dead-letter exchange that is not a text: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'D37.q' in vhost '/'", "x-dead-letter-exchange", int32(1))
	}},
	{id: "D38", what: "an unknown strategy: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid_dlx_strategy", "x-dead-letter-exchange", "", "x-dead-letter-strategy", "x")
	}},
	{id: "D39", what: "a declare by a user without write permission on the exchange: 403", run: func(t *T) {
		ch := t.user("w", ".*", "^"+t.name("q")+"$", ".*")
		_, err := ch.QueueDeclare(t.name("q"), true, false, false, false, with("x-dead-letter-exchange", t.name("X")))
		t.mustBe(err, amqp.AccessRefused, "write access to exchange '"+t.name("X")+"' in vhost '/' refused for user '"+t.name("w")+"'")
	}},
	{id: "D40", what: "a declare by a user without read permission on the queue: 403", run: func(t *T) {
		ch := t.user("r", ".*", ".*", "^nothing$")
		_, err := ch.QueueDeclare(t.name("q"), true, false, false, false, with("x-dead-letter-exchange", t.name("X")))
		t.mustBe(err, amqp.AccessRefused, "read access to queue '"+t.name("q")+"' in vhost '/' refused for user '"+t.name("r")+"'")
	}},
	{id: "D41", what: "argument and policy name exchanges: the argument's applies", run: func(t *T) {
		_, d, q := t.deadly()
		t.policy("p", q, 0, map[string]any{"dead-letter-exchange": t.name("other")})
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		t.take(d, 1)
	}},
	{id: "D42", what: "exchange by argument, key by policy: both apply", run: func(t *T) {
		x, d := t.exchange("X", "direct"), t.queue("D")
		t.bind(d, "r", x)
		q := t.queue("q", "x-dead-letter-exchange", x)
		t.policy("p", q, 0, map[string]any{"dead-letter-routing-key": "r"})
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		t.take(d, 1)
	}},
	{id: "D43", what: "body and properties stay the same", run: func(t *T) {
		_, d, q := t.deadly()
		t.publish(q, priority(7), body("the body"), expiration("60000"), headers("h", "v"), func(p *amqp.Publishing) {
			p.ContentType, p.CorrelationId, p.ReplyTo, p.MessageId, p.Type = "a/b", "c", "r", "m", "t"
		})
		t.must(t.take1(q).Reject(false))
		m := t.take(d, 1)[0]
		t.equal("properties", strings.TrimSpace(fmt.Sprintln(m.Priority, m.ContentType, m.CorrelationId, m.ReplyTo, m.MessageId, m.Type, m.DeliveryMode)), "7 a/b c r m t 2")
		t.equal("body", string(m.Body), "the body")
		t.equal("header", m.Headers["h"], "v")
		t.equal("expiration", m.Expiration, "")
	}},
	{id: "D44", what: "the target queue's TTL counts from the arrival there", run: func(t *T) {
		x1, x2 := t.exchange("X1", "fanout"), t.exchange("X2", "fanout")
		q := t.queue("q", "x-message-ttl", int32(400), "x-dead-letter-exchange", x1)
		d1, d2 := t.queue("D1", "x-message-ttl", int32(400), "x-dead-letter-exchange", x2), t.queue("D2")
		t.bind(d1, "", x1)
		t.bind(d2, "", x2)
		at := t.publish(q)
		t.readyUntil(d2, 0, at.Add(ms(800)))
		t.deaths(t.by(at.Add(ms(800))).take(d2, 1)[0], 2)
	}},
	{id: "D45", what: "delivery counts restart in the target queue", run: func(t *T) {
		_, d, q := t.deadly()
		t.publish(q)
		for range 2 {
			t.must(t.take1(q).Reject(true))
		}
		m := t.take1(q)
		t.counted(m, "x-delivery-count", 2)
		t.counted(m, "x-acquired-count", 2)
		t.equal("redelivered in the source", m.Redelivered, true)
		t.must(m.Reject(false))
		m = t.take(d, 1)[0]
		t.equal("redelivered", m.Redelivered, false)
		t.absent(m.Headers, "x-delivery-count")
		t.absent(m.Headers, "x-acquired-count")
	}},
	{id: "D46", what: "the alternate exchange of the dead-letter exchange works", run: func(t *T) {
		ae, d := t.exchange("AE", "fanout"), t.queue("D")
		t.bind(d, "", ae)
		x := t.exchange("X", "direct", "alternate-exchange", ae)
		q := t.queue("q", "x-dead-letter-exchange", x)
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		t.take(d, 1)
	}},
	{id: "D47", what: "purge and delete dead-letter nothing", run: func(t *T) {
		_, d, q := t.deadly()
		t.publishN(q, 3)
		_, err := t.ch().QueuePurge(q, false)
		t.must(err)
		t.publishN(q, 3)
		_, err = t.ch().QueueDelete(q, false, false, false)
		t.must(err)
		t.readyUntil(d, 0, time.Now().Add(ms(500)))
	}},
	{id: "D48", what: "a headers exchange routes by x-first-death-reason", run: func(t *T) {
		x, d, other := t.exchange("X", "headers"), t.queue("D"), t.queue("other")
		t.bind(d, "", x, "x-match", "all-with-x", "x-first-death-reason", "expired")
		t.bind(other, "", x, "x-match", "all-with-x", "x-first-death-reason", "rejected")
		q := t.queue("q", "x-dead-letter-exchange", x)
		at := t.publish(q, expiration("100"))
		t.by(at.Add(ms(100))).take(d, 1)
		t.equal("other", t.ready(other), 0)
	}},
}}

// deadly declares a queue whose dead letters go to D by the fanout exchange X.
func (t *T) deadly(pairs ...any) (x, d, q string) {
	t.Helper()
	x, d = t.dead()
	return x, d, t.queue("q", append(pairs, "x-dead-letter-exchange", x)...)
}

// take1 waits for a message and leaves it unsettled.
func (t *T) take1(queue string) (d *amqp.Delivery) {
	t.Helper()
	t.eventually("a message in "+queue, func() error {
		if d = t.get(queue); d == nil {
			return fmt.Errorf("it is empty")
		}
		return nil
	})
	return d
}

// expired checks a letter that died of its expiration.
func (t *T) expired(m *amqp.Delivery, text string) {
	t.Helper()
	t.equal("reason", t.death(m, 0)["reason"], "expired")
	t.equal("original-expiration", t.death(m, 0)["original-expiration"], text)
	t.equal("expiration", m.Expiration, "")
}

func (t *T) absent(table amqp.Table, key string) {
	t.Helper()
	if v, ok := table[key]; ok {
		t.Errorf("there is a %s: %v", key, v)
	}
}

// forged is a history that the client made up.
func forged(queue string) option {
	return headers("x-death", []any{amqp.Table{"queue": queue, "reason": "expired", "count": int64(7)}}, "x-first-death-queue", "forged")
}

// pending waits until a queue holds n dead letters that wait, and nothing else.
func (t *T) pending(queue string, n int) {
	t.Helper()
	t.eventually(fmt.Sprintf("%s holds %d dead letters", queue, n), func() error {
		q, err := t.Nodes[0].Queue(t.ctx, queue)
		if err == nil && (q.Messages != n || q.Ready != 0 || q.Unacknowledged != 0) {
			err = fmt.Errorf("%d messages, %d ready, %d unacknowledged", q.Messages, q.Ready, q.Unacknowledged)
		}
		return err
	})
}

// user makes a user with permissions on "/" and opens a channel as that user.
func (t *T) user(name, configure, write, read string) *amqp.Channel {
	t.Helper()
	name = t.name(name)
	t.must(t.Nodes[0].SetUser(t.ctx, name, "secret", ""))
	t.must(t.Nodes[0].SetPermissions(t.ctx, name, configure, write, read))
	conn, err := amqp.Dial("amqp://" + name + ":secret@" + t.Nodes[0].AMQP + "/")
	t.must(err)
	t.Cleanup(func() { _ = conn.Close() }) // perhaps it is closed
	ch, err := conn.Channel()
	t.must(err)
	return ch
}
