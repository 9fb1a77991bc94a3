package mgmt

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

func (w *world) Place(d *logpb.DeclareQueue) []uint32 {
	if d.GetLocal() {
		return []uint32{2}
	}
	return []uint32{1, 2, 3}
}

// raise brings the catalog to the newest version.
func (w *world) raise() {
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: fsm.NewestVersion}}})
}

// rabbit is what a RabbitMQ of version 3 exports, with all that quorate has not.
const rabbit = `{"rabbit_version":"3.12.6","rabbitmq_version":"3.12.6","product_name":"RabbitMQ",
"users":[{"name":"app","password_hash":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","hashing_algorithm":"rabbit_password_hashing_sha256","tags":["management"],"limits":{"max-channels":9}},
 {"name":"old","password_hash":"AAAAAAAAAAAAAAAAAAAAAAAAAAA=","hashing_algorithm":"rabbit_password_hashing_md5","tags":""}],
"vhosts":[{"name":"shop","metadata":{"description":"the shop","tags":["a"]},"tags":["b"],"limits":[]},{"name":"streams","default_queue_type":"stream"}],
"permissions":[{"user":"app","vhost":"shop","configure":".*","write":".*","read":"^x"},{"user":"old","vhost":"shop","configure":"","write":"","read":""}],
"topic_permissions":[{"user":"app","vhost":"shop","exchange":"amq.topic","write":"^a","read":"^b"}],
"parameters":[{"value":{"max-queues":50},"vhost":"shop","component":"vhost-limits","name":"limits"},
 {"value":{"pattern":"^q","apply-to":"queues","definition":{"max-length":9},"priority":1},"vhost":"shop","component":"operator_policy","name":"bound"},
 {"value":{"src-uri":"amqp://","src-queue":"a","dest-uri":"amqp://","dest-queue":"b"},"vhost":"shop","component":"shovel","name":"move"}],
"global_parameters":[{"name":"internal_cluster_id","value":"rabbitmq-cluster-id-x"}],
"policies":[{"vhost":"shop","name":"ha","pattern":"^m","apply-to":"queues","definition":{"ha-mode":"all"},"priority":0},
 {"vhost":"shop","name":"mixed","pattern":"^n","apply-to":"queues","definition":{"ha-mode":"all","ha-sync-mode":"automatic","message-ttl":60000},"priority":3}],
"queues":[{"name":"classic","vhost":"shop","durable":true,"auto_delete":false,"arguments":{"x-queue-type":"classic"}},{"name":"quorum","vhost":"shop","durable":true,"auto_delete":false,"arguments":{"x-queue-type":"quorum","x-dead-letter-exchange":"x"}},
 {"name":"amq.gen-abc","vhost":"shop","durable":false,"auto_delete":true,"arguments":{}},{"name":"log","vhost":"shop","durable":true,"auto_delete":false,"arguments":{"x-queue-type":"stream"}}],
"exchanges":[{"name":"x","vhost":"shop","type":"topic","durable":true,"auto_delete":false,"internal":false,"arguments":{}},{"name":"amq.rabbitmq.log","vhost":"shop","type":"topic","durable":true,"auto_delete":false,"internal":true,"arguments":{}},
 {"name":"jms","vhost":"shop","type":"x-jms-topic","durable":true,"auto_delete":false,"internal":false,"arguments":{}}],
"bindings":[{"source":"x","vhost":"shop","destination":"quorum","destination_type":"queue","routing_key":"a.#","arguments":{}},{"source":"x","vhost":"shop","destination":"log","destination_type":"queue","routing_key":"","arguments":{}},
 {"source":"","vhost":"shop","destination":"quorum","destination_type":"queue","routing_key":"quorum","arguments":{}}]}`

