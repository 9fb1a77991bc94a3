package mgmt

import (
	"strings"
	"testing"
)

// A policy that is tried says of each queue what it would change, and is not put.
func TestTryPolicy(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"orders", "orders.old", "bills"} {
		w.queue("/", name, name == "orders.old")
	}
	w.check(
		want{"root", "PUT", "/api/policies/%2F/low", `{"pattern":".*","definition":{"message-ttl":1000}}`, 201, ""},
		want{"root", "PUT", "/api/policies/%2F/high", `{"pattern":"^bills","definition":{"message-ttl":2000},"priority":9}`, 201, ""},
		want{"root", "PUT", "/api/operator-policies/%2F/cap", `{"pattern":"^orders$","definition":{"message-ttl":3000}}`, 201, ""},
	)
	const columns = "?columns=name,policy,would_policy,would_effective_policy_definition,wins,changes"
	w.check(
		want{"polly", "POST", "/api/policies/%2F/new/try" + columns, `{"pattern":"orders|bills","apply-to":"quorum_queues","definition":{"message-ttl":5000},"priority":1}`, 200,
			`[{"changes":false,"name":"bills","policy":"high","wins":false,"would_effective_policy_definition":{"message-ttl":2000},"would_policy":"high"},` +
				`{"changes":true,"name":"orders","policy":"low","wins":true,"would_effective_policy_definition":{"message-ttl":3000},"would_policy":"new"}]`},
		want{"root", "POST", "/api/policies/%2F/low/try" + columns, `{"pattern":"^bills$","definition":{"message-ttl":1}}`, 200,
			`[{"changes":false,"name":"bills","policy":"high","wins":false,"would_effective_policy_definition":{"message-ttl":2000},"would_policy":"high"}]`},
		want{"root", "POST", "/api/operator-policies/%2F/cap/try" + columns, `{"pattern":"old$","definition":{"message-ttl":1}}`, 200,
			`[{"changes":true,"name":"orders.old","policy":"low","wins":true,"would_effective_policy_definition":{"message-ttl":1},"would_policy":"low"}]`},
		want{"root", "POST", "/api/policies/%2F/new/try", `{"pattern":"^nothing$","definition":{"message-ttl":1}}`, 200, `[]`},
		want{"root", "POST", "/api/policies/%2F/new/try", `{"pattern":"(?=x","definition":{"message-ttl":1}}`, 400, "…"},
		want{"root", "POST", "/api/policies/none/new/try", `{"pattern":"x","definition":{"message-ttl":1}}`, 404, "…"},
		want{"root", "GET", "/api/policies/%2F/new", "", 404, notThere},
	)
}

// What a policy does otherwise than at RabbitMQ is told when it is tried or put, and where it is shown.
func TestPolicyWarnings(t *testing.T) {
	w := newWorld(t)
	for definition, want := range map[string]string{
		`{"queue-mode":"lazy","ha-mode":"all","max-length":3}`: `"has no effect here: ha-mode, queue-mode"`,
		`{"delivery-limit":3}`:                                 `"delivery-limit also applies to classic queues; RabbitMQ ignores it for them"`,
		`{"max-length":3}`:                                     "",
	} {
		header, notes := "", ""
		if want != "" {
			header, notes = "299 - "+want, `,"notes":[`+want+`]`
		}
		for method, path := range map[string]string{"POST": "/api/policies/%2F/p/try", "PUT": "/api/policies/%2F/p"} {
			out := w.request("root", method, path, `{"pattern":"","definition":`+definition+`}`)
			if have := out.Header().Get("Warning"); out.Code >= 300 || have != header {
				t.Errorf("%s %s: %d %s", method, definition, out.Code, have)
			}
		}
		if out := w.request("root", "GET", "/api/policies/%2F?columns=name,notes", ""); strings.TrimSpace(out.Body.String()) != `[{"name":"p"`+notes+`}]` {
			t.Errorf("the list has %s", out.Body)
		}
		if out := w.request("root", "GET", "/api/policies/%2F/p", ""); strings.Contains(out.Body.String(), `"notes":[`+want+`]`) != (want != "") {
			t.Errorf("it is shown as %s", out.Body)
		}
	}
}
