package conform

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestDelayed(t *testing.T) { delayRows.run(t) }

const maxDelay = 315_360_000_000

var delayRows = suite{test: "TestDelayed", title: "Delayed exchanges", rows: []row{
	{id: "T-60", what: "x-delayed-message: four types; a missing, unknown or own x-delayed-type is refused", run: func(t *T) {
		for _, kind := range []string{"direct", "topic", "fanout", "headers"} {
			x := t.exchange(kind, "x-delayed-message", "x-delayed-type", kind)
			t.must(t.ch().ExchangeDeclare(x, "x-delayed-message", true, false, false, false, args("x-delayed-type", kind)))
		}
		for _, table := range []amqp.Table{nil, args("x-delayed-type", "nonsense"), args("x-delayed-type", "x-delayed-message"), args("x-delayed-type", int32(1))} {
			t.refused(amqp.PreconditionFailed, "'x-delayed-type' must be an existing exchange type", func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(t.name("bad"), "x-delayed-message", true, false, false, false, table)
			})
		}
		t.refused(amqp.PreconditionFailed, "inequivalent arg 'x-delayed-type'", func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(t.name("topic"), "x-delayed-message", true, false, false, false, args("x-delayed-type", "direct"))
		})
	}},
	{id: "T-61", what: "different delays: in the order of their due times, equal ones as published", run: func(t *T) {
		x, q := t.delayed("fanout")
		at := time.Now()
		answered := t.begins()
		var acked func() bool
		for i, d := range []int32{1000, 200, 600, 400, 200, 800} {
			acked = t.sendLater(x, "", body(fmt.Sprint(i)), headers("x-delay", d))
		}
		t.equal("acked", acked(), true)
		answered()
		t.readyUntil(q, 0, at.Add(ms(200)))
		var all []*amqp.Delivery
		for _, d := range []int{200, 200, 400, 600, 800, 1000} {
			all = append(all, t.by(at.Add(ms(d))).take(q, 1)...)
		}
		t.equal("order", bodies(all), "1 4 3 2 5 0")
	}},
	{id: "T-62", what: "once delivered, x-delay is negative and of the smallest type that clients decode correctly", run: func(t *T) {
		x, q := t.delayed("fanout")
		at := time.Now()
		t.send(x, "", headers("x-delay", int64(100)))
		t.equal("x-delay", t.by(at.Add(ms(100))).take(q, 1)[0].Headers["x-delay"], int32(-100))
	}},
	{id: "T-63", what: "x-delay of each numeric type, digits, and a fraction", run: func(t *T) {
		x, q := t.delayed("fanout")
		for _, v := range []any{int32(100), int64(100), int16(100), int8(100), byte(100), "100", 100.9, float32(100.9)} {
			at := time.Now()
			t.send(x, "", headers("x-delay", v))
			m := t.by(at.Add(ms(100))).take(q, 1)[0]
			if early := time.Until(at.Add(ms(100))); early > slack {
				t.Errorf("%T: %v early", v, early)
			}
			t.equal(fmt.Sprintf("%T", v), m.Headers["x-delay"], int32(-100))
		}
	}},
	{id: "T-64", what: "x-delay 0, negative or absent: at once", run: func(t *T) {
		x, q := t.delayed("fanout")
		for i, table := range []amqp.Table{args("x-delay", int32(0)), args("x-delay", int32(-5)), nil} {
			t.send(x, "", func(p *amqp.Publishing) { p.Headers = table })
			t.equal(fmt.Sprint(i), t.ready(q), i+1)
		}
		t.equal("kept", t.take(q, 2)[1].Headers["x-delay"], int32(-5))
	}},
	{id: "T-66", what: "x-delay too long, or not a number: 406, and the message is not kept; other exchanges ignore it", run: func(t *T) {
		x, q := t.delayed("fanout")
		plain := t.exchange("plain", "fanout")
		t.bind(q, "", plain)
		bad := []any{int64(maxDelay + 1), "99999999999999", amqp.Table{}, true, "abc", []any{}}
		for _, v := range bad {
			t.refusePublish(amqp.PreconditionFailed, "x-delay", x, "", headers("x-delay", v))
			t.equal("acked", t.send(plain, "", headers("x-delay", v)), true)
		}
		t.equal("elsewhere", t.ready(q), len(bad))
		t.refusePublish(amqp.PreconditionFailed, "x-delay", x, "", headers("x-delay", int32(100), "x-opt-delivery-delay", int32(100)))
	}},
	{id: "T-67", what: "mandatory and bound: not returned, delivered when due", run: func(t *T) {
		x, q := t.delayed("direct")
		t.bind(q, "k", x)
		at := time.Now()
		t.equal("returned", t.mandatory(x, "k", headers("x-delay", int32(200))), uint16(0))
		t.equal("yet", t.ready(q), 0)
		t.by(at.Add(ms(200))).take(q, 1)
	}},
	{id: "T-68", what: "mandatory and not bound: returned and acked, and never delivered; accepted with x-delayed-mandatory none", run: func(t *T) {
		x, q := t.delayed("direct")
		t.equal("returned", t.mandatory(x, "k", headers("x-delay", int32(300))), uint16(amqp.NoRoute))
		lax := t.exchange("lax", "x-delayed-message", "x-delayed-type", "direct", "x-delayed-mandatory", "none")
		t.equal("returned", t.mandatory(lax, "k", headers("x-delay", int32(300)), body("lax")), uint16(0))
		t.bind(q, "k", x)
		t.bind(q, "k", lax)
		t.equal("came", bodies(t.by(time.Now().Add(ms(300))).take(q, 1)), "lax")
		t.readyUntil(q, 0, time.Now().Add(ms(500)))
	}},
	{id: "T-69", what: "the alternate exchange gets messages that are unroutable when due, and none before", run: func(t *T) {
		ae, rest := t.exchange("ae", "fanout"), t.queue("rest")
		t.bind(rest, "", ae)
		x, q := t.exchange("x", "x-delayed-message", "x-delayed-type", "direct", "alternate-exchange", ae), t.queue("q")
		t.bind(q, "k", x)
		at := time.Now()
		t.send(x, "k", headers("x-delay", int32(300)))
		t.by(at.Add(ms(300))).take(q, 1)
		at = time.Now()
		t.send(x, "other", headers("x-delay", int32(300)))
		t.readyUntil(rest, 0, at.Add(ms(300)))
		t.by(at.Add(ms(300))).take(rest, 1)
	}},
	{id: "DX-5", what: "unroutable when due, with x-dead-letter-exchange: dead-lettered for that reason", run: func(t *T) {
		dlx, d := t.dead()
		x := t.exchange("x", "x-delayed-message", "x-delayed-type", "direct", "x-dead-letter-exchange", dlx)
		at := time.Now()
		t.send(x, "lost", headers("x-delay", int32(200)), expiration("60000"), body("b"))
		m := t.by(at.Add(ms(200))).take(d, 1)[0]
		t.deaths(m, 1)
		t.equal("reason", t.death(m, 0)["reason"], "unroutable")
		t.equal("keys", t.death(m, 0)["routing-keys"], []any{"lost"})
		t.equal("key", m.RoutingKey, "lost")
		t.equal("exchange", m.Exchange, dlx)
		t.equal("x-delay", m.Headers["x-delay"], int32(-200))
		t.equal("expiration", m.Expiration, "")
	}},
	{id: "T-70", what: "the expiration counts from the due time", long: true, run: func(t *T) {
		dlx, d := t.dead()
		x, q := t.exchange("x", "x-delayed-message", "x-delayed-type", "fanout"), t.queue("q", "x-dead-letter-exchange", dlx)
		t.bind(q, "", x)
		at := time.Now()
		t.send(x, "", headers("x-delay", int32(1000)), expiration("500"))
		t.readyUntil(q, 0, at.Add(ms(1000)))
		t.readyUntil(d, 0, at.Add(ms(1500)))
		t.expired(t.by(at.Add(ms(1500))).take(d, 1)[0], "500")
		at = time.Now()
		t.send(x, "", headers("x-delay", int32(300)), expiration("200000"))
		t.equal("expiration", t.by(at.Add(ms(300))).take(q, 1)[0].Expiration, "200000")
	}},
	{id: "T-71", what: "the bindings at the due time apply", run: func(t *T) {
		x, first := t.delayed("direct")
		second := t.queue("second")
		t.bind(first, "k", x)
		at := time.Now()
		t.send(x, "k", headers("x-delay", int32(1000)))
		t.must(t.ch().QueueUnbind(first, "k", x, nil))
		t.bind(second, "k", x)
		t.by(at.Add(ms(1000))).take(second, 1)
		t.equal("old", t.ready(first), 0)
	}},
	{id: "T-75", what: "the exchange deleted with its waiting messages, and declared again: nothing is delivered", long: true, lives: true, run: func(t *T) {
		x, q := t.delayed("fanout")
		for range 10 {
			t.send(x, "", headers("x-delay", int32(1000)))
		}
		at := time.Now()
		t.must(t.ch().ExchangeDelete(x, false, false))
		t.delayed("fanout")
		t.readyUntil(q, 0, at.Add(ms(1500)))
	}},
	{id: "T-76", what: "the store of a delayed exchange: consume, get, purge, delete, bind and declare are refused, a publish finds no route", run: func(t *T) {
		x, _ := t.delayed("fanout")
		store := "amq.delayed-" + x
		for name, call := range map[string]func(ch *amqp.Channel) error{
			"consume": func(ch *amqp.Channel) error {
				_, err := ch.Consume(store, "", false, false, false, false, nil)
				return err
			},
			"get":    func(ch *amqp.Channel) error { _, _, err := ch.Get(store, true); return err },
			"purge":  func(ch *amqp.Channel) error { _, err := ch.QueuePurge(store, false); return err },
			"delete": func(ch *amqp.Channel) error { _, err := ch.QueueDelete(store, false, false, false); return err },
			"bind":   func(ch *amqp.Channel) error { return ch.QueueBind(store, "", "amq.fanout", false, nil) },
			"declare": func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(store, true, false, false, false, nil)
				return err
			},
		} {
			t.Logf("%s", name)
			t.refused(amqp.AccessRefused, "operation not permitted on internal queue", call)
		}
		t.equal("returned", t.mandatory("", store), uint16(amqp.NoRoute))
	}},
	{id: "T-77", what: "a delayed exchange behind another, and behind a plain one: delayed once", long: true, run: func(t *T) {
		a := t.exchange("a", "x-delayed-message", "x-delayed-type", "fanout")
		b := t.exchange("b", "x-delayed-message", "x-delayed-type", "fanout")
		plain, q := t.exchange("plain", "fanout"), t.queue("q")
		t.must(t.ch().ExchangeBind(b, "", a, false, nil))
		t.must(t.ch().ExchangeBind(b, "", plain, false, nil))
		t.bind(q, "", b)
		for _, x := range []string{a, plain} {
			at := time.Now()
			t.send(x, "", headers("x-delay", int32(500)), body(x))
			t.readyUntil(q, 0, at.Add(ms(500)))
			m := t.by(at.Add(ms(500))).take(q, 1)[0]
			t.equal("exchange", m.Exchange, x)
			t.equal("x-delay", m.Headers["x-delay"], int32(-500))
			t.readyUntil(q, 0, time.Now().Add(ms(700)))
		}
	}},
	{id: "T-78", what: "policy delayed-max-length 3: the fourth and fifth are nacked", run: func(t *T) {
		x, _ := t.delayed("fanout")
		t.exchangePolicy("p", x, map[string]any{"delayed-max-length": 3})
		t.eventually("the limit is in force", func() error {
			for range 3 {
				t.send(x, "", headers("x-delay", int32(60000)))
			}
			if t.send(x, "", headers("x-delay", int32(60000))) {
				return errors.New("taken in")
			}
			return nil
		})
		t.equal("acked", t.send(x, "", headers("x-delay", int32(60000))), false)
		t.equal("not delayed", t.send(x, ""), true)
	}},
	{id: "T-80", what: "policy delayed-message, and the argument x-delayed-exchange: any exchange delays", run: func(t *T) {
		x, y, q := t.exchange("x", "direct"), t.exchange("y", "direct", "x-delayed-exchange", true), t.queue("q")
		t.bind(q, "k", x)
		t.bind(q, "k", y)
		t.exchangePolicy("p", x, map[string]any{"delayed-message": true})
		for _, exchange := range []string{x, y} {
			at := time.Now()
			t.send(exchange, "k", headers("x-delay", int32(300)))
			t.readyUntil(q, 0, at.Add(ms(300)))
			t.by(at.Add(ms(300))).take(q, 1)
		}
	}},
	{id: "T-82", what: "CC and BCC with a delay: every queue gets it when due, and BCC is not seen", run: func(t *T) {
		x, a := t.delayed("direct")
		b, c := t.queue("b"), t.queue("c")
		t.bind(a, "a", x)
		t.bind(b, "b", x)
		t.bind(c, "c", x)
		at := time.Now()
		t.send(x, "a", headers("x-delay", int32(300), "CC", []any{"b"}, "BCC", []any{"c"}))
		for _, q := range []string{a, b, c} {
			m := t.by(at.Add(ms(300))).take(q, 1)[0]
			t.equal("CC", m.Headers["CC"], []any{"b"})
			t.absent(m.Headers, "BCC")
		}
	}},
	{id: "T-81", what: "a transaction: the delay starts with the commit; rolled back: never delivered; commands are not part of it", long: true, run: func(t *T) {
		x, q := t.delayed("fanout")
		ch := t.open()
		t.must(ch.Tx())
		send := func(text string) {
			t.must(ch.PublishWithContext(t.ctx, x, "", false, false, amqp.Publishing{Body: []byte(text), Headers: args("x-delay", int32(500))}))
		}
		send("lost")
		t.must(ch.TxRollback())
		send("kept")
		t.readyUntil(q, 0, time.Now().Add(ms(800)))
		at := time.Now()
		t.must(ch.TxCommit())
		committed := time.Now()
		t.readyUntil(q, 0, at.Add(ms(500)))
		t.equal("came", bodies(t.by(committed.Add(ms(500))).take(q, 1)), "kept")
		t.readyUntil(q, 0, time.Now().Add(ms(300)))
		t.refused(amqp.NotImplemented, "transaction", func(ch *amqp.Channel) error {
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			t.must(ch.Tx())
			t.must(ch.PublishWithContext(t.ctx, "amq.quorate.command", "schedule.cancel", false, false, amqp.Publishing{}))
			select {
			case err := <-closed:
				return err
			case <-time.After(patience):
				return errors.New("the channel stays open")
			}
		})
	}},
	{id: "T-54", what: "the same message through a hold queue and a delayed exchange: equal except for x-death and x-delay", run: sameBothWays},
	{id: "DX-8", what: "a message that a delayed exchange has delivered, dead-lettered to it again: it is not delayed twice; one that was never delayed is", run: func(t *T) {
		x, q := t.exchange("x", "x-delayed-message", "x-delayed-type", "fanout"), t.name("q")
		t.queue("q", "x-dead-letter-exchange", x)
		t.bind(q, "", x)
		t.publish(q, headers("x-delay", int32(400)))
		at := time.Now()
		t.must(t.mustGet(q).Reject(false))
		rejected := time.Now()
		t.readyUntil(q, 0, at.Add(ms(300)))
		first := t.by(rejected.Add(ms(400))).take1(q)
		t.equal("waited", first.Headers["x-delay"], int32(-400))
		t.must(first.Reject(false))
		second := t.now().take1(q)
		t.equal("count", t.death(second, 0)["count"], int64(2))
		t.must(second.Ack(false))
	}},
	{id: "T-51", what: "7 messages in hold queues and 5 in a delayed exchange: HTTP, CLI and metrics count 7 and 5", long: true, run: func(t *T) { countsApart(newT(t.T, mustNodes(t.T, 3), t.row)) }},
	{id: "T-65", what: "x-delay of 2^32 ms and of a year: not delivered at once, listed with their due times", run: func(t *T) {
		x, q := t.delayed("fanout")
		at := time.Now().UnixMilli()
		for _, d := range []int64{31_536_000_000, 1 << 32} {
			t.send(x, "", headers("x-delay", d, "k", "v"), body("12345"))
		}
		all := t.list(t.at(x) + "/delayed?headers=true")
		t.equal("listed", len(all), 2)
		for i, d := range []int64{1 << 32, 31_536_000_000} {
			if due := int64(all[i]["due_at"].(float64)); due < at+d-slack.Milliseconds() || due > at+d+patience.Milliseconds() {
				t.Errorf("%d: due %d ms after %d", d, due-at, d)
			}
			t.equal("header", all[i]["headers"].(map[string]any)["k"], "v")
			t.equal("bytes", all[i]["bytes"], 5.0)
		}
		t.equal("delivered", t.ready(q), 0)
	}},
	{id: "T-99", what: "2500 waiting messages, in pages of 1000: in the order of their due times, without a gap; cancelled, rescheduled and fired over HTTP", run: func(t *T) {
		x, q := t.delayed("fanout")
		var acks []func() bool
		for i := range 2500 {
			acks = append(acks, t.sendLater(x, "", headers("x-delay", int32(600_000+(i*7919)%2500*10), "x-schedule-id", fmt.Sprint("id", i))))
		}
		for _, acked := range acks {
			t.equal("acked", acked(), true)
		}
		seen, last, after := map[float64]bool{}, 0.0, ""
		for range 3 {
			page := t.list(t.at(x) + "/delayed?limit=1000&after=" + after)
			for _, m := range page {
				if due := m["due_at"].(float64); due < last || seen[m["id"].(float64)] {
					t.Fatalf("%v comes after %v", m, last)
				} else {
					last, seen[m["id"].(float64)] = due, true
				}
				after = m["cursor"].(string)
			}
		}
		t.equal("seen", len(seen), 2500)
		t.http(http.MethodDelete, t.at(x)+"/delayed/id1", nil)
		t.http(http.MethodPatch, t.at(x)+"/delayed/id2", map[string]any{"delay": 0})
		t.http(http.MethodPost, t.at(x)+"/delayed/id3/fire", nil)
		t.now().take(q, 2)
		status, _, err := t.Nodes[0].Do(t.ctx, http.MethodDelete, t.at(x)+"/delayed/id3", nil)
		t.must(err)
		t.equal("too late", status, http.StatusNotFound)
		t.equal("by header", t.http(http.MethodDelete, t.at(x)+"/delayed?match=x-schedule-id=id4", nil)["messages"], 1.0)
		t.equal("the rest", t.http(http.MethodDelete, t.at(x)+"/delayed", nil)["messages"], 2496.0)
		info := t.http(http.MethodGet, t.at(x), nil)
		t.equal("fired", info["delayed_fired_total"], 2.0)
		t.equal("cancelled", info["delayed_cancelled_total"], 2498.0)
		t.equal("left", t.ready(q), 0)
	}},
	{id: "T-94", what: "schedule.cancel before it is due: ack, and never delivered; after that: nack, and 404 if mandatory", long: true, run: func(t *T) {
		x, q := t.delayed("fanout")
		for _, where := range []struct{ kind, name, exchange, key, delay string }{
			{"x-exchange", x, x, "", "x-delay"}, {"x-queue", q, "", q, "x-opt-delivery-delay"},
		} {
			at := time.Now()
			t.send(where.exchange, where.key, headers(where.delay, int32(1500), "x-schedule-id", "one"))
			t.send(where.exchange, where.key, headers(where.delay, int32(300), "x-schedule-id", "two"), body("two"))
			due := time.Now().Add(ms(300))
			cancel := headers(where.kind, where.name, "x-schedule-id", "one")
			t.command("schedule.cancel", 0, true, cancel)
			t.command("schedule.cancel", amqp.NotFound, false, cancel)
			t.equal("delivered", bodies(t.by(due).take(q, 1)), "two")
			t.command("schedule.cancel", amqp.NotFound, false, headers(where.kind, where.name, "x-schedule-id", "two"))
			t.readyUntil(q, 0, at.Add(ms(2000)))
		}
	}},
	{id: "T-96", what: "the same x-schedule-id twice: replace, reject, ignore", long: true, run: func(t *T) {
		x, q := t.delayed("fanout")
		for _, c := range []struct {
			conflict, come string
			acked          bool
		}{{"replace", "new", true}, {"reject", "old", false}, {"ignore", "old", true}} {
			send := func(text string) bool {
				return t.send(x, "", body(text), headers("x-delay", int32(400), "x-schedule-id", "id", "x-schedule-conflict", c.conflict))
			}
			t.equal(c.conflict, send("old"), true)
			t.equal(c.conflict, send("new"), c.acked)
			due := time.Now().Add(ms(400))
			t.equal(c.conflict, bodies(t.by(due).take(q, 1)), c.come)
			t.readyUntil(q, 0, time.Now().Add(ms(500)))
		}
	}},
	{id: "T-97", what: "schedule.update: earlier, later, to the past", long: true, run: func(t *T) {
		x, q := t.delayed("fanout")
		k := t.slower() // all is prepared before anything is due
		at := time.Now()
		for _, id := range []string{"earlier", "later", "past"} {
			t.send(x, "", body(id), headers("x-delay", int32(1000*k), "x-schedule-id", id))
		}
		update := func(id, header string, v any) {
			t.command("schedule.update", 0, true, headers("x-exchange", x, "x-schedule-id", id, header, v))
		}
		update("later", "x-delay", int32(2500*k))
		due := time.Now()
		update("earlier", "x-opt-delivery-time", at.Add(ms(500*k)).UnixMilli())
		update("past", "x-opt-delivery-time", int64(1000))
		t.equal("first", bodies(t.now().take(q, 1)), "past")
		t.readyUntil(q, 0, at.Add(ms(500*k)))
		t.equal("second", bodies(t.by(at.Add(ms(500*k))).take(q, 1)), "earlier")
		t.readyUntil(q, 0, at.Add(ms(2500*k)))
		t.equal("third", bodies(t.by(due.Add(ms(2500*k))).take(q, 1)), "later")
	}},
	{id: "T-98", what: "schedule.fire of the next 3 of 10: these three, in their order", run: func(t *T) {
		x, q := t.delayed("fanout")
		for i := range 10 {
			t.send(x, "", body(fmt.Sprint(i)), headers("x-delay", int32(100_000-1000*i)))
		}
		t.command("schedule.fire", 0, true, headers("x-exchange", x, "x-count", int32(3)))
		t.equal("order", bodies(t.now().take(q, 3)), "9 8 7")
		t.readyUntil(q, 0, time.Now().Add(ms(300)))
	}},
	{id: "LK-4", what: "commands: unknown verb, bad header, no such exchange, no permission: returned with the reason and nacked, the channel stays open", run: func(t *T) {
		x, _ := t.delayed("fanout")
		t.command("no.verb", amqp.NoRoute, false)
		t.command("schedule.cancel", amqp.PreconditionFailed, false, headers("x-exchange", x))
		t.command("schedule.cancel", amqp.PreconditionFailed, false, headers("x-exchange", x, "x-schedule-id", int32(1)))
		t.command("schedule.cancel", amqp.NotFound, false, headers("x-exchange", t.name("nobody"), "x-schedule-id", "a"))
		t.command("schedule.cancel", amqp.NotFound, false, headers("x-exchange", "amq.fanout", "x-schedule-id", "a"))
		t.command("schedule.cancel", amqp.AccessRefused, false, headers("x-queue", "amq.delayed-"+x, "x-schedule-id", "a"))
		t.must(t.ch().ExchangeDeclarePassive("amq.quorate.command", "x-command", true, false, false, false, nil))
		for name, call := range map[string]func(ch *amqp.Channel) error{
			"declare": func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare("amq.quorate.command", "direct", true, false, false, false, nil)
			},
			"delete": func(ch *amqp.Channel) error { return ch.ExchangeDelete("amq.quorate.command", false, false) },
			"bind":   func(ch *amqp.Channel) error { return ch.ExchangeBind(x, "", "amq.quorate.command", false, nil) },
		} {
			t.Logf("%s", name)
			t.refused(amqp.AccessRefused, "amq", call)
		}
	}},
}}

