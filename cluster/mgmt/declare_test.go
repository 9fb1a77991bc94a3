package mgmt

import (
	"context"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// visit is a vhost opened for a user of a world: what it is asked goes to the real catalog.
type visit struct {
	w           *world
	user, vhost string
}

func (w *world) Open(_ context.Context, user, vhost string) (Session, error) {
	if _, ok := w.View().Permission(user, vhost); !ok {
		return nil, fsm.Refuse(fsm.NotAllowed, "access refused")
	}
	return visit{w, user, vhost}, nil
}

func (w *world) Blocked() string { return w.blocked }

func (w *world) Publish(_ context.Context, user, vhost string, m Outgoing) (bool, error) {
	if err := w.View().CheckPublish(user, vhost, m.Exchange); err != nil {
		return false, err
	}
	if m.RoutingKey == "refused" {
		return false, fsm.Refuse(fsm.Precondition, "no")
	}
	w.published = append(w.published, m)
	_, ok := w.View().Queue(vhost, m.RoutingKey)
	return ok, nil
}

func (v visit) by() catalog.Client    { return catalog.Client{User: v.user} }
func (v visit) Close(context.Context) {}

func (v visit) propose(err error, c *logpb.CatalogCommand) error {
	if err != nil {
		return err
	}
	return propose(context.Background(), v.w, c)
}

func (v visit) DeclareExchange(_ context.Context, s fsm.ExchangeSpec) error {
	d := &logpb.DeclareExchange{Vhost: v.vhost, Name: s.Name, Type: s.Type, Durable: s.Durable, AutoDelete: s.AutoDelete, Internal: s.Internal, Arguments: s.Arguments}
	_, err := v.w.View().CheckDeclareExchange(v.by(), d)
	return v.propose(err, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: d}})
}

func (v visit) DeleteExchange(_ context.Context, name string, ifUnused bool) error {
	d := &logpb.DeleteExchange{Vhost: v.vhost, Name: name, IfUnused: ifUnused}
	_, err := v.w.View().CheckDeleteExchange(v.by(), d)
	return v.propose(err, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteExchange{DeleteExchange: d}})
}

func (v visit) DeclareQueue(_ context.Context, s fsm.QueueSpec) (fsm.QueueInfo, error) {
	d := &logpb.DeclareQueue{Vhost: v.vhost, Name: s.Name, Durable: s.Durable, AutoDelete: s.AutoDelete, Arguments: s.Arguments, Members: []uint32{1, 2, 3}}
	_, err := v.w.View().CheckDeclareQueue(v.by(), d, false)
	return fsm.QueueInfo{}, v.propose(err, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: d}})
}

func (v visit) DeleteQueue(_ context.Context, name string, ifUnused, ifEmpty bool) (uint64, error) {
	q, err := v.w.View().CheckDeleteQueue(v.by(), v.vhost, name)
	if err != nil {
		return 0, err
	}
	if ifEmpty && v.w.stats[name].Messages > 0 || ifUnused && v.w.stats[name].Consumers > 0 {
		return 0, fsm.Refuse(fsm.Precondition, "queue in use or not empty")
	}
	return 0, v.propose(nil, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: v.vhost, Name: name, Id: uint64(q.ID)}}})
}

func (v visit) PurgeQueue(_ context.Context, name string) (uint64, error) {
	_, err := v.w.View().UseQueue(v.by(), catalog.Read, v.vhost, name)
	delete(v.w.stats, name)
	return 0, err
}

func (v visit) bind(s fsm.BindSpec) *logpb.Bind {
	return &logpb.Bind{Vhost: v.vhost, Source: s.Source, Destination: s.Destination, ToExchange: s.ToExchange, RoutingKey: s.RoutingKey, Arguments: s.Arguments}
}

func (v visit) Bind(_ context.Context, s fsm.BindSpec) error {
	_, err := v.w.View().CheckBind(v.by(), v.bind(s))
	return v.propose(err, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: v.bind(s)}})
}

func (v visit) Unbind(_ context.Context, s fsm.BindSpec) error {
	_, err := v.w.View().CheckUnbind(v.by(), v.bind(s))
	return v.propose(err, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Unbind{Unbind: v.bind(s)}})
}

