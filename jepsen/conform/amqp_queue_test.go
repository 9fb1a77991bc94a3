package conform

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

const lockedText = "cannot obtain exclusive access to locked queue '%s' in vhost '/'. It could be originally declared on another connection"

// second opens a connection of its own to node 1.
func (t *T) second() *amqp.Connection {
	t.Helper()
	conn, err := client.Connect(t.ctx, t.Nodes[1].URI())
	t.must(err)
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	return conn
}

// each checks that calls, each on a channel of its own, are refused.
func (t *T) each(conn *amqp.Connection, code int, words string, calls map[string]func(ch *amqp.Channel) error) {
	t.Helper()
	for what, call := range calls {
		ch, err := conn.Channel()
		t.must(err)
		t.Log(what)
		t.mustBe(call(ch), code, words)
	}
}

var queueRows = []row{
	{id: "A064", what: "names: reserved, made by the server, long", run: func(t *T) {
		t.refused(amqp.AccessRefused, "queue name 'amq.x' contains reserved prefix 'amq.*'", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("amq.x", true, false, false, false, nil)
			return err
		})
		q, err := t.ch().QueueDeclare("", false, false, true, false, nil)
		t.must(err)
		if !regexp.MustCompile(`^amq\.gen-[\w-]{22}$`).MatchString(q.Name) {
			t.Errorf("the server's name is %q", q.Name)
		}
		q, err = t.ch().QueueDeclare("", false, false, true, false, args("x-name-prefix", "mine."))
		t.must(err)
		if !regexp.MustCompile(`^mine\.[\w-]{22}$`).MatchString(q.Name) {
			t.Errorf("the server's name is %q", q.Name)
		}
		t.refused(amqp.PreconditionFailed, "exceeds the 64-byte limit", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("", false, false, true, false, args("x-name-prefix", strings.Repeat("p", 65)))
			return err
		})
		t.local(strings.Repeat("n", 255-len(t.name(""))))
		q, err = t.ch().QueueDeclare(t.name("a\r\nb"), false, false, true, false, nil)
		t.must(err)
		t.equal("name", q.Name, t.name("ab"))
	}},
	{id: "A066", what: "quorum with exclusive, auto-delete, not durable, without a name", run: func(t *T) {
		for _, c := range []struct {
			name                           string
			durable, autoDelete, exclusive bool
		}{{t.name("e"), true, false, true}, {t.name("a"), true, true, false}, {t.name("n"), false, false, false}, {"", true, false, true}} {
			_, err := t.ch().QueueDeclare(c.name, c.durable, c.autoDelete, c.exclusive, false, with())
			t.must(err)
		}
	}},
	{id: "A067", what: "every argument that is none: 406 with its reason", run: badArguments},
	{id: "A068", what: "declared again with another integer type; with another value", run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int32(60000))
		for _, same := range []any{int64(60000), uint16(60000)} {
			t.queue("q", "x-message-ttl", same)
		}
		for words, pairs := range map[string][]any{
			"received '60001' but current is '60000'":                            {"x-message-ttl", int32(60001)},
			"received '60000' but current is '60000'":                            {"x-message-ttl", "60000"},
			"received none but current is the value '60000' of type 'signedint'": {},
		} {
			t.refuseDeclare("q", "inequivalent arg 'x-message-ttl' for queue '"+q+"' in vhost '/': "+words, pairs...)
		}
	}},
	{id: "A069", what: "an exclusive queue and another connection: seven refusals; a publish arrives", run: func(t *T) {
		q, other := t.local("q"), t.second()
		declare := func(ch *amqp.Channel, passive, exclusive bool) error {
			if passive {
				_, err := ch.QueueDeclarePassive(q, false, false, exclusive, false, nil)
				return err
			}
			_, err := ch.QueueDeclare(q, false, false, exclusive, false, nil)
			return err
		}
		ready, err := other.Channel()
		t.must(err)
		t.level(ready)
		t.each(other, amqp.ResourceLocked, fmt.Sprintf(lockedText, q), map[string]func(ch *amqp.Channel) error{
			"declare":         func(ch *amqp.Channel) error { return declare(ch, false, true) },
			"passive declare": func(ch *amqp.Channel) error { return declare(ch, true, true) },
			"consume":         func(ch *amqp.Channel) error { _, err := ch.Consume(q, "", false, false, false, false, nil); return err },
			"get":             func(ch *amqp.Channel) error { _, _, err := ch.Get(q, true); return err },
			"purge":           func(ch *amqp.Channel) error { _, err := ch.QueuePurge(q, false); return err },
			"delete":          func(ch *amqp.Channel) error { _, err := ch.QueueDelete(q, false, false, false); return err },
			"bind":            func(ch *amqp.Channel) error { return ch.QueueBind(q, "k", "amq.direct", false, nil) },
		})
		t.refused(amqp.ResourceLocked, fmt.Sprintf(lockedText, q), func(ch *amqp.Channel) error { return declare(ch, false, false) })
		ch, err := other.Channel()
		t.must(err)
		t.must(ch.PublishWithContext(t.ctx, "", q, false, false, amqp.Publishing{Body: []byte("x")}))
		t.equal("body", bodies(t.take(q, 1)), "x")
	}},
	{id: "A070", what: "no name and nothing declared: 404", run: func(t *T) {
		t.each(t.conn(0), amqp.NotFound, "NOT_FOUND - no previously declared queue", map[string]func(ch *amqp.Channel) error{
			"get": func(ch *amqp.Channel) error { _, _, err := ch.Get("", true); return err },
			"consume": func(ch *amqp.Channel) error {
				_, err := ch.Consume("", "", false, false, false, false, nil)
				return err
			},
			"bind":   func(ch *amqp.Channel) error { return ch.QueueBind("", "k", "amq.direct", false, nil) },
			"unbind": func(ch *amqp.Channel) error { return ch.QueueUnbind("", "k", "amq.direct", nil) },
			"purge":  func(ch *amqp.Channel) error { _, err := ch.QueuePurge("", false); return err },
			"delete": func(ch *amqp.Channel) error { _, err := ch.QueueDelete("", false, false, false); return err },
		})
		// The last one declared is meant, and its name is the key.
		q := t.local("q")
		t.bind("", "", "amq.direct")
		t.send("amq.direct", q, body("x"))
		t.equal("drained", t.emptied(""), []string{"x"})
	}},
	{id: "A071", what: "unbinding, deleting, purging what is not there", run: func(t *T) {
		none := t.name("none")
		t.must(t.ch().QueueUnbind(none, "k", "amq.direct", nil))
		n, err := t.ch().QueueDelete(none, false, false, false)
		t.must(err)
		t.equal("deleted", n, 0)
		t.refused(amqp.NotFound, "no queue 'A071.none' in vhost '/'", func(ch *amqp.Channel) error {
			_, err := ch.QueuePurge(none, false)
			return err
		})
	}},
	{id: "A072", what: "delete if empty, if unused, at all: its consumer is told", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 2)
		t.refused(amqp.PreconditionFailed, "queue 'A072.q' in vhost '/' not empty", func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(q, false, true, false)
			return err
		})
		ch, from := t.consume(q, 1)
		gone := ch.NotifyCancel(make(chan string, 1))
		d := t.next(from)
		t.refused(amqp.PreconditionFailed, "queue 'A072.q' in vhost '/' in use", func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(q, true, false, false)
			return err
		})
		n, err := t.ch().QueueDelete(q, false, false, false)
		t.must(err)
		t.equal("deleted", n, 1)
		select {
		case tag := <-gone:
			t.equal("tag", tag, d.ConsumerTag)
		case <-time.After(patience):
			t.Fatal("no cancel")
		}
		t.must(d.Ack(false))
		t.must(ch.Qos(1, 0, false)) // the late ack is no error
	}},
	{id: "A073", what: "auto-delete: gone with its last consumer", run: func(t *T) {
		q := t.name("q")
		_, err := t.ch().QueueDeclare(q, true, true, false, false, nil)
		t.must(err)
		t.publish(q)
		t.mustGet(q)
		ch, other := t.open(), t.open()
		for _, c := range []*amqp.Channel{ch, other} {
			_, err := c.Consume(q, "tag", false, false, false, false, nil)
			t.must(err)
		}
		t.must(other.Close())
		if !t.exists(q) {
			t.Fatal("gone with a consumer left")
		}
		t.must(ch.Cancel("tag", false))
		t.soonGone(q, time.Now())
	}},
	{id: "A074", what: "x-expires 1000: gone when idle, not when gets come", run: func(t *T) {
		idle, used := t.queue("idle", "x-expires", int32(1000)), t.queue("used", "x-expires", int32(1000))
		at := time.Now()
		for time.Since(at) < ms(2500) {
			t.mustNotGet(used)
		}
		t.soonGone(idle, at.Add(ms(1000)))
	}},
}