// management.md §4, tests 8 and 38: what another broker has exported goes in but for what there is
// not, which is named; what comes out goes into another cluster, and comes out of that the same.
func TestDefinitions(t *testing.T) {
	w := newWorld(t)
	for name, tag := range map[string]string{"root": "administrator", "mona": "monitoring", "polly": "policymaker", "maggie": "management", "nobody": ""} {
		w.check(want{"root", "PUT", "/api/users/" + name, `{"tags":"` + tag + `"}`, 204, ""}) // as the API makes users
	}
	w.raise()
	before := w.View().Index()
	all := w.request("root", "POST", "/api/definitions", rabbit)
	var refused api.NotImported
	if err := json.Unmarshal(all.Body.Bytes(), &refused); err != nil || all.Code != 400 || w.View().Index() != before {
		t.Fatalf("%d %s", all.Code, all.Body)
	}
	out := w.request("root", "POST", "/api/definitions?partial=true", rabbit)
	var report api.Imported
	if err := json.Unmarshal(out.Body.Bytes(), &report); err != nil || out.Code != 200 {
		t.Fatalf("%d %s", out.Code, out.Body)
	}
	skipped := []string{}
	for _, s := range report.Skipped {
		skipped = append(skipped, s.Section+" "+s.Name)
		if s.Reason == "" {
			t.Errorf("%s %s: no reason", s.Section, s.Name)
		}
	}
	want := []string{
		"vhosts streams", "parameters move", "exchanges jms", "queues log", "bindings x → log",
	}
	if !slices.Equal(refused.Skipped, report.Skipped) || refused.SkippedTotal != len(want) || len(refused.Taken) != 0 ||
		!strings.HasPrefix(refused.Reason, `some definitions cannot be imported, so none was: vhosts "streams": `) || !strings.HasSuffix(refused.Reason, "(and 4 more); use partial=true to import the others") {
		t.Errorf("refused: %+v", refused)
	}
	if !slices.Equal(skipped, want) || report.SkippedTotal != len(want) {
		t.Errorf("skipped %q of %d", skipped, report.SkippedTotal)
	}
	if taken := fmt.Sprint(report.Taken); taken != "map[bindings:2 exchanges:2 global_parameters:1 parameters:2 permissions:2 policies:2 queues:3 topic_permissions:1 users:2 vhosts:1]" {
		t.Errorf("taken: %s", taken)
	}
	w.check(
		want1("GET", "/api/vhosts/shop?columns=x", `…"description":"the shop","tags":["b"]`),
		want1("GET", "/api/policies/shop", `…"definition":{"ha-mode":"all","ha-sync-mode":"automatic","message-ttl":60000},"priority":3,"notes":["has no effect here: ha-mode, ha-sync-mode"]}`),
		want1("GET", "/api/queues/shop?columns=name,type,durable", `[{"durable":false,"name":"amq.gen-abc","type":"classic"},{"durable":true,"name":"classic","type":"classic"},{"durable":true,"name":"quorum","type":"quorum"}]`),
		want1("GET", "/api/users/app", `…"limits":{"max-channels":9}`),
		want1("GET", "/api/parameters/operator_policy/shop", `[{"component":"operator_policy","vhost":"shop","name":"bound","value":{"pattern":"^q","apply-to":"queues","definition":{"max-length":9},"priority":1}}]`),
		want1("GET", "/api/parameters/vhost-limits/shop/limits", `{"component":"vhost-limits","vhost":"shop","name":"limits","value":{"max-queues":50}}`),
	)
	for _, path := range []string{"/api/definitions", "/api/definitions/shop"} {
		exported := w.request("root", "GET", path, "").Body.String()
		other := newWorld(t)
		other.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "shop", Description: "the shop", Tags: []string{"b"}, DefaultQueueType: "classic"}}})
		other.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLimit{PutLimit: &logpb.PutLimit{Of: "shop", Name: "max-queues", Value: 50}}})
		for range 2 { // the second time all of it exists
			if out := other.request("root", "POST", path, exported); out.Code != 200 || !strings.Contains(out.Body.String(), `"skipped_total":0`) {
				t.Fatalf("%s: %d %s", path, out.Code, out.Body)
			}
			if again := other.request("root", "GET", path, "").Body.String(); again != exported {
				t.Errorf("%s:\n%s\nnot\n%s", path, again, exported)
			}
		}
	}
}

