package conform

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
)

func TestPolicies(t *testing.T) { policyRows.run(t) }

// definition of a policy.
type definition = map[string]any

var policyRows = suite{test: "TestPolicies", title: "Policies", rows: []row{
	{id: "P01", what: "of two that match, only the one with the higher priority applies", run: func(t *T) {
		q := t.queue("q")
		t.setPolicy(cluster.Policy{Name: "low", Pattern: t.row, Priority: 1, Definition: definition{"max-length": 5, "message-ttl": 60000}})
		t.setPolicy(cluster.Policy{Name: "high", Pattern: t.row, Priority: 5, Definition: definition{"max-length": 7}})
		t.mustApply(q, "high", definition{"max-length": 7})
	}},
	{id: "P02", what: "of two with equal priority, the one whose name comes first applies", run: func(t *T) {
		q := t.queue("q")
		t.setPolicy(cluster.Policy{Name: "b", Pattern: t.row, Definition: definition{"max-length": 5}})
		t.setPolicy(cluster.Policy{Name: "a", Pattern: t.row, Definition: definition{"max-length": 7}})
		t.mustApply(q, "a", definition{"max-length": 7})
	}},
	{id: "P03", what: "a pattern matches anywhere in the name", run: func(t *T) {
		q := t.queue("xabcx")
		t.setPolicy(cluster.Policy{Name: "p", Pattern: "P03.xabc", Definition: definition{"max-length": 5}})
		t.mustApply(q, "p", definition{"max-length": 5})
	}},
	{id: "P04", what: "apply-to: the values that include a quorum queue", run: func(t *T) {
		q := t.queue("q")
		for applyTo, matches := range map[string]bool{"exchanges": false, "classic_queues": false, "quorum_queues": true, "queues": true, "all": true} {
			name := "p-" + applyTo
			t.setPolicy(cluster.Policy{Name: name, Pattern: t.row, ApplyTo: applyTo, Definition: definition{"max-length": 5}})
			if matches {
				t.mustApply(q, name, definition{"max-length": 5})
			} else {
				t.setPolicy(cluster.Policy{Name: "other", Pattern: t.row, Priority: -1, Definition: definition{"max-length": 9}})
				t.mustApply(q, "other", definition{"max-length": 9})
				t.must(t.Nodes[0].ClearPolicy(t.ctx, cluster.Policy{Name: t.name("other")}))
			}
			t.must(t.Nodes[0].ClearPolicy(t.ctx, cluster.Policy{Name: t.name(name)}))
			t.mustApply(q, "", definition{})
		}
	}},
	{id: "P05", what: "a wrong apply-to or pattern: 400", run: func(t *T) {
		d := definition{"max-length": 5}
		t.badPolicy(definition{"pattern": ".*", "definition": d, "apply-to": "foo"}, "apply-to 'foo' unrecognised")
		t.badPolicy(definition{"pattern": "(", "definition": d}, "")
		t.badPolicy(definition{"pattern": strings.Repeat("a", 1025), "definition": d}, "")
	}},
	{id: "P06", what: "a wrong definition: 400", run: func(t *T) {
		for text, d := range map[string]definition{
			"no policy provided":                   {},
			"not recognised policy settings":       {"foo": 1},
			"-1 is not a valid message TTL":        {"message-ttl": -1},
			"is not a valid message TTL":           {"message-ttl": "5"},
			"0 is not a valid queue expiry":        {"expires": 0},
			"is not a valid overflow value":        {"overflow": "x"},
			"-1 is not a valid maximum length":     {"max-length": -1},
			"not a valid dead letter strategy":     {"dead-letter-strategy": "x"},
			"is not a valid dead letter exchange":  {"dead-letter-exchange": 1},
			"is not a valid delivery limit":        {"delivery-limit": "x"},
			"is not a valid maximum length in byt": {"max-length-bytes": 1.5},
		} {
			t.badPolicy(definition{"pattern": ".*", "definition": d}, text)
		}
	}},
	{id: "P07", what: "no body, or one without pattern or definition: 400", run: func(t *T) {
		t.badPolicy(definition{"definition": definition{"max-length": 5}}, "")
		t.badPolicy(definition{"pattern": ".*"}, "")
		t.badPolicy([]byte("no JSON"), "")
	}},
	{id: "P08", what: "PUT, PUT, GET, DELETE, GET: 201, 204, 200, 204, 404", run: func(t *T) {
		path := (&cluster.Policy{Name: t.name("p")}).Path()
		in := definition{"pattern": "^" + t.row, "definition": definition{"max-length": 5}}
		for _, step := range []struct {
			method string
			in     any
			want   int
		}{
			{http.MethodPut, in, 201}, {http.MethodPut, in, 204}, {http.MethodGet, nil, 200},
			{http.MethodDelete, nil, 204}, {http.MethodGet, nil, 404},
		} {
			status, _, err := t.Nodes[0].Do(t.ctx, step.method, path, step.in)
			t.must(err)
			t.equal(step.method, status, step.want)
		}
	}},
	{id: "P09", what: "keys without an effect leave a policy's others theirs, and are kept", run: func(t *T) {
		q := t.queue("q")
		t.setPolicy(cluster.Policy{Name: "lazy", Pattern: t.row, Priority: 9, Definition: definition{"message-ttl": 300, "queue-mode": "lazy"}})
		t.setPolicy(cluster.Policy{Name: "plain", Pattern: t.row, Priority: 1, Definition: definition{"message-ttl": 60000}})
		t.mustApply(q, "lazy", definition{"message-ttl": 300, "queue-mode": "lazy"})
	}},
	{id: "P10", what: "operator 5, policy 10, argument 20: 5", run: func(t *T) { t.effectiveLength(5, 10, 20, 5) }},
	{id: "P11", what: "operator 50, policy 20: 20", run: func(t *T) { t.effectiveLength(50, 20, 100, 20) }},
	{id: "P12", what: "an operator policy with a key that operators may not set: 400", run: func(t *T) {
		for key, value := range map[string]any{"dead-letter-exchange": "x", "consumer-timeout": 60000} {
			status, body, err := t.Nodes[0].Do(t.ctx, http.MethodPut, (&cluster.Policy{Name: t.name("p"), Operator: true}).Path(),
				definition{"pattern": t.row, "definition": definition{key: value}})
			t.must(err)
			if status != 400 {
				t.Errorf("%s: %d %s", key, status, body)
			}
		}
	}},
	{id: "P13", what: "overflow: the policy beats the argument", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(1), "x-overflow", "drop-head")
		t.policy("p", q, 0, definition{"overflow": "reject-publish"})
		t.publish(q)
		t.equal("acked", t.send("", q), false)
	}},
	{id: "P14", what: "overflow: the operator beats the policy", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(1), "x-overflow", "reject-publish")
		t.policy("p", q, 0, definition{"overflow": "drop-head"})
		t.publish(q)
		t.equal("acked", t.send("", q), true)
		t.setPolicy(cluster.Policy{Name: "o", Operator: true, Pattern: t.row, Definition: definition{"overflow": "reject-publish"}})
		t.mustApply(q, "p", definition{"overflow": "reject-publish"})
		t.equal("acked", t.send("", q), false)
	}},
	{id: "P15", what: "delivery-limit: argument -1, policy 1: 1", run: func(t *T) {
		_, d, q := t.deadly("x-delivery-limit", int32(-1))
		t.policy("p", q, 0, definition{"delivery-limit": 1})
		t.publish(q)
		for range 2 {
			t.must(t.take1(q).Reject(true))
		}
		t.equal("reason", t.death(t.take(d, 1)[0], 0)["reason"], "delivery_limit")
	}},
	{id: "P16", what: "a policy that exists before the queue applies from the first message", run: func(t *T) {
		t.setPolicy(cluster.Policy{Name: "p", Pattern: t.row, Definition: definition{"max-length": 1, "overflow": "reject-publish"}})
		q := t.queue("q")
		t.publish(q)
		t.equal("acked", t.send("", q), false)
	}},
	{id: "P17", what: "max-length 4 for ten messages: the newest four stay", run: func(t *T) {
		_, d, q := t.deadly()
		t.publishN(q, 10)
		t.policy("p", q, 0, definition{"max-length": 4})
		all := t.take(d, 6)
		t.equal("dead", bodies(all), "1 2 3 4 5 6")
		t.equal("reason", t.death(all[0], 0)["reason"], "maxlen")
		t.equal("kept", bodies(t.take(q, 4)), "7 8 9 10")
	}},
	{id: "P18", what: "clearing a policy removes its limits", run: func(t *T) {
		q := t.queue("q")
		t.policy("p", q, 0, definition{"max-length": 1, "overflow": "reject-publish"})
		t.publish(q)
		t.equal("acked", t.send("", q), false)
		t.clearPolicy("p", q)
		t.equal("acked", t.send("", q), true)
	}},
	{id: "P19", what: "a queue shows its policies and the effective definition", run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int32(300000))
		t.policy("p", q, 0, definition{"max-length": 10, "message-ttl": 200000})
		t.setPolicy(cluster.Policy{Name: "o", Operator: true, Pattern: t.row, Definition: definition{"max-length": 5}})
		t.mustApply(q, "p", definition{"max-length": 5, "message-ttl": 200000})
		info, err := t.Nodes[1].Queue(t.ctx, q)
		t.must(err)
		t.equal("operator policy", info.OperatorPolicy, t.name("o"))
		t.equal("argument", fmt.Sprint(info.Arguments["x-message-ttl"]), "300000")
	}},
	{id: "P20", what: "message-ttl above ten years: 400", run: func(t *T) {
		t.badPolicy(definition{"pattern": ".*", "definition": definition{"message-ttl": int64(maxTTL + 1)}}, "not a valid message TTL")
	}},
	{id: "P21", what: "a policy never makes a redeclare fail", run: func(t *T) {
		q := t.queue("q")
		t.policy("p", q, 0, definition{"message-ttl": 60000})
		t.queue("q")
	}},
	{id: "P22", what: "definitions with look-around are imported at one node, in force at each, and exported by each as they were written", run: importPatterns},
}}

