package conform

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestTakes(t *testing.T) { takeRows.run(t) }

var takeRows = suite{test: "TestTakes", title: "Ready messages that are deleted, moved, copied and redriven", rows: slices.Concat([]row{
	{id: "Q-TK1", what: "deleted by header, by id, by number, the oldest: each is gone and counted, others are not, nor what is held", run: func(t *T) {
		q := t.queue("q")
		t.publish(q, body("held"))
		held := t.mustGet(q)
		for i := range 6 {
			t.publish(q, body(fmt.Sprint(i)), headers("customer", int32(i%3)), func(p *amqp.Publishing) { p.MessageId = fmt.Sprint("id ", i) })
		}
		t.equal("by header", t.taken(q, "messages/delete", map[string]any{"headers": map[string]any{"customer": 1}}), 2)
		t.equal("again", t.taken(q, "messages/delete", map[string]any{"headers": map[string]any{"customer": 1}}), 0)
		t.equal("by id", t.taken(q, "messages/delete", map[string]any{"message_id": "id 3"}), 1)
		t.equal("too young", t.taken(q, "messages/delete", map[string]any{"older_than": 3_600_000}), 0)
		t.equal("the oldest", t.taken(q, "messages/delete", map[string]any{"limit": 1}), 1)
		second := t.peek(q, "").Items[1].Number
		t.equal("by number", t.taken(q, "messages/delete", map[string]any{"messages": []any{second, 77_777}}), 1)
		t.equal("left", string(t.mustGet(q).Body), "2")
		t.equal("counted", t.http(http.MethodGet, "/api/queues/%2F/"+q, nil)["messages_deleted_total"], 5.0)
		t.must(held.Nack(false, true))
		t.equal("held", string(t.take1(q).Body), "held")
	}},
	{id: "Q-TK2", what: "moved: each comes once, in order and unchanged, and is gone here; what has no target is refused; a target that is full takes them when it has room", run: func(t *T) {
		q, to := t.queue("q"), t.queue("to", "x-max-length", int32(2), "x-overflow", "reject-publish")
		for i := range 4 {
			t.publish(q, body(fmt.Sprint(i)), headers("k", "v"))
		}
		t.equal("moved", t.taken(q, "messages/move", map[string]any{"to": to, "limit": 3}), 3)
		for i := range 3 {
			d := t.take1(to)
			t.equal("order", string(d.Body), fmt.Sprint(i))
			t.equal("key and header", d.RoutingKey+fmt.Sprint(d.Headers["k"], d.Headers["x-redriven"]), q+"v<nil>")
			t.must(d.Ack(false))
		}
		t.settledTo(q, 1)
		t.equal("left", string(t.mustGet(q).Body), "3")
		for _, body := range []map[string]any{{}, {"to": t.name("none")}, {"to": q}, {"to": to, "limit": 1001}, {"to": to, "limit": 0}, {"to": to, "header": 1}, {"to": to, "messages": "1"}, {"to": to, "after": 7}} {
			t.refusedTake(q, "messages/move", body)
		}
		t.refusedTake(q, "messages/delete", nil)
	}},
	{id: "Q-TK3", what: "copied: they stay, and each copy comes once; a full queue makes none", run: func(t *T) {
		q, to := t.queue("q", "x-max-length", int32(3)), t.queue("to")
		t.publishN(q, 2)
		t.equal("copied", t.taken(q, "messages/copy", map[string]any{"to": to, "limit": 1}), 1)
		t.equal("copy", string(t.take1(to).Body), "1")
		t.eventually("the copy is counted", func() error {
			if n := t.http(http.MethodGet, "/api/queues/%2F/"+q, nil)["messages_copied_total"]; n != 1.0 {
				return fmt.Errorf("%v", n)
			}
			return nil
		})
		t.publish(q, body("3"))
		t.equal("no room", t.taken(q, "messages/copy", map[string]any{"to": to}), 0)
		t.equal("order", bodies([]*amqp.Delivery{t.mustGet(q), t.mustGet(q), t.mustGet(q)}), "1 2 3")
	}},
	{id: "Q-TK4", what: "message.delete, message.move and message.copy by any client, and by quoratectl; who may not read the queue, or not write where they go, is refused", run: func(t *T) {
		q, to := t.queue("q"), t.queue("to")
		t.publishN(q, 4)
		c, all := t.commander(t.open()), t.peek(q, "").Items
		n := func(i int) int64 { return int64(all[i].Number) }
		other := t.commander(t.user("u", "^$", "^amq", ".*"))
		other.do("message.move", amqp.AccessRefused, false, "x-queue", q, "x-target-queue", to, "x-message", n(0))
		blind := t.commander(t.user("v", "^$", ".*", "^$"))
		blind.do("message.delete", amqp.AccessRefused, false, "x-queue", q, "x-message", n(0))
		c.do("message.move", amqp.NotFound, false, "x-queue", q, "x-target-queue", t.name("none"), "x-message", n(0))
		c.do("message.move", amqp.PreconditionFailed, false, "x-queue", q, "x-target-queue", q, "x-message", n(0))
		c.do("message.move", amqp.PreconditionFailed, false, "x-queue", q, "x-message", n(0))
		c.do("message.delete", amqp.PreconditionFailed, false, "x-queue", q, "x-target-queue", to, "x-message", n(0))
		c.do("message.delete", amqp.PreconditionFailed, false, "x-queue", q)
		c.do("message.delete", amqp.PreconditionFailed, false, "x-queue", q, "x-message", int64(0))
		t.equal("nothing is taken", t.ready(q), 4)

		c.do("message.delete", 0, true, "x-queue", q, "x-message", n(1))
		c.do("message.copy", 0, true, "x-queue", q, "x-target-queue", to, "x-message", n(0))
		t.equal("copy", string(t.take1(to).Body), "1")
		c.do("message.move", 0, true, "x-queue", q, "x-target-queue", to, "x-messages", []any{n(2), n(0)})
		t.equal("moved", bodies([]*amqp.Delivery{t.take1(to), t.take1(to)}), "1 3")
		t.equal("by quoratectl", t.mustCtl(1, "move_messages", q, to, "--count", "5"), "1")
		t.equal("moved", string(t.take1(to).Body), "4")
		t.publish(q, body("x"), headers("k", "v"))
		t.equal("by quoratectl", t.mustCtl(2, "delete_messages", q, "--match", "k=v"), "1")
		t.settled(q)
	}},
	{id: "Q-TK5", what: "message.delete, .move, .copy and .redrive by conditions, and as many as x-limit says; wrong ones are refused, and so is a redrive of a letter that may not go back, with all else that it has found", run: func(t *T) {
		_, dead, q := t.deadly()
		to := t.queue("to")
		for i := range 6 {
			t.publish(q, body(fmt.Sprint(i)), headers("n", int32(i%2)), func(p *amqp.Publishing) { p.MessageId = fmt.Sprint("id ", i) })
			t.must(t.mustGet(q).Reject(false))
		}
		t.publish(dead, body("no letter"))
		t.settledTo(dead, 7)
		c := t.commander(t.open())
		for _, h := range [][]any{
			{"x-limit", int64(0)}, {"x-limit", int64(1001)}, {"x-older-than", int64(0)}, {"x-reason", int64(1)}, {"x-match", "n=1"}, {"x-limit", int64(1), "x-target-queue", to},
		} {
			c.do("message.delete", amqp.PreconditionFailed, false, append([]any{"x-queue", dead}, h...)...)
		}
		c.do("message.move", amqp.PreconditionFailed, false, "x-queue", dead, "x-reason", "rejected")
		other := t.commander(t.user("u", "^$", "^amq", ".*"))
		other.do("message.redrive", amqp.AccessRefused, false, "x-queue", dead, "x-limit", int64(7))
		t.equal("nothing is taken", t.ready(dead), 7)

		c.do("message.delete", 0, true, "x-queue", dead, "x-message-id", "id 0")
		c.do("message.copy", 0, true, "x-queue", dead, "x-target-queue", to, "x-match", amqp.Table{"n": int32(1)}, "x-limit", int64(1))
		t.equal("copy", string(t.take1(to).Body), "1")
		c.do("message.move", 0, true, "x-queue", dead, "x-target-queue", to, "x-match", amqp.Table{"n": "1"}, "x-younger-than", int64(3_600_000))
		t.equal("moved", bodies([]*amqp.Delivery{t.take1(to), t.take1(to), t.take1(to)}), "1 3 5")
		c.do("message.delete", 0, true, "x-queue", dead, "x-older-than", int64(3_600_000))
		c.do("message.redrive", 0, true, "x-queue", dead, "x-reason", "expired")
		c.do("message.redrive", 0, true, "x-queue", dead, "x-source", q, "x-reason", "rejected", "x-limit", int64(1))
		d := t.take1(q)
		t.equal("redriven", fmt.Sprint(string(d.Body), d.Headers["x-redriven"]), "21")
		t.must(d.Ack(false))
		c.do("message.redrive", 0, true, "x-queue", dead, "x-message", int64(t.peek(dead, "").Items[0].Number))
		t.equal("by number", string(t.take1(q).Body), "4")
		t.settledTo(dead, 1)
	}},
	{id: "Q-RD1", what: "redriven: back to the queues where they died, with x-redriven, once for each time; those of a queue that is gone stay and are counted; selected by reason and source; to another queue", run: func(t *T) {
		x, dead, q := t.deadly()
		other := t.queue("other", "x-dead-letter-exchange", x, "x-message-ttl", int32(1))
		lost := t.queue("lost", "x-dead-letter-exchange", x)
		t.publish(q, body("a"))
		t.publish(other, body("b"))
		t.now().settledTo(dead, 1)
		t.publish(lost, body("c"))
		t.publish(dead, body("no letter"))
		t.must(t.mustGet(q).Reject(false))
		t.must(t.mustGet(lost).Reject(false))
		t.settledTo(dead, 4)
		t.settled(lost)
		_, err := t.ch().QueueDelete(lost, false, false, false)
		t.must(err)

		counted := t.http(http.MethodGet, "/api/queues/%2F/"+dead+"/letters", nil)
		kind := func(reason, source string) map[string]any {
			return map[string]any{"reason": reason, "source": source, "messages": 1.0}
		}
		t.equal("letters", fmt.Sprint(counted), fmt.Sprint(map[string]any{
			"messages": 4.0, "kinds": []any{kind("expired", other), kind("rejected", q), kind("rejected", lost)}, "no_source": 1.0, "other": 0.0, "next": "",
		}))
		answer := t.http(http.MethodPost, "/api/queues/%2F/"+dead+"/redrive", map[string]any{"reason": "rejected"})
		t.equal("redriven", fmt.Sprint(answer["messages"], answer["source_gone"], answer["no_source"]), "1 1 0")
		d := t.take1(q)
		t.equal("first time", fmt.Sprint(string(d.Body), d.Headers["x-redriven"]), "a1")
		t.settledTo(dead, 3)
		t.deaths(d, 1)
		t.must(d.Reject(false))
		t.settledTo(dead, 4)
		answer = t.http(http.MethodPost, "/api/queues/%2F/"+dead+"/redrive", map[string]any{"source": q, "limit": 10})
		t.equal("redriven", answer["messages"], 1.0)
		d = t.take1(q)
		t.equal("second time", fmt.Sprint(string(d.Body), d.Headers["x-redriven"]), "a2")
		t.equal("count of x-death", t.death(d, 0)["count"], int64(2))
		t.must(d.Ack(false))
		t.settledTo(dead, 3)
		t.equal("counted", t.http(http.MethodGet, "/api/queues/%2F/"+dead, nil)["messages_redriven_total"], 2.0)
		t.equal("to another one", t.taken(dead, "redrive", map[string]any{"to": q, "reason": "expired"}), 1)
		d = t.take1(q)
		t.equal("there", fmt.Sprint(string(d.Body), d.Headers["x-redriven"]), "b1")
		t.must(d.Ack(false))
		t.equal("the rest stays", t.taken(dead, "redrive", map[string]any{}), 0)
		t.settledTo(dead, 2)
	}},
	{id: "Q-RD2", what: "by quoratectl, at a rate, and by message.redrive; who may not write to the queue where they died is refused, and nothing goes", run: func(t *T) {
		_, dead, q := t.deadly()
		t.publishN(q, 30)
		for range 30 {
			t.must(t.mustGet(q).Reject(false))
		}
		t.settledTo(dead, 30)
		t.must(t.Nodes[0].SetUser(t.ctx, t.name("w"), "secret", "management"))
		t.must(t.Nodes[0].SetPermissions(t.ctx, t.name("w"), "^$", "^$", ".*"))
		if out, code := t.ctl(0, "redrive", dead, "-u", t.name("w"), "--password", "secret"); code == 0 {
			t.Errorf("redriven: %s", out)
		}
		t.equal("redriven", t.ready(q), 0)
		began := time.Now()
		t.equal("redriven", t.mustCtl(0, "redrive", dead, "--rate", "20", "--source", q, "--count", "29"), "29")
		if took := time.Since(began); took < ms(1300) {
			t.Errorf("29 at 20 per second took %v", took)
		}
		t.settledTo(q, 29)
		c := t.commander(t.open())
		c.do("message.redrive", 0, true, "x-queue", dead, "x-target-queue", q, "x-message", int64(t.peek(dead, "").Items[0].Number))
		t.mustComeOnce(q, 30)
	}},
}, redriveRows)}