// The type of a queue comes over, whatever the vhost here says: by the type that the file names, or
// else by the argument. What a definition means otherwise than where it is from is told.
func TestImportedTypes(t *testing.T) {
	w := newWorld(t)
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "old"}}})
	out := w.request("root", "POST", "/api/definitions?partial=true", `{"vhosts":[{"name":"old"},{"name":"new"},{"name":"q","metadata":{"default_queue_type":"quorum"}},{"name":"undefined","default_queue_type":"undefined"}],
"queues":[{"vhost":"old","name":"typed","type":"classic"},{"vhost":"old","name":"named","arguments":{"x-queue-type":"classic"}},{"vhost":"old","name":"untyped"},{"vhost":"old","name":"undefined","arguments":{"x-queue-type":"undefined"}},
{"vhost":"new","name":"empty","arguments":{"x-queue-type":""}},{"vhost":"new","name":"early","type":"quorum","arguments":{"x-queue-type":"classic"}},{"vhost":"q","name":"untyped"},{"vhost":"undefined","name":"untyped"},{"vhost":"new","name":"log","type":"stream"}],
"policies":[{"vhost":"new","name":"lazy","pattern":"","definition":{"queue-mode":"lazy","max-length":3}},{"vhost":"new","name":"limit","pattern":"","apply-to":"quorum_queues","definition":{"delivery-limit":3}},{"vhost":"new","name":"both","pattern":"","apply-to":"queues","definition":{"delivery-limit":3}}]}`)
	var report api.Imported
	if err := json.Unmarshal(out.Body.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	var notes []string
	for _, n := range report.Notes {
		notes = append(notes, n.VHost+" "+n.Name+": "+n.Reason)
	}
	if want := []string{
		"new lazy: has no effect here: queue-mode",
		"new both: delivery-limit also applies to classic queues; RabbitMQ ignores it for them",
		"old untyped: it has no type and becomes a quorum queue, the default of its vhost, with a delivery limit of 20 unless one is set",
		"old undefined: it has no type and becomes a quorum queue, the default of its vhost, with a delivery limit of 20 unless one is set",
		"q untyped: it has no type and becomes a quorum queue, the default of its vhost, with a delivery limit of 20 unless one is set",
	}; out.Code != 200 || !slices.Equal(notes, want) || report.SkippedTotal != 1 || report.Skipped[0].Name != "log" {
		t.Errorf("%d %q %v", out.Code, notes, report.Skipped)
	}
	w.check(
		want1("GET", "/api/queues/old?columns=name,type", `[{"name":"named","type":"classic"},{"name":"typed","type":"classic"},{"name":"undefined","type":"quorum"},{"name":"untyped","type":"quorum"}]`),
		want1("GET", "/api/queues/new?columns=name,type", `[{"name":"early","type":"quorum"},{"name":"empty","type":"classic"}]`),
		want1("GET", "/api/queues/q?columns=name,type", `[{"name":"untyped","type":"quorum"}]`),
		want1("GET", "/api/queues/undefined?columns=name,type", `[{"name":"untyped","type":"classic"}]`),
	)
	other := newWorld(t)
	other.request("root", "POST", "/api/definitions", w.request("root", "GET", "/api/definitions", "").Body.String())
	for _, path := range []string{"/api/queues?columns=vhost,name,type,arguments", "/api/policies", "/api/vhosts?columns=name,default_queue_type"} {
		if have, want := other.request("root", "GET", path, "").Body.String(), w.request("root", "GET", path, "").Body.String(); have != want {
			t.Errorf("%s\nnot\n%s", have, want)
		}
	}
}

