package conform

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

func TestArguments(t *testing.T) { argumentRows.run(t) }

var argumentRows = suite{test: "TestArguments", title: "Declare, arguments, delete", rows: []row{
	{id: "A1", what: "not durable, exclusive, auto-delete, without a name, with and without x-queue-type=quorum: declare-ok", run: func(t *T) {
		for i, table := range []amqp.Table{nil, with()} {
			name := func(of string) string { return t.name(fmt.Sprint(of, i)) }
			t.declare(t.open(), name("transient"), flags{}, table)
			t.declare(t.open(), name("exclusive"), flags{durable: true, exclusive: true}, table)
			t.declare(t.open(), name("auto"), flags{durable: true, autoDelete: true}, table)
			t.declare(t.open(), "", flags{durable: true}, table)
		}
	}},
	{id: "A2", what: "x-max-length −5: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-max-length' for queue 'A2.q' in vhost '/': {value_negative,-5}", "x-max-length", int32(-5))
	}},
	{id: "A3", what: "x-expires 0: 406", run: func(t *T) { t.refuseDeclare("q", "{value_zero,0}", "x-expires", int32(0)) }},
	{id: "A4", what: "a dead-letter routing key without an exchange: 406", run: func(t *T) {
		t.refuseDeclare("q", "routing_key_but_no_dlx_defined", "x-dead-letter-routing-key", "k")
	}},
	{id: "A5", what: "unknown queue type: 406", run: func(t *T) {
		t.refuseDeclare("q", "unsupported queue type 'fake'", "x-queue-type", "fake")
	}},
	{id: "A6", what: "values that do not exist, and a group size of 0: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid_overflow", "x-overflow", "drop")
		t.refuseDeclare("q", "invalid_dlx_strategy", "x-dead-letter-strategy", "sometimes")
		t.refuseDeclare("q", "invalid_queue_locator_arg", "x-queue-leader-locator", "moon")
		t.refuseDeclare("q", "{value_zero,0}", "x-quorum-initial-group-size", int32(0))
	}},
	{id: "A7", what: "numbers are compared by value, whatever their width", run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int16(1000))
		for _, same := range []any{int32(1000), int64(1000)} {
			t.declare(t.ch(), q, flags{durable: true}, with("x-message-ttl", same))
		}
		t.refuseDeclare("q", "inequivalent arg 'x-message-ttl' for queue 'A7.q' in vhost '/': received '2000' but current is '1000'", "x-message-ttl", int32(2000))
	}},
	{id: "A8", what: "an unknown argument is kept and not compared", run: func(t *T) {
		q := t.queue("q", "x-foo", "bar")
		t.declare(t.ch(), q, flags{durable: true}, with())
	}},
	{id: "A21", what: "an argument that has an effect in other brokers and none here: 406 with what to use, for a queue, an exchange, a consumer; 400 over HTTP", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-cache-ttl' for queue '"+t.name("q")+"' in vhost '/': \"has no effect here, use x-dedup-window\"", "x-cache-ttl", int32(5))
		t.refuseDeclare("q", "use x-delivery-limit", "x-max-deliver", int32(5))
		t.refused(amqp.PreconditionFailed, "use x-dedup-window of the queues", func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(t.name("x"), "fanout", true, false, false, false, args("x-cache-size", int32(5)))
		})
		q := t.queue("q", "x-ha-policy", "all")
		t.refuseConsume(q, amqp.PreconditionFailed, "use basic.qos", false, "x-credit", int32(5))
		status, answer, err := t.Nodes[0].Do(t.ctx, http.MethodPut, "/api/queues/%2F/"+t.name("r"), map[string]any{"durable": true, "arguments": map[string]any{"x-cache-ttl": 5}})
		t.must(err)
		t.equal("status", status, http.StatusBadRequest)
		if !strings.Contains(string(answer), "use x-dedup-window") {
			t.Errorf("it answers %s", answer)
		}
	}},
	{id: "A20", what: "a misspelled or misplaced argument, or one of a later version: 406 with the known name; also of a queue that exists, an exchange, a consumer, a headers binding", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-mesage-ttl' for queue '"+t.name("q")+"' in vhost '/': \"unknown; did you mean 'x-message-ttl'?\"", "x-mesage-ttl", int32(1000))
		t.refuseDeclare("q", "an argument of basic.consume, not of queue.declare", "x-lock-mode", "head")
		t.equal("exists", t.exists(t.name("q")), false)
		q := t.queue("q")
		t.refuseDeclare("q", "did you mean 'x-expires'", "x-expire", int32(1000))
		declare := func(table amqp.Table) func(ch *amqp.Channel) error {
			return func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(t.name("x"), "headers", true, false, false, false, table)
			}
		}
		t.refused(amqp.PreconditionFailed, "did you mean 'x-delayed-type'", declare(args("x-delayed-typ", "direct")))
		t.must(declare(nil)(t.ch()))
		t.refused(amqp.PreconditionFailed, "did you mean 'x-match'", func(ch *amqp.Channel) error {
			return ch.QueueBind(q, "", t.name("x"), false, args("x-mach", "any", "a", "b"))
		})
		for name, words := range map[string]string{"x-priorty": "did you mean 'x-priority'", "x-browse": "not implemented", "x-message-groups": "an argument of queue.declare"} {
			t.refused(amqp.PreconditionFailed, words, func(ch *amqp.Channel) error {
				_, err := ch.Consume(q, "", false, false, false, false, args(name, int32(1)))
				return err
			})
		}
	}},
	{id: "A18", what: "a misspelled header of a schedule: 406, x-delay only at a delayed exchange; others are delivered", run: func(t *T) {
		q, x := t.queue("q"), t.exchange("x", "x-delayed-message", "x-delayed-type", "fanout")
		t.bind(q, "", x)
		t.refusePublish(amqp.PreconditionFailed, "invalid x-opt-delivery-dely: unknown header; did you mean x-opt-delivery-delay?", "", q, headers("x-opt-delivery-dely", int32(100)))
		t.refusePublish(amqp.PreconditionFailed, "invalid x-schedule-repeat: not implemented", "", q, headers("x-schedule-repeat", int32(1000)))
		t.refusePublish(amqp.PreconditionFailed, "did you mean x-delay", x, "", headers("x-dealy", int32(100)))
		t.publish(q, headers("x-dealy", int32(100), "x-request-id", "1"))
		t.equal("header", t.mustGet(q).Headers["x-dealy"], int32(100))
		t.mustNotGet(q)
	}},
	{id: "A19", what: "arguments of locks, groups, order, duplicates and forwarding that are no values, or exclude each other: 406", run: func(t *T) {
		groups := func(pairs ...any) []any { return append(pairs, "x-message-groups", true) }
		for _, c := range []struct {
			words string
			pairs []any
		}{
			{"{value_too_small,999}", []any{"x-lock-duration", int32(999)}},
			{"{value_too_large,43200001}", []any{"x-lock-duration", int32(43_200_001)}},
			{"{unacceptable_type,longstr}", []any{"x-message-groups", "true"}},
			{"invalid_queue_order", []any{"x-queue-order", "sometimes"}},
			{"invalid_delayed_retry_steps", []any{"x-delayed-retry-steps", "1;2"}},
			{"{value_too_small,19999}", []any{"x-dedup-window", int32(19_999)}},
			{"{value_too_large,100001}", []any{"x-audit-max", int32(100_001)}},
			{"not together with 'x-single-active-consumer'", groups("x-single-active-consumer", true)},
			{"not together with 'x-message-groups'", groups("x-queue-order", "deadline")},
			{"not together with 'x-message-groups'", groups("x-forward-to-exchange", "amq.fanout")},
			{"only together with 'x-forward-to-exchange'", []any{"x-forward-to-routing-key", "k"}},
			{"only together with 'x-message-groups'", []any{"x-group-expiry", "group"}},
		} {
			t.refuseDeclare("q", c.words, c.pairs...)
		}
		t.refused(amqp.PreconditionFailed, "not together with 'x-max-priority'", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(t.name("q"), true, false, false, false, args("x-queue-order", "deadline", "x-max-priority", int32(5)))
			return err
		})
	}},
	{id: "A9", what: "if-empty, also if all is unsettled or scheduled, and if-unused: 406 on the channel, the queue stays", run: func(t *T) {
		q, later := t.queue("q"), t.queue("later")
		t.publish(later, headers("x-opt-delivery-delay", int32(60_000)))
		t.refused(amqp.PreconditionFailed, "queue 'A9.later' in vhost '/' not empty", func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(later, false, true, false)
			return err
		})
		t.publish(q)
		held := t.mustGet(q)
		t.refused(amqp.PreconditionFailed, "queue 'A9.q' in vhost '/' not empty", func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(q, false, true, false)
			return err
		})
		t.must(held.Nack(false, true))
		t.refused(amqp.PreconditionFailed, "queue 'A9.q' in vhost '/' not empty", func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(q, false, true, false)
			return err
		})
		t.consume(q, 1)
		t.refused(amqp.PreconditionFailed, "queue 'A9.q' in vhost '/' in use", func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(q, true, false, false)
			return err
		})
		t.equal("exists", t.exists(q), true)
	}},
	{id: "A10", what: "delete with consumers: they get basic.cancel, outstanding publishes are confirmed", run: func(t *T) {
		q := t.queue("q")
		ch, from := t.consume(q, 10)
		cancelled := ch.NotifyCancel(make(chan string, 1))
		var waits []func() bool
		for range 200 {
			waits = append(waits, t.sendLater("", q))
		}
		_, err := t.open().QueueDelete(q, false, false, false)
		t.must(err)
		t.awaitCancel(cancelled, from)
		for i, wait := range waits {
			if !wait() {
				t.Fatalf("publish %d is refused", i+1)
			}
		}
	}},
	{id: "A11", what: "a passive declare counts 3 ready messages and 1 consumer", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 4)
		_, from := t.consume(q, 1)
		t.next(from)
		state, err := t.ch().QueueDeclarePassive(q, true, false, false, false, nil)
		t.must(err)
		t.equal("ready, consumers", []int{state.Messages, state.Consumers}, []int{3, 1})
	}},
	{id: "A12", what: "an exclusive queue used from another connection, at each node: 405; a publish is delivered", run: func(t *T) {
		q := t.name("q")
		t.declare(t.openAt(0), q, flags{exclusive: true}, nil)
		for n := range t.Nodes {
			t.lockedFor(t.connect(n), q)
		}
		t.publish(q, body("from elsewhere"))
		t.equal("delivered", string(t.mustGet(q).Body), "from elsewhere")
	}},
	{id: "A13", what: "a closed connection's exclusive queue is deleted at once; 1,000 redeclares, never 405", long: true, run: t13},
	{id: "A14", what: "auto-delete: deleted with its last consumer, not before the first, not by a get", run: func(t *T) {
		q := t.name("q")
		t.declare(t.ch(), q, flags{autoDelete: true}, nil)
		t.publish(q)
		t.must(t.mustGet(q).Ack(false))
		t.existsUntil(q, time.Now().Add(ms(300)))
		one, _ := t.consume(q, 1)
		two := t.open()
		_, err := two.Consume(q, "two", false, false, false, false, nil)
		t.must(err)
		t.must(one.Close())
		t.equal("exists", t.exists(q), true)
		t.must(two.Cancel("two", false))
		t.equal("exists", t.exists(q), false)
	}},
	{id: "A15", what: "a queue without a name: the generated one is used where none is given", run: func(t *T) {
		t.exchange("x", "fanout")
		ch := t.open()
		made := t.declare(ch, "", flags{exclusive: true}, nil)
		t.matches("name", made, `^amq\.gen-[\w-]{22}$`)
		t.must(ch.QueueBind("", "", t.name("x"), false, nil))
		from, err := ch.Consume("", "", true, false, false, false, nil)
		t.must(err)
		t.send(t.name("x"), "", body("hello"))
		t.equal("delivered", string(t.next(from).Body), "hello")
	}},
	{id: "A16", what: "x-expires 1000: deleted when unused; kept by a consumer, by gets, by redeclares", long: true, run: func(t *T) {
		lease := args("x-expires", int32(1000))
		at := time.Now()
		for _, name := range []string{"unused", "consumed", "got", "redeclared"} {
			t.declare(t.ch(), t.name(name), flags{}, lease)
		}
		t.consume(t.name("consumed"), 1)
		for next := at; time.Since(at) < ms(2500); next = next.Add(ms(500)) {
			t.waitUntil(next)
			t.mustNotGet(t.name("got"))
			t.declare(t.ch(), t.name("redeclared"), flags{}, lease)
		}
		t.soonGone(t.name("unused"), at.Add(ms(1000)))
		t.equal("consumed exists", t.exists(t.name("consumed")), true)
	}},
}}