// management.md tests 15 to 19.
func TestDeclaresOverHTTP(t *testing.T) {
	w := newWorld(t)
	refused := failure("not_authorised", "Access refused.")
	const q, x = "/api/queues/%2F/q", "/api/exchanges/%2F/x"
	w.check(
		want{"root", "PUT", q, `{"durable":"true","auto_delete":false,"node":null,"name":"q","vhost":"/","arguments":{"x-message-ttl":5}}`, 201, ""},
		want{"root", "PUT", q, `{"arguments":{"x-message-ttl":5}}`, 204, ""},
		want{"root", "PUT", q, `{"arguments":{"x-message-ttl":6}}`, 400, failure("bad_request", "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '6' but current is '5'")},
		want{"root", "PUT", q, `{"durable":"maybe"}`, 400, failure("bad_request", `["not_boolean","maybe"]`)},
		want{"root", "PUT", q, `{"arguments":"no"}`, 400, "…arguments should be an object"},
		want{"root", "PUT", q, `"x"`, 400, "…doubly-JSON-encoded"},
		want{"root", "PUT", "/api/queues/%2F/amq.x", `{}`, 401, refused},
		want{"root", "PUT", "/api/queues/nov/q", `{}`, 404, failure("not_found", "vhost_not_found")},
		want{"maggie", "PUT", "/api/queues/%2F/other", `{}`, 401, refused},
		want{"maggie", "PUT", "/api/queues/hidden/other", `{}`, 404, failure("not_found", "vhost_not_found")},
		want{"mona", "PUT", "/api/queues/hidden/other", `{}`, 401, refused},
		want{"maggie", "DELETE", q, "", 401, refused},
		want{"maggie", "DELETE", q + "/contents", "", 204, ""},
		want{"root", "DELETE", "/api/queues/%2F/none/contents", "", 404, notThere},
		want{"root", "POST", q + "/actions", `{"action":"sync"}`, 400, failure("bad_request", "unsupported action: sync")},
		want{"root", "POST", q + "/actions", `{}`, 400, failure("bad_request", "[{key_missing,action}]")},
		want{"maggie", "POST", q + "/actions", `{"action":"transfer_leadership","node":"n2"}`, 401, notAdmin},
		want{"root", "PUT", x, `{}`, 201, ""},
		want{"root", "PUT", x, `{"type":"direct","durable":true}`, 204, ""},
		want{"root", "PUT", x, `{"type":"fanout"}`, 400, "…inequivalent arg 'type'"},
		want{"root", "PUT", "/api/exchanges/%2F/y", `{"type":"nosuch"}`, 400, "…unknown exchange type 'nosuch'"},
		want{"root", "PUT", "/api/exchanges/%2F/amq.default", `{}`, 401, refused},
		want{"root", "DELETE", "/api/exchanges/%2F/amq.direct", "", 401, refused},
		want{"root", "DELETE", "/api/exchanges/%2F/none", "", 404, notThere},
		want{"maggie", "DELETE", x, "", 401, refused},

		want{"root", "POST", "/api/bindings/%2F/e/x/q/q", `{"routing_key":"k"}`, 201, ""},
		want{"root", "DELETE", x + "?if-unused=true", "", 400, "…in use"},
		want{"root", "DELETE", x, "", 204, ""},
		want{"root", "GET", x, "", 404, notThere},
		want{"root", "DELETE", q, "", 204, ""},
		want{"root", "DELETE", q, "", 404, notThere},
	)
}