// takeKillRows are rows of messages that are taken while their queue loses its leader.
var takeKillRows = []row{
	{id: "Q-RD1K", what: "2000 letters redriven in steps of 100, and the leader of each queue is killed meanwhile: each comes back once", run: func(t *T) {
		_, dead, q := t.deadly()
		t.publishMany(q, 2000)
		ch, from := t.consume(q, 500)
		for range 2000 {
			m := t.next(from)
			t.must(m.Reject(false))
		}
		t.settledTo(dead, 2000)
		t.must(ch.Close())
		t.queue("to")
		sum, next := 0, ""
		for step := 0; step == 0 || next != ""; step++ {
			if step == 5 {
				t.killLeader(dead)
			}
			if step == 10 {
				t.killLeader(t.name("to"))
			}
			body := map[string]any{"limit": 100, "to": t.name("to")}
			if next != "" {
				body["after"] = next
			}
			var answer struct {
				Messages int
				Next     string
			}
			t.eventually("a step", func() error {
				return t.Nodes[0].Call(t.ctx, http.MethodPost, "/api/queues/%2F/"+dead+"/redrive", body, &answer)
			})
			sum, next = sum+answer.Messages, answer.Next
		}
		if sum > 2000 {
			t.Errorf("%d are redriven", sum)
		}
		t.mustComeOnce(t.name("to"), 2000)
		t.settled(dead)
	}},
}

