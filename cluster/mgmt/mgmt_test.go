package mgmt

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// rest is what a test does not need. It is missing.
type rest struct{ everything }

type everything interface {
	Catalog
	Logins
	Queues
	Messages
	Objects
	History
	Node
	Cluster
	Settings
	Connections
	Resources
	Placement
	Membership
	Backups
	Traffic
}

// backendOf has one value be all there is.
func backendOf(x everything) Backend {
	return Backend{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, nil, "", func() map[string]string { return map[string]string{"node_name": "n1"} }, nil}
}

// world is a node whose catalog is real and whose queues are not. Everybody's
// password is the name.
type world struct {
	unfit string // why it cannot serve
	dead  string // why it should be restarted
	rest
	*operator
	t            testing.TB
	catalog      catalog.Catalog
	stats        map[string]stats.Queue // by name of the queue
	offline      map[string]bool
	clients      []api.Connection
	channels     []api.Channel
	sessions     map[string][]api.Session // by connection
	consumers    []stats.Consumer
	timeouts     []stats.Timeout
	drifts       []api.Drift
	defaults     catalog.Defaults
	closed       []string // connections, and why
	server       *Server
	handler      http.Handler
	certificates []api.Certificate
	busy         error // what logins with the right password get
	settled      int   // messages that were taken
	commands     []*logpb.Command
	results      []uint64 // counts to answer them with
	selected     []*peerpb.SelectRequest
	selections   []*peerpb.SelectReply // to answer them with
	published    []Outgoing
	listeners    []api.Listener
	accepted     uint64                       // logins
	blocked      string                       // why publishers are
	table        *traffic.Table               // nil: nothing was counted
	slot         int64                        // of its newest samples
	members      []api.Member                 // of every queue; nil: see operator
	questions    []int                        // about how many queues, each time that leaders answered; 0: about all
	times        map[string]*peerpb.QueueTime // by the names of queues
}

// newWorld is of the newest version.
func newWorld(t testing.TB) *world { return newWorldOf(t, fsm.NewestVersion) }

func newWorldOf(t testing.TB, version int64) *world {
	w := &world{t: t, stats: map[string]stats.Queue{}, offline: map[string]bool{}}
	w.operator = &operator{world: w}
	guard, err := origin.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.server = New(backendOf(w), slog.New(slog.DiscardHandler), guard)
	w.handler = w.server.Handler()
	for _, n := range []string{"n1", "n2", "n3"} {
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: n, Incarnation: []byte(n), OldestVersion: fsm.OldestVersion, NewestVersion: fsm.NewestVersion}}})
	}
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: version}}})
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Initialize{Initialize: &logpb.Initialize{
		Vhost: &logpb.PutVhost{Name: "/", DefaultQueueType: catalog.ClassicType}, User: &logpb.PutUser{Name: "root", Tags: []string{"administrator"}},
		Permission: &logpb.PutPermission{User: "root", Vhost: "/", Configure: ".*", Write: ".*", Read: ".*"},
	}}})
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "hidden"}}})
	for name, tag := range map[string]string{"mona": "monitoring", "polly": "policymaker", "maggie": "management", "nobody": ""} {
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: &logpb.PutUser{Name: name, Tags: []string{tag}}}})
	}
	for _, name := range []string{"polly", "maggie"} {
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: &logpb.PutPermission{User: name, Vhost: "/", Read: ".*"}}})
	}
	return w
}

func (w *world) do(c *logpb.CatalogCommand) {
	w.t.Helper()
	r, err := w.Propose(context.Background(), c)
	if err != nil || catalog.Refused(r[0]) != nil {
		w.t.Fatalf("%v: %v, %v", c, catalog.Refused(r[0]), err)
	}
}

func (w *world) queue(vhost, name string, local bool, args ...*logpb.Field) {
	d := &logpb.DeclareQueue{Vhost: vhost, Name: name, Durable: !local, Members: []uint32{1, 2, 3}, Local: local, Arguments: &fsm.Table{Fields: args}}
	if local {
		d.Members = []uint32{2}
	}
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: d}})
}

func (w *world) View() *catalog.View { return w.catalog.View() }

func (w *world) Propose(_ context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return w.catalog.Apply(w.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: commands}), nil
}

func (w *world) Login(_ context.Context, user, password string, _ netip.Addr) error {
	if _, known := w.View().User(user); !known || password != user {
		return errors.New("login was refused")
	}
	return w.busy
}

func (w *world) HashPassword(_ context.Context, password string) ([]byte, error) {
	return login.HashPassword(password), nil
}

func (w *world) Stats(_ context.Context, ids ...fsm.QueueID) map[fsm.QueueID]stats.Queue {
	w.questions = append(w.questions, len(ids))
	all := map[fsm.QueueID]stats.Queue{}
	for _, q := range w.View().Queues() {
		if f, ok := w.stats[q.Name]; ok && (len(ids) == 0 || slices.Contains(ids, q.ID)) {
			all[q.ID] = f
		}
	}
	return all
}

func (w *world) StatsDue(ctx context.Context, id fsm.QueueID, within uint64) (stats.Queue, bool) {
	q, ok := w.Stats(ctx, id)[id]
	q.Due *= within // as many are due in each ms
	return q, ok
}