// management.md test 20: what a binding is called leads to it, whatever its key.
func TestBindingsOverHTTP(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a/b", false)
	const path = "/api/bindings/%2F/e/amq.headers/q/a%2Fb"
	for _, body := range []string{
		`{}`, `{"routing_key":"k/~ é"}`, `{"routing_key":"%2F"}`, `{"routing_key":"a","arguments":{"x-match":"all","n":1}}`, `{"routing_key":"a"}`,
	} {
		out := w.request("root", "POST", path, body)
		at := out.Header().Get("Location")
		if out.Code != 201 || !strings.HasPrefix(at, "a%2Fb/") {
			t.Fatalf("%s: %d, at %q: %s", body, out.Code, at, out.Body)
		}
		one := strings.TrimSuffix(path, "a%2Fb") + at
		w.check(
			want{"root", "POST", path, body, 201, ""},
			want{"maggie", "GET", one, "", 200, `…"destination":"a/b"`},
			want{"maggie", "DELETE", one, "", 401, failure("not_authorised", "Access refused.")},
			want{"root", "DELETE", one, "", 204, ""},
			want{"root", "DELETE", one, "", 404, notThere},
		)
	}
	w.check(
		want{"root", "GET", path, "", 200, "[]"},
		want{"root", "POST", path, `{"routing_key":"x y"}`, 201, ""},
		want{"root", "GET", path + "/x+y", "", 200, `…"routing_key":"x y"`},
		want{"root", "POST", path, `{"arguments":[]}`, 400, "…arguments should be an object"},
		want{"root", "POST", "/api/bindings/%2F/e/none/q/a%2Fb", `{}`, 404, notThere},
		want{"root", "GET", "/api/bindings/%2F/e/amq.topic/q/none", "", 404, notThere},
		want{"root", "POST", "/api/bindings/%2F/e/amq.default/q/a%2Fb", `{}`, 401, failure("not_authorised", "Access refused.")},
		want{"root", "GET", "/api/bindings/%2F/e/amq.default/q/a%2Fb", "", 200, `…"routing_key":"a/b"`},
		want{"root", "GET", "/api/bindings/%2F/e//q/a%2Fb", "", 200, `…"routing_key":"a/b"`},
		want{"root", "POST", "/api/bindings/%2F/e/amq.topic/e/amq.fanout", `{"routing_key":"e"}`, 201, ""},
		want{"root", "GET", "/api/bindings/%2F/e/amq.topic/e/amq.fanout/e", "", 200, `…"destination_type":"exchange"`},
	)
}

// management.md test 21.
func TestPublishOverHTTP(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	const path = "/api/exchanges/%2F/amq.default/publish"
	body := func(key, payload, encoding string) string {
		return `{"properties":{"delivery_mode":2,"headers":{"a":[1,"x",null]}},"routing_key":"` + key + `","payload":"` + payload + `","payload_encoding":"` + encoding + `"}`
	}
	w.check(
		want{"root", "POST", path, body("q", "hi", "string"), 200, `{"routed":true}`},
		want{"root", "POST", "/api/exchanges/%2F//publish", body("q", "hi", "string"), 200, `{"routed":true}`},
		want{"root", "POST", "/api/exchanges//amq.default/publish", body("q", "hi", "string"), 404, notThere},
		want{"root", "POST", path, body("none", "aGk=", "base64"), 200, `{"routed":false}`},
		want{"root", "POST", path, `{"properties":[],"routing_key":"q","payload":"","payload_encoding":"string"}`, 200, `{"routed":true}`},
		want{"root", "POST", path, body("q", "hi", "base64"), 400, "…payload is not base64"},
		want{"root", "POST", path, body("q", "hi", "none"), 400, "…unsupported encoding: none"},
		want{"root", "POST", path, body("refused", "", "string"), 400, failure("bad_request", "406 PRECONDITION_FAILED - no")},
		want{"root", "POST", path, `{"properties":{}}`, 400, failure("bad_request", "[{key_missing,routing_key},{key_missing,payload},{key_missing,payload_encoding}]")},
		want{"root", "POST", path, `{"properties":"","routing_key":"","payload":"","payload_encoding":"string"}`, 400, "…properties should be an object"},
		want{"root", "POST", "/api/exchanges/%2F/none/publish", body("q", "", "string"), 404, failure("not_found", "exchange_not_found")},
		want{"root", "POST", path, body("q", strings.Repeat("x", maxBody), "string"), 200, `{"routed":true}`},
		want{"root", "POST", path, body("q", strings.Repeat("x", largeBody), "string"), 413, "…payload_too_large"},
	)
	if m := w.published[2]; string(m.Body) != "hi" || m.Exchange != "" || len(m.Properties.GetFields()) != 2 {
		t.Errorf("published %v", m)
	}
	w.blocked = "low on memory"
	w.check(want{"root", "POST", path, body("q", "hi", "string"), 503, failure("unavailable", "publishing is blocked: low on memory")})
}
