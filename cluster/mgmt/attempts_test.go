package mgmt

import (
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestAttempts: logins of the node that is asked are counted since the last reset.
func TestAttempts(t *testing.T) {
	w := newWorld(t)
	w.accepted = 5
	const path = "/api/auth/attempts/"
	w.check(
		want{"mona", "GET", path + "n1", "", 200, `[{"protocol":"amqp091","auth_attempts":6,"auth_attempts_failed":1,"auth_attempts_succeeded":5},{"protocol":"http","auth_attempts":1,"auth_attempts_failed":0,"auth_attempts_succeeded":1}]`},
		want{"root", "DELETE", path + "n1", "", 204, ""},
	)
	w.accepted++
	w.check(
		want{"mona", "GET", path + "n1", "", 200, `[{"protocol":"amqp091","auth_attempts":1,"auth_attempts_failed":0,"auth_attempts_succeeded":1},{"protocol":"http","auth_attempts":0,"auth_attempts_failed":0,"auth_attempts_succeeded":0}]`},
		want{"mona", "GET", path + "n1/source", "", 200, `[]`},
		want{"root", "DELETE", path + "n1/source", "", 204, ""},
		want{"mona", "GET", path + "n2", "", 400, failure("bad_request", "node 'n1' counts its own logins: ask node 'n2'")},
		want{"mona", "GET", path + "other", "", 404, failure("Object Not Found", "Not Found")},
	)
}

// TestReset: rates begin again, and counts go on.
func TestReset(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.count("/", "", "q", 10, 0)
	const stats = `/api/overview?columns=message_stats`
	rate := func() (float64, float64) {
		o := mustJSON[api.Overview](w, "mona", stats)
		return o.MessageStats["publish"].(float64), o.MessageStats["publish_details"].(map[string]any)["rate"].(float64)
	}
	if n, r := rate(); n != 10 || r != 2 {
		t.Fatalf("%v, %v a second", n, r)
	}
	w.check(want{"root", "DELETE", "/api/reset", "", 204, ""})
	if n, r := rate(); n != 10 || r != 0 {
		t.Errorf("%v, %v a second", n, r)
	}
	w.offline["n2"] = true
	w.check(
		want{"root", "DELETE", "/api/reset/n1", "", 204, ""},
		want{"root", "DELETE", "/api/reset/n2", "", 503, failure("unavailable", "node 'n2' does not answer")},
		want{"root", "DELETE", "/api/reset/other", "", 404, failure("Object Not Found", "Not Found")},
	)
}

func TestConnectionLimit(t *testing.T) {
	w := newWorld(t)
	const path = "/api/health/checks/below-node-connection-limit"
	w.check(want{"maggie", "GET", path, "", 200, `{"status":"ok","current":0,"limit":2}`})
	w.clients = make([]api.Connection, 2)
	w.check(want{"maggie", "GET", path, "", 503, `{"status":"failed","reason":"node connection limit is reached","current":2,"limit":2}`})
}

// TestDeprecated: what RabbitMQ deprecates is served, and listed as used while it is.
func TestDeprecated(t *testing.T) {
	w := newWorld(t)
	const path = "/api/deprecated-features"
	w.check(
		want{"mona", "GET", path + "?columns=name,state", "", 200, `[{"name":"global_qos","state":"permitted"},{"name":"transient_nonexcl_queues","state":"permitted"}]`},
		want{"mona", "GET", path + "/used", "", 200, `[]`},
	)
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Vhost: "/", Name: "q", Local: true, Members: []uint32{2}, Arguments: &fsm.Table{}}}})
	w.channels = []api.Channel{{SharedPrefetch: 3}}
	w.check(want{"mona", "GET", path + "/used?columns=name", "", 200, `[{"name":"global_qos"},{"name":"transient_nonexcl_queues"}]`})
}
