package conform

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestGroups(t *testing.T) { groupRows.run(t) }

// grouped names the group of a message.
func grouped(id string) option {
	return func(p *amqp.Publishing) { p.Headers = amqp.Table{"x-group-id": id} }
}

var groupRows = suite{test: "TestGroups", title: "Groups", rows: []row{
	{id: "T-144", what: "groups a, b, c with 3 messages each, 3 consumers: each group at one consumer, in order", run: func(t *T) {
		q := t.queue("q", "x-message-groups", true)
		for i := range 3 {
			for _, g := range []string{"a", "b", "c"} {
				t.publish(q, grouped(g), body(fmt.Sprint(g, i)))
			}
		}
		seen := map[string]bool{}
		for range 3 {
			_, from := t.consume(q, 10)
			var group string
			for i := range 3 {
				d := t.now().next(from)
				if i == 0 {
					group = string(d.Body[:1])
				}
				t.equal("message", string(d.Body), fmt.Sprint(group, i))
			}
			t.equal("seen before", seen[group], false)
			seen[group] = true
		}
	}},
	{id: "T-145", what: "the holder of a group dies: the group moves, in order, and nothing has failed", run: func(t *T) {
		q := t.queue("q", "x-message-groups", true)
		for i := range 4 {
			t.publish(q, grouped("a"), body(fmt.Sprint(i)))
		}
		first, from := t.consume(q, 2)
		for i := range 2 {
			t.equal("message", string(t.now().next(from).Body), fmt.Sprint(i))
		}
		_, other := t.consume(q, 1)
		t.nothingNext(other, time.Now().Add(ms(300)))
		t.must(first.Close())
		for i := range 4 {
			d := t.now().next(other)
			t.equal("message", string(d.Body), fmt.Sprint(i))
			t.equal("failures", d.Headers["x-delivery-count"] == nil || fmt.Sprint(d.Headers["x-delivery-count"]) == "0", true)
			t.must(d.Ack(false))
		}
	}},
	{id: "T-146", what: "x-group-expiry: group, one of three expires: all die, others live, later ones live", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-message-groups", true, "x-group-expiry", "group", "x-dead-letter-exchange", x)
		t.publish(q, grouped("a"), body("0"))
		at := t.publish(q, grouped("a"), body("1"), expiration("600"))
		t.publish(q, grouped("a"), body("2"))
		t.publish(q, grouped("b"), body("b"))
		t.readyUntil(d, 0, at.Add(ms(600)))
		t.soonReady(d, 3, at.Add(ms(600)))
		for i, reason := range []string{"group_expired", "expired", "group_expired"} {
			l := t.mustGet(d)
			t.equal("letter", string(l.Body), fmt.Sprint(i))
			t.equal("reason", t.death(l, 0)["reason"], any(reason))
		}
		t.publish(q, grouped("a"), body("later"))
		t.equal("ready", t.ready(q), 2)
		t.holdsUntil(time.Now().Add(ms(300)), func() error {
			if n := t.ready(q); n != 2 {
				return fmt.Errorf("%d messages", n)
			}
			return nil
		})
	}},
	{id: "T-147", what: "the same while the group is held: acked, none dies; released by a cancel, all do", long: true, run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-message-groups", true, "x-group-expiry", "group", "x-dead-letter-exchange", x)
		for _, g := range []string{"a", "b"} {
			ch, from := t.consume(q, 1)
			var at time.Time
			for i := range 3 {
				at = t.publish(q, grouped(g), body(fmt.Sprint(g, i)), expiration("500"))
			}
			m := t.now().next(from)
			t.waitUntil(at.Add(ms(900)))
			t.equal("dead", t.ready(d), 0)
			if g == "b" {
				t.must(ch.Close())
				break
			}
			for i := range 3 {
				t.equal("message", string(m.Body), fmt.Sprint(g, i))
				t.must(m.Ack(false))
				if i < 2 {
					m = t.now().next(from)
				}
			}
			t.settled(q)
			t.must(ch.Close())
		}
		t.soonReady(d, 3, time.Now())
	}},
	{id: "T-148", what: "the state of a group goes to its next holder", run: func(t *T) {
		q := t.queue("q", "x-message-groups", true)
		t.publish(q, grouped("a"), body("0"))
		first, second := t.member(q), t.member(q)
		t.now().next(first.from)
		state := "\x00\x01\xffx"
		t.equal("answer", first.ask("group.set-state", state).OK, true)
		t.equal("of another consumer", second.ask("group.get-state", "").Code, amqp.ResourceLocked)
		t.must(first.ch.Close())
		t.now().next(second.from)
		answer := second.ask("group.get-state", "")
		t.equal("parts", len(answer.Results), 1)
		t.equal("state", string(answer.Results[0].State), state)
		t.equal("renewed", second.ask("group.renew", "").OK, true)
		t.equal("released", second.ask("group.release", "").OK, true)
		t.now().next(second.from) // nobody else takes it
	}},
	{id: "Q-G3", what: "a group whose first message waits to be retried keeps its order, and not its consumer from other groups", run: func(t *T) {
		const wait = 2000
		q := t.queue("q", "x-message-groups", true, "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(wait))
		_, from := t.consume(q, 10)
		t.publish(q, grouped("a"), body("a1"))
		m := t.now().next(from)
		due := time.Now().Add(ms(wait))
		t.must(m.Reject(true))
		for _, m := range []string{"a2", "b1", "c1"} {
			t.publish(q, grouped(m[:1]), body(m))
		}
		for _, want := range []string{"b1", "c1"} {
			m := t.now().next(from)
			t.equal("message", string(m.Body), want)
			t.must(m.Ack(false))
		}
		t.equal("before it is due", time.Now().Before(due), true)
		ch, other := t.consume(q, 10)
		t.nothingNext(other, due.Add(-ms(500)))
		t.must(ch.Close())
		first, second := t.by(due).next(from), t.by(due).next(from)
		t.equal("messages of the group", string(first.Body)+" "+string(second.Body), "a1 a2")
	}},
	{id: "Q-G4", what: "a consumer of a global prefetch that holds a group gets the rest of it, although another client has credit", run: func(t *T) {
		q, other := t.queue("q", "x-message-groups", true), t.queue("other")
		p := t.limited(1)
		p.consume(q)
		t.publish(q, grouped("a"), body("a1"))
		m := p.next()
		t.publish(q, grouped("a"), body("a2"))
		p.consume(other)
		t.publishN(other, 5)
		t.consume(q, 100)
		t.must(m.Ack(false))
		seen := map[string]int{}
		for range 6 {
			m := p.next()
			seen[m.ConsumerTag]++
			t.must(m.Ack(false))
		}
		t.equal("of the group", seen[q], 1)
	}},
	{id: "Q-G1", what: "GET …/groups at any node and quoratectl list_groups: who holds a group until when, its messages, its state", run: func(t *T) {
		q := t.queue("q", "x-message-groups", true, "x-lock-duration", int32(600_000))
		for _, g := range []string{"a", "a", "b"} {
			t.publish(q, grouped(g))
		}
		m := t.member(q) // prefetch 1, one group
		t.now().next(m.from)
		t.equal("answer", m.ask("group.set-state", "four").OK, true)
		var all, last groupPage
		at := "/api/queues/%2F/" + q + "/groups"
		t.call(http.MethodGet, at, nil, &all)
		t.equal("groups", len(all.Items), 2)
		t.equal("next", all.Next, "")
		a, b := all.Items[0], all.Items[1]
		if left := int64(600_000) - a.Remaining; a.LockedUntil == 0 || left < 0 || left > patience.Milliseconds() {
			t.Errorf("locked until %d, for %d ms", a.LockedUntil, a.Remaining)
		}
		if a.Session == "" || a.Oldest == 0 || b.Oldest < a.Oldest {
			t.Errorf("groups %+v", all.Items)
		}
		a.LockedUntil, a.Remaining, a.Session, a.Oldest, b.Oldest = 0, 0, "", 0, 0
		t.equal("held", a, listedGroup{ID: "a", Held: true, Consumer: "worker", Messages: 2, Unacked: 1, HasState: true, StateBytes: 4})
		t.equal("free", b, listedGroup{ID: "b", Messages: 1})
		t.call(http.MethodGet, at+"?limit=1", nil, &all)
		t.equal("first page", len(all.Items), 1)
		t.call(http.MethodGet, at+"?limit=1&after="+all.Next, nil, &last)
		t.equal("second page", last.Items[0].ID+last.Next, "b")
		out := t.mustCtl(1, "list_groups", "--queue", q, "id", "held", "consumer_tag", "messages")
		t.equal("listed", out, "id\theld\tconsumer_tag\tmessages\na\ttrue\tworker\t2\nb\tfalse\t\t1")
	}},
	{id: "Q-G2", what: "x-group-source: app-id: app_id is the group, and x-group-id is none; without app_id there is no group", run: func(t *T) {
		q := t.queue("q", "x-message-groups", true, "x-group-source", "app-id", "x-group-required", true)
		from := func(app string) option { return func(p *amqp.Publishing) { p.AppId = app } }
		for i, app := range []string{"a", "b", "a"} {
			t.publish(q, from(app), grouped("header"), body(fmt.Sprint(app, i)))
		}
		t.equal("acked without app_id", t.send("", q, grouped("header")), false)
		for _, want := range [][]string{{"a0", "a2"}, {"b1"}} {
			_, in := t.consume(q, 10)
			for _, w := range want {
				t.equal("message", string(t.now().next(in).Body), w)
			}
		}
	}},
}}