func (w *world) StatsAsIs(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]stats.Queue {
	return w.Stats(ctx, ids...)
}

func (w *world) Numbers(ctx context.Context, soon bool, names ...string) *stats.Numbers {
	n := stats.NewNumbers(soon, names...)
	for id, q := range w.Stats(ctx) {
		n.Add(id, &q)
	}
	return n
}

func (w *world) Connections(context.Context) []api.Connection { return w.clients }

func (w *world) Channels(context.Context) []api.Channel { return slices.Clone(w.channels) }

func (w *world) SessionsOf(_ context.Context, c api.Connection) ([]api.Session, error) {
	if w.offline[c.Node] {
		return nil, errors.New("no answer")
	}
	return w.sessions[c.Name], nil
}

func (w *world) CloseConnection(_ context.Context, c api.Connection, reason string) (bool, error) {
	w.clients = slices.DeleteFunc(w.clients, func(x api.Connection) bool { return x.Name == c.Name })
	w.closed = append(w.closed, c.Name+": "+reason)
	return true, nil
}

func (w *world) Online(node string) bool    { return !w.offline[node] }
func (w *world) Defaults() catalog.Defaults { return w.defaults }
func (w *world) NotReady() string {
	if w.draining {
		return "the node is in maintenance mode"
	}
	return w.unfit
}
func (w *world) Dead() string    { return w.dead }
func (w *world) Version() string { return "1.2.3" }

// request makes a request as a user; "" is nobody.
func (w *world) request(user, method, path, body string) *httptest.ResponseRecorder {
	w.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if user != "" {
		r.SetBasicAuth(user, user)
	}
	out := httptest.NewRecorder()
	w.handler.ServeHTTP(out, r)
	return out
}

// want is a request and what must come of it.
type want struct {
	user, method, path, body string
	status                   int
	answer                   string // exact, or what it must hold if it begins with …
}

func (w *world) check(wants ...want) {
	w.t.Helper()
	for _, x := range wants {
		out := w.request(x.user, x.method, x.path, x.body)
		got := strings.TrimSuffix(out.Body.String(), "\n")
		part, isPart := strings.CutPrefix(x.answer, "…")
		if out.Code != x.status || !isPart && got != x.answer || isPart && !strings.Contains(got, part) {
			w.t.Errorf("%s %s %s %s\nanswers %d %s\nwant    %d %s", x.user, x.method, x.path, x.body, out.Code, got, x.status, x.answer)
		}
	}
}

func failure(what, reason string) string {
	raw, err := json.Marshal(api.Failure{Error: what, Reason: reason})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

var (
	notThere  = failure("Object Not Found", "Not Found")
	notAdmin  = failure("not_authorised", "Not administrator user")
	notPolicy = failure("not_authorised", "Not policymaker user")
)

func invalid(reason string) string {
	return failure("bad_request", "Validation failed\n\n"+reason+"\n")
}

// A node that runs and cannot serve says why to who asks whether it does.
func TestUnfit(t *testing.T) {
	w := newWorld(t)
	w.unfit = "the disk hangs"
	for _, check := range []string{"ready-to-serve-clients", "is-in-service"} {
		w.check(want{"", "GET", "/api/health/checks/" + check, "", 503, `{"status":"failed","reason":"the disk hangs"}`})
	}
	w.check(want{"", "GET", "/readyz", "", 503, `{"status":"failed","reason":"the disk hangs"}`})
	// It should be restarted only if it does nothing any more.
	for _, alive := range []string{"/api/health/checks/is-alive", "/healthz"} {
		w.dead = ""
		w.check(want{"", "GET", alive, "", 200, `{"status":"ok"}`})
		w.dead = "the watchdog has not run"
		w.check(want{"", "GET", alive, "", 503, `{"status":"failed","reason":"the watchdog has not run"}`})
	}
}

// Who may do what, management.md §1.6 and tests 1 to 3.
func TestAccess(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.check(
		want{"", "GET", "/api/whoami", "", 401, failure("not_authorized", "Not_Authorized")},
		want{"stranger", "GET", "/api/whoami", "", 401, failure("not_authorized", "Not_Authorized")},
		want{"nobody", "GET", "/api/whoami", "", 401, failure("not_authorised", "Not management user")},
		want{"maggie", "GET", "/api/whoami", "", 200, `{"name":"maggie","tags":["management"],"is_internal_user":true}`},
		want{"", "GET", "/api/health/checks/ready-to-serve-clients", "", 200, `{"status":"ok"}`},
		want{"maggie", "GET", "/api/users", "", 401, notAdmin},
		want{"mona", "GET", "/api/permissions", "", 401, notAdmin},
		want{"polly", "PUT", "/api/vhosts/x", "{}", 401, notAdmin},
		want{"maggie", "GET", "/api/policies", "", 200, "[]"},
		want{"maggie", "PUT", "/api/policies/%2F/p", "{}", 401, notPolicy},
		want{"mona", "PUT", "/api/policies/%2F/p", "{}", 401, notPolicy},
		want{"maggie", "GET", "/api/operator-policies", "", 401, notPolicy},
		want{"polly", "GET", "/api/operator-policies", "", 200, "[]"},
		want{"polly", "PUT", "/api/operator-policies/%2F/p", "{}", 401, notAdmin},
		want{"maggie", "GET", "/api/queues/hidden", "", 404, notThere},
		want{"mona", "GET", "/api/queues/hidden", "", 200, "[]"},
		want{"root", "GET", "/api/queues/hidden", "", 200, "[]"},
		want{"polly", "PUT", "/api/policies/hidden/p", `{"pattern":"","definition":{"expires":1}}`, 404, failure("not_found", "vhost_not_found")},
		want{"root", "GET", "/api/queues/none", "", 404, notThere},
		want{"root", "GET", "/api/nothing", "", 404, notThere},
		want{"root", "POST", "/api/policies", "", 405, failure("method_not_allowed", "Method Not Allowed")},
		want{"root", "OPTIONS", "/api/policies", "", 200, ""},
	)
	if names := w.names("maggie", "/api/vhosts"); fmt.Sprint(names) != "[/]" {
		t.Errorf("maggie sees the vhosts %v", names)
	}
	if names := w.names("mona", "/api/vhosts"); fmt.Sprint(names) != "[/ hidden]" {
		t.Errorf("mona sees the vhosts %v", names)
	}
	for _, user := range []string{"", "nobody", "maggie"} {
		if out := w.request(user, "GET", "/api/users", ""); out.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%q is not told how to log in", user)
		}
	}
}

