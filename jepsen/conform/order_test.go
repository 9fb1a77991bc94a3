package conform

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
)

func TestOrders(t *testing.T) { orderRows.run(t) }

var orderRows = suite{test: "TestOrders", title: "Order by deadline, duplicates", rows: []row{
	{id: "T-149", what: "`x-min-ttl`: a consumer gets only messages with so much left; others get the rest, or it expires", run: func(t *T) {
		dead := t.queue("dead")
		q := t.queue("q", "x-queue-order", "deadline", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead)
		_, patient := t.consume(q, 10, "x-min-ttl", int32(60000))
		t.publish(q, expiration("300"), body("dies"))
		due := time.Now().Add(ms(300))
		t.publish(q, expiration("50000"), body("short"))
		t.publish(q, expiration("600000"), body("long"))
		t.publish(q, body("never"))
		got, _ := t.bodiesOf(patient, 2)
		t.equal("with time left", strings.Join(got, " "), "long never")
		t.equal("dead", bodies(t.by(due).take(dead, 1)), "dies")
		_, plain := t.consume(q, 10)
		got, _ = t.bodiesOf(plain, 1)
		t.equal("the rest", strings.Join(got, " "), "short")
	}},
	{id: "T-149b", what: "`x-min-ttl`: 8 different values a queue, and none for a queue that does not go by deadlines", run: func(t *T) {
		q := t.queue("q", "x-queue-order", "deadline")
		for i := range int32(8) {
			t.consume(q, 1, "x-min-ttl", 1000+i)
		}
		t.consume(q, 1, "x-min-ttl", int32(1000))
		t.refuseConsume(q, amqp.PreconditionFailed, "different values of 'x-min-ttl'", false, "x-min-ttl", int32(2000))
		fifo := t.queue("fifo")
		t.refuseConsume(fifo, amqp.PreconditionFailed, "only together with 'x-queue-order: deadline'", false, "x-min-ttl", int32(2000))
	}},
	{id: "T-150", what: "`x-queue-order: deadline`: what expires first is delivered first, what never expires last", run: func(t *T) {
		q := t.queue("q", "x-queue-order", "deadline")
		t.publish(q, body("never"))
		for _, life := range []string{"300000", "200000", "100000"} {
			t.publish(q, expiration(life), body(life))
		}
		t.publish(q, body("never either"), priority(9))
		held := []*amqp.Delivery{t.mustGet(q), t.mustGet(q)}
		t.equal("first", bodies(held), "100000 200000")
		t.must(held[0].Nack(false, true))
		t.must(held[1].Nack(false, true))
		t.equal("all", bodies(t.take(q, 5)), "100000 200000 300000 never never either")
	}},
	{id: "SB-18", what: "a message with the id of one of the last 20 s is confirmed and dropped, scheduled ones included", run: func(t *T) {
		q := t.queue("q", "x-dedup-window", int32(20000))
		for _, id := range []string{"a", "b", "a", ""} {
			t.publish(q, messageID(id), body(id))
		}
		t.publish(q, body("none"))
		t.publish(q, messageID("b"), headers("x-opt-delivery-delay", int32(60000)))
		t.publish(q, messageID("c"), headers("x-opt-delivery-delay", int32(60000)))
		t.publish(q, messageID("c"))
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Scheduled) }, "4 1")
		t.equal("taken", bodies(t.take(q, 4)), "a b  none")
	}},
	{id: "SB-18b", what: "a publish that a full queue has refused is no message: its repetition is none of a duplicate", run: func(t *T) {
		q := t.queue("q", "x-dedup-window", int32(20000), "x-max-length", int32(1), "x-overflow", "reject-publish")
		t.publish(q, messageID("a"))
		if t.send("", q, messageID("b")) {
			t.Fatal("b is taken")
		}
		t.take1(q)
		t.publish(q, messageID("b"), body("b"))
		t.equal("taken", bodies(t.take(q, 1)), "b")
	}},
	{id: "Q-UQ1", what: "`x-unique`: a publish with the key of a message that is ready, held, returned or scheduled is confirmed and dropped; once it is acked, rejected, expired or purged the key is free; without a key nothing is dropped", run: func(t *T) {
		q := t.queue("q", "x-unique", "header:job")
		job := func(is any, of ...option) { t.publish(q, append(of, headers("job", is))...) }
		same := func(n float64) { t.equal("duplicates", t.stats(q)["messages_deduplicated_total"], n) }
		job("a", body("first"))
		job("a")
		job(int64(7), body("number"))
		job("7")
		t.publish(q, body("none"))
		t.publish(q, body("none"), messageID("a"))
		same(2)
		held := t.mustGet(q)
		job("a")
		t.must(held.Nack(false, true))
		job("a")
		same(4)
		t.equal("all", bodies(t.take(q, 4)), "first number none none")
		job("a", body("second"))
		t.must(t.mustGet(q).Reject(false))
		job("a", body("expires"), expiration("200"))
		t.readyUntil(q, 1, time.Now())
		t.soonReady(q, 0, time.Now().Add(ms(200)))
		t.publish(q, headers("job", "a", "x-opt-delivery-delay", int32(60000)))
		job("a")
		same(5)
		t.empty(q)
		job("a", body("third"))
		t.equal("third", bodies(t.take(q, 1)), "third")
	}},
	{id: "Q-UQ2", what: "`unique` by policy, and RabbitMQ's `x-message-deduplication` with its header; a wrong value is refused with 406, by policy with 400", run: func(t *T) {
		q := t.queue("q")
		t.policy("p", q, 0, definition{"unique": "message-id"})
		t.eventually("it is unique", func() error {
			t.publish(q, messageID("a"))
			t.publish(q, messageID("a"))
			if n := t.stats(q)["messages_deduplicated_total"]; n == 0.0 {
				t.empty(q)
				return fmt.Errorf("nothing is dropped")
			}
			return nil
		})
		t.take1(q)
		old := t.queue("old", "x-message-deduplication", true)
		t.publish(old, headers("x-deduplication-header", "k"), body("one"))
		t.publish(old, headers("x-deduplication-header", "k"), body("two"))
		t.equal("taken", bodies(t.take(old, 1)), "one")
		t.mustNotGet(old)
		t.refuseDeclare("refused", "invalid_unique_key", "x-unique", "message_id")
		t.refuseDeclare("refused", "invalid_header_name", "x-unique", "header:")
		t.refuseDeclare("old", "inequivalent arg 'x-message-deduplication'", "x-message-deduplication", false)
		status, _, err := t.Nodes[0].Do(t.ctx, http.MethodPut, "/api/policies/%2F/"+t.name("wrong"), map[string]any{"pattern": "^none$", "definition": map[string]any{"unique": "id"}})
		t.must(err)
		t.equal("status", status, http.StatusBadRequest)
	}},
	{id: "Q-UQ3", what: "a dead letter whose key is taken is refused; at least once, it comes when the key is free, and otherwise it is counted as dropped", run: func(t *T) {
		q := t.queue("q", "x-unique", "message-id")
		to := []any{"x-dead-letter-exchange", "", "x-dead-letter-routing-key", q}
		once := t.queue("once", to...)
		keeps := t.queue("keeps", append(to, "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")...)
		t.publish(q, messageID("a"), body("first"))
		t.publish(once, messageID("a"), body("dropped"))
		t.must(t.mustGet(once).Reject(false))
		t.publish(keeps, messageID("a"), body("letter"))
		t.must(t.mustGet(keeps).Reject(false))
		t.eventually("both are refused", func() error {
			if n, m := t.stats(once)["dead_letters_dropped_total"], t.stats(keeps)["dead_letters_refused_total"]; n != 1.0 || m == 0.0 {
				return fmt.Errorf("%v dropped, %v refused", n, m)
			}
			return nil
		})
		t.equal("first", bodies(t.take(q, 1)), "first")
		t.equal("then", bodies(t.take(q, 1)), "letter")
		t.mustNotGet(q)
	}},
}}

