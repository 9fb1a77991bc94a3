package conform

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestParked(t *testing.T) { parkedRows.run(t) }

var parkedRows = suite{test: "TestParked", title: "Parked messages", rows: []row{
	{id: "Q-PK1", what: "21 rejects in a queue with the default limit and no dead-letter exchange: the message is parked, listed and counted, and nobody gets it; unparked, its failures count anew", run: func(t *T) {
		q := t.queue("q")
		t.publish(q, body("bad"))
		t.publish(q, body("good"))
		t.fails(q)
		t.must(t.takeBody(q, "good").Ack(false))
		t.equal("parked", t.parked(q, 1), "bad")
		t.mustNotGet(q)
		t.awaitQueue(q, func(c counts) bool { return c == counts{Messages: 1} })
		check := func() int {
			status, _, err := t.leaderOf(q).Do(t.ctx, http.MethodGet, "/api/health/checks/parked-messages", nil)
			t.must(err)
			return status
		}
		t.equal("check", check(), http.StatusServiceUnavailable)
		t.equal("unparked", t.http(http.MethodPost, "/api/queues/%2F/"+q+"/unpark", nil)["messages"], 1.0)
		m := t.mustGet(q)
		t.equal("redelivered", m.Redelivered, true)
		t.counted(m, "x-acquired-count", 21)
		t.counted(m, "x-delivery-count", 0)
		t.must(m.Reject(true))
		m = t.mustGet(q)
		t.counted(m, "x-delivery-count", 1)
		t.must(m.Ack(false))
		t.settled(q)
	}},
	{id: "Q-PK2", what: "a parked message expires at its time", long: true, run: func(t *T) {
		q := t.queue("q")
		due := time.Now().Add(ms(4000))
		t.publish(q, expiration("4000"))
		t.fails(q)
		t.parked(q, 1)
		t.by(due).awaitQueue(q, func(c counts) bool { return c.Messages == 0 })
		if early := time.Until(due); early > slack {
			t.Errorf("it was gone %v before its time", early)
		}
	}},
	{id: "Q-PK3", what: "a policy without limit makes parked messages ready, with their counts; one with a dead-letter exchange dead-letters them", run: func(t *T) {
		q := t.queue("q")
		t.publish(q)
		t.fails(q)
		t.parked(q, 1)
		t.policy("endless", q, 0, definition{"delivery-limit": -1})
		m := t.take1(q)
		t.counted(m, "x-delivery-count", 21)
		t.must(m.Ack(false))
		t.settled(q)

		x, dead := t.dead()
		other := t.queue("other")
		t.publish(other)
		t.fails(other)
		t.parked(other, 1)
		t.policy("dead", other, 0, definition{"dead-letter-exchange": x})
		t.equal("reason", t.death(t.take1(dead), 0)["reason"], "delivery_limit")
		t.settled(other)
	}},
	{id: "Q-PK4", what: "a limit of 20 that somebody has set drops, by argument and by policy", run: func(t *T) {
		q := t.queue("q", "x-delivery-limit", int32(20))
		t.publish(q)
		t.fails(q)
		t.settled(q)
		other := t.queue("other")
		t.policy("p", other, 0, definition{"delivery-limit": 20})
		t.eventually("the limit is set", func() error {
			if s, _ := t.http(http.MethodGet, "/api/queues/%2F/"+other, nil)["policy"].(string); s == "" {
				return fmt.Errorf("no policy")
			}
			return nil
		})
		t.publish(other)
		t.fails(other)
		t.settled(other)
	}},
	{id: "Q-PK5", what: "parked messages count in a length limit, and are dropped first; a queue with one is not empty; a purge and quoratectl unpark count them", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(2))
		for _, b := range []string{"a", "b"} {
			t.publish(q, body(b))
			t.fails(q)
		}
		t.equal("parked", t.parked(q, 2), "a b")
		t.publish(q, body("c"))
		t.equal("parked", t.parked(q, 1), "b")
		t.equal("unparked", t.mustCtl(1, "unpark", q, "5"), "1")
		t.must(t.takeBody(q, "b").Ack(false))
		t.fails(q)
		t.parked(q, 1)
		t.refused(amqp.PreconditionFailed, "not empty", func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(q, false, true, false)
			return err
		})
		n, err := t.ch().QueuePurge(q, false)
		t.must(err)
		t.equal("purged", n, 1)
		t.settled(q)
	}},
}}

// parkedKillRows are rows of parked messages whose queue loses its leader meanwhile.
var parkedKillRows = []row{
	{id: "Q-PK1K", what: "three messages are parked, the leader is killed, they are unparked, the leader is killed again: each is parked, and then delivered, once", run: func(t *T) {
		q := t.queue("q")
		for _, b := range []string{"a", "b", "c"} {
			t.publish(q, body(b))
			t.fails(q)
		}
		t.equal("parked", t.parked(q, 3), "a b c")
		t.killLeader(q)
		t.equal("parked", t.parked(q, 3), "a b c")
		t.mustNotGet(q)
		t.equal("unparked", t.http(http.MethodPost, "/api/queues/%2F/"+q+"/unpark", nil)["messages"], 3.0)
		t.killLeader(q)
		for _, b := range []string{"a", "b", "c"} {
			m := t.takeBody(q, b)
			t.counted(m, "x-delivery-count", 0)
			t.must(m.Ack(false))
		}
		t.settled(q)
		t.parked(q, 0)
	}},
}

// fails rejects the message of a queue that is next until it has exceeded the default
// delivery limit.
func (t *T) fails(queue string) {
	t.Helper()
	for range 21 {
		t.must(t.take1(queue).Reject(true))
	}
}

// takeBody takes a message of a queue, which must have this body.
func (t *T) takeBody(queue, body string) *amqp.Delivery {
	t.Helper()
	m := t.take1(queue)
	t.equal("message", string(m.Body), body)
	return m
}

// parked waits until so many messages of a queue are parked, and returns their bodies.
func (t *T) parked(queue string, n int) string {
	t.Helper()
	t.eventually(fmt.Sprintf("%d messages of %s are parked", n, queue), func() error {
		q, err := t.Nodes[0].Queue(t.ctx, queue)
		if err == nil && q.Parked != n {
			err = fmt.Errorf("%d are parked", q.Parked)
		}
		return err
	})
	return t.peek(queue, "state=parked").bodies()
}