// The default type of a vhost changes only when somebody says so.
func TestDefaultQueueType(t *testing.T) {
	w := newWorld(t)
	w.check(
		want{"root", "PUT", "/api/vhosts/a%2Fb", `{"default_queue_type":"quorum"}`, 201, ""},
		want{"root", "POST", "/api/vhosts/a%2Fb/deletion/protection", "", 204, ""},
		want{"root", "DELETE", "/api/vhosts/a%2Fb/deletion/protection", "", 204, ""},
		want{"root", "PUT", "/api/vhosts/a%2Fb", `{"default_queue_type":"undefined"}`, 204, ""},
		want{"root", "GET", "/api/vhosts/a%2Fb?columns=default_queue_type", "", 200, `…"default_queue_type":"quorum"`},
		want{"root", "PUT", "/api/vhosts/a%2Fb", `{"default_queue_type":"classic"}`, 204, ""},
		want{"root", "GET", "/api/vhosts/a%2Fb?columns=default_queue_type", "", 200, `…"default_queue_type":"classic"`},
		want{"root", "PUT", "/api/vhosts/new", `{}`, 201, ""},
		want{"root", "GET", "/api/vhosts/new?columns=default_queue_type", "", 200, `…"default_queue_type":"classic"`},
	)
}

func want1(method, path, answer string) want { return want{"root", method, path, "", 200, answer} }

// management.md test 39: what is malformed changes nothing.
func TestMalformedDefinitions(t *testing.T) {
	w := newWorld(t)
	before := w.View().Index()
	for body, reason := range map[string]string{
		`{`: "failed_to_parse_json", `[]`: "failed_to_parse_json", ``: "failed_to_parse_json", `{"queues":{}}`: "queues should be a list", `{"queues":[5]}`: "queues: item 0 is not an object",
		`{"users":[{"name":"u","tags":""}],"queues":[{"name":"q"}]}`:               "queues: item 0: [{key_missing,vhost}]",
		`{"bindings":[{"vhost":"/","source":"x","destination":"y"}]}`:              "bindings: item 0: [{key_missing,destination_type}]",
		`{"policies":[{"vhost":"/","name":"p","pattern":null,"definition":null}]}`: "policies: item 0: [{key_missing,pattern}]",
	} {
		w.check(want{"root", "POST", "/api/definitions", body, 400, failure("bad_request", reason)})
	}
	if w.View().Index() != before {
		t.Error("the catalog has changed")
	}
	w.check(
		want{"root", "POST", "/api/definitions/none", `{}`, 404, notThere},
		want{"root", "POST", "/api/definitions", `{}`, 204, ""},
		want{"root", "POST", "/api/definitions/%2F", `{"users":[{"name":"u"}],"queues":[{"name":"q"}]}`, 400, `…"reason":"some definitions cannot be imported, so none was: users \"u\": it does not belong to a single vhost; use partial=true to import the others","taken":{},"skipped_total":1,"skipped":[{"section":"users","name":"u","reason":"it does not belong to a single vhost"}]}`},
		want{"root", "GET", "/api/queues/%2F/q", "", 404, notThere},
		want{"root", "POST", "/api/definitions/%2F?partial=true", `{"users":[{"name":"u"}],"queues":[{"name":"q"}]}`, 200, `…"section":"users","name":"u","reason":"it does not belong to a single vhost"`},
		want{"root", "GET", "/api/users/u", "", 404, notThere},
		want{"root", "GET", "/api/queues/%2F/q", "", 200, `…"durable":true`},
		want{"root", "POST", "/api/definitions", `{"queues":[{"name":"q","vhost":"/","arguments":{"x-max-length":1}}]}`, 400, "…inequivalent arg 'x-max-length'"},
		want{"root", "POST", "/api/definitions?partial=true", `{"queues":[{"name":"r","vhost":"/","arguments":{"x-mesage-ttl":1}},{"name":5,"vhost":"/"}]}`, 200, `…"skipped_total":2`},
		want{"root", "PUT", "/api/parameters/shovel/%2F/s", `{"value":{}}`, 400, invalid("component shovel not found")},
		want{"polly", "PUT", "/api/parameters/policy/%2F/s", `{"value":{}}`, 400, failure("bad_request", "policies may not be set using this method")},
		want{"root", "DELETE", "/api/parameters/shovel/%2F/s", "", 404, notThere},
	)
	many := make([]string, 0, 3*importBatch)
	for i := range cap(many) {
		many = append(many, fmt.Sprintf(`{"name":"m%d","vhost":"/","durable":true,"auto_delete":false,"arguments":{}}`, i))
	}
	w.check(want{"root", "POST", "/api/definitions", `{"queues":[` + strings.Join(many, ",") + `]}`, 204, ""})
	if n := len(w.View().QueuesOf("/")); n != len(many)+1 {
		t.Errorf("%d queues", n)
	}
}

