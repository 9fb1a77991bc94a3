package mgmt

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/proto/logpb"
)

func (w *world) Drifts(context.Context) []api.Drift { return slices.Clone(w.drifts) }

// TestDrifts: users see the drift of the vhosts that they may see, the latest first.
func TestDrifts(t *testing.T) {
	w := newWorld(t)
	drift := func(vhost, name string) api.Drift {
		return api.Drift{
			VHost: vhost, Name: name, Kind: "queue", Argument: "x-max-length", Declared: json.RawMessage("10"), Received: json.RawMessage("null"), Adoptions: 2,
			User: "app", Client: "billing", Connection: "a -> b", Node: "n1", Times: 3, FirstAt: 5, LastAt: 6,
		}
	}
	w.drifts = []api.Drift{drift("/", "q"), drift("hidden", "h"), drift("/", "r")}
	const names = "?columns=name"
	w.check(
		want{"maggie", "GET", "/api/drift?page=1&page_size=1", "", 200, `…"items":[{"vhost":"/","name":"q","kind":"queue","argument":"x-max-length","declared":10,"received":null,"adopted":false,"adoptions":2,"user":"app","client":"billing","connection":"a -\u003e b","node":"n1","times":3,"first_at":5,"last_at":6}]`},
		want{"maggie", "GET", "/api/drift" + names, "", 200, `[{"name":"q"},{"name":"r"}]`},
		want{"mona", "GET", "/api/drift" + names, "", 200, `[{"name":"q"},{"name":"h"},{"name":"r"}]`},
		want{"root", "GET", "/api/drift/hidden" + names, "", 200, `[{"name":"h"}]`},
		want{"root", "GET", "/api/drift/%2F?columns=argument,declared,received&page=2&page_size=1", "", 200, `…"items":[{"argument":"x-max-length","declared":10,"received":null}]`},
		want{"maggie", "GET", "/api/drift/hidden", "", 404, notThere},
		want{"maggie", "GET", "/api/drift/none", "", 404, notThere},
		want{"nobody", "GET", "/api/drift", "", 401, "…"},
	)
	w.drifts = nil
	w.check(want{"root", "GET", "/api/drift", "", 200, "[]"})
}

// TestRedeclare: what a vhost does with other arguments changes only when somebody says so, and only to what
// there is. The HTTP API shows, exports and imports it, and the arguments that a queue has by now.
func TestRedeclare(t *testing.T) {
	w := newWorld(t)
	const shown, v = "?columns=redeclare", "/api/vhosts/v"
	w.check(
		want{"root", "PUT", v, `{"redeclare":"lax"}`, 400, invalid("redeclare must be strict, relaxed or adopt, not lax")},
		want{"root", "GET", v, "", 404, notThere},
		want{"root", "PUT", v, `{"redeclare":7}`, 400, "…a string"},
		want{"root", "PUT", v, `{}`, 201, ""},
		want{"root", "GET", v + shown, "", 200, `…"redeclare":"strict"`},
		want{"root", "PUT", v, `{"redeclare":"adopt"}`, 204, ""},
		want{"root", "PUT", v, `{"description":"d"}`, 204, ""},
		want{"root", "POST", v + "/deletion/protection", "", 204, ""},
		want{"root", "GET", v + shown, "", 200, `…"redeclare":"adopt"`},
		want{"root", "POST", "/api/definitions", `{"vhosts":[{"name":"v"}]}`, 204, ""},
		want{"root", "GET", v + shown, "", 200, `…"redeclare":"adopt"`},
		want{"root", "POST", "/api/definitions", `{"vhosts":[{"name":"v","redeclare":"lax"}]}`, 400, "…redeclare must be strict, relaxed or adopt"},
		want{"maggie", "PUT", v, `{"redeclare":"strict"}`, 401, "…"},
	)
	number := func(n int64) *logpb.Field {
		return &logpb.Field{Name: "x-max-length", Value: &logpb.Value{Tag: 'l', Int: n}}
	}
	w.queue("v", "q", false, number(10))
	w.queue("v", "q", false, number(20))
	w.check(
		want{"root", "GET", "/api/queues/v/q?columns=arguments", "", 200, `…"arguments":{"x-max-length":20}`},
		want{"root", "GET", "/api/queues/v/q", "", 200, `…{"key":"max-length","argument":20,`},
		want{"root", "POST", "/api/definitions/v", `{"queues":[{"name":"q","durable":true,"arguments":{"x-max-length":30}},{"name":"q","durable":false}]}`, 400, "…inequivalent arg 'durable'"},
		want{"root", "POST", "/api/definitions/v", `{"queues":[{"name":"q","durable":true,"arguments":{"x-max-length":30}}]}`, 200, `…"notes":[{"section":"queues","vhost":"v","name":"q","reason":"it is there with other arguments, and redeclare is adopt: x-max-length"}]}`},
		want{"root", "POST", "/api/definitions/v", `{"queues":[{"name":"q","durable":true,"arguments":{"x-max-length":30}}]}`, 204, ""},
		want{"root", "POST", "/api/definitions/v", `{"exchanges":[{"name":"x","type":"topic"}]}`, 204, ""},
		want{"root", "POST", "/api/definitions/v", `{"exchanges":[{"name":"x","type":"topic","arguments":{"alternate-exchange":"y"}}]}`, 200, `…redeclare is adopt: alternate-exchange"}]}`},
	)
	exported := w.request("root", "GET", "/api/definitions", "").Body.String()
	if !strings.Contains(exported, `"redeclare":"adopt"`) || !strings.Contains(exported, `"arguments":{"x-max-length":30}`) {
		t.Errorf("exports %s", exported)
	}
	other := newWorld(t)
	other.check(
		want{"root", "POST", "/api/definitions", exported, 204, ""},
		want{"root", "GET", v + shown, "", 200, `…"redeclare":"adopt"`},
	)
	early := newWorldOf(t, 2)
	early.check(
		want{"root", "PUT", v, `{"redeclare":"relaxed"}`, 400, invalid("redeclare can be set once all nodes have fsm_version 3")},
		want{"root", "PUT", v, `{"redeclare":"strict"}`, 201, ""},
	)
}