// names lists the names of what a path answers.
func (w *world) names(user, path string) []string {
	w.t.Helper()
	out := w.request(user, "GET", path, "")
	var rows []struct{ Name string }
	if err := json.Unmarshal(out.Body.Bytes(), &rows); err != nil || out.Code != 200 {
		w.t.Fatalf("%s answers %d %s: %v", path, out.Code, out.Body, err)
	}
	names := []string{}
	for _, r := range rows {
		names = append(names, r.Name)
	}
	return names
}

// A login that could not be looked at is no wrong password.
func TestBusyLogin(t *testing.T) {
	w := newWorld(t)
	w.busy = fsm.Refuse(fsm.Forced, "too many logins are waiting")
	w.check(
		want{user: "root", method: "GET", path: "/api/whoami", status: 503, answer: `{"error":"unavailable","reason":"too many logins are waiting"}`},
		want{user: "eve", method: "GET", path: "/api/whoami", status: 401, answer: `{"error":"not_authorized","reason":"Not_Authorized"}`},
	)
}

// lifetime.md P05 to P08, P12, P20; management.md 3.8 and tests 28 and 29.
func TestPolicies(t *testing.T) {
	w := newWorld(t)
	const path, op = "/api/policies/%2F/p", "/api/operator-policies/%2F/p"
	shown := `{"vhost":"/","name":"p","pattern":"^q","apply-to":"queues","definition":{"max-length":5,"overflow":"reject-publish"},"priority":7}`
	w.check(
		want{"polly", "PUT", path, `{"pattern":"^q","definition":{"max-length":4}}`, 201, ""},
		want{"polly", "PUT", path, `{"pattern":"^q","definition":{"max-length":4}}`, 204, ""},
		want{"polly", "GET", path, "", 200, `{"vhost":"/","name":"p","pattern":"^q","apply-to":"all","definition":{"max-length":4},"priority":0}`},
		want{"polly", "PUT", path, `{"pattern":"^q","apply-to":"queues","priority":"7","definition":{"overflow":"reject-publish","max-length":5},"name":"p","vhost":"/"}`, 204, ""},
		want{"maggie", "GET", path, "", 200, shown},
		want{"maggie", "GET", "/api/policies", "", 200, "[" + shown + "]"},
		want{"maggie", "GET", "/api/policies/%2F", "", 200, "[" + shown + "]"},
		want{"root", "GET", "/api/policies/hidden", "", 200, "[]"},
		want{"root", "GET", op, "", 404, notThere},
		want{"root", "PUT", op, `{"pattern":"^q","definition":{"max-length":3},"apply-to":null,"priority":null}`, 201, ""},
		want{"polly", "GET", op, "", 200, "…\"max-length\":3"},
		want{"polly", "DELETE", op, "", 401, notAdmin},
		want{"root", "DELETE", op, "", 204, ""},
		want{"root", "DELETE", op, "", 404, notThere},
		want{"polly", "DELETE", path, "", 204, ""},
		want{"polly", "GET", path, "", 404, notThere},
		want{"polly", "DELETE", path, "", 404, notThere},
		want{"root", "PUT", "/api/policies/none/p", `{"pattern":"","definition":{"expires":1}}`, 404, failure("not_found", "vhost_not_found")},

		want{"root", "PUT", path, `{"definition":{"expires":1}}`, 400, failure("bad_request", "[{key_missing,pattern}]")},
		want{"root", "PUT", path, `{"pattern":""}`, 400, failure("bad_request", "[{key_missing,definition}]")},
		want{"root", "PUT", path, ``, 400, failure("bad_request", "[{key_missing,pattern},{key_missing,definition}]")},
		want{"root", "PUT", path, `no`, 400, failure("bad_request", "not_json")},
		want{"root", "PUT", path, `{} {}`, 400, failure("bad_request", "not_json")},
		want{"root", "PUT", path, `"{}"`, 400, failure("bad_request", "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?")},
		want{"root", "PUT", path, `[]`, 400, failure("bad_request", "invalid payload: the request body is not a JSON object")},
		want{"root", "PUT", path, `{"pattern":"","definition":{}}`, 400, invalid("no policy provided")},
		want{"root", "PUT", path, `{"pattern":"","definition":"x"}`, 400, invalid(`definition must be a dictionary: <<"x">>`)},
		want{"root", "PUT", path, `{"pattern":5,"definition":{"expires":1}}`, 400, invalid("pattern should be a binary but was 5")},
		want{"root", "PUT", path, `{"pattern":"(","definition":{"expires":1}}`, 400, "…pattern should be regular expression but is invalid: missing ) at offset 0"},
		want{"root", "PUT", path, `{"pattern":"(?!a","definition":{"expires":1}}`, 400, "…missing )"},
		want{"root", "PUT", path, `{"pattern":"","apply-to":"foo","definition":{"expires":1}}`, 400, "…apply-to 'foo' unrecognised; should be one of: "},
		want{"root", "PUT", path, `{"pattern":"","priority":"x","definition":{"expires":1}}`, 400, invalid(`priority should be a number, actually was <<"x">>`)},
		want{"root", "PUT", path, `{"pattern":"","priority":1.5,"definition":{"expires":1}}`, 400, invalid("priority should be a number, actually was 1.5")},
		want{"root", "PUT", path, `{"pattern":"","definition":{"nosuch":1}}`, 400, invalid(`[{<<"nosuch">>,1}] are not recognised policy settings`)},
		want{"root", "PUT", path, `{"pattern":"","definition":{"message-ttl":-5}}`, 400, invalid("-5 is not a valid message TTL")},
		want{"root", "PUT", path, `{"pattern":"","definition":{"message-ttl":"60000"}}`, 400, invalid(`<<"60000">> is not a valid message TTL`)},
		want{"root", "PUT", path, `{"pattern":"","definition":{"message-ttl":60000.5}}`, 400, invalid("60000.5 is not a valid message TTL")},
		want{"root", "PUT", path, `{"pattern":"","definition":{"message-ttl":315360000001}}`, 400, invalid("315360000001 is not a valid message TTL")},
		want{"root", "PUT", path, `{"pattern":"","definition":{"message-ttl":null}}`, 400, invalid("null is not a valid message TTL")},
		want{"root", "PUT", path, `{"pattern":"","definition":{"expires":0}}`, 400, invalid("0 is not a valid queue expiry")},
		want{"root", "PUT", path, `{"pattern":"","definition":{"consumer-timeout":"x"}}`, 400, invalid(`<<"x">> is not a valid consumer timeout`)},
		want{"root", "PUT", path, `{"pattern":"","definition":{"overflow":["x",{"a":true}]}}`, 400, invalid(`[<<"x">>,#{<<"a">> => true}] is not a valid overflow value`)},
		want{"root", "PUT", op, `{"pattern":"","definition":{"dead-letter-exchange":"x"}}`, 400, invalid(`[{<<"dead-letter-exchange">>,<<"x">>}] are not recognised policy settings`)},
		want{"root", "PUT", path, `{"pattern":"","definition":{"expires":` + strings.Repeat("1", maxBody) + `}}`, 413, "…payload_too_large"},
		want{"root", "GET", "/api/policies", "", 200, "[]"},
	)
}

