package conform

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestAges(t *testing.T) { ageRows.run(t) }

var ageRows = suite{test: "TestAges", title: "Ages of messages, and what autoscalers ask", rows: []row{
	{id: "Q-AG1", what: "a queue says how old its oldest messages are: the ready one since it came, whether it was returned or not; the unacknowledged one since it was handed out; the scheduled one since it was published", run: func(t *T) {
		q := t.queue("q")
		t.equal("ages of nothing", t.ages(q), "<nil> <nil> <nil>")
		came := t.meanwhile(func() { t.publish(q, body("a")) })
		t.waitUntil(came.to.Add(ms(1000)))
		t.publish(q, body("b"))
		planned := t.meanwhile(func() {
			t.publish(q, body("later"), headers("x-opt-delivery-time", came.from.Add(time.Hour).UnixMilli()))
		})
		t.isOld(q, "ready", came)
		t.isOld(q, "scheduled", planned)
		var m *amqp.Delivery
		taken := t.meanwhile(func() { m = t.get(q) })
		t.isOld(q, "unacknowledged", taken)
		t.must(m.Nack(false, true))
		t.soonReady(q, 2, time.Now())
		t.isOld(q, "ready", came)
		t.equal("unacknowledged", t.http(http.MethodGet, "/api/queues/%2F/"+q, nil)["oldest_unacknowledged_age_ms"], nil)
		t.metric(1, "quorate_queue_oldest_ready_seconds")
		t.says(t.mustCtl(1, "list_queues", "name", "oldest_ready_age_ms", "--formatter", "json"), `"oldest_ready_age_ms":`)
	}},
	{id: "Q-AG2", what: "age-header, as an argument or by policy: messages are counted by its value, in their queue and where they are dead-lettered; the 101st value counts with all others", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-age-header", "task", "x-dead-letter-exchange", x)
		t.policy("p", d, 0, definition{"age-header": "task"})
		t.equal("nothing", t.byHeader(q), "")
		first := time.Now()
		t.publish(q, headers("task", "add"))
		t.publish(q, headers("task", int64(7)))
		t.publish(q, headers("task", "add"))
		t.publish(q, headers("task", true))
		t.publish(q, headers("task", "add", "x-opt-delivery-time", first.Add(time.Hour).UnixMilli()))
		t.publish(q)
		t.equal("published", t.byHeader(q), "add 2 0 1, 7 1 0 0")
		m := t.get(q)
		t.equal("taken", t.byHeader(q), "add 1 1 1, 7 1 0 0")
		t.must(m.Reject(false))
		t.soonReady(d, 1, time.Now())
		t.equal("dead", t.byHeader(d), "add 1 0 0")
		t.http(http.MethodDelete, "/api/queues/%2F/"+q+"/contents", nil)
		for i := range 120 {
			t.publish(q, headers("task", fmt.Sprint("task ", i)))
		}
		all, _ := t.http(http.MethodGet, "/api/queues/%2F/"+q, nil)["by_header"].([]any)
		last, _ := all[len(all)-1].(map[string]any)
		t.equal("values", fmt.Sprint(len(all), last["other"], last["messages_ready"]), "101 true 20")
		t.refuseDeclare("refused", "invalid_header_name", "x-age-header", "")
	}},
	{id: "Q-AG3", what: "/scaling has numbers alone: what is ready, unacknowledged and due within a time, consumers, ages, rates; a queue that is not there is 404, a time that is none 400", run: func(t *T) {
		q := t.queue("q")
		path := "/api/queues/%2F/" + q + "/scaling"
		_, from := t.consume(q, 1)
		began := time.Now()
		t.publish(q, body("held"))
		t.next(from)
		t.publish(q, body("a"))
		t.publish(q, body("b"))
		t.publish(q, body("soon"), headers("x-opt-delivery-time", began.Add(100*time.Second).UnixMilli()))
		t.publish(q, body("late"), headers("x-opt-delivery-time", began.Add(300*time.Second).UnixMilli()))
		for query, want := range map[string]string{"": "2 1 3 2 0", "?within=200": "2 1 4 2 1", "?within=400": "2 1 5 2 2", "?within=0": "2 1 3 2 0"} {
			s := t.http(http.MethodGet, path+query, nil)
			t.equal("numbers"+query, fmt.Sprint(s["messages_ready"], s["messages_unacknowledged"], " ", s["backlog"], s["messages_scheduled"], " ", s["messages_due"]), want)
			t.equal("consumers", s["consumers"], 1.0)
			for name, v := range s {
				if _, is := v.(float64); !is {
					t.Errorf("%s is %v", name, v)
				}
			}
		}
		t.eventually("it is published at a rate", func() error {
			if s := t.http(http.MethodGet, path, nil); s["publish_rate"] == 0.0 {
				return fmt.Errorf("%v", s)
			}
			return nil
		})
		t.equal("no time", t.status(path+"?within=soon"), 400)
		t.equal("no queue", t.status("/api/queues/%2F/"+t.name("none")+"/scaling"), 404)
	}},
}}