// importPatterns imports definitions with look-ahead, look-behind and a back-reference.
func importPatterns(t *T) {
	const ahead, behind, closed = `"^(?!.*\\.dead$)P22\\."`, `"^P22\\..*(?<!\\.dead)$"`, `"^(?!(P22\\.)\\1|P22\\.closed).*"`
	at := "/api/users/P22.app"
	t.Cleanup(func() {
		for _, path := range []string{at, "/api/policies/%2F/P22.ahead", "/api/operator-policies/%2F/P22.behind"} {
			_, _, _ = t.Nodes[0].Do(t.ctx, http.MethodDelete, path, nil)
		}
	})
	t.must(t.Nodes[0].Call(t.ctx, http.MethodPost, "/api/definitions", json.RawMessage(`{"users":[{"name":"P22.app","password":"a long secret","tags":""}],
"permissions":[{"user":"P22.app","vhost":"/","configure":`+closed+`,"write":"","read":""}],
"parameters":[{"component":"operator_policy","vhost":"/","name":"P22.behind","value":{"pattern":`+behind+`,"apply-to":"queues","definition":{"max-length":9}}}],
"policies":[{"vhost":"/","name":"P22.ahead","pattern":`+ahead+`,"apply-to":"queues","definition":{"message-ttl":60000}}]}`), nil))
	jobs, dead := t.queue("jobs"), t.queue("jobs.dead")
	for i, n := range t.Nodes {
		for name, want := range map[string]string{jobs: "P22.ahead P22.behind map[max-length:9 message-ttl:60000]", dead: "  map[]"} {
			q, err := n.Queue(t.ctx, name)
			t.must(err)
			t.equal(fmt.Sprint(name, " at node ", i), fmt.Sprint(q.Policy, " ", q.OperatorPolicy, " ", q.Effective), want)
		}
		for name, code := range map[string]int{"P22.open": 0, "P22.closed": amqp.AccessRefused, "P22.P22.": amqp.AccessRefused} {
			conn, err := amqp.DialConfig("amqp://"+n.AMQP+"/", amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "P22.app", Password: "a long secret"}}})
			t.must(err)
			ch, err := conn.Channel()
			t.must(err)
			if _, err = ch.QueueDeclare(name, true, false, false, false, nil); code == 0 && err != nil || code != 0 && !isCode(err, code) {
				t.Errorf("node %d: %s is declared: %v", i, name, err)
			}
			t.must(conn.Close())
		}
		var out struct {
			Permissions []struct{ User, Configure json.RawMessage }
			Policies    []struct{ Name, Pattern json.RawMessage }
			Parameters  []struct {
				Name  json.RawMessage
				Value struct{ Pattern json.RawMessage }
			}
		}
		t.must(n.Call(t.ctx, http.MethodGet, "/api/definitions", nil, &out))
		found := map[string]string{}
		for _, x := range out.Permissions {
			found[string(x.User)] = string(x.Configure)
		}
		for _, x := range out.Policies {
			found[string(x.Name)] = string(x.Pattern)
		}
		for _, x := range out.Parameters {
			found[string(x.Name)] = string(x.Value.Pattern)
		}
		for name, want := range map[string]string{`"P22.app"`: closed, `"P22.ahead"`: ahead, `"P22.behind"`: behind} {
			t.equal(fmt.Sprint(name, " as node ", i, " exports it"), found[name], want)
		}
	}
}