func long(name string, n int64) *logpb.Field {
	return &logpb.Field{Name: name, Value: &logpb.Value{Tag: 'l', Int: n}}
}

// lifetime.md P19: what is in force is shown; management.md 3.4 and 1.9: a
// queue without a leader has no stats, and no zeros.
func TestQueues(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a/b c", false, long("x-max-length", 9))
	w.queue("/", "local", true)
	w.queue("hidden", "h", false)
	w.stats["a/b c"] = stats.Queue{Leader: "n3", QueueStats: api.QueueStats{Messages: 6, Ready: 3, Unacknowledged: 2, DeadLetters: 1, Consumers: 4}}
	w.check(
		want{"root", "PUT", "/api/policies/%2F/p", `{"pattern":"^a","definition":{"message-ttl":30000,"dead-letter-exchange":"x"}}`, 201, ""},
		want{"root", "PUT", "/api/operator-policies/%2F/op", `{"pattern":"^a","definition":{"message-ttl":20000}}`, 201, ""},
		want{"maggie", "GET", "/api/queues/%2F/nothing", "", 404, notThere},
		want{"maggie", "GET", "/api/queues/hidden/h", "", 404, notThere},
	)
	get := func(path string) map[string]any {
		t.Helper()
		out := w.request("maggie", "GET", path, "")
		var row map[string]any
		if err := json.Unmarshal(out.Body.Bytes(), &row); err != nil || out.Code != 200 {
			t.Fatalf("%s answers %d %s", path, out.Code, out.Body)
		}
		return row
	}
	expect := func(row map[string]any, key string, value any) {
		t.Helper()
		a, _ := json.Marshal(row[key])
		b, _ := json.Marshal(value)
		if string(a) != string(b) {
			t.Errorf("%s is %s, want %s", key, a, b)
		}
	}
	row := get("/api/queues/%2F/a%2Fb%20c")
	for key, value := range map[string]any{
		"name": "a/b c", "vhost": "/", "type": "quorum", "durable": true, "auto_delete": false, "exclusive": false,
		"arguments": map[string]any{"x-max-length": 9}, "policy": "p", "operator_policy": "op",
		"effective_policy_definition": map[string]any{"message-ttl": 20000, "dead-letter-exchange": "x"},
		"settings": []map[string]any{
			{"key": "dead-letter-exchange", "policy": "x", "effective": "x", "by": "policy"},
			{"key": "max-length", "argument": 9, "effective": 9, "by": "argument"},
			{"key": "message-ttl", "policy": 30000, "operator_policy": 20000, "effective": 20000, "by": "operator policy", "rule": "the smaller"},
		},
		"delivery_limit": 20, "dead_letter_strategy": "transactional", "state": "running", "leader": "n3", "node": "n3",
		"members": []string{"n1", "n2", "n3"}, "online": []string{"n1", "n2", "n3"}, "messages": 6, "messages_ready": 3,
		"messages_unacknowledged": 2, "messages_dlx": 1, "consumers": 4, "settings_in_force": false,
	} {
		expect(row, key, value)
	}
	w.stats["a/b c"] = stats.Queue{Leader: "n3", Revision: w.View().Index()}
	expect(get("/api/queues/%2F/a%2Fb%20c"), "settings_in_force", true)
	delete(w.stats, "a/b c")
	w.offline["n2"], w.offline["n3"] = true, true
	row = get("/api/queues/%2F/a%2Fb%20c")
	expect(row, "state", "minority")
	expect(row, "leader", nil)
	if count, shown := row["messages"]; shown {
		t.Errorf("a queue without a leader shows %v messages", count)
	}
	row = get("/api/queues/%2F/local")
	expect(row, "state", "down")
	expect(row, "type", "classic")
	expect(row, "dead_letter_strategy", "disabled")
	expect(row, "effective_policy_definition", map[string]any{})
	expect(row, "policy", "")
	if names := w.names("maggie", "/api/queues"); fmt.Sprint(names) != "[a/b c local]" {
		t.Errorf("maggie sees the queues %q", names)
	}
	if names := w.names("root", "/api/queues"); fmt.Sprint(names) != "[a/b c local h]" {
		t.Errorf("root sees the queues %q", names)
	}
}