// member is a consumer with prefetch 1 whose channel asks about group a.
type member struct {
	t       *T
	queue   string
	ch      *amqp.Channel
	from    <-chan amqp.Delivery
	answers <-chan amqp.Delivery
}

func (t *T) member(queue string) *member { t.Helper(); return t.memberAt(0, queue) }

// memberAt is a member that is connected to node n, counted from 0.
func (t *T) memberAt(n int, queue string) *member {
	t.Helper()
	m := &member{t: t, queue: queue, ch: t.openAt(n)}
	var err error
	m.answers, err = m.ch.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	t.must(err)
	t.must(m.ch.Qos(1, 0, false))
	m.from, err = m.ch.Consume(queue, "worker", false, false, false, false, nil)
	t.must(err)
	return m
}

// groupPage is a page of listed groups.
type groupPage struct {
	Items []listedGroup
	Next  string
}

type listedGroup struct {
	ID          string
	Held        bool
	Consumer    string `json:"consumer_tag"`
	Session     string
	LockedUntil int64 `json:"locked_until"`
	Remaining   int64 `json:"remaining_ms"`
	Messages    int
	Unacked     int `json:"messages_unacknowledged"`
	Oldest      int64
	HasState    bool `json:"has_state"`
	StateBytes  int  `json:"state_bytes"`
}

// groupAnswer is the answer to a command.
type groupAnswer struct {
	OK      bool
	Code    int
	Results []struct{ State []byte }
}

// ask gives a command about group a and returns its answer.
func (m *member) ask(verb, body string) (a groupAnswer) {
	m.t.Helper()
	m.t.must(m.ch.PublishWithContext(m.t.ctx, "amq.quorate.command", verb, false, false, amqp.Publishing{
		ReplyTo: "amq.rabbitmq.reply-to", Body: []byte(body),
		Headers: amqp.Table{"x-queue": m.queue, "x-group-id": "a", "x-consumer-tag": "worker"},
	}))
	d := m.t.now().next(m.answers)
	m.t.must(json.Unmarshal(d.Body, &a))
	return a
}
