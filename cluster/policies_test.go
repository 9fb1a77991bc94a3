package cluster

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// mustSend makes a request of guest's and returns what is answered.
func mustSend(t *testing.T, method, url, body string, status int) map[string]any {
	t.Helper()
	a := send(t, method, url, body, "guest", "guest")
	twice := a.again && (method == http.MethodPut && a.status == http.StatusNoContent || method == http.MethodDelete && a.status == http.StatusNotFound)
	if a.status != status && !twice {
		t.Fatalf("%s %s: %d %s; want %d", method, url, a.status, a.raw, status)
	}
	object := map[string]any{}
	if len(a.raw) > 0 {
		if err := json.Unmarshal(a.raw, &object); err != nil {
			t.Fatalf("%s %s answers %q: %v", method, url, a.raw, err)
		}
	}
	return object
}

// awaitQueue waits until a queue, as a node describes it, has a value.
func awaitQueue(t *testing.T, url, name, key string, value any) map[string]any {
	t.Helper()
	var row map[string]any
	until(t, name+" has "+key, func() bool {
		row = mustSend(t, "GET", url+"/api/queues/%2F/"+name, "", 200)
		return row[key] == value && row["settings_in_force"] == true
	})
	return row
}

// lifetime.md P16 to P19: a policy acts on queues that are there and on those
// that come, wherever it was set and whoever leads, and is lifted again.
func TestPolicyActsOnQueues(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	for _, body := range numbered(0, 10) {
		cl.publish("q", body)
	}
	cl.confirmed()
	urls := map[string]string{}
	for _, name := range names {
		urls[name] = mustServe(t, c.all[name])
	}
	mustSend(t, "PUT", urls["n2"]+"/api/policies/%2F/p", `{"pattern":"^q","apply-to":"queues","definition":{"max-length":4}}`, 201)
	row := awaitQueue(t, urls["n3"], "q", "messages", 4.0)
	if row["policy"] != "p" || row["leader"] != c.mustLeader("q") || row["state"] != "running" {
		t.Errorf("the queue is described as %v", row)
	}
	m, ok, err := cl.session.Get(deadline(t), "q", true)
	if err != nil || !ok || string(m.Payload.Body()) != "m00006" {
		t.Errorf("the oldest message is %q, %v, %v", m.Payload.Body(), ok, err)
	}
	cl.mustDeclare("q2")
	for _, body := range numbered(0, 6) {
		cl.publish("q2", body)
	}
	cl.confirmed()
	awaitQueue(t, urls["n1"], "q2", "messages", 4.0)

	mustSend(t, "PUT", urls["n1"]+"/api/operator-policies/%2F/op", `{"pattern":"^q2","definition":{"max-length":1,"overflow":"reject-publish"}}`, 201)
	row = awaitQueue(t, urls["n2"], "q2", "operator_policy", "op")
	if row["messages"] != 4.0 {
		t.Errorf("a queue that refuses publishes has dropped messages: %v", row["messages"])
	}
	cl.next++
	refused := cl.next
	cl.mu.Lock()
	cl.pending++
	cl.mu.Unlock()
	_, err = cl.session.Publish(&fsm.Publish{
		Number: refused, RoutingKey: "q2", TTL: -1, Priority: -1,
		Payload: append(fsm.AppendPayloadHead(nil, "", "q2", nil), "no"...), Headers: func() *fsm.Table { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	cl.await("the publish is answered", func() bool { return cl.pending == 0 })
	cl.mu.Lock()
	if cl.settled[refused] {
		t.Error("a full queue has taken a message")
	}
	delete(cl.settled, refused)
	cl.mu.Unlock()

	mustSend(t, "DELETE", urls["n3"]+"/api/operator-policies/%2F/op", "", 204)
	mustSend(t, "DELETE", urls["n3"]+"/api/policies/%2F/p", "", 204)
	awaitQueue(t, urls["n1"], "q2", "policy", "")
	for _, body := range numbered(6, 12) {
		cl.publish("q2", body)
	}
	cl.confirmed()
	awaitQueue(t, urls["n2"], "q2", "messages", 10.0)
	c.mustAgree()
}

// A policy that is set while a queue has no leader, and while one of its
// replicas is away, holds once there is one, on all replicas.
func TestPolicyOutlivesLeaders(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	leader := c.mustLeader("q")
	node := c.other(leader)
	url := mustServe(t, c.all[node])
	c.crash(leader)
	mustSend(t, "PUT", url+"/api/policies/%2F/p", `{"pattern":"q","definition":{"delivery-limit":7,"message-ttl":86400000}}`, 201)
	awaitQueue(t, url, "q", "delivery_limit", 7.0)
	mustSend(t, "PUT", url+"/api/policies/%2F/p", `{"pattern":"q","definition":{"delivery-limit":8}}`, 204)
	c.mustOpen(leader)
	awaitQueue(t, url, "q", "delivery_limit", 8.0)
	user := c.mustClient(node)
	user.publish("q", "m") // whoever uses the queue first brings its settings in
	user.confirmed()
	c.mustAgree()
	for name, n := range c.all {
		for _, g := range n.host.Groups() {
			var have *logpb.QueueConfig
			g.View(func(m *queue.Machine) { have = m.Config() })
			if have.DeliveryLimit != 8 || have.TtlPlusOne != 0 {
				t.Errorf("on %s the settings are %v", name, have)
			}
		}
	}
}

// scheduling-and-locks.md T-13: an exchange limits how long what passes it lives.
func TestExchangeCeiling(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("short", integer("x-message-ttl", 1))
	cl.mustDeclare("long", integer("x-message-ttl", 86_400_000))
	for name, ttl := range map[string]int64{"quick": 1, "slow": 86_400_000} {
		cl.mustDeclareExchange(fsm.ExchangeSpec{
			Name: name, Type: "direct", Durable: true, Arguments: &fsm.Table{Fields: []*logpb.Field{integer("x-message-ttl", ttl)}},
		})
		for _, queue := range []string{"short", "long"} {
			cl.mustBind(name, queue, name)
		}
	}
	for _, exchange := range []string{"quick", "slow"} {
		cl.next++
		cl.mu.Lock()
		cl.pending++
		cl.mu.Unlock()
		if routed, err := cl.session.Publish(&fsm.Publish{
			Number: cl.next, Exchange: exchange, RoutingKey: exchange, TTL: 3_600_000, Priority: -1,
			Payload: append(fsm.AppendPayloadHead(nil, exchange, exchange, nil), exchange...), Headers: func() *fsm.Table { return nil },
		}); err != nil || !routed {
			t.Fatalf("publish to %s: %v, %v", exchange, routed, err)
		}
	}
	cl.confirmed()
	until(t, "what may not live is gone", func() bool {
		short, err := cl.count("short")
		long, err2 := cl.count("long")
		return err == nil && err2 == nil && short.Ready == 0 && long.Ready == 1
	})
	if m, ok, err := cl.session.Get(deadline(t), "long", true); err != nil || !ok || string(m.Payload.Body()) != "slow" {
		t.Errorf("what is left is %q, %v, %v", m.Payload.Body(), ok, err)
	}
}
