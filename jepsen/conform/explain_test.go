package conform

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
)

func TestExplained(t *testing.T) { explainRows.run(t) }

// lifeEvent is an event of a life, as the API has it.
type lifeEvent struct {
	At     int64    `json:"at"`
	Index  uint64   `json:"index"`
	Event  string   `json:"event"`
	Why    string   `json:"why"`
	Tag    string   `json:"consumer_tag"`
	Queues []string `json:"queues"`
}

// explained are the lives of messages.
type explained struct {
	Lives []struct {
		State  string      `json:"state"`
		Events []lifeEvent `json:"events"`
	} `json:"lives"`
}

func (x *explained) String() string {
	var b strings.Builder
	for _, l := range x.Lives {
		fmt.Fprintf(&b, "%s: %v\n", l.State, l.Events)
	}
	return b.String()
}

// has reports whether the only life has an event with this reason.
func (x *explained) has(event, why string) (e lifeEvent, ok bool) {
	if len(x.Lives) != 1 {
		return e, false
	}
	for _, e := range x.Lives[0].Events {
		if e.Event == event && strings.HasPrefix(e.Why, why) {
			return e, true
		}
	}
	return e, false
}

// explainRows ask what happened to messages.
var explainRows = suite{test: "TestExplained", title: "Why did it die", rough: true, rows: []row{
	{id: "T-151", what: "explain a message that expired, one rejected, one cancelled: reasons, times and log indexes; the same on every node, and offline", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		id := func(s string) option { return func(p *amqp.Publishing) { p.MessageId = s } }
		began := t.publish(q, id("expired"), expiration("300"))
		t.soonReady(d, 1, began.Add(ms(300)))
		t.publish(q, id("rejected"))
		t.must(t.take1(q).Reject(false))
		t.publish(q, id("cancelled"), headers("x-opt-delivery-delay", int32(3_600_000), "x-schedule-id", "s"))
		t.eventually("it is cancelled", func() error {
			status, answer, err := t.Nodes[0].Do(t.ctx, http.MethodDelete, "/api/queues/%2F/"+q+"/scheduled/s", nil)
			if err == nil && status != http.StatusNoContent {
				err = fmt.Errorf("%d %s", status, answer)
			}
			return err
		})
		t.eventually("both letters have arrived", func() error {
			for _, name := range []string{"expired", "rejected"} {
				l := t.explain(t.Nodes[0], q, name)
				if _, ok := l.has("dead letter arrived", ""); !ok {
					return fmt.Errorf("%s: %v", name, l)
				}
			}
			return nil
		})
		lives := map[string]*explained{}
		for name, last := range map[string][2]string{"expired": {"died", "expired"}, "rejected": {"died", "rejected"}, "cancelled": {"cancelled", ""}} {
			l := t.explain(t.Nodes[0], q, name)
			e, ok := l.has(last[0], last[1])
			if !ok || e.Index == 0 || e.At < began.UnixMilli() || l.Lives[0].State != "ended" {
				t.Fatalf("%s: %v", name, l)
			}
			t.mustHaveRecord(q, name, e)
			lives[name] = l
		}
		if e, _ := lives["expired"].has("died", "expired"); time.UnixMilli(e.At).Before(began.Add(ms(300)).Add(-slack)) {
			t.Errorf("it expired at %d, published at %d", e.At, began.UnixMilli())
		}
		for _, n := range t.Nodes {
			for name, want := range lives {
				t.equal(fmt.Sprint(name, " by node ", n.Number), t.explain(n, q, name).String(), want.String())
			}
		}
		t.verified(q)
		t.offline(q, lives)
	}},
}}

// explain asks a node for the lives of the messages with an id.
func (t *T) explain(n *cluster.Node, queue, id string) *explained {
	t.Helper()
	x := &explained{}
	t.eventually("an answer", func() error {
		return n.Call(t.ctx, http.MethodGet, "/api/queues/%2F/"+queue+"/explain?message_id="+url.QueryEscape(id), nil, x)
	})
	return x
}

// verified waits until the replicas of a queue were compared and found equal.
func (t *T) verified(queue string) {
	t.Helper()
	t.eventually("equal replicas", func() error {
		var v struct {
			Verdict  string
			Replicas []struct {
				Hash string `json:"state_hash"`
			}
		}
		err := t.Nodes[2].Call(t.ctx, http.MethodGet, "/api/quorate/queues/%2F/"+queue+"/verify?timeout=5000", nil, &v)
		if err == nil && (v.Verdict != "equal" || len(v.Replicas) != len(t.Nodes) || v.Replicas[0].Hash == "") {
			err = fmt.Errorf("%+v", v)
		}
		if v.Verdict == "different" {
			t.Fatal(err)
		}
		return err
	})
}

// mustHaveRecord checks the record of the end of a message.
func (t *T) mustHaveRecord(queue, id string, e lifeEvent) {
	t.Helper()
	var page struct{ Items []map[string]any }
	t.must(t.Nodes[1].Call(t.ctx, http.MethodGet, "/api/queues/%2F/"+queue+"/deaths?message_id="+id, nil, &page))
	if len(page.Items) != 1 || page.Items[0]["index"] != float64(e.Index) || page.Items[0]["at"] != float64(e.At) || page.Items[0]["reason"] != id {
		t.Fatalf("%s: %v, not as in %v", id, page.Items, e)
	}
}

// offline stops all nodes, and reads the same from each of their data folders.
func (t *T) offline(queue string, lives map[string]*explained) {
	t.Helper()
	for _, n := range t.Nodes {
		t.must(n.Shutdown(t.ctx))
	}
	for _, n := range t.Nodes {
		for id, want := range lives {
			out, err := exec.CommandContext(t.ctx, server, "log", "explain", "--data-dir", n.DataDir(), "--queue", queue, "--message-id", id, "--json").Output()
			x := &explained{}
			if t.must(err); json.Unmarshal(out, x) != nil {
				t.Fatalf("%s", out)
			}
			t.equal(fmt.Sprint(id, " from the folder of node ", n.Number), x.String(), want.String())
		}
	}
	for _, n := range t.Nodes {
		t.must(n.Restart())
	}
	t.lostConnections()
	for _, n := range t.Nodes {
		t.must(n.AwaitReady(t.ctx))
	}
}
