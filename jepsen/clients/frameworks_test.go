package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// frameworks are what applications use instead of a client library. Each is replayed: it
// declares by default what is declared here, and relies on what is checked. docs/migration.md
// says where that is written, and what to set.
var frameworks = []struct {
	name string
	play func(f *framework)
}{
	{"celery", (*framework).celery},
	{"symfony messenger", (*framework).symfony},
	{"laravel", (*framework).laravel},
	{"masstransit", (*framework).massTransit},
	{"nservicebus", (*framework).nServiceBus},
	{"spring", (*framework).spring},
	{"nestjs", (*framework).nestJS},
	{"sneakers", (*framework).sneakers},
	{"oslo.messaging", (*framework).oslo},
	{"watermill", (*framework).watermill},
}

// TestFrameworks replays what frameworks declare, each in a vhost of its own.
func TestFrameworks(t *testing.T) {
	long.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := mustStart(t, ctx)
	for _, w := range frameworks {
		t.Run(w.name, func(t *testing.T) {
			f := &framework{T: t, ctx: ctx, node: c.Nodes[0], vhost: strings.ReplaceAll(w.name, " ", "-")}
			f.must(f.node.Call(ctx, http.MethodPut, "/api/vhosts/"+f.vhost, map[string]any{}, nil))
			var err error
			f.conn, err = amqp.DialConfig(f.node.URI(), amqp.Config{Vhost: f.vhost})
			f.must(err)
			defer f.conn.Close()
			f.ch = f.channel()
			f.must(f.ch.Confirm(false))
			w.play(f)
		})
	}
	t.Run("watermill's package", func(t *testing.T) {
		program := filepath.Join(t.TempDir(), "watermill")
		if out, err := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join("testdata", "watermill"), "-o", program, ".").CombinedOutput(); err != nil {
			t.Skip(missing(fmt.Sprintf("watermill: %v %.500s", err, out)))
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if out, err := exec.CommandContext(ctx, program, c.Nodes[1].AMQP, "watermill").CombinedOutput(); err != nil || string(out) != "ok\n" {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// framework is one of them on its connection.
type framework struct {
	*testing.T
	ctx   context.Context
	node  *cluster.Node
	vhost string
	conn  *amqp.Connection
	ch    *amqp.Channel
}

func (f *framework) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *framework) channel() *amqp.Channel {
	f.Helper()
	ch, err := f.conn.Channel()
	f.must(err)
	return ch
}

// Properties of queues and exchanges.
const (
	durable = 1 << iota
	autoDelete
	exclusive
)

func (f *framework) queue(name string, flags int, args amqp.Table) {
	f.Helper()
	_, err := f.ch.QueueDeclare(name, flags&durable != 0, flags&autoDelete != 0, flags&exclusive != 0, false, args)
	f.must(err)
}

func (f *framework) exchange(name, kind string, flags int, args amqp.Table) {
	f.Helper()
	f.must(f.ch.ExchangeDeclare(name, kind, flags&durable != 0, flags&autoDelete != 0, false, false, args))
}

func (f *framework) bind(queue, key, exchange string) {
	f.Helper()
	f.must(f.ch.QueueBind(queue, key, exchange, false, nil))
}

func (f *framework) bindExchange(to, key, from string) {
	f.Helper()
	f.must(f.ch.ExchangeBind(to, key, from, false, nil))
}

func (f *framework) publish(exchange, key string, p amqp.Publishing) {
	f.Helper()
	p.DeliveryMode = amqp.Persistent
	c, err := f.ch.PublishWithDeferredConfirmWithContext(f.ctx, exchange, key, true, false, p)
	f.must(err)
	if ok, err := c.WaitContext(f.ctx); err != nil || !ok {
		f.Fatalf("publish to %q %q: confirmed: %t, %v", exchange, key, ok, err)
	}
}

func (f *framework) consume(queue string, prefetch int, global bool) <-chan amqp.Delivery {
	f.Helper()
	ch := f.channel()
	f.must(ch.Qos(prefetch, 0, global))
	from, err := ch.Consume(queue, "", false, false, false, false, nil)
	f.must(err)
	return from
}

// next returns the next delivery, which must not come before a time.
func (f *framework) next(from <-chan amqp.Delivery, notBefore time.Time) amqp.Delivery {
	f.Helper()
	select {
	case d, ok := <-from:
		if early := time.Until(notBefore); !ok || early > 0 {
			f.Fatalf("open: %t, %v too early", ok, early)
		}
		return d
	case <-time.After(30 * time.Second):
		f.Fatal("nothing comes")
	}
	panic("not reached")
}

// delayLevels declares the queues and exchanges with which Celery and NServiceBus delay by
// each bit of a number of seconds, from the highest on.
func (f *framework) delayLevels(name func(level int) string, delivery string) {
	const levels = 28
	for level := levels - 1; level >= 0; level-- {
		next := delivery
		if level > 0 {
			next = name(level - 1)
		}
		f.exchange(name(level), "topic", durable, nil)
		f.queue(name(level), durable, amqp.Table{
			"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
			"x-message-ttl": int64(1000) << level, "x-dead-letter-exchange": next,
		})
		f.bind(name(level), strings.Repeat("*.", levels-1-level)+"1.#", name(level))
	}
	for level := levels - 1; level > 0; level-- {
		f.bindExchange(name(level-1), strings.Repeat("*.", levels-1-level)+"0.#", name(level))
	}
	f.exchange(delivery, "topic", durable, nil)
	f.bindExchange(delivery, strings.Repeat("*.", levels-1)+"0.#", name(0))
}

// delayed is the routing key of what is delayed by so many seconds.
func delayed(seconds int, key string) string {
	return strings.Join(strings.Split(fmt.Sprintf("%028b", seconds), ""), ".") + "." + key
}

func (f *framework) celery() {
	f.exchange("celery", "direct", durable, nil)
	f.queue("celery", durable, nil)
	f.bind("celery", "celery", "celery")
	f.exchange("celery.pidbox", "fanout", 0, nil)
	f.queue("celery@host.celery.pidbox", autoDelete|exclusive, amqp.Table{"x-expires": 10_000, "x-message-ttl": 300_000})
	f.exchange("celeryev", "topic", durable, nil)
	f.queue("celeryev.1", autoDelete|exclusive, amqp.Table{"x-expires": 60_000, "x-message-ttl": 5000})
	f.bind("celeryev.1", "worker.#", "celeryev")
	tasks := f.consume("celery", 8, true)
	f.publish("celery", "celery", amqp.Publishing{Body: []byte("task")})
	f.must(f.next(tasks, time.Time{}).Ack(false))

	f.exchange("orders", "topic", durable, nil)
	f.queue("orders", durable, amqp.Table{"x-queue-type": "quorum"})
	f.delayLevels(func(level int) string { return fmt.Sprint("celery_delayed_", level) }, "celery_delayed_delivery")
	f.bindExchange("orders", "#.orders", "celery_delayed_delivery")
	f.bind("orders", "#.orders", "orders")
	due := time.Now().Add(3 * time.Second)
	f.publish("celery_delayed_27", delayed(3, "orders"), amqp.Publishing{})
	f.must(f.next(f.consume("orders", 8, false), due).Ack(false))
}

func (f *framework) symfony() {
	f.exchange("messages", "fanout", durable, nil)
	f.queue("messages", durable, nil)
	f.bind("messages", "", "messages")
	f.exchange("delays", "direct", durable, nil)
	for _, way := range []struct{ queue, exchange, key string }{
		{"delay_messages__300_delay", "messages", ""},
		{"delay_messages_messages_300_retry", "", "messages"},
	} {
		f.queue(way.queue, durable, amqp.Table{
			"x-message-ttl": 300, "x-expires": 10_300, "x-dead-letter-exchange": way.exchange, "x-dead-letter-routing-key": way.key,
		})
		f.bind(way.queue, way.queue, "delays")
		due := time.Now().Add(300 * time.Millisecond)
		f.publish("delays", way.queue, amqp.Publishing{})
		f.must(f.get("messages", due).Ack(false))
	}
}

// get polls a queue with basic.get.
func (f *framework) get(queue string, notBefore time.Time) (d amqp.Delivery) {
	f.Helper()
	f.must(await.Until(f.ctx, 20*time.Millisecond, "a message in "+queue, func() (ok bool, err error) {
		d, ok, err = f.ch.Get(queue, false)
		return ok, err
	}))
	if early := time.Until(notBefore); early > 0 {
		f.Fatalf("%v too early", early)
	}
	return d
}

func (f *framework) laravel() {
	_, err := f.channel().QueueDeclarePassive("default", true, false, false, false, nil)
	if refused, ok := err.(*amqp.Error); !ok || refused.Code != amqp.NotFound {
		f.Fatalf("a queue that is not there: %v", err)
	}
	f.queue("default", durable, amqp.Table{"x-max-priority": 2})
	f.queue("default.delay.1000", durable, amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "default", "x-message-ttl": 1000, "x-expires": 2000,
	})
	due := time.Now().Add(time.Second)
	f.publish("", "default.delay.1000", amqp.Publishing{Priority: 1})
	f.must(f.get("default", due).Ack(false))
}

func (f *framework) massTransit() {
	f.exchange("Contracts:OrderPlaced", "fanout", durable, nil)
	f.exchange("order", "fanout", durable, nil)
	f.queue("order", durable, nil)
	f.bind("order", "", "order")
	f.bindExchange("order", "", "Contracts:OrderPlaced")
	f.exchange("order_error", "fanout", durable, nil)
	f.queue("order_error", durable, nil)
	f.bind("order_error", "", "order_error")
	f.exchange("host_bus_1", "fanout", autoDelete, nil)
	f.queue("host_bus_1", autoDelete, amqp.Table{"x-expires": 60_000})
	f.bind("host_bus_1", "", "host_bus_1")
	orders := f.consume("order", 16, false)
	f.publish("Contracts:OrderPlaced", "", amqp.Publishing{})
	f.must(f.next(orders, time.Time{}).Ack(false))

	f.exchange("order_delay", "x-delayed-message", durable, amqp.Table{"x-delayed-type": "fanout"})
	f.bindExchange("order", "", "order_delay")
	due := time.Now().Add(500 * time.Millisecond)
	f.publish("order_delay", "", amqp.Publishing{Headers: amqp.Table{"x-delay": int32(500)}})
	f.must(f.next(orders, due).Ack(false))
}

// nServiceBus asks the HTTP API what the broker can, and has delivery limits off.
func (f *framework) nServiceBus() {
	f.exchange("Sales", "fanout", durable, nil)
	f.queue("Sales", durable, amqp.Table{"x-queue-type": "quorum"})
	f.bind("Sales", "", "Sales")
	f.exchange("Events:OrderPlaced", "fanout", durable, nil)
	f.bindExchange("Sales", "", "Events:OrderPlaced")
	f.delayLevels(func(level int) string { return fmt.Sprintf("nsb.v2.delay-level-%02d", level) }, "nsb.v2.delay-delivery")
	f.bindExchange("Sales", "#.Sales", "nsb.v2.delay-delivery")
	due := time.Now().Add(2 * time.Second)
	f.publish("nsb.v2.delay-level-01", delayed(2, "Sales"), amqp.Publishing{})
	f.must(f.next(f.consume("Sales", 10, false), due).Ack(false))

	var flags []struct{ Name, State string }
	f.must(f.node.Call(f.ctx, http.MethodGet, "/api/feature-flags", nil, &flags))
	for _, flag := range flags {
		if flag.Name == "stream_queue" {
			f.Error("there are streams: docs/migration.md says that BrokerRequirementChecks.StreamsEnabled must be off")
		}
	}
	f.must(f.node.Call(f.ctx, http.MethodPut, "/api/policies/"+f.vhost+"/nsb.Sales.delivery-limit", map[string]any{
		"pattern": "Sales", "apply-to": "quorum_queues", "priority": 100, "definition": map[string]any{"delivery-limit": -1},
	}, nil))
	var q struct {
		Type  string
		Limit json.RawMessage `json:"delivery_limit"`
	}
	f.must(f.node.Call(f.ctx, http.MethodGet, "/api/queues/"+f.vhost+"/Sales", nil, &q))
	if q.Type != "quorum" || string(q.Limit) != "-1" {
		f.Errorf("type %s, delivery limit %s", q.Type, q.Limit)
	}
}

func (f *framework) spring() {
	f.exchange("orders", "topic", durable, nil)
	f.exchange("DLX", "direct", durable, nil)
	f.queue("orders.billing", durable, amqp.Table{"x-dead-letter-exchange": "DLX", "x-dead-letter-routing-key": "orders.billing"})
	f.queue("orders.billing.dlq", durable, nil)
	f.bind("orders.billing", "#", "orders")
	f.bind("orders.billing.dlq", "orders.billing", "DLX")
	f.queue("orders.anonymous.1", exclusive|autoDelete, nil)
	f.bind("orders.anonymous.1", "#", "orders")
	f.publish("orders", "orders", amqp.Publishing{Body: []byte("bad")})
	f.must(f.next(f.consume("orders.billing", 1, false), time.Time{}).Reject(false))
	f.must(f.next(f.consume("orders.billing.dlq", 1, false), time.Time{}).Ack(false))
	f.must(f.next(f.consume("orders.anonymous.1", 250, false), time.Time{}).Ack(false))
}

func (f *framework) nestJS() {
	f.queue("default", durable, nil)
	requests, err := f.ch.Consume("default", "", true, false, false, false, nil)
	f.must(err)
	caller := f.channel()
	answers, err := caller.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	f.must(err)
	f.must(caller.PublishWithContext(f.ctx, "", "default", false, false, amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to", CorrelationId: "7"}))
	request := f.next(requests, time.Time{})
	f.must(f.ch.PublishWithContext(f.ctx, "", request.ReplyTo, false, false, amqp.Publishing{CorrelationId: request.CorrelationId}))
	if got := f.next(answers, time.Time{}).CorrelationId; got != "7" {
		f.Errorf("an answer to %q", got)
	}
}

// sneakers counts retries by x-death: a rejected message waits in a queue and comes back.
func (f *framework) sneakers() {
	for _, name := range []string{"mail-retry", "mail-retry-requeue", "mail-error"} {
		f.exchange(name, "topic", durable, nil)
	}
	f.exchange("sneakers", "direct", durable, nil)
	f.queue("mail", durable, amqp.Table{"x-dead-letter-exchange": "mail-retry"})
	f.bind("mail", "mail", "sneakers")
	f.queue("mail-retry", durable, amqp.Table{"x-dead-letter-exchange": "mail-retry-requeue", "x-message-ttl": 200})
	f.bind("mail-retry", "#", "mail-retry")
	f.queue("mail-error", durable, nil)
	f.bind("mail-error", "#", "mail-error")
	f.bind("mail", "#", "mail-retry-requeue")
	work := f.consume("mail", 10, false)
	f.publish("sneakers", "mail", amqp.Publishing{})
	due := time.Time{}
	for failures := range 4 {
		d := f.next(work, due)
		if got := rejections(d, "mail"); got != int64(failures) {
			f.Errorf("%d rejections, not %d", got, failures)
		}
		due = time.Now().Add(200 * time.Millisecond)
		f.must(d.Reject(false))
	}
}

// rejections returns how often x-death says that a queue's consumers have rejected a message.
func rejections(d amqp.Delivery, queue string) (n int64) {
	deaths, _ := d.Headers["x-death"].([]any)
	for _, e := range deaths {
		if death := e.(amqp.Table); death["queue"] == queue && death["reason"] == "rejected" {
			n += death["count"].(int64)
		}
	}
	return n
}

func (f *framework) oslo() {
	f.exchange("openstack", "topic", 0, nil)
	f.queue("compute.host-1", 0, nil)
	f.bind("compute.host-1", "compute.host-1", "openstack")
	f.exchange("reply_1", "direct", 0, nil)
	f.queue("reply_1", 0, amqp.Table{"x-expires": 1_800_000})
	f.bind("reply_1", "reply_1", "reply_1")
	f.exchange("compute_fanout", "fanout", autoDelete, nil)
	f.queue("compute_fanout_1", 0, amqp.Table{"x-expires": 1_800_000})
	f.bind("compute_fanout_1", "compute", "compute_fanout")
	f.queue("volume", durable, amqp.Table{"x-queue-type": "quorum"})
	for _, way := range [][2]string{{"openstack", "compute.host-1"}, {"reply_1", "reply_1"}, {"", "volume"}} {
		f.publish(way[0], way[1], amqp.Publishing{})
		f.must(f.next(f.consume(way[1], 0, false), time.Time{}).Ack(false))
	}
	ch := f.channel()
	_, err := ch.QueueDeclare("stream_fanout", true, false, false, false, amqp.Table{"x-queue-type": "stream", "x-max-age": "1800s"})
	if refused, ok := err.(*amqp.Error); !ok || refused.Code != amqp.PreconditionFailed {
		f.Errorf("a stream: %v", err)
	}
}

func (f *framework) watermill() {
	f.queue("events_billing", durable, nil)
	f.exchange("events", "fanout", durable, nil)
	f.bind("events_billing", "", "events")
	from := f.consume("events_billing", 1, false)
	f.publish("events", "", amqp.Publishing{})
	for range 30 { // nacked again and again: no failure, and no end
		f.must(f.next(from, time.Time{}).Nack(false, true))
	}
	f.must(f.next(from, time.Time{}).Ack(false))
}