// redriveRows are rows of redrives that a queue goes on with by itself.
var redriveRows = []row{
	{id: "Q-RD4", what: "a redrive that the queue goes on with: at a rate, up to a limit, by conditions; one at a time; who, how far and how many stay; cancelled; it sees nothing that comes later", run: func(t *T) {
		x, dead, q := t.deadly()
		t.publishN(q, 40)
		for range 40 {
			t.must(t.mustGet(q).Reject(false))
		}
		lost := t.queue("lost", "x-dead-letter-exchange", x)
		t.publish(lost, body("of a queue that is gone"))
		t.must(t.mustGet(lost).Reject(false))
		t.publish(dead, body("no letter"))
		t.settledTo(dead, 42)
		t.settled(lost)
		_, err := t.ch().QueueDelete(lost, false, false, false)
		t.must(err)

		began := time.Now()
		n := t.redrives(dead, map[string]any{"rate": 20, "limit": 21, "source": q})
		t.refusedTake(dead, "redrive", map[string]any{"all": true})
		t.equal("goes on", t.redriveOf(dead)["ended"], nil)
		r := t.redriven(dead, n)
		if took := time.Since(began); took < ms(900) {
			t.Errorf("21 at 20 a second took %v", took)
		}
		t.equal("by whom and how", fmt.Sprintf("%v %v %v %q %v %v %q", r["by"], r["rate"], r["limit"], r["to"], r["taken"], r["remaining"], r["why"]), `guest 20 21 "" 21 0 ""`)
		t.settledTo(q, 21)

		n = t.redrives(dead, map[string]any{"rate": 1})
		t.must(t.Nodes[1].Call(t.ctx, http.MethodDelete, "/api/queues/%2F/"+dead+"/redrive", nil, nil))
		r = t.redriven(dead, n)
		t.equal("cancelled", r["why"], "cancelled by guest")
		taken := int(r["taken"].(float64))
		t.equal("nothing goes on", t.http(http.MethodDelete, "/api/queues/%2F/"+dead+"/redrive", nil)["changed"], false)

		r = t.redriven(dead, t.redrives(dead, map[string]any{"all": true}))
		t.equal("taken, gone, no letter", fmt.Sprint(r["taken"], r["source_gone"], r["no_source"], r["refused"]), fmt.Sprint(19-taken, 1, 1, 0))
		t.mustComeOnce(q, 40)
		t.settledTo(dead, 2)

		to := t.queue("to")
		n = t.redrives(dead, map[string]any{"rate": 1, "to": to})
		_, err = t.ch().QueueDelete(to, false, false, false)
		t.must(err)
		r = t.redriven(dead, n)
		t.equal("the target is gone", r["why"], "the queue that they go to is gone")
	}},
	{id: "Q-RD5", what: "who began it may not write where they died, they stay, and are counted; one that is to go to one queue, or of a queue that may not be read any more, ends", run: func(t *T) {
		_, dead, q := t.deadly()
		const n = 15
		t.publishN(q, n)
		for range n {
			t.must(t.mustGet(q).Reject(false))
		}
		t.settledTo(dead, n)
		t.must(t.Nodes[0].SetUser(t.ctx, t.name("w"), "secret", "management"))
		t.must(t.Nodes[0].SetPermissions(t.ctx, t.name("w"), "^$", "^$", ".*"))
		as := func(args ...string) (string, int) {
			return t.ctl(0, append(args, "-u", t.name("w"), "--password", "secret")...)
		}
		if out, code := as("redrive", dead, "--rate", "100"); code != 0 || !strings.Contains(out, "0") {
			t.Errorf("%d: %s", code, out)
		}
		t.equal("refused", t.redriveOf(dead)["refused"], float64(n))
		if out, code := as("redrive", dead, q, "--rate", "100"); code == 0 {
			t.Errorf("redriven: %s", out)
		}
		t.settledTo(dead, n)

		t.must(t.Nodes[0].SetPermissions(t.ctx, t.name("w"), "^$", ".*", ".*"))
		if out, code := as("redrive", dead, "--rate", "1", "--detach"); code != 0 {
			t.Errorf("%d: %s", code, out)
		}
		number, _ := t.redriveOf(dead)["number"].(float64)
		t.must(t.Nodes[0].SetPermissions(t.ctx, t.name("w"), "^$", ".*", "^$"))
		if why := fmt.Sprint(t.redriven(dead, number)["why"]); !strings.Contains(why, "refused") {
			t.Errorf("it ends because %q", why)
		}
		if t.ready(dead) == 0 {
			t.Error("all are redriven")
		}
	}},
}