// setPolicy sets a policy under the row's own name and removes it with the row.
func (t *T) setPolicy(p cluster.Policy) {
	t.Helper()
	p.Name = t.name(p.Name)
	t.must(t.Nodes[0].SetPolicy(t.ctx, p))
}

// inForce waits until a queue goes by a policy, and by exactly this definition.
func (t *T) mustApply(queue, policy string, want definition) {
	t.Helper()
	if policy != "" {
		policy = t.name(policy)
	}
	t.eventually(queue+" goes by "+policy, func() error {
		q, err := t.Nodes[0].Queue(t.ctx, queue)
		if err == nil && (q.Policy != policy || fmt.Sprint(q.Effective) != fmt.Sprint(want)) {
			err = fmt.Errorf("it goes by %q: %v", q.Policy, q.Effective)
		}
		return err
	})
}

// badPolicy checks that a policy is refused with 400 and a reason.
func (t *T) badPolicy(in any, words string) {
	t.Helper()
	status, body, err := t.Nodes[0].Do(t.ctx, http.MethodPut, (&cluster.Policy{Name: t.name("bad")}).Path(), in)
	t.must(err)
	if status != 400 || !strings.Contains(string(body), words) {
		t.Errorf("%v: want 400 %q, got %d %s", in, words, status, body)
	}
}

// effectiveLength publishes more than any limit and counts what stays.
func (t *T) effectiveLength(operator, policy, argument, want int) {
	t.Helper()
	q := t.queue("q", "x-max-length", int32(argument))
	t.policy("p", q, 0, definition{"max-length": policy})
	t.setPolicy(cluster.Policy{Name: "o", Operator: true, Pattern: t.row, Definition: definition{"max-length": operator}})
	t.mustApply(q, "p", definition{"max-length": min(operator, policy)})
	t.publishN(q, argument+1)
	t.soonReady(q, want, time.Now())
}