// management.md 1.7 and tests 23 to 25.
func TestLists(t *testing.T) {
	w := newWorld(t)
	for i := range 37 {
		name := fmt.Sprintf("q%02d", i)
		w.queue("/", name, false)
		w.stats[name] = stats.Queue{Leader: "n1", QueueStats: api.QueueStats{Messages: uint64(100 - i), Ready: uint64(i % 3)}}
	}
	bad := func(reason string) string { return failure("invalid_pagination_parameters", reason) }
	const q = "/api/queues?columns=name,messages&"
	w.check(
		want{"root", "GET", q + "page=1&page_size=2", "", 200, `{"items":[{"messages":100,"name":"q00"},{"messages":99,"name":"q01"}],"page":1,"page_count":19,"page_size":2,"item_count":2,"filtered_count":37,"total_count":37}`},
		want{"root", "GET", q + "page=19&page_size=2", "", 200, "…\"item_count\":1,"},
		want{"root", "GET", q + "page=9", "", 400, failure("page_out_of_range", "Page out of range, page: 9 page size: 100, len: 37")},
		want{"root", "GET", q + "page=0", "", 400, bad("Invalid pagination parameters: page number 0, page size undefined")},
		want{"root", "GET", q + "page=1&page_size=501", "", 400, bad("Invalid pagination parameters: page number 1, page size 501")},
		want{"root", "GET", q + "page=x", "", 400, failure("bad_request", "Pagination parameters are invalid")},
		want{"root", "GET", q + "name=^Q0[12]$&use_regex=true", "", 200, "[]"},
		want{"root", "GET", q + "name=^q0[12]$&use_regex=true", "", 200, `[{"messages":99,"name":"q01"},{"messages":98,"name":"q02"}]`},
		want{"root", "GET", q + "name=^(?!q0[3-9])q0[12]$&use_regex=true", "", 200, `[{"messages":99,"name":"q01"},{"messages":98,"name":"q02"}]`},
		want{"root", "GET", q + "name=(&use_regex=true", "", 400, "…missing ) at offset 0"},
		want{"root", "GET", q + "name=Q3&page=1&page_size=1&sort=messages", "", 200, `{"items":[{"messages":64,"name":"q36"}],"page":1,"page_count":7,"page_size":1,"item_count":1,"filtered_count":7,"total_count":37}`},
		want{"root", "GET", q + "page=1&page_size=3&sort=messages_ready&sort_reverse=true", "", 200, "…[{\"messages\":98,\"name\":\"q02\"},{\"messages\":95,\"name\":\"q05\"},"},
		want{"root", "GET", "/api/queues/%2F?columns=name,arguments.x&name=q01", "", 200, `[{"arguments":{},"name":"q01"}]`},
	)
}