// management.md §5 and the small lists of §2.
func TestNodesAndChecks(t *testing.T) {
	w := newWorld(t)
	w.listeners = []api.Listener{{Protocol: "amqp", Address: "127.0.0.1:5672", Speaks: []string{"AMQP 0-9-1", api.AMQP10}}, {Protocol: "http", Address: "[::1]:15672"}, {Protocol: "amqp/ssl", Address: "h:5671", TLS: true}}
	const checks = "/api/health/checks/"
	w.check(
		want1("GET", checks+"port-listener/5672", `{"status":"ok","port":5672}`),
		want{"maggie", "GET", checks + "port-listener/99", "", 503, `{"status":"failed","reason":"No active listener","missing":99,"ports":[5671,5672,15672]}`},
		want{"maggie", "GET", checks + "port-listener/x", "", 400, failure("bad_request", "Invalid port")},
		want1("GET", checks+"protocol-listener/amqp091,http", `{"status":"ok","protocols":["amqp091","http"]}`),
		want1("GET", checks+"protocol-listener/amqp1.0", `{"status":"ok","protocols":["amqp1.0"]}`),
		want1("GET", checks+"protocol-listener/amqp%2Fssl", `{"status":"ok","protocols":["amqp/ssl"]}`),
		want{"maggie", "GET", checks + "protocol-listener/mqtt,amqp", "", 503, `{"status":"failed","reason":"No active listener","missing":["mqtt"],"protocols":["amqp","amqp/ssl","amqp10","http"]}`},
		want1("GET", checks+"virtual-hosts", `{"status":"ok"}`),
		want1("GET", checks+"metadata-store/initialized", `{"status":"ok"}`),
		want1("GET", checks+"metadata-store/initialized/with-data", `{"status":"ok"}`),
		want1("GET", "/api/aliveness-test/%2F", `{"status":"ok"}`),
		want1("GET", "/api/cluster-name", `{"name":"c"}`),
		want1("GET", "/api/extensions", "[]"),
		want1("GET", "/api/feature-flags", `…"name":"fsm_version_1","state":"enabled"`),
		want1("GET", "/api/nodes/n1", `…"name":"n1"`),
		want{"root", "GET", "/api/nodes/none", "", 404, notThere},
		want1("GET", "/api/users/without-permissions?columns=name", `[{"name":"mona"},{"name":"nobody"}]`),
		want{"root", "POST", "/api/users/bulk-delete", `{"users":["mona","none"]}`, 204, ""},
		want{"root", "POST", "/api/users/bulk-delete", `{"users":[5]}`, 400, failure("bad_request", "users should be a list of names")},
		want{"root", "POST", "/api/users/bulk-delete", `{}`, 400, failure("bad_request", "[{key_missing,users}]")},
		want1("GET", "/api/users/without-permissions?columns=name", `[{"name":"nobody"}]`),
	)
	w.unfit = "the disk hangs"
	w.check(
		want{"root", "GET", checks + "virtual-hosts", "", 503, `{"status":"failed","reason":"the disk hangs","virtual-hosts":["/","hidden"]}`},
		want{"root", "GET", "/api/aliveness-test/%2F", "", 503, `{"status":"failed","reason":"the disk hangs"}`},
	)
}