// redriveKillRows are those while their queue loses its leader.
var redriveKillRows = []row{
	{id: "Q-RD4K", what: "1500 letters redriven at 500 a second, and the leader of each queue is killed meanwhile: it goes on, no faster, and each comes back once; the next one is cancelled", run: func(t *T) {
		_, dead, q := t.deadly()
		t.publishMany(q, 1500)
		ch, from := t.consume(q, 500)
		for range 1500 {
			m := t.next(from)
			t.must(m.Reject(false))
		}
		t.settledTo(dead, 1500)
		t.must(ch.Close())
		began := time.Now()
		n := t.redrives(dead, map[string]any{"rate": 500})
		t.killLeader(dead)
		t.killLeader(q)
		r := t.redriven(dead, n)
		if took := time.Since(began); took < ms(2800) {
			t.Errorf("1500 at 500 a second took %v", took)
		}
		t.equal("taken", r["taken"], 1500.0)
		t.mustComeOnce(q, 1500)
		t.settled(dead)
	}},
}

// redrives has a queue begin a redrive.
func (t *T) redrives(queue string, body map[string]any) (number float64) {
	t.Helper()
	n, _ := t.http(http.MethodPost, "/api/queues/%2F/"+queue+"/redrive", body)["number"].(float64)
	return n
}