func TestExchangesAndBindings(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{
		Vhost: "/", Name: "x", Type: "topic", Durable: true, Arguments: &fsm.Table{Fields: []*logpb.Field{long("x-message-ttl", 5)}},
	}}})
	for _, b := range []*logpb.Bind{
		{Vhost: "/", Source: "x", Destination: "q", RoutingKey: "k/~ é"}, {Vhost: "/", Source: "x", Destination: "q"},
		{Vhost: "/", Source: "x", Destination: "q", RoutingKey: "a", Arguments: &fsm.Table{Fields: []*logpb.Field{long("n", 1)}}},
		{Vhost: "/", Source: "amq.fanout", Destination: "x", ToExchange: true, RoutingKey: "e"},
	} {
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: b}})
	}
	w.check(
		want{"root", "PUT", "/api/policies/%2F/p", `{"pattern":"^x$","apply-to":"exchanges","definition":{"alternate-exchange":"ae"}}`, 201, ""},
		want{"maggie", "GET", "/api/exchanges/%2F/x", "", 200, `{"name":"x","vhost":"/","type":"topic","durable":true,"auto_delete":false,"internal":false,"arguments":{"x-message-ttl":5},"policy":"p","operator_policy":"","effective_policy_definition":{"alternate-exchange":"ae"},"incoming":[],"outgoing":[]}`},
		want{"maggie", "GET", "/api/exchanges/%2F/amq.default", "", 200, "…{\"name\":\"\",\"vhost\":\"/\",\"type\":\"direct\""},
		want{"maggie", "GET", "/api/exchanges/%2F//bindings/source?columns=source", "", 200, `[{"source":""}]`},
		want{"maggie", "GET", "/api/exchanges/%2F/none", "", 404, notThere},
		want{"maggie", "GET", "/api/exchanges/hidden", "", 404, notThere},
		want{"maggie", "GET", "/api/bindings/hidden", "", 404, notThere},
		want{"maggie", "GET", "/api/queues/%2F/none/bindings", "", 404, notThere},
		want{"maggie", "GET", "/api/queues/%2F/q/bindings?columns=source,routing_key,properties_key", "", 200,
			`[{"properties_key":"q","routing_key":"q","source":""},{"properties_key":"~","routing_key":"","source":"x"},` +
				`{"properties_key":"a~K_0U9D","routing_key":"a","source":"x"},{"properties_key":"k%2F~+%C3%A9","routing_key":"k/~ é","source":"x"}]`},
		want{"maggie", "GET", "/api/exchanges/%2F/x/bindings/destination", "", 200,
			`[{"source":"amq.fanout","vhost":"/","destination":"x","destination_type":"exchange","routing_key":"e","arguments":{},"properties_key":"e"}]`},
		want{"maggie", "GET", "/api/exchanges/%2F/amq.default/bindings/source", "", 200,
			`[{"source":"","vhost":"/","destination":"q","destination_type":"queue","routing_key":"q","arguments":{},"properties_key":"q"}]`},
		want{"maggie", "GET", "/api/exchanges/%2F/none/bindings/source", "", 404, notThere},
	)
	if n := len(w.names("root", "/api/bindings")); n != 5 {
		t.Errorf("%d bindings, want 5", n)
	}
	if names := w.names("maggie", "/api/exchanges"); fmt.Sprint(names) != "[ amq.direct amq.fanout amq.headers amq.match amq.quorate.command amq.rabbitmq.trace amq.topic x]" {
		t.Errorf("exchanges are %q", names)
	}
}