var orderKillRows = []row{
	{id: "SB-18k", what: "a new leader knows the ids of the messages, and drops duplicates", run: func(t *T) {
		q := t.queue("q", "x-dedup-window", int32(600_000))
		t.publish(q, messageID("a"), body("first"))
		t.killLeader(q)
		t.publish(q, messageID("a"), body("second"))
		t.publish(q, messageID("b"), body("third"))
		t.equal("taken", bodies(t.take(q, 2)), "first third")
		t.mustNotGet(q)
	}},
	{id: "Q-UQ1K", what: "the leader is killed: the next one knows the keys of what is ready, held and scheduled, and drops what has them", run: func(t *T) {
		q := t.queue("q", "x-unique", "message-id")
		t.publish(q, messageID("held"), body("held"))
		at, _ := t.followers(q)
		held, ok, err := t.openAt(at).Get(q, false)
		t.must(err)
		t.equal("held", ok, true)
		t.publish(q, messageID("ready"), body("ready"))
		t.publish(q, messageID("later"), headers("x-opt-delivery-delay", int32(600_000)))
		t.killLeader(q)
		for _, id := range []string{"held", "ready", "later"} {
			t.publish(q, messageID(id), body("second "+id))
		}
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Scheduled) }, "1 1")
		t.must(held.Ack(false))
		t.awaitQueue(q, func(c counts) bool { return c.Unacknowledged == 0 })
		t.publish(q, messageID("held"), body("third"))
		t.equal("taken", bodies(t.take(q, 2)), "ready third")
		t.mustNotGet(q)
	}},
}

// stats is what the HTTP API says of a queue.
func (t *T) stats(queue string) map[string]any {
	t.Helper()
	return t.http(http.MethodGet, "/api/queues/%2F/"+queue, nil)
}

// empty purges a queue.
func (t *T) empty(queue string) {
	t.Helper()
	_, err := t.ch().QueuePurge(queue, false)
	t.must(err)
}

func messageID(id string) option { return func(p *amqp.Publishing) { p.MessageId = id } }
