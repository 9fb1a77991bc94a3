package conform

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestPauses(t *testing.T) { pauseRows.run(t) }

var pauseRows = suite{test: "TestPauses", title: "Queues whose consumers are paused", rows: []row{
	{id: "Q-PZ1", what: "paused by HTTP: consumers and gets are handed nothing; acks, publishes, expiry and peeks go on; the queue says who, why and since when; resumed, it is served in order", run: func(t *T) {
		_, dead, q := t.deadly()
		_, from := t.consume(q, 2)
		t.publish(q, body("a"))
		held := t.next(from)
		before := time.Now().Add(-slack).UnixMilli()
		t.equal("changed", t.pause(q, map[string]any{"reason": "it burns"}), true)
		t.equal("changed", t.pause(q, map[string]any{"reason": "it burns"}), false)
		at := t.publish(q, body("dies"), expiration("300"))
		t.publish(q, body("b"))
		t.publish(q, body("c"))
		t.must(held.Ack(false))
		m := t.by(at.Add(ms(300))).take1(dead)
		t.equal("dead", string(m.Body), "dies")
		t.must(m.Ack(false))
		t.mustNotGet(q)
		t.nothingNext(from, time.Now().Add(ms(200)))
		t.equal("peeked", len(t.peek(q, "").Items), 2)
		p, _ := t.http(http.MethodGet, "/api/queues/%2F/"+q, nil)["pause"].(map[string]any)
		since, _ := p["since"].(float64)
		t.equal("who and why", fmt.Sprint(p["by"], " ", p["reason"], " ", p["until"]), "guest it burns <nil>")
		if int64(since) < before || int64(since) > time.Now().Add(slack).UnixMilli() {
			t.Errorf("paused since %v, not since %d", since, before)
		}
		t.equal("changed", t.http(http.MethodPost, "/api/queues/%2F/"+q+"/resume", nil)["changed"], true)
		t.equal("order", bodies([]*amqp.Delivery{t.nextP(from), t.nextP(from)}), "b c")
		t.equal("paused", t.http(http.MethodGet, "/api/queues/%2F/"+q, nil)["paused"], false)
	}},
	{id: "Q-PZ2", what: "paused for a time: nothing before, everything after", run: func(t *T) {
		q := t.queue("q")
		_, from := t.consume(q, 10)
		end := time.Now().Add(ms(1500))
		t.pause(q, map[string]any{"for": 1500})
		t.publish(q, body("a"))
		t.nothingNext(from, end.Add(-slack))
		t.equal("message", string(t.by(end).next(from).Body), "a")
	}},
	{id: "Q-PZ3", what: "paused by policy: a resume changes nothing, the end of the policy does", run: func(t *T) {
		q := t.queue("q")
		_, from := t.consume(q, 10)
		t.policy("p", q, 0, definition{"pause-consumers": true})
		t.eventually("it is paused", func() error {
			if p := t.http(http.MethodGet, "/api/queues/%2F/"+q, nil); p["paused"] != true || p["pause"] != nil {
				return fmt.Errorf("%v, %v", p["paused"], p["pause"])
			}
			return nil
		})
		t.publish(q, body("a"))
		t.http(http.MethodPost, "/api/queues/%2F/"+q+"/resume", nil)
		t.nothingNext(from, time.Now().Add(ms(300)))
		t.clearPolicy("p", q)
		t.equal("message", string(t.next(from).Body), "a")
	}},
	{id: "Q-PZ4", what: "queue.pause and queue.resume by any client, quoratectl pause_queue and resume_queue; who may not configure the queue is refused; so is a time that is none", run: func(t *T) {
		q := t.queue("q")
		_, from := t.consume(q, 10)
		c := t.commander(t.open())
		c.do("queue.pause", 0, true, "x-queue", q, "x-reason", "by a client", "x-duration", int64(3_600_000))
		t.publish(q, body("a"))
		t.nothingNext(from, time.Now().Add(ms(200)))
		t.says(t.mustCtl(0, "list_queues", "name", "paused", "pause", "--formatter", "json"), "by a client")
		c.do("queue.resume", 0, true, "x-queue", q)
		t.equal("message", string(t.next(from).Body), "a")
		t.mustCtl(1, "pause_queue", q, "--reason", "at night")
		t.publish(q, body("b"))
		t.nothingNext(from, time.Now().Add(ms(200)))
		t.mustCtl(2, "resume_queue", q)
		t.equal("message", string(t.next(from).Body), "b")

		c.do("queue.pause", amqp.PreconditionFailed, false, "x-queue", q, "x-duration", int64(0))
		c.do("queue.pause", amqp.PreconditionFailed, false, "x-queue", q, "x-reason", int32(7))
		c.do("queue.pause", amqp.NotFound, false, "x-queue", t.name("none"))
		c.do("queue.pause", amqp.NotFound, false)
		other := t.commander(t.user("u", "^$", ".*", ".*"))
		other.do("queue.pause", amqp.AccessRefused, false, "x-queue", q)
		other.do("queue.resume", amqp.AccessRefused, false, "x-queue", q)
		t.publish(q, body("c"))
		t.equal("message", string(t.next(from).Body), "c")
	}},
}}

// pauseKillRows are rows of paused queues that lose their leader meanwhile.
var pauseKillRows = []row{
	{id: "Q-PZ1K", what: "paused for 6 s with 100 messages, and the leader is killed: nobody gets anything before, and then each comes once", run: func(t *T) {
		q := t.queue("q")
		end := time.Now().Add(ms(6000))
		t.pause(q, map[string]any{"for": 6000})
		t.publishN(q, 100)
		t.killLeader(q)
		if left := time.Until(end); left > slack {
			t.mustNotGet(q)
			t.readyUntil(q, 100, end.Add(-slack))
		}
		t.by(end).mustComeOnce(q, 100)
		t.settled(q)
	}},
}

// pause pauses a queue, and says whether it was not before.
func (t *T) pause(queue string, body map[string]any) any {
	t.Helper()
	return t.http(http.MethodPost, "/api/queues/%2F/"+queue+"/pause", body)["changed"]
}