// management.md 3.8 and test 31.
func TestUsers(t *testing.T) {
	w := newWorld(t)
	hash := base64.StdEncoding.EncodeToString(make([]byte, 36))
	w.check(
		want{"root", "PUT", "/api/users/u", `{"password":"p","tags":"monitoring, management"}`, 201, ""},
		want{"root", "PUT", "/api/users/u", `{"password":"p","tags":["policymaker"]}`, 204, ""},
		want{"root", "GET", "/api/users/u", "", 200, `…"hashing_algorithm":"pbkdf2_sha256","tags":["policymaker"],"limits":{}`},
		want{"root", "PUT", "/api/users/i", `{"password_hash":"` + hash + `","tags":""}`, 201, ""},
		want{"root", "GET", "/api/users/i", "", 200, `{"name":"i","password_hash":"` + hash + `","hashing_algorithm":"rabbit_password_hashing_sha256","tags":[],"limits":{}}`},
		want{"root", "PUT", "/api/users/n", `{"tags":""}`, 201, ""},
		want{"root", "GET", "/api/users/n", "", 200, `…"password_hash":"",`},
		want{"root", "PUT", "/api/users/x", `{"password":"p"}`, 400, failure("bad_request", "tags_not_present")},
		want{"root", "PUT", "/api/users/x", `{"password":"a\u0000","tags":""}`, 400, failure("bad_request", "password contains a zero byte")},
		want{"root", "PUT", "/api/users/x", `{"password":5,"tags":""}`, 400, failure("bad_request", "password should be a string, actually was 5")},
		want{"root", "PUT", "/api/users/x", `{"password":"p","tags":[5]}`, 400, failure("bad_request", "tags should be strings, actually was 5")},
		want{"root", "PUT", "/api/users/x", `{"password":"p","password_hash":"p","tags":""}`, 400, "…cannot be combined"},
		want{"root", "PUT", "/api/users/x", `{"password_hash":"!","tags":""}`, 400, "…not a base64-encoded hash"},
		want{"root", "PUT", "/api/users/x", `{"password_hash":"` + hash + `","hashing_algorithm":"rabbit_password_hashing_md5","tags":""}`, 400, "…is not a base64-encoded hash made with rabbit_password_hashing_md5"},
		want{"root", "PUT", "/api/users/x", `{"password_hash":"` + hash + `","hashing_algorithm":"rabbit_password_hashing_sha1","tags":""}`, 400, "…hashing_algorithm rabbit_password_hashing_sha1 is not supported"},
		want{"root", "GET", "/api/users/x", "", 404, notThere},
		want{"root", "PUT", "/api/permissions/%2F/u", `{"configure":"","write":"^a"}`, 400, failure("bad_request", "[{key_missing,read}]")},
		want{"root", "PUT", "/api/permissions/%2F/u", `{"configure":"","write":"(","read":""}`, 400, "…missing ) at offset 0"},
		want{"root", "PUT", "/api/permissions/none/u", `{"configure":"","write":"","read":""}`, 404, failure("not_found", "vhost_not_found")},
		want{"root", "PUT", "/api/permissions/%2F/x", `{"configure":"","write":"","read":""}`, 404, failure("not_found", "no user 'x'")},
		want{"root", "PUT", "/api/permissions/%2F/u", `{"configure":"","write":"^a","read":".*"}`, 201, ""},
		want{"root", "PUT", "/api/permissions/%2F/u", `{"configure":"","write":"^b","read":".*"}`, 204, ""},
		want{"root", "GET", "/api/permissions/%2F/u", "", 200, `{"user":"u","vhost":"/","configure":"","write":"^b","read":".*"}`},
		want{"root", "GET", "/api/users/u/permissions", "", 200, `[{"user":"u","vhost":"/","configure":"","write":"^b","read":".*"}]`},
		want{"root", "GET", "/api/users/x/permissions", "", 404, notThere},
		want{"root", "GET", "/api/vhosts/hidden/permissions", "", 200, "[]"},
		want{"root", "PUT", "/api/vhost-limits/%2F/max-queues", `{"value":"10"}`, 400, "…max-queues should be an integer"},
		want{"root", "PUT", "/api/vhost-limits/%2F/max-queues", `{"value":1.5}`, 400, "…max-queues should be an integer"},
		want{"root", "PUT", "/api/vhost-limits/%2F/max-queues", `{}`, 400, "…{key_missing,value}"},
		want{"root", "PUT", "/api/vhost-limits/%2F/max-channels", `{"value":10}`, 400, "…unrecognised vhost limit 'max-channels'"},
		want{"root", "PUT", "/api/vhost-limits/none/max-queues", `{"value":10}`, 404, failure("not_found", "no vhost 'none'")},
		want{"root", "PUT", "/api/user-limits/x/max-channels", `{"value":10}`, 404, failure("not_found", "no user 'x'")},
		want{"mona", "PUT", "/api/vhost-limits/%2F/max-queues", `{"value":10}`, 401, notAdmin},
		want{"root", "PUT", "/api/vhost-limits/%2F/max-queues", `{"value":1000}`, 204, ""},
		want{"root", "PUT", "/api/vhost-limits/%2F/max-connections", `{"value":-1}`, 204, ""},
		want{"root", "PUT", "/api/user-limits/u/max-channels", `{"value":5}`, 204, ""},
		want{"root", "GET", "/api/vhost-limits", "", 200, `[{"vhost":"/","value":{"max-connections":-1,"max-queues":1000}}]`},
		want{"root", "GET", "/api/vhost-limits/hidden", "", 200, "[]"},
		want{"root", "GET", "/api/vhost-limits/none", "", 404, notThere},
		want{"root", "GET", "/api/user-limits/u", "", 200, `[{"user":"u","value":{"max-channels":5}}]`},
		want{"root", "GET", "/api/user-limits/x", "", 404, notThere},
		want{"root", "GET", "/api/users/u", "", 200, `…"limits":{"max-channels":5}}`},
		want{"root", "DELETE", "/api/user-limits/u/max-channels", "", 204, ""},
		want{"root", "DELETE", "/api/vhost-limits/%2F/max-queues", "", 204, ""},
		want{"root", "GET", "/api/user-limits", "", 200, "[]"},
		want{"root", "PUT", "/api/topic-permissions/%2F/u", `{"exchange":"amq.topic","write":"^a"}`, 400, failure("bad_request", "[{key_missing,read}]")},
		want{"root", "PUT", "/api/topic-permissions/%2F/u", `{"exchange":"amq.topic","write":"(","read":""}`, 400, "…missing ) at offset 0"},
		want{"root", "PUT", "/api/topic-permissions/%2F/u", `{"exchange":"","write":"","read":""}`, 400, "…exchange names must have 1 to 255 bytes"},
		want{"root", "PUT", "/api/topic-permissions/none/u", `{"exchange":"x","write":"","read":""}`, 404, failure("not_found", "vhost_not_found")},
		want{"root", "PUT", "/api/topic-permissions/%2F/x", `{"exchange":"x","write":"","read":""}`, 404, failure("not_found", "no user 'x'")},
		want{"root", "GET", "/api/topic-permissions/%2F/u", "", 404, notThere},
		want{"root", "PUT", "/api/topic-permissions/%2F/u", `{"exchange":"amq.topic","write":"^a","read":".*"}`, 201, ""},
		want{"root", "PUT", "/api/topic-permissions/%2F/u", `{"exchange":"amq.topic","write":"^b","read":".*"}`, 204, ""},
		want{"root", "PUT", "/api/topic-permissions/%2F/u", `{"exchange":"t","write":"","read":""}`, 201, ""},
		want{"root", "GET", "/api/topic-permissions/%2F/u/amq.topic", "", 200, `{"user":"u","vhost":"/","exchange":"amq.topic","write":"^b","read":".*"}`},
		want{"root", "GET", "/api/topic-permissions/%2F/u", "", 200, `…},{"user":"u","vhost":"/","exchange":"t","write":"","read":""}]`},
		want{"root", "GET", "/api/topic-permissions", "", 200, `…"exchange":"amq.topic"`},
		want{"root", "GET", "/api/users/u/topic-permissions", "", 200, `…"exchange":"t"`},
		want{"root", "GET", "/api/users/x/topic-permissions", "", 404, notThere},
		want{"root", "GET", "/api/vhosts/hidden/topic-permissions", "", 200, "[]"},
		want{"mona", "GET", "/api/topic-permissions", "", 401, notAdmin},
		want{"root", "DELETE", "/api/topic-permissions/%2F/u/amq.topic", "", 204, ""},
		want{"root", "DELETE", "/api/topic-permissions/%2F/u/amq.topic", "", 404, notThere},
		want{"root", "DELETE", "/api/topic-permissions/%2F/u", "", 204, ""},
		want{"root", "DELETE", "/api/topic-permissions/%2F/u", "", 404, notThere},
		want{"root", "DELETE", "/api/permissions/%2F/u", "", 204, ""},
		want{"root", "DELETE", "/api/permissions/%2F/u", "", 404, notThere},
		want{"root", "DELETE", "/api/users/u", "", 204, ""},
		want{"root", "DELETE", "/api/users/u", "", 404, notThere},
	)
	if u, _ := w.View().User("i"); !login.ValidHash(u.PasswordHash, u.HashAlgorithm) {
		t.Error("an imported hash is not valid")
	}
}

