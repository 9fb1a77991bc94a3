package conform

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

func TestCommands(t *testing.T) { commandRows.run(t) }

var commandRows = suite{test: "TestCommands", title: "Commands", rows: []row{
	{id: "T-123", what: "unknown verb 312, bad header 406, foreign token 404, no read 403: returned and nacked, the channel stays open", run: func(t *T) {
		q := t.queue("q")
		token := t.tokenOf(q, t.open())
		t.command("lock.renewed", amqp.NoRoute, false)
		t.command("lock.renew", amqp.PreconditionFailed, false, headers("x-delivery-tag", "1"))
		t.command("lock.renew", amqp.PreconditionFailed, false, headers("x-delivery-tag", int64(1), "x-lock-duration", int64(1)))
		t.command("lock.renew", amqp.NotFound, false, headers("x-lock-token", token[1:]+"A"))
		t.command("lock.renew", amqp.NotFound, false, headers("x-lock-token", token, "x-queue", t.queue("other")))
		t.command("lock.renew", 0, true, headers("x-lock-token", token, "x-queue", q))
		ch := t.stranger()
		t.must(ch.Confirm(false))
		returns := ch.NotifyReturn(make(chan amqp.Return, 2))
		for _, h := range []amqp.Table{args("x-lock-token", token), args("x-lock-token", token, "x-queue", q)} {
			c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "amq.quorate.command", "lock.renew", true, false, amqp.Publishing{Headers: h})
			t.must(err)
			acked, err := c.WaitContext(t.ctx)
			t.must(err)
			t.equal("acked", acked, false)
			t.equal("returned with", (<-returns).ReplyCode, uint16(amqp.AccessRefused))
		}
		t.must(ch.Qos(1, 0, false)) // it is open
	}, lives: true},
	{id: "LK-S", what: "a lock token is only where it was asked for: not in listings, lives of messages, or the logs of nodes", run: func(t *T) {
		q := t.queue("q")
		token := t.tokenOf(q, t.open())
		t.command("lock.renew", 0, true, headers("x-lock-token", token, "x-queue", q))
		t.command("lock.renew", amqp.NotFound, false, headers("x-lock-token", token, "x-queue", t.queue("other")))
		for _, n := range t.Nodes {
			for _, path := range []string{
				"/api/overview", "/api/queues", "/api/queues/%2F/" + q, "/api/consumers", "/api/connections",
				"/api/queues/%2F/" + q + "/messages/peek?state=unacked", "/api/queues/%2F/" + q + "/explain?message=1", "/api/queues/%2F/" + q + "/deaths",
			} {
				status, out, err := n.Do(t.ctx, http.MethodGet, path, nil)
				t.must(err)
				if status != http.StatusOK {
					t.Errorf("%s: %d %s", path, status, out)
				}
				if strings.Contains(string(out), token) || strings.Contains(string(out), "lock_secret") {
					t.Errorf("%s has a token or the secret", path)
				}
			}
			if n.Said(token) {
				t.Errorf("node %d has logged the token", n.Number)
			}
		}
	}, lives: true},
	{id: "T-124", what: "declare, delete, bind amq.quorate.command: 403; commands in a transaction: 540", run: func(t *T) {
		const name = "amq.quorate.command"
		t.must(t.ch().ExchangeDeclarePassive(name, "x-command", true, false, false, false, nil))
		q := t.queue("q")
		for _, call := range []func(ch *amqp.Channel) error{
			func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(name, "x-command", true, false, false, false, nil)
			},
			func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) },
			func(ch *amqp.Channel) error { return ch.QueueBind(q, "k", name, false, nil) },
			func(ch *amqp.Channel) error { return ch.ExchangeBind("amq.fanout", "", name, false, nil) },
			func(ch *amqp.Channel) error { return ch.ExchangeBind(name, "", "amq.fanout", false, nil) },
		} {
			t.refused(amqp.AccessRefused, "amq", call)
		}
		t.refused(amqp.NotImplemented, "transaction", func(ch *amqp.Channel) error {
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			t.must(ch.Tx())
			t.must(ch.PublishWithContext(t.ctx, name, "lock.renew", false, false, amqp.Publishing{}))
			select {
			case err := <-closed:
				return err
			case <-time.After(patience):
				return errors.New("the channel stays open")
			}
		})
	}, lives: true},
	{id: "T-125", what: "the server announces the capabilities", run: func(t *T) {
		can, _ := t.conn(0).Properties["capabilities"].(amqp.Table)
		for _, name := range []string{"quorate_commands", "message_lock_renewal", "message_scheduling", "message_deferral"} {
			t.equal(name, can[name], true)
		}
	}, lives: true},
	{id: "T-126", what: "an answer to reply_to, direct or a queue: JSON with each result, and the correlation id", run: func(t *T) {
		q, replies := t.queue("q"), t.queue("replies")
		w := t.worker(q, 2, "x-lock-duration", int32(60_000))
		t.publishN(q, 1)
		d := t.now().next(w.from)
		direct, err := w.ch.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
		t.must(err)
		queued := t.bystander(replies)
		for to, from := range map[string]<-chan amqp.Delivery{"amq.rabbitmq.reply-to": direct, replies: queued} {
			t.must(w.ch.PublishWithContext(t.ctx, "amq.quorate.command", "lock.renew", false, false, amqp.Publishing{
				ReplyTo: to, CorrelationId: "c-" + to, Headers: args("x-delivery-tags", []any{int64(d.DeliveryTag), int64(77)}, "x-lock-duration", int64(90_000)),
			}))
			reply := t.now().next(from)
			t.equal("correlation id", reply.CorrelationId, "c-"+to)
			t.equal("content type", reply.ContentType, "application/json")
			var answer struct {
				OK      bool
				Code    int
				Results []struct {
					Tag       uint64 `json:"delivery_tag"`
					OK        bool
					Code      int
					Until     int64 `json:"locked_until"`
					Remaining int64 `json:"remaining_ms"`
				}
			}
			t.must(json.Unmarshal(reply.Body, &answer))
			if r := answer.Results; answer.OK || answer.Code != amqp.NotFound || len(r) != 2 || r[0].Tag != d.DeliveryTag || !r[0].OK || r[1].OK || r[1].Code != amqp.NotFound {
				t.Fatalf("answered %s", reply.Body)
			} else if left := r[0].Remaining; left > 90_000 || left < 90_000-patience.Milliseconds() || r[0].Until == 0 {
				t.Errorf("%d ms remain: %s", left, reply.Body)
			}
		}
		t.must(d.Ack(false))
		t.settled(q)
	}, lives: true},
	{id: "T-127", what: "renewed and settled over HTTP by token, at any node; once it is lost: 404", run: func(t *T) {
		q := t.queue("q")
		token := t.tokenOf(q, t.open())
		at := "/api/queues/%2F/" + q + "/locks/" + token
		left, _ := t.http(http.MethodPost, at+"/renew", map[string]any{"duration": 90_000})["remaining_ms"].(float64)
		if left > 90_000 || left < float64(90_000-patience.Milliseconds()) {
			t.Errorf("%v ms remain", left)
		}
		t.http(http.MethodPost, at+"/settle", map[string]any{"outcome": "ack"})
		t.settled(q)
		for _, what := range []string{"/renew", "/settle"} {
			status, answer, err := t.Nodes[1].Do(t.ctx, http.MethodPost, at+what, map[string]any{"outcome": "ack"})
			t.must(err)
			t.equal(what+string(answer), status, http.StatusNotFound)
		}
	}, lives: true},
	{id: "T-130", what: "message.settle dead-letter with reason and description: in the letter's headers", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		w := t.worker(q, 1)
		t.publish(q)
		m := t.now().next(w.from)
		w.does("message.settle", 0, "x-delivery-tag", int64(m.DeliveryTag), "x-outcome", "dead-letter", "x-reason", "unreadable", "x-description", "no such version")
		letter := t.now().take(d, 1)[0]
		t.equal("reason", letter.Headers["x-dead-letter-reason"], "unreadable")
		t.equal("description", letter.Headers["x-dead-letter-description"], "no such version")
		t.equal("x-death", t.death(letter, 0)["reason"], "rejected")
	}},
	{id: "T-131", what: "pipelined: renew, ack, renew of one tag: ack, nack, and the message is gone", run: func(t *T) {
		q := t.queue("q")
		w := t.worker(q, 1, "x-lock-duration", int32(60_000))
		t.publish(q)
		d := t.now().next(w.from)
		first := w.ask("lock.renew", "x-delivery-tag", int64(d.DeliveryTag))
		t.must(d.Ack(false))
		second := w.ask("lock.renew", "x-delivery-tag", int64(d.DeliveryTag))
		for i, c := range []*amqp.DeferredConfirmation{first, second} {
			acked, err := c.WaitContext(t.ctx)
			t.must(err)
			t.equal(fmt.Sprint("renewal ", i, " acked"), acked, i == 0)
		}
		t.equal("returned with", (<-w.returns).ReplyCode, uint16(amqp.NotFound))
		t.settled(q)
		w.mustLive()
	}},
	{id: "LK-10", what: "x-late-settle error: settling after the lock is lost is 406", run: func(t *T) {
		q := t.queue("q")
		w := t.worker(q, 1, "x-lock-duration", int32(1000), "x-late-settle", "error")
		closed := w.ch.NotifyClose(make(chan *amqp.Error, 1))
		t.publish(q)
		lost := t.now().next(w.from)
		due := time.Now().Add(ms(1000))
		d := t.by(due).next(t.bystander(q))
		t.must(lost.Ack(false))
		select {
		case err := <-closed:
			t.equal("code", err.Code, amqp.PreconditionFailed)
		case <-time.After(patience):
			t.Fatal("the channel stays open")
		}
		t.must(d.Ack(false))
		t.settled(q)
	}},
}}