// flags of queue.declare.
type flags struct{ durable, exclusive, autoDelete bool }

// declare declares a queue and returns its name.
func (t *T) declare(ch *amqp.Channel, name string, f flags, table amqp.Table) string {
	t.Helper()
	q, err := ch.QueueDeclare(name, f.durable, f.autoDelete, f.exclusive, false, table)
	t.must(err)
	return q.Name
}

// connect opens a connection to node n of its own; the row ends it.
func (t *T) connect(n int) *amqp.Connection {
	t.Helper()
	conn, err := client.Connect(t.ctx, t.Nodes[n].URI())
	t.must(err)
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }) // perhaps it is closed
	return conn
}

// awaitCancel waits for basic.cancel, and takes what is delivered meanwhile.
func (t *T) awaitCancel(cancelled <-chan string, from <-chan amqp.Delivery) {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case _, open := <-cancelled:
			if !open {
				t.Fatal("the channel has ended")
			}
			return
		case _, open := <-from:
			if !open {
				from = nil
			}
		case <-limit:
			t.Fatal("no basic.cancel")
		}
	}
}

// lockedFor checks that a connection may not use a queue in any way.
func (t *T) lockedFor(conn *amqp.Connection, q string) {
	t.Helper()
	for what, use := range map[string]func(ch *amqp.Channel) error{
		"consume": func(ch *amqp.Channel) error { _, err := ch.Consume(q, "", false, false, false, false, nil); return err },
		"get":     func(ch *amqp.Channel) error { _, _, err := ch.Get(q, true); return err },
		"purge":   func(ch *amqp.Channel) error { _, err := ch.QueuePurge(q, false); return err },
		"bind":    func(ch *amqp.Channel) error { return ch.QueueBind(q, "", "amq.fanout", false, nil) },
		"passive": func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(q, false, false, true, false, nil)
			return err
		},
		"declare": func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(q, false, false, true, false, nil)
			return err
		},
		"delete": func(ch *amqp.Channel) error { _, err := ch.QueueDelete(q, false, false, false); return err },
	} {
		ch, err := conn.Channel()
		t.must(err)
		if err := use(ch); !isCode(err, amqp.ResourceLocked) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// t13 redeclares an exclusive queue over and over, each time on a connection of
// its own, at each node in turn.
func t13(t *T) {
	q := t.name("q")
	for i := range 1000 {
		conn, err := client.Connect(t.ctx, t.Nodes[i%len(t.Nodes)].URI())
		t.must(err)
		ch, err := conn.Channel()
		t.must(err)
		if i%100 == 0 {
			_, err := ch.QueueDeclarePassive(q, false, false, true, false, nil)
			t.mustBe(err, amqp.NotFound, "no queue 'A13.q' in vhost '/'")
			ch, err = conn.Channel()
			t.must(err)
		}
		if _, err := ch.QueueDeclare(q, false, false, true, false, nil); err != nil {
			t.Fatal(errors.Join(fmt.Errorf("redeclare %d", i), err))
		}
		t.must(conn.Close())
	}
}