// TestAllOrNothing: what can be taken only in part is not taken, whatever the parts
// depend on each other; a mistake at the end leaves no trace of the beginning.
func TestAllOrNothing(t *testing.T) {
	w := newWorld(t)
	w.raise()
	before := w.View().Index()
	const good = `"users":[{"name":"u","password":"p","tags":""}],"vhosts":[{"name":"v"}],"permissions":[{"user":"u","vhost":"v","configure":"","write":"","read":""}],"exchanges":[{"name":"x","vhost":"v","type":"direct","durable":true}],"queues":[{"name":"q","vhost":"v"}],`
	for bad, reason := range map[string]string{
		`"bindings":[{"vhost":"v","source":"x","destination":"q","destination_type":"queue"},{"vhost":"v","source":"x","destination":"none","destination_type":"queue"}]`: `bindings \"x → none\" in vhost \"v\": no queue 'none' in vhost 'v'; `,
		`"policies":[{"vhost":"v","name":"p","pattern":"^(?!amq","definition":{"max-length":1}}]`:                                                                         `policies \"p\" in vhost \"v\": pattern should be regular expression but is invalid: missing ) at offset 1; `,
		`"topic_permissions":[{"user":"u","vhost":"v","exchange":"x","write":"^(?R)","read":""}]`:                                                                         `topic_permissions \"u\" in vhost \"v\": \"^(?R)\" is not a valid regular expression: `,
	} {
		w.check(want{"root", "POST", "/api/definitions", "{" + good + bad + "}", 400, "…" + reason})
	}
	if w.View().Index() != before {
		t.Error("the catalog has changed")
	}
	w.check(
		want{"root", "POST", "/api/definitions", "{" + good + `"bindings":[{"vhost":"v","source":"x","destination":"q","destination_type":"queue"}]}`, 204, ""},
		want1("GET", "/api/bindings/v/e/x/q/q", `…"routing_key":""`),
	)
	if u, _ := w.View().User("u"); len(u.GetPasswordHash()) < 20 {
		t.Error("the password has not been hashed")
	}
}

// TestPatternsImported: patterns of the wild are in force and come out as they were;
// a byte order mark before JSON is no part of it.
func TestPatternsImported(t *testing.T) {
	const definitions = mark + `{"vhosts":[{"name":"v"}],"exchanges":[{"vhost":"v","name":"dlx","type":"fanout","durable":true}],
"queues":[{"vhost":"v","name":"jobs","durable":true},{"vhost":"v","name":"dead","durable":true}],
"users":[{"name":"app","tags":""}],
"permissions":[{"user":"app","vhost":"v","configure":"^(?!amq\\.).*","write":".*","read":".*"}],
"topic_permissions":[{"user":"app","vhost":"v","exchange":"amq.topic","write":"^{username}\\..*","read":"^a(?=b)"}],
"parameters":[{"component":"operator_policy","vhost":"v","name":"cap","value":{"pattern":"(?<!dead)$","apply-to":"queues","definition":{"max-length":9}}}],
"policies":[{"vhost":"v","name":"dlx","pattern":"^(?!(amq\\.|.*dead)).*","apply-to":"queues","definition":{"dead-letter-exchange":"dlx","delivery-limit":3},"priority":0},
 {"vhost":"v","name":"other","pattern":"^(?!(amq|mqtt)\\.|.*\\.dlq$).+","apply-to":"exchanges","definition":{"alternate-exchange":"dlx"},"priority":0}]}`
	w := newWorldOf(t, 2)
	w.check(want{"root", "POST", "/api/definitions", definitions, 400, "…fsm_version 3 on"}) // an older node would not read them
	w.raise()
	w.check(
		want{"root", "POST", "/api/definitions", definitions, 200, `…"skipped_total":0`},
		want1("GET", "/api/queues/v?columns=name,policy,operator_policy", `[{"name":"dead","operator_policy":"","policy":""},{"name":"jobs","operator_policy":"cap","policy":"dlx"}]`),
		want1("GET", "/api/policies/v/dlx", `…"pattern":"^(?!(amq\\.|.*dead)).*"`),
		want1("GET", "/api/permissions/v/app", `…"configure":"^(?!amq\\.).*"`),
		want1("GET", "/api/topic-permissions/v/app", `…"read":"^a(?=b)"`),
		want{"root", "PUT", "/api/vhosts/marked", mark + "{}", 201, ""},
		want{"root", "PUT", "/api/policies/v/p", mark + `{"pattern":"^(a)\\1","definition":{"max-length":1}}`, 201, ""},
	)
	exported := w.request("root", "GET", "/api/definitions", "").Body.String()
	var out struct {
		Policies   []struct{ Pattern string }
		Parameters []struct{ Value struct{ Pattern string } }
	}
	if err := json.Unmarshal([]byte(exported), &out); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(out); got != `{[{^(?!(amq\.|.*dead)).*} {^(?!(amq|mqtt)\.|.*\.dlq$).+} {^(a)\1}] [{{(?<!dead)$}}]}` {
		t.Errorf("the patterns are exported as %s", got)
	}
	if !strings.Contains(exported, `"pattern":"(?<!dead)$"`) {
		t.Error("a pattern is not exported as it is written")
	}
	other := newWorld(t)
	other.check(want{"root", "POST", "/api/definitions", exported, 200, `…"skipped_total":0`})
}

