package conform

import (
	"fmt"
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
}

func messageID(id string) option { return func(p *amqp.Publishing) { p.MessageId = id } }