// ageKillRows are rows of queues that lose their leader while somebody asks about ages.
var ageKillRows = []row{
	{id: "Q-AG1K", what: "the leader is killed while an autoscaler asks: each answer is refused or complete, no message becomes younger, and values of a header count on", run: func(t *T) {
		const n = 100
		q := t.queue("q", "x-age-header", "task")
		came := t.meanwhile(func() { t.publish(q, headers("task", "task 0"), body("1")) })
		for i := range n - 1 {
			t.publish(q, headers("task", fmt.Sprint("task ", (i+1)%4)), body(fmt.Sprint(i+2)))
		}
		t.publish(q, headers("task", "later", "x-opt-delivery-time", came.from.Add(time.Hour).UnixMilli()))
		asked, done := make(chan error, 1), make(chan struct{})
		go func() { asked <- t.askScaling(q, n, came.to, done) }()
		t.killLeader(q)
		t.eventually("the new leader answers", func() error {
			if s := t.status("/api/queues/%2F/" + q + "/scaling"); s != 200 {
				return fmt.Errorf("%d", s)
			}
			return nil
		})
		close(done)
		t.must(<-asked)
		t.isOld(q, "ready", came)
		t.equal("by header", t.byHeader(q), "task 0 25 0 0, task 1 25 0 0, task 2 25 0 0, task 3 25 0 0, later 0 0 1")
		t.mustComeOnce(q, n)
	}},
}

// askScaling asks all nodes again and again, until done, what an autoscaler asks of a queue with n ready messages, the
// oldest of which came before an instant.
func (t *T) askScaling(queue string, n float64, came time.Time, done <-chan struct{}) error {
	for {
		for _, node := range t.Nodes {
			began := time.Now()
			status, text, err := node.Do(t.ctx, http.MethodGet, "/api/queues/%2F/"+queue+"/scaling", nil)
			if err != nil || status != http.StatusOK {
				continue // it is dead, starts, or knows of no leader
			}
			var s map[string]float64
			if err := json.Unmarshal(text, &s); err != nil {
				return err
			}
			if s["messages_ready"] != n || s["messages_scheduled"] != 1 || s["oldest_ready_age_seconds"] < (began.Sub(came)-slack).Seconds() {
				return fmt.Errorf("after %v: %s", began.Sub(came), text)
			}
		}
		select {
		case <-done:
			return nil
		case <-time.After(poll):
		}
	}
}

// ages are those that the HTTP API has of a queue.
func (t *T) ages(queue string) string {
	t.Helper()
	q := t.http(http.MethodGet, "/api/queues/%2F/"+queue, nil)
	return fmt.Sprint(q["oldest_ready_age_ms"], " ", q["oldest_unacknowledged_age_ms"], " ", q["oldest_scheduled_age_ms"])
}

// during is when something was done.
type during struct{ from, to time.Time }

func (t *T) meanwhile(do func()) (d during) {
	t.Helper()
	d.from = time.Now()
	do()
	d.to = time.Now()
	return d
}

// isOld says that the age of the oldest message of a kind counts from when something was done.
func (t *T) isOld(queue, kind string, since during) {
	t.Helper()
	var age float64
	asked := t.meanwhile(func() {
		age, _ = t.http(http.MethodGet, "/api/queues/%2F/"+queue, nil)["oldest_"+kind+"_age_ms"].(float64)
	})
	if is := ms(int(age)); is < asked.from.Sub(since.to)-slack || is > asked.to.Sub(since.from)+slack {
		t.Errorf("the oldest %s message is %v old, not between %v and %v", kind, is, asked.from.Sub(since.to), asked.to.Sub(since.from))
	}
}

// byHeader lists the values of a queue's header: how many are ready, unacknowledged and scheduled.
func (t *T) byHeader(queue string) (text string) {
	t.Helper()
	all, _ := t.http(http.MethodGet, "/api/queues/%2F/"+queue, nil)["by_header"].([]any)
	for i, x := range all {
		v, _ := x.(map[string]any)
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%v %v %v %v", v["value"], v["messages_ready"], v["messages_unacknowledged"], v["messages_scheduled"])
	}
	return text
}

// status asks the HTTP API, and returns the status of the answer.
func (t *T) status(path string) int {
	t.Helper()
	status, _, err := t.Nodes[2].Do(t.ctx, http.MethodGet, path, nil)
	t.must(err)
	return status
}