// TestWithoutEffect: what has an effect in other brokers only, or not where it is given, is
// refused with a sentence wherever it comes from: a queue, a policy, definitions that are
// taken as a whole, and those of which as much is taken as can be, as migrate does.
func TestWithoutEffect(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ argument, sentence, key string }{
		{"x-cache-ttl", `invalid arg 'x-cache-ttl' for queue 'q' in vhost '/': \"has no effect here, use x-dedup-window\"`, "cache-ttl"},
		{"x-min-ttl", `invalid arg 'x-min-ttl' for queue 'q' in vhost '/': \"an argument of basic.consume, not of queue.declare\"`, "min-ttl"},
	} {
		arguments := `"arguments":{"` + c.argument + `":5}`
		definition := `"pattern":"","definition":{"` + c.key + `":5}`
		unknown := `\"` + c.key + `\"\u003e\u003e,5}] are not recognised policy settings`
		definitions := `{"queues":[{"vhost":"/","name":"q",` + arguments + `}],"policies":[{"vhost":"/","name":"p",` + definition + `}]}`
		w.check(
			want{"root", "PUT", "/api/queues/%2F/q", "{" + arguments + "}", 400, "…" + c.sentence},
			want{"root", "PUT", "/api/policies/%2F/p", "{" + definition + "}", 400, "…" + unknown},
			want{"root", "POST", "/api/definitions", `{"queues":[{"vhost":"/","name":"q",` + arguments + `}]}`, 400, "…" + c.sentence},
			want{"root", "POST", "/api/definitions", `{"policies":[{"vhost":"/","name":"p",` + definition + `}]}`, 400, "…" + unknown},
			want{"root", "POST", "/api/definitions?partial=true", definitions, 200, `…"skipped_total":2`},
			want{"root", "POST", "/api/definitions?partial=true", definitions, 200, "…" + c.sentence},
			want{"root", "POST", "/api/definitions?partial=true", definitions, 200, "…" + unknown},
		)
	}
	if _, ok := w.View().Queue("/", "q"); ok {
		t.Error("the queue is there")
	}
}

// Descriptions and parts come out and go in again; access keys do not come out.
func TestDescribedDefinitions(t *testing.T) {
	w := newWorld(t)
	w.raise()
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Vhost: "/", Name: "Q", Durable: true, Members: []uint32{1}}}})
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Vhost: "/", Name: "Q/dead", Durable: true, Members: []uint32{1}, PartOf: "Q"}}})
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Describe{Describe: &logpb.Describe{Vhost: "/", Name: "Q", Key: "q", Text: []byte("text of Q")}}})
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutAccessKey{PutAccessKey: &logpb.AccessKey{Vhost: "/", Scope: "q", Name: "rule", Primary: "secret-key", Send: true}}})
	out := w.request("root", "GET", "/api/definitions", "").Body.String()
	if !strings.Contains(out, "text of Q") || strings.Contains(out, "secret-key") {
		t.Fatal(out)
	}
	other := newWorld(t)
	other.raise()
	for range 2 {
		if r := other.request("root", "POST", "/api/definitions", out); r.Code/100 != 2 {
			t.Fatalf("%d %s", r.Code, r.Body)
		}
	}
	m, ok := other.View().Described("/", "q")
	if !ok || m.GetName() != "Q" || string(m.GetText()) != "text of Q" {
		t.Errorf("%v", m)
	}
	if q, ok := other.View().Queue("/", "Q/dead"); !ok {
		t.Error("the part is missing")
	} else if of, _ := q.Whole(); of != "Q" {
		t.Error(of)
	}
}