// at is the path of an exchange in the HTTP API.
func (t *T) at(exchange string) string { return "/api/exchanges/%2F/" + exchange }

// call asks the HTTP API, which must succeed, and reads the answer.
func (t *T) call(method, path string, in, out any) {
	t.Helper()
	status, answer, err := t.Nodes[2].Do(t.ctx, method, path, in)
	t.must(err)
	if status/100 != 2 {
		t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	if len(answer) > 0 {
		t.must(json.Unmarshal(answer, out))
	}
}

func (t *T) http(method, path string, in any) map[string]any {
	t.Helper()
	var out map[string]any
	t.call(method, path, in, &out)
	return out
}

func (t *T) list(path string) []map[string]any {
	t.Helper()
	var out []map[string]any
	t.call(http.MethodGet, path, nil, &out)
	return out
}

// command publishes a command, mandatory, and checks the code it is returned
// with and whether it is acked.
func (t *T) command(verb string, code int, acked bool, options ...option) {
	t.Helper()
	returned, ok := t.ask("amq.quorate.command", verb, options...)
	if int(returned) != code || ok != acked {
		t.Fatalf("%s: returned with %d, acked %v; not %d, %v", verb, returned, ok, code, acked)
	}
}

// delayed declares a delayed exchange x and a queue q; a fanout is bound to it.
func (t *T) delayed(kind string) (x, q string) {
	t.Helper()
	x, q = t.exchange("x", "x-delayed-message", "x-delayed-type", kind), t.queue("q")
	if kind == "fanout" {
		t.bind(q, "", x)
	}
	return x, q
}

// mandatory publishes a mandatory message, which must be acked, and returns the
// code it was returned with; 0: it was not.
func (t *T) mandatory(exchange, key string, options ...option) uint16 {
	t.Helper()
	code, acked := t.ask(exchange, key, options...)
	t.equal("acked", acked, true)
	return code
}

// ask publishes a mandatory message and returns the code it was returned with,
// and whether it was acked.
func (t *T) ask(exchange, key string, options ...option) (code uint16, acked bool) {
	t.Helper()
	ch := t.open()
	defer ch.Close()
	t.must(ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	p := amqp.Publishing{DeliveryMode: amqp.Persistent}
	for _, o := range options {
		o(&p)
	}
	c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, exchange, key, true, false, p)
	t.must(err)
	acked, err = c.WaitContext(t.ctx)
	t.must(err)
	select {
	case r := <-returns:
		return r.ReplyCode, acked
	default:
		return 0, acked
	}
}

// exchangePolicy sets a policy for an exchange.
func (t *T) exchangePolicy(name, exchange string, definition map[string]any) {
	t.Helper()
	status, answer, err := t.Nodes[0].Do(t.ctx, http.MethodPut, "/api/policies/%2F/"+t.name(name), map[string]any{
		"pattern": "^" + exchange + "$", "apply-to": "exchanges", "definition": definition,
	})
	t.must(err)
	if status/100 != 2 {
		t.Fatalf("policy: %d %s", status, answer)
	}
}

func sameBothWays(t *T) {
	x, q := t.delayed("direct")
	t.bind(q, "ship", x)
	hold := t.queue("hold", "x-message-ttl", int32(300), "x-dead-letter-exchange", x, "x-dead-letter-routing-key", "ship")
	full := func(p *amqp.Publishing) {
		p.Headers["k"] = "v"
		p.ContentType, p.ContentEncoding, p.CorrelationId, p.ReplyTo = "text/plain", "utf-8", "c", "r"
		p.MessageId, p.Type, p.AppId, p.UserId, p.Priority = "m", "t", "a", "guest", 7
		p.Timestamp, p.Body = time.Unix(1_700_000_000, 0).UTC(), []byte("body")
	}
	at := time.Now()
	t.send("", hold, headers(), full)
	held := t.by(at.Add(ms(300))).take(q, 1)[0]
	at = time.Now()
	t.send(x, "ship", headers("x-delay", int32(300)), full)
	delayed := t.by(at.Add(ms(300))).take(q, 1)[0]
	t.equal("x-delay", delayed.Headers["x-delay"], int32(-300))
	for _, m := range []*amqp.Delivery{held, delayed} {
		for name := range m.Headers {
			if name != "k" {
				delete(m.Headers, name)
			}
		}
		m.DeliveryTag, m.Acknowledger = 0, nil
	}
	t.equal("message", fmt.Sprintf("%+v", *held), fmt.Sprintf("%+v", *delayed))
}