func TestVHosts(t *testing.T) {
	w := newWorld(t)
	w.offline["n2"] = true
	w.check(
		want{"root", "PUT", "/api/vhosts/a%2Fb", `{"description":"d","tags":"x,y","default_queue_type":"quorum"}`, 201, ""},
		want{"root", "GET", "/api/vhosts/a%2Fb", "", 200, `{"name":"a/b","description":"d","tags":["x","y"],"default_queue_type":"quorum","redeclare":"strict","metadata":{"description":"d","tags":["x","y"],"default_queue_type":"quorum"},` +
			`"tracing":false,"protected_from_deletion":false,"cluster_state":{"n1":"running","n2":"down","n3":"running"},` +
			`"queues_unknown":0,"messages":0,"messages_ready":0,"messages_unacknowledged":0,"messages_scheduled":0,"messages_delayed":0,"message_bytes_delayed":0,"messages_dlx":0,"messages_dlx_waiting":0,"message_bytes":0,"message_bytes_dlx":0,` + `"messages_details":{"rate":0},"messages_ready_details":{"rate":0},"messages_unacknowledged_details":{"rate":0}}`},
		want{"root", "GET", "/api/vhosts/a%2Fb/permissions", "", 200, `[{"user":"root","vhost":"a/b","configure":".*","write":".*","read":".*"}]`},
		want{"root", "PUT", "/api/vhosts/a%2Fb", ``, 204, ""},
		want{"root", "GET", "/api/vhosts/a%2Fb?columns=name", "", 200, `…"description":"d","tags":["x","y"]`}, // what is not said stays
		want{"root", "PUT", "/api/vhosts/c", `{"default_queue_type":"nosuch"}`, 400, invalid("nosuch is not a valid queue type")},
		want{"maggie", "GET", "/api/vhosts/a%2Fb", "", 404, notThere},
		want{"root", "DELETE", "/api/vhosts/a%2Fb", "", 204, ""},
		want{"root", "DELETE", "/api/vhosts/a%2Fb", "", 404, notThere},
	)
}