// does gives a command, and checks the code with which it is returned; 0: it is
// acked.
func (w *worker) does(verb string, code uint16, pairs ...any) {
	w.t.Helper()
	acked, err := w.ask(verb, pairs...).WaitContext(w.t.ctx)
	w.t.must(err)
	returned := uint16(0)
	select {
	case r := <-w.returns:
		returned = r.ReplyCode
	default:
	}
	if returned != code || acked != (code == 0) {
		w.t.Fatalf("%s: returned with %d, acked %v; not %d", verb, returned, acked, code)
	}
}

// tokenOf publishes a message and returns the lock token of its delivery.
func (t *T) tokenOf(queue string, ch *amqp.Channel) string {
	t.Helper()
	w := t.workerOn(ch, queue, 1, "x-lock-duration", int32(60_000), "x-delivery-info", true)
	t.publish(queue)
	d := t.now().next(w.from)
	token, _ := d.Headers["x-lock-token"].(string)
	for _, name := range []string{"x-locked-until", "x-lock-remaining", "x-enqueued-at"} {
		if n, ok := d.Headers[name].(int64); !ok || n <= 0 {
			t.Errorf("header %s is %v", name, d.Headers[name])
		}
	}
	if token == "" {
		t.Fatal("the delivery has no token")
	}
	return token
}

// stranger is a channel of a user without any permission.
func (t *T) stranger() *amqp.Channel {
	t.Helper()
	user := t.name("stranger")
	t.http(http.MethodPut, "/api/users/"+user, map[string]any{"password": user, "tags": ""})
	t.http(http.MethodPut, "/api/permissions/%2F/"+user, map[string]any{"configure": "", "write": "", "read": ""})
	conn, err := client.ConnectAs(t.ctx, t.Nodes[0].URI(), user, user, "/")
	t.must(err)
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	t.must(err)
	return ch
}
