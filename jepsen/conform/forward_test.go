package conform

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
)

func TestForward(t *testing.T) { forwardRows.run(t) }

var forwardRows = suite{test: "TestForward", title: "Forwarding", rows: []row{
	{id: "SB-46", what: "forward to a queue: everything goes there in order, unchanged", run: func(t *T) {
		to := t.queue("to")
		q := t.queue("q", "x-forward-to-exchange", "", "x-forward-to-routing-key", to)
		for n := range 10 {
			t.publish(q, body(fmt.Sprint(n+1)), headers("h", "v"))
		}
		all := t.take(to, 10)
		t.equal("order", bodies(all), numbers(10))
		t.equal("header", all[0].Headers["h"], "v")
		t.absent(all[0].Headers, "x-death")
		t.settled(q)
	}},
	{id: "SB-46x", what: "forward to an exchange: by the message's own key, and kept while there is no way", run: func(t *T) {
		x, topic := t.exchange("X", "direct"), t.exchange("T", "topic")
		q, a := t.queue("q", "x-forward-to-exchange", x), t.queue("a")
		t.bind(q, "#", topic)
		t.send(topic, "k")
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Messages) }, "0 1")
		t.bind(a, "k", x)
		m := t.take(a, 1)[0]
		t.equal("from", m.Exchange+" "+m.RoutingKey, x+" k")
		t.settled(q)
	}},
	{id: "SB-46h", what: "forwarded a fifth time: dead-lettered with the reason maxhops", run: func(t *T) {
		x, d := t.dead()
		for n := range 5 {
			t.queue(fmt.Sprint("q", n), "x-forward-to-exchange", "", "x-forward-to-routing-key", t.name(fmt.Sprint("q", n+1)), "x-dead-letter-exchange", x)
		}
		t.queue("q5")
		t.publish(t.name("q0"))
		m := t.take(d, 1)[0]
		t.equal("death", fmt.Sprint(t.death(m, 0)["reason"], " ", t.death(m, 0)["queue"]), "maxhops "+t.name("q4"))
		t.publish(t.name("q1"))
		t.take(t.name("q5"), 1)
	}},
	{id: "SB-46y", what: "a cycle of forwarding queues, or one that forwards to itself, ends as the fifth forward does", run: func(t *T) {
		x, d := t.dead()
		a := t.forwards("a", t.name("b"), "x-dead-letter-exchange", x)
		b := t.forwards("b", a)
		self := t.forwards("self", t.name("self"), "x-dead-letter-exchange", x)
		for _, q := range []string{a, self} {
			t.publish(q)
			m := t.take(d, 1)[0]
			t.equal("death", fmt.Sprint(t.death(m, 0)["reason"], " ", t.death(m, 0)["queue"]), "maxhops "+q)
			t.settled(q)
		}
		t.settled(b)
		t.publish(b) // it dies in b, which has no dead-letter exchange
		t.count(b, func(q cluster.Queue) string { return fmt.Sprint(q.Deaths, q.Messages) }, "map[maxhops:map[disabled:1]] 0")
	}},
	{id: "SB-46f", what: "a full target refuses: what it refused is kept, does not expire, and goes there in order of retries, each once", run: func(t *T) {
		to := t.queue("to", "x-max-length", int32(2), "x-overflow", "reject-publish")
		q := t.forwards("q", to)
		for n := range 5 {
			t.publish(q, body(fmt.Sprint(n+1)))
		}
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Messages, q.Forwarding, q.Forwarded) }, "0 3 3 2")
		seen := map[string]bool{}
		for n := range 5 {
			m := t.take(to, 1)[0] // what is refused is tried again after ten seconds, or when its queue's settings change
			if seen[string(m.Body)] {
				t.Fatalf("%s came twice", m.Body)
			}
			seen[string(m.Body)] = true
			t.policy("wake", q, 0, map[string]any{"max-length": 100 + n})
		}
		t.settled(q)
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Forwarded, q.DeadConfirmed) }, "5 0")
	}},
	{id: "SB-46z", what: "a cycle of forwarding and of dead-lettering ends after four forwards, as one of forwarding does", run: func(t *T) {
		x, d := t.dead()
		q := t.forwards("q", t.name("ttl"), "x-dead-letter-exchange", x)
		ttl := t.queue("ttl", "x-message-ttl", int32(10), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", q)
		at := t.publish(q)
		m := t.by(at.Add(ms(4*10))).take(d, 1)[0]
		t.equal("death", fmt.Sprint(t.death(m, 0)["reason"], " ", t.death(m, 0)["queue"]), "maxhops "+q)
		t.settled(q)
		t.settled(ttl)
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Forwarded) }, "4")
	}},
	{id: "SB-46w", what: "a full target with reject-publish-dlx does not dead-letter what a queue forwards to it, which keeps that, whatever else is declared", run: func(t *T) {
		x, d := t.dead()
		to := t.queue("to", "x-max-length", int32(1), "x-overflow", "reject-publish-dlx", "x-dead-letter-exchange", x)
		q := t.forwards("q", to)
		t.publish(to)
		t.publish(q)
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Forwarding) }, "0 1")
		for n := range 5 {
			t.queue(fmt.Sprint("other", n))
		}
		t.holdsUntil(time.Now().Add(ms(500)), func() error {
			if n := t.ready(d); n != 0 {
				return fmt.Errorf("%d dead letters", n)
			}
			return nil
		})
	}},
	{id: "SB-46e", what: "a TTL does not run on the way, and begins anew in the target", long: true, run: func(t *T) {
		x, dead := t.exchange("X", "fanout"), t.exchange("DX", "fanout")
		q, to, d := t.queue("q", "x-forward-to-exchange", x), t.queue("to", "x-dead-letter-exchange", dead), t.queue("D")
		t.bind(d, "", dead)
		at := t.publish(q, expiration("700"))
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Forwarding) }, "0 1")
		t.waitUntil(at.Add(ms(1200)))
		bound := time.Now()
		t.bind(to, "", x)
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Messages) }, "0")
		arrived := time.Now()
		m := t.by(arrived.Add(ms(700))).take(d, 1)[0]
		if lived := time.Since(bound); lived < ms(700)-slack {
			t.Errorf("it lived for %v", lived)
		}
		t.expired(m, "700")
		t.equal("died in", t.death(m, 0)["queue"], to)
	}},
	{id: "SB-46m", what: "a target that is missing, or deleted, is waited for; nothing is lost and nothing comes twice", run: func(t *T) {
		to := t.name("to")
		q := t.forwards("q", to)
		t.publish(q, body("1"))
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Forwarding, q.DeadWaiting) }, "0 1 1")
		t.queue("to")
		t.equal("first", bodies(t.take(to, 1)), "1")
		t.settled(q)
		_, err := t.ch().QueueDelete(to, false, false, false)
		t.must(err)
		t.publish(q, body("2"))
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Forwarding) }, "0 1")
		t.queue("to")
		t.equal("second", bodies(t.take(to, 1)), "2")
		t.settled(q)
		t.settled(to)
	}},
	{id: "SB-46u", what: "a policy forwards from a queue with a consumer: it keeps what it has and gets nothing more, until the policy ends", run: func(t *T) {
		q, to := t.queue("q"), t.queue("to")
		for n := range 3 {
			t.publish(q, body(fmt.Sprint(n+1)))
		}
		_, from := t.consume(q, 2)
		first, second := t.next(from), t.next(from)
		t.policy("p", q, 0, map[string]any{"forward-to-exchange": "", "forward-to-routing-key": to})
		t.equal("forwarded", bodies(t.take(to, 1)), "3")
		t.must(first.Nack(false, true))
		t.equal("returned", bodies(t.take(to, 1)), "1")
		t.must(second.Ack(false))
		t.publish(q, body("4"))
		t.equal("published", bodies(t.take(to, 1)), "4")
		t.clearPolicy("p", q)
		t.eventually("it is handed out again", func() error {
			t.publish(q, body("5"))
			select {
			case d := <-from:
				return d.Ack(false)
			case <-time.After(poll):
				return errors.New("it is not")
			}
		})
	}},
	{id: "SB-46d", what: "scheduled messages and those of delayed exchanges go on when they are due, and are not delayed again", long: true, run: func(t *T) {
		to := t.queue("to")
		x := t.exchange("x", "x-delayed-message", "x-delayed-type", "fanout")
		again := t.exchange("again", "x-delayed-message", "x-delayed-type", "fanout")
		last := t.queue("last")
		t.bind(last, "", again)
		q, p := t.forwards("q", to), t.queue("p", "x-forward-to-exchange", again)
		t.bind(p, "", x)
		at := t.publish(q, headers("x-opt-delivery-delay", int32(1000)))
		t.readyUntil(to, 0, at.Add(ms(1000)))
		m := t.by(at.Add(ms(1000))).take(to, 1)[0]
		t.absent(m.Headers, "x-opt-delivery-delay")
		if due, ok := m.Headers["x-scheduled-for"].(int64); !ok || due < at.Add(ms(1000)).Add(-slack).UnixMilli() {
			t.Errorf("scheduled for %v", m.Headers["x-scheduled-for"])
		}
		at = time.Now()
		t.send(x, "", headers("x-delay", int32(1000)))
		t.readyUntil(last, 0, at.Add(ms(1000)))
		t.by(at.Add(ms(1000))).take(last, 1)
		t.publish(p, headers("x-delay", int32(1000))) // it has not waited yet
		at = time.Now()
		t.readyUntil(last, 0, at.Add(ms(900)))
		t.by(at.Add(ms(1000))).take(last, 1)
	}},
	{id: "SB-46a", what: "who declares a forwarding queue may read it, and write to the exchange: otherwise 403", run: func(t *T) {
		x := t.name("X")
		for _, c := range []struct{ name, write, read, words string }{
			{"w", "^nothing$", ".*", "write access to exchange '" + x + "' in vhost '/' refused for user '" + t.name("w") + "'"},
			{"r", ".*", "^nothing$", "read access to queue '" + t.name("q") + "' in vhost '/' refused for user '" + t.name("r") + "'"},
		} {
			_, err := t.user(c.name, ".*", c.write, c.read).QueueDeclare(t.name("q"), true, false, false, false, with("x-forward-to-exchange", x))
			t.mustBe(err, amqp.AccessRefused, c.words)
		}
		_, err := t.user("both", ".*", "^"+x+"$", "^"+t.name("q")+"$").QueueDeclare(t.name("q"), true, false, false, false, with("x-forward-to-exchange", x))
		t.must(err)
	}},
	{id: "SB-46n", what: "what was forwarded is counted, and the record of ends and explain tell where it went", run: func(t *T) {
		x, one, two := t.exchange("X", "fanout"), t.queue("one"), t.queue("two")
		t.bind(one, "", x)
		t.bind(two, "", x)
		q := t.queue("q", "x-forward-to-exchange", x)
		t.publish(q, func(p *amqp.Publishing) { p.MessageId = "m" })
		t.count(q, func(q cluster.Queue) string {
			return fmt.Sprint(q.Messages, q.Forwarding, q.Forwarded, q.DeadConfirmed, len(q.Deaths))
		}, "0 0 1 0 0")
		var page struct {
			Items []struct {
				Reason   string
				Arrivals []struct{ Queue string }
			}
		}
		t.must(t.Nodes[1].Call(t.ctx, http.MethodGet, "/api/queues/%2F/"+q+"/deaths?message_id=m", nil, &page))
		if len(page.Items) != 1 || page.Items[0].Reason != "forwarded" || len(page.Items[0].Arrivals) != 2 {
			t.Fatalf("%+v", page)
		}
		life := t.explain(t.Nodes[2], q, "m")
		e, ok := life.has("forwarded", "")
		slices.Sort(e.Queues)
		t.equal("explained", fmt.Sprint(ok, e.Queues), fmt.Sprint(true, []string{one, two}))
		t.metric(1, "quorate_messages_forwarded_total", "rabbit_quorum_queue")
		arrived := t.explain(t.Nodes[0], one, "m")
		if e, ok := arrived.has("enqueued", "from queue "+q); !ok {
			t.Errorf("it came %v: %v", e, arrived)
		}
	}},
	{id: "SB-46l", what: "local queues forward, and are forwarded to", run: func(t *T) {
		first, middle, last := t.name("first"), t.name("middle"), t.name("last")
		t.declareAt(1, first, args("x-forward-to-exchange", "", "x-forward-to-routing-key", middle))
		t.forwards("middle", last)
		t.declareAt(2, last, nil)
		t.publishMany(first, 300)
		t.equal("arrived", bodies(t.take(last, 300)), numbers(300))
		t.settled(middle)
	}},
	{id: "SB-46c", what: "a queue that forwards refuses consumers and gets: 405", run: func(t *T) {
		to := t.queue("to")
		q := t.queue("q", "x-forward-to-exchange", "", "x-forward-to-routing-key", to)
		t.refused(amqp.ResourceLocked, "Its messages are forwarded", func(ch *amqp.Channel) error {
			_, _, err := ch.Get(q, true)
			return err
		})
		t.refused(amqp.ResourceLocked, "Its messages are forwarded", func(ch *amqp.Channel) error {
			_, err := ch.Consume(q, "", true, false, false, false, nil)
			return err
		})
	}},
	{id: "SB-46p", what: "a policy turns forwarding on and off: what was ready goes, what has no way comes back", run: func(t *T) {
		q, x := t.queue("q"), t.exchange("X", "fanout")
		for n := range 5 {
			t.publish(q, body(fmt.Sprint(n+1)))
		}
		t.policy("p", q, 0, map[string]any{"forward-to-exchange": x})
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Messages) }, "0 5")
		t.clearPolicy("p", q)
		t.equal("taken", bodies(t.take(q, 5)), numbers(5))
	}},
	{id: "SB-46pc", what: "a changed policy applies to what has found no way yet; the argument comes before the policy", run: func(t *T) {
		q, x, to := t.queue("q"), t.exchange("X", "fanout"), t.queue("to")
		t.policy("p", q, 0, map[string]any{"forward-to-exchange": x})
		for n := range 5 {
			t.publish(q, body(fmt.Sprint(n+1)))
		}
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Ready, q.Forwarding) }, "0 5")
		t.policyAgain("p", q, 0, map[string]any{"forward-to-exchange": "", "forward-to-routing-key": to})
		t.equal("taken", bodies(t.take(to, 5)), numbers(5))
		t.settled(q)
		other := t.queue("other", "x-forward-to-exchange", "", "x-forward-to-routing-key", to)
		t.policy("o", other, 0, map[string]any{"forward-to-exchange": x})
		t.publish(other)
		t.take(to, 1)
	}},
}}

// forwards declares a queue that forwards to a queue.
func (t *T) forwards(name, to string, pairs ...any) string {
	t.Helper()
	return t.queue(name, append(pairs, "x-forward-to-exchange", "", "x-forward-to-routing-key", to)...)
}

// forwardKillRows belong to TestRough.
var forwardKillRows = []row{
	{id: "SB-46k", what: "1000 messages are forwarded once although the leader dies", run: func(t *T) {
		to := t.queue("to")
		q := t.queue("q", "x-forward-to-exchange", "", "x-forward-to-routing-key", to)
		at := t.publishMany(q, 1000, headers("x-opt-delivery-delay", int32(2000)))
		t.killLeader(q)
		t.by(at.Add(ms(2000))).mustComeOnce(to, 1000)
		t.settled(q)
	}},
}