func badArguments(t *T) {
	const queue = "invalid arg '%s' for queue 'A067.q' in vhost '/'%s"
	for _, c := range []struct {
		name   string
		value  any
		reason string
	}{
		{"x-queue-type", "stream", `: "unsupported queue type 'stream'"`},
		{"x-queue-type", int32(5), ": {unacceptable_type,signedint}"},
		{"x-message-ttl", int32(-1), ": {value_negative,-1}"},
		{"x-message-ttl", int64(315360000001), ": {value_too_large,315360000001}"},
		{"x-message-ttl", "5", `: "expected integer, got longstr"`},
		{"x-expires", int32(0), ": {value_zero,0}"},
		{"x-max-length", int32(-1), ": {value_negative,-1}"},
		{"x-max-length-bytes", int32(-1), ": {value_negative,-1}"},
		{"x-overflow", "other", ": invalid_overflow"},
		{"x-dead-letter-routing-key", "k", ": routing_key_but_no_dlx_defined"},
		{"x-dead-letter-strategy", "other", ": invalid_dlx_strategy"},
		{"x-single-active-consumer", "yes", ": {unacceptable_type,longstr}"},
		{"x-consumer-timeout", int32(-1), ": {value_negative,-1}"},
		{"x-consumer-disconnected-timeout", "5", `: "expected integer, got longstr"`},
		{"x-quorum-initial-group-size", int32(0), ": {value_zero,0}"},
		{"x-queue-leader-locator", "other", ": invalid_queue_locator_arg"},
		{"x-delivery-limit", "a", `: "expected integer, got longstr"`},
		{"x-delayed-retry-type", "other", ": invalid_delayed_retry_type"},
		{"x-max-priority", int32(5), " of queue type rabbit_quorum_queue"},
		{"x-queue-mode", "lazy", " of queue type rabbit_quorum_queue"},
		{"x-max-age", "1h", " of queue type rabbit_quorum_queue"},
		{"x-stream-max-segment-size-bytes", int32(5), " of queue type rabbit_quorum_queue"},
	} {
		t.refuseDeclare("q", fmt.Sprintf(queue, c.name, c.reason), c.name, c.value)
	}
	t.refuseDeclare("q", "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'A067.q' in vhost '/'", "x-dead-letter-exchange", int32(5))
	t.refused(amqp.PreconditionFailed, "{max_value_exceeded,256}", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(t.name("q"), true, false, false, false, args("x-max-priority", int32(256)))
		return err
	})
}