// redriveOf is the last redrive of a queue.
func (t *T) redriveOf(queue string) map[string]any {
	t.Helper()
	var q struct{ Redrive map[string]any }
	t.eventually("the redrive of "+queue, func() error {
		err := t.Nodes[0].Call(t.ctx, http.MethodGet, "/api/queues/%2F/"+queue, nil, &q)
		if err == nil && q.Redrive == nil {
			err = errors.New("there is none")
		}
		return err
	})
	return q.Redrive
}

// redriven is a redrive with a number, once it has ended.
func (t *T) redriven(queue string, number float64) (r map[string]any) {
	t.Helper()
	t.eventually("the end of a redrive of "+queue, func() error {
		if r = t.redriveOf(queue); r["number"] != number || r["ended"] == nil {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	return r
}

// taken takes messages by HTTP, and says how many.
func (t *T) taken(queue, action string, body map[string]any) int {
	t.Helper()
	n, _ := t.http(http.MethodPost, "/api/queues/%2F/"+queue+"/"+action, body)["messages"].(float64)
	return int(n)
}

// refusedTake checks that such a request is refused, and takes nothing.
func (t *T) refusedTake(queue, action string, body map[string]any) {
	t.Helper()
	err := t.Nodes[0].Call(t.ctx, http.MethodPost, "/api/queues/%2F/"+queue+"/"+action, body, nil)
	if err == nil || !strings.Contains(err.Error(), "400") && !strings.Contains(err.Error(), "404") {
		t.Errorf("%v: %v", body, errors.Join(err, errors.New("not refused")))
	}
}
