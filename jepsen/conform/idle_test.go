package conform

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// idleMin is what the shared cluster lets queues be idle for, at least.
const idleMin = 500

func TestIdle(t *testing.T) {
	c := shared.mustGet(t)
	if err := c.Nodes[0].PutSetting(context.Background(), "auto_delete_on_idle_min", idleMin); err != nil {
		t.Fatal(err)
	}
	idleRows.run(t)
}

var idleRows = suite{test: "TestIdle", title: "Deletion of idle queues", rows: []row{
	{id: "T-160", what: "publishes keep an idle queue, but not a leased one", long: true, run: func(t *T) {
		at := time.Now()
		idle, leased := t.idle("idle"), t.queue("leased", "x-expires", t.shortMS())
		gone := false
		last := t.every(ms(500), ms(5000), func() {
			t.publish(idle)
			if gone = gone || !t.exists(leased); !gone {
				t.send("", leased)
			}
		})
		t.existsUntil(idle, last.Add(t.short()))
		t.soonGone(idle, last.Add(t.short()))
		t.soonGone(leased, at.Add(t.short()))
	}},
	{id: "T-163", what: "a consumer without traffic keeps a queue; the time starts when it ends", long: true, run: func(t *T) {
		q := t.idle("q")
		ch, _ := t.consume(q, 1)
		t.existsUntil(q, time.Now().Add(ms(5000)))
		at := time.Now()
		t.must(ch.Close())
		t.existsUntil(q, at.Add(t.short()))
		t.soonGone(q, at.Add(t.short()))
	}},
	{id: "T-164", what: "binding, unbinding and policies keep a queue, each by itself", long: true, run: func(t *T) {
		x := t.exchange("x", "fanout")
		bound, unbound, ruled := t.idle("bound"), t.idle("unbound"), t.idle("ruled")
		const steps = 6
		for n := range steps {
			t.bind(unbound, fmt.Sprint(n), x)
		}
		n := 0
		last := t.every(ms(1000), ms(1000*(steps-1)), func() {
			t.bind(bound, fmt.Sprint(n), x)
			t.must(t.ch().QueueUnbind(unbound, fmt.Sprint(n), x, nil))
			t.policy("p", ruled, n, definition{"max-length": 100 + n})
			n++
		})
		ended := time.Now()
		for _, q := range []string{bound, unbound, ruled} {
			t.existsUntil(q, last.Add(t.short()))
		}
		for _, q := range []string{bound, unbound, ruled} {
			t.soonGone(q, ended.Add(t.short()))
		}
	}},
	{id: "T-165", what: "reading counts does not keep a queue", long: true, run: func(t *T) {
		at := time.Now()
		q := t.idle("q")
		t.existsUntil(q, at.Add(t.short())) // asks passively, and often
		t.soonGone(q, at.Add(t.short()))
	}},
	{id: "T-166", what: "a time below the permitted minimum: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-auto-delete-on-idle' for queue 'T-166.q' in vhost '/'", "x-auto-delete-on-idle", int32(idleMin-1))
	}},
	{id: "T-161", what: "viewing messages over HTTP keeps an idle queue, but not a leased one", long: true, run: func(t *T) {
		at := time.Now()
		q, leased := t.idle("q"), t.queue("leased", "x-expires", t.shortMS())
		last := t.every(ms(500), ms(4000), func() {
			t.peek(q, "")
			t.tryPeek(leased, "") // until it is gone
		})
		t.existsUntil(q, last.Add(t.short()))
		t.soonGone(q, last.Add(t.short()))
		t.soonGone(leased, at.Add(t.short()))
	}},
	{id: "SB-46i", what: "a queue that forwards is never idle, but a leased one ends; what waits in it is sent on or goes with it", long: true, run: func(t *T) {
		at, to := time.Now(), t.queue("to")
		way := []any{"x-forward-to-exchange", "", "x-forward-to-routing-key", to}
		q, leased := t.queue("q", append(way, "x-auto-delete-on-idle", t.shortMS())...), t.queue("leased", append(way, "x-expires", t.shortMS())...)
		t.publish(leased)
		t.take(to, 1)
		t.soonGone(leased, at.Add(t.short()))
		t.existsUntil(q, at.Add(ms(4500)))
	}},
	{id: "T-162", what: "a scheduled message keeps an idle queue", long: true, run: func(t *T) {
		q := t.idle("q")
		at := t.publish(q, headers("x-opt-delivery-delay", int32(3500)))
		t.existsUntil(q, at.Add(ms(3500)+t.short()))
		t.soonGone(q, at.Add(ms(3500)+t.short()))
	}},
	{id: "Q-I1", what: "a message that waits for its next retry keeps an idle queue, but not a leased one; a deferred message keeps neither", long: true, run: func(t *T) {
		wait, idle := 3500, int(t.shortMS())
		q := t.queue("q", "x-auto-delete-on-idle", int32(idle), "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(wait))
		leased := t.queue("leased", "x-expires", int32(idle), "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(wait))
		parked := t.idle("parked")
		at := map[string]time.Time{}
		for _, queue := range []string{q, leased, parked} {
			w := t.workerOn(t.open(), queue, 1)
			t.publish(queue)
			d := t.now().next(w.from)
			at[queue] = time.Now()
			if queue == parked {
				w.does("message.defer", 0, "x-delivery-tag", int64(d.DeliveryTag), "x-deferral-token", "token")
			} else {
				t.must(d.Nack(false, true))
			}
			t.must(w.ch.Close())
		}
		closed := time.Now()
		t.soonGone(leased, closed.Add(ms(idle)))
		t.soonGone(parked, closed.Add(ms(idle)))
		t.existsUntil(q, at[q].Add(ms(wait+idle)))
		t.soonGone(q, closed.Add(ms(wait+idle)))
	}},
	{id: "T-167", what: "an exchange is kept while it, or a queue bound to it, is in use; then it is deleted", long: true, run: func(t *T) {
		at := time.Now()
		idle := func(name string) string { return t.exchange(name, "fanout", "x-auto-delete-on-idle", t.shortMS()) }
		quiet, fed, passed, bound, served := idle("quiet"), idle("fed"), idle("passed"), idle("bound"), idle("served")
		from := t.exchange("from", "fanout")
		t.must(t.ch().ExchangeBind(passed, "", from, false, nil))
		delays := t.exchange("delays", "x-delayed-message", "x-delayed-type", "fanout", "x-auto-delete-on-idle", t.shortMS())
		t.send(delays, "", headers("x-delay", int32(5000)))
		busy, read := t.queue("busy"), t.queue("read")
		t.bind(busy, "", bound)
		t.bind(read, "", served)
		ch, _ := t.consume(read, 1)
		t.exchangeUntil(quiet, at.Add(t.short()))
		last := t.every(ms(500), ms(5000), func() {
			t.send(fed, "")
			t.send(from, "")
			t.publish(busy)
		})
		t.must(ch.Close())
		for _, x := range []string{fed, passed, bound, served, delays} {
			t.equal(x+" is there", t.hasExchange(x), true)
		}
		t.exchangeUntil(bound, last.Add(t.short()))
		ended := time.Now().Add(t.short())
		due := map[string]time.Time{quiet: at.Add(t.short()), fed: ended, passed: ended, bound: ended, served: ended, delays: at.Add(ms(5000) + t.short())}
		for _, x := range []string{quiet, fed, passed, bound, served, delays} {
			t.by(due[x]).eventually(x+" is gone", func() error {
				if t.hasExchange(x) {
					return errors.New("it exists")
				}
				return nil
			})
		}
		t.metric(1, "quorate_exchanges_expired_total")
		t.refuseExchange(amqp.PreconditionFailed, "invalid arg 'x-auto-delete-on-idle' for exchange 'low' in vhost '/': {value_too_small,499}",
			"low", "fanout", true, "x-auto-delete-on-idle", int32(idleMin-1))
	}},
	{id: "T-169", what: "a lease ends while a dead letter waits: the queue is deleted when the letter has arrived", long: true, run: func(t *T) {
		q := t.queue("q", "x-expires", int32(1000), "x-dead-letter-exchange", t.name("X"), "x-dead-letter-strategy", "at-least-once")
		t.publish(q)
		t.must(t.take1(q).Reject(false))
		t.pending(q, 1)
		t.waitUntil(time.Now().Add(ms(2500)))
		_, d := t.dead()
		t.take(d, 1)
		t.soonGone(q, time.Now())
	}},
	{id: "T-168", what: "publishes through an exchange keep a queue only if it is set to count them", long: true, run: func(t *T) {
		at := time.Now()
		x := t.exchange("x", "fanout")
		plain := t.idle("plain")
		counts := t.queue("counts", "x-auto-delete-on-idle", t.shortMS(), "x-idle-counts-routed", true)
		t.bind(plain, "", x)
		t.bind(counts, "", x)
		last := t.every(ms(500), ms(5000), func() { t.send(x, "") })
		t.existsUntil(counts, last.Add(t.short()))
		t.soonGone(plain, at.Add(t.short()))
		t.soonGone(counts, last.Add(t.short()))
	}},
}}

// hasExchange reports whether an exchange is there. Asking is no use of it.
func (t *T) hasExchange(name string) bool {
	t.Helper()
	ch := t.open()
	defer ch.Close()
	err := ch.ExchangeDeclarePassive(name, "fanout", true, false, false, false, nil)
	if err != nil && !isCode(err, amqp.NotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// exchangeUntil checks that an exchange is there all the time until an instant.
func (t *T) exchangeUntil(name string, until time.Time) {
	t.Helper()
	t.holdsUntil(until, func() error {
		if !t.hasExchange(name) {
			return fmt.Errorf("%s is gone", name)
		}
		return nil
	})
}

// short is a short time for which a queue is not used: longer than what a row does to use it takes.
func (t *T) short() time.Duration { return ms(int(t.shortMS())) }

func (t *T) shortMS() int32 { return int32(1500 * t.slower()) }

// idle declares a queue that ends after a short time without use.
func (t *T) idle(name string) string {
	t.Helper()
	return t.queue(name, "x-auto-delete-on-idle", t.shortMS())
}
