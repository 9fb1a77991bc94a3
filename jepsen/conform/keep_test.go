package conform

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
)

func TestKeep(t *testing.T) { keepRows.run(t) }

var keepRows = suite{test: "TestKeep", title: "Messages kept for later", rows: []row{
	{id: "DL-13", what: "messages cannot be taken from a hold queue: 403; those that expire in it are dead-lettered", run: func(t *T) {
		_, d, q := t.deadly("x-hold", true, "x-message-ttl", int32(1000))
		words := "queue '" + q + "' in vhost '/' is a hold queue"
		at := t.publishN(q, 2)
		t.refused(amqp.AccessRefused, words, func(ch *amqp.Channel) error {
			_, err := ch.Consume(q, "", false, false, false, false, nil)
			return err
		})
		t.refused(amqp.AccessRefused, words, func(ch *amqp.Channel) error {
			_, _, err := ch.Get(q, true)
			return err
		})
		t.equal("dead", bodies(t.by(at.Add(ms(1000))).take(d, 2)), "1 2")
		t.publish(q)
		n, err := t.ch().QueuePurge(q, false)
		t.must(err)
		t.equal("purged", n, 1)
	}},
	{id: "DL-6", what: "a limit of pending dead letters: beyond it they are sent once and not kept", run: func(t *T) {
		x := t.name("X")
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-strategy", "at-least-once", "x-dead-letter-max-pending", int32(2))
		t.publishN(q, 2, expiration("0"))
		t.pending(q, 2)
		t.publish(q, expiration("0"), body("nowhere to go"))
		_, d := t.dead() // for the letters that wait, too
		t.equal("kept", bodies(t.take(d, 2)), "1 2")
		t.pending(q, 0)
		t.publish(q, expiration("0"), body("3"))
		t.equal("kept again", bodies(t.take(d, 1)), "3")
	}},
	{id: "DL-12", what: "counts of deaths by reason and strategy, and of letters that wait, arrived or were lost", run: func(t *T) {
		for strategy, pairs := range map[string][]any{
			"disabled":      nil,
			"at_most_once":  {"x-dead-letter-exchange", t.name("X"), "x-dead-letter-strategy", "at-most-once"},
			"transactional": {"x-dead-letter-exchange", t.name("X")},
			"at_least_once": {"x-dead-letter-exchange", t.name("X"), "x-dead-letter-strategy", "at-least-once"},
		} {
			t.deaths4(strategy, pairs...)
		}
		q := t.queue("waits", "x-dead-letter-exchange", t.name("Y"), "x-dead-letter-strategy", "at-least-once")
		t.publish(q, expiration("0"))
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Messages, q.DeadLetters, q.DeadWaiting) }, "1 1 1")
		all, err := t.Nodes[0].Totals(t.ctx)
		t.must(err)
		if all.Messages < 1 || all.DeadLetters < 1 || all.DeadWaiting < 1 {
			t.Errorf("totals: %+v", all)
		}
		full := t.queue("full", "x-max-length", int32(0), "x-overflow", "reject-publish")
		refused := t.queue("refused", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", full)
		t.publish(refused, expiration("0"))
		t.count(refused, func(q cluster.Queue) string { return fmt.Sprint(q.DeadRefused, q.DeadDropped) }, "1 1")
		once := t.queue("once", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", full, "x-dead-letter-strategy", "at-most-once")
		t.publish(once, expiration("0"))
		t.metric(1, "quorate_dead_letters_refused_total", "rabbit_quorum_queue")
		t.metric(1, "quorate_dead_letters_lost_total", "outbox")
		t.metric(1, "quorate_dead_letters_lost_total", "once")
		t.metric(1, "quorate_dead_letter_outbox_waiting")
		t.metric(1, "quorate_dead_letter_outbox_depth")
	}},
	{id: "SB-40", what: "a peek shows ready, unacknowledged and scheduled messages, page by page, and changes nothing; a get settles as requested", run: func(t *T) {
		_, d, q := t.deadly()
		t.publishN(q, 5, headers("h", "v"))
		t.publish(q, body("later"), headers("x-opt-delivery-delay", int32(60_000)))
		held := t.mustGet(q)
		first := t.peek(q, "limit=2")
		t.equal("first page", first.bodies(), "2 3")
		t.equal("second page", t.peek(q, fmt.Sprint("limit=2&after=", first.Next)).bodies(), "4 5")
		t.equal("held", t.peek(q, "state=unacked").bodies(), "1")
		t.equal("scheduled", t.peek(q, "state=scheduled").bodies(), "later")
		t.equal("all again", t.peek(q, "").bodies(), "2 3 4 5")
		t.equal("header", first.Items[0].Properties["headers"], map[string]any{"h": "v"})
		t.must(held.Ack(false))
		for _, step := range []struct{ mode, want, left string }{
			{"ack_requeue_true", "2 3", "2 3 4 5"}, {"ack_requeue_false", "2 3", "4 5"},
			{"reject_requeue_true", "4 5", "4 5"}, {"reject_requeue_false", "4 5", ""},
		} {
			t.equal(step.mode, t.takeHTTP(q, step.mode, 2), step.want)
			t.equal("left", t.peek(q, "").bodies(), step.left)
		}
		t.equal("dead", bodies(t.take(d, 2)), "4 5")
		hold := t.queue("hold", "x-hold", true)
		status, _, err := t.Nodes[0].Do(t.ctx, "POST", "/api/queues/%2F/"+hold+"/get", map[string]any{"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"})
		t.must(err)
		t.equal("get from a hold queue", status, 401)
		t.publish(hold, body("held"))
		t.equal("peek at a hold queue", t.peek(hold, "").bodies(), "held")
	}},
	{id: "SB-24", what: "an exchange's TTL limits dead letters that pass it", long: true, run: func(t *T) {
		last, d := t.dead()
		for i, strategy := range []string{"at-most-once", "at-least-once"} {
			x := t.exchange(fmt.Sprint("x", i), "fanout", "x-message-ttl", int32(700))
			q := t.queue(fmt.Sprint("q", i), "x-dead-letter-exchange", x, "x-dead-letter-strategy", strategy)
			target := t.queue(fmt.Sprint("target", i), "x-dead-letter-exchange", last)
			t.bind(target, "", x)
			t.publish(q)
			m := t.take1(q)
			at := time.Now()
			t.must(m.Reject(false))
			rejected := time.Now()
			letter := t.by(rejected.Add(ms(700))).take(d, 1)[0]
			if early := ms(700) - time.Since(at); early > slack {
				t.Errorf("%s: %v early", strategy, early)
			}
			t.equal("died in", t.death(letter, 0)["queue"], target)
			t.equal("reason", t.death(letter, 0)["reason"], "expired")
		}
	}},
}}

// deaths4 lets one message die for each reason, in queues with a dead-letter
// strategy, and checks what is counted.
func (t *T) deaths4(strategy string, pairs ...any) {
	t.Helper()
	_, d := t.dead()
	one := func(reason string, die func(q string), more ...any) {
		t.Helper()
		q := t.queue(strategy+"."+reason, append(more, pairs...)...)
		die(q)
		t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.Deaths) }, fmt.Sprint(map[string]map[string]int{reason: {how(reason, strategy): 1}}))
		if strategy != "disabled" {
			t.take(d, 1)
		}
		if h := how(reason, strategy); h == "transactional" || h == "at_least_once" {
			t.count(q, func(q cluster.Queue) string { return fmt.Sprint(q.DeadConfirmed, q.DeadLetters) }, "1 0")
			t.metric(1, "rabbitmq_global_messages_dead_lettered_confirmed_total", "rabbit_quorum_queue")
		}
		t.metric(1, "rabbitmq_global_messages_dead_lettered_"+reason+"_total", `"`+how(reason, strategy)+`"`, "rabbit_quorum_queue")
	}
	one("expired", func(q string) { t.publish(q, expiration("0")) })
	one("rejected", func(q string) {
		t.publish(q)
		t.must(t.take1(q).Reject(false))
	})
	one("maxlen", func(q string) { t.publishN(q, 2) }, "x-max-length", int32(1))
	one("delivery_limit", func(q string) {
		t.publish(q)
		t.must(t.take1(q).Reject(true))
	}, "x-delivery-limit", int32(0))
}

// how dead letters go: what a length limit drops is never kept.
func how(reason, strategy string) string {
	if reason == "maxlen" && strategy != "disabled" {
		return "at_most_once"
	}
	return strategy
}

// count waits until a queue's figures are as wanted.
func (t *T) count(queue string, of func(cluster.Queue) string, want string) {
	t.Helper()
	t.eventually("figures of "+queue, func() error {
		q, err := t.Nodes[0].Queue(t.ctx, queue)
		if err == nil && of(q) != want {
			err = fmt.Errorf("%s, want %s", of(q), want)
		}
		return err
	})
}

// metric waits until a metric is at least so much, over all nodes.
func (t *T) metric(least float64, name string, words ...string) {
	t.Helper()
	t.eventually(name+" "+strings.Join(words, " "), func() error {
		sum := 0.0
		for _, n := range t.Nodes {
			v, err := n.Metric(t.ctx, name, words...)
			if err != nil {
				return err
			}
			sum += v
		}
		if sum < least {
			return errors.New(fmt.Sprint(sum))
		}
		return nil
	})
}

// peekPage is what a peek shows.
type peekPage struct {
	Items     []peekItem `json:"items"`
	Next      uint64     `json:"next"`
	requested time.Time
}

type peekItem struct {
	Number     uint64         `json:"number"`
	ExpiresAt  int64          `json:"expires_at"`
	Payload    string         `json:"payload"`
	Properties map[string]any `json:"properties"`
}

func payloads(items []peekItem) string {
	var all []string
	for _, m := range items {
		all = append(all, m.Payload)
	}
	return strings.Join(all, " ")
}

func (p *peekPage) bodies() string { return payloads(p.Items) }

// peek looks at messages of a queue.
func (t *T) peek(queue, query string) *peekPage {
	t.Helper()
	p, status := t.tryPeek(queue, query)
	t.equal("status", status, 200)
	return p
}

// tryPeek is peek at a queue that may be gone.
func (t *T) tryPeek(queue, query string) (*peekPage, int) {
	t.Helper()
	p := &peekPage{requested: time.Now()}
	status, answer, err := t.Nodes[0].Do(t.ctx, "GET", "/api/queues/%2F/"+queue+"/messages/peek?"+query, nil)
	t.must(err)
	if status == 200 {
		t.must(json.Unmarshal(answer, p))
	}
	return p, status
}

// takeHTTP gets messages by the HTTP API and returns their bodies.
func (t *T) takeHTTP(queue, mode string, n int) string {
	t.Helper()
	status, answer, err := t.Nodes[0].Do(t.ctx, "POST", "/api/queues/%2F/"+queue+"/get", map[string]any{"count": n, "ackmode": mode, "encoding": "auto"})
	t.must(err)
	t.equal("status", status, 200)
	var list []peekItem
	t.must(json.Unmarshal(answer, &list))
	return payloads(list)
}
