package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/proto/logpb"
)

// mustServe serves a node's HTTP API until the test ends, and returns its URL.
func mustServe(t *testing.T, n *Node) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	guard, err := origin.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := mgmt.New(n.Management(), slog.New(slog.DiscardHandler), guard)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

// request makes a request and returns the status and the decoded answer.
func request(t *testing.T, method, url, user, password string) (int, any, http.Header) {
	t.Helper()
	a := send(t, method, url, "", user, password)
	var body any
	if len(a.raw) > 0 && a.header.Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(a.raw, &body); err != nil {
			t.Fatalf("%s %s answers %q: %v", method, url, a.raw, err)
		}
	}
	return a.status, body, a.header
}

// answer is what the HTTP API has answered.
type answer struct {
	status int
	raw    []byte
	header http.Header
	again  bool // after the cluster could not perform it in time, or could and did not say so
}

// send makes a request until the cluster can perform it, see retried.
func send(t *testing.T, method, url, body, user, password string) (a answer) {
	t.Helper()
	err := retried(t, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		if user != "" {
			r.SetBasicAuth(user, password)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if a.raw, err = io.ReadAll(res.Body); err != nil {
			t.Fatal(err)
		}
		a.status, a.header = res.StatusCode, res.Header
		if a.status == http.StatusServiceUnavailable && bytes.Contains(a.raw, []byte(`"error":"unavailable"`)) && !bytes.Contains(a.raw, []byte("the node cannot check logins yet")) {
			a.again = true
			return fmt.Errorf("%s %s: %s", method, url, a.raw)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The health check needs no login, and tells whether clients are served.
func TestHealth(t *testing.T) {
	t.Parallel()
	c := &nodes{t: t, net: newNetwork(), dir: t.TempDir()}
	config := c.config("n1")
	config.Nodes = map[string]string{"n1": "n1"}
	n, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	url := mustServe(t, n) + "/api/health/checks/ready-to-serve-clients"
	if status, body, _ := request(t, "GET", url, "", ""); status != 503 || body.(map[string]any)["status"] != "failed" {
		t.Errorf("before it has joined: %d, %v", status, body)
	}
	if err := n.Join(deadline(t), func(ctx context.Context) error { // it needs the catalog, and Revive opens no listeners meanwhile
		if status, _, _ := request(t, "GET", url, "", ""); status != 503 || n.Ready() || n.ready.Load() {
			t.Errorf("while it is prepared: %d, ready: %v", status, n.Ready())
		}
		_, err := n.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "prepared"}}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := request(t, "GET", url, "", ""); status != 200 || body.(map[string]any)["status"] != "ok" {
		t.Errorf("after it has joined: %d, %v", status, body)
	}
}

// Everything but the health check is for administrators.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	_, err := c.all["n1"].Propose(deadline(t), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: &logpb.PutUser{
		Name: "plain", PasswordHash: login.HashPassword("secret"), HashAlgorithm: login.HashAlgorithm,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	url := mustServe(t, c.all["n1"])
	for _, tc := range []struct {
		method, path, user, password string
		want                         int
	}{
		{"GET", "/api/version", "", "", 401},
		{"GET", "/api/version", "guest", "wrong", 401},
		{"GET", "/api/version", "nobody", "guest", 401},
		{"GET", "/api/version", "plain", "secret", 401},
		{"GET", "/api/version", "guest", "guest", 200},
		{"GET", "/api/quorate/replicas", "", "", 401},
		{"GET", "/api/quorate/replicas", "guest", "guest", 200},
		{"POST", "/api/quorate/settle", "plain", "secret", 401},
		{"POST", "/api/quorate/settle", "guest", "guest", 204},
		{"GET", "/api/quorate/settle", "guest", "guest", 405},
		{"GET", "/api/nothing", "guest", "guest", 404},
	} {
		status, _, header := request(t, tc.method, url+tc.path, tc.user, tc.password)
		if status != tc.want || (status == 401) != (header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s %s as %q: %d, %q; want %d", tc.method, tc.path, tc.user, status, header.Get("WWW-Authenticate"), tc.want)
		}
	}
}

// A node describes the replicas on it, whoever leads them.
func TestReplicas(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n2")
	urls := map[string]string{}
	for _, name := range names {
		urls[name] = mustServe(t, c.all[name])
		status, body, _ := request(t, "GET", urls[name]+"/api/quorate/replicas", "guest", "guest")
		if list, ok := body.([]any); status != 200 || !ok || len(list) != 0 {
			t.Errorf("without a queue %s answers %d, %v", name, status, body)
		}
	}
	cl.mustDeclare("q")
	cl.publish("q", "m")
	cl.confirmed()
	c.mustAgree()
	soon(t, "all nodes tell the same", func() string { return c.wrongReplicas(t, urls) })
}

// wrongReplicas says what the nodes tell wrongly about their replicas of the queue.
func (c *nodes) wrongReplicas(t *testing.T, urls map[string]string) string {
	leader := c.mustLeader("q")
	hashes, terms := map[any]bool{}, map[any]bool{}
	for name, url := range urls {
		if _, body, _ := request(t, "GET", url+"/api/quorate/replicas?hash=false", "guest", "guest"); body.([]any)[0].(map[string]any)["state_hash"] != "" {
			return fmt.Sprintf("%s lists, without hashes, %v", name, body)
		}
		_, body, _ := request(t, "GET", url+"/api/quorate/replicas", "guest", "guest")
		list := body.([]any)
		if len(list) != 1 {
			t.Fatalf("%s lists %v", name, list)
		}
		r := list[0].(map[string]any)
		hashes[r["state_hash"]], terms[r["term"]] = true, true
		want := map[string]any{
			"vhost": "/", "name": "q", "node": name, "leader": name == leader, "leader_node": leader,
			"ready": 1.0, "unacknowledged": 0.0, "outbox": 0.0, "consumers": 0.0,
		}
		for key, value := range want {
			if r[key] != value {
				return fmt.Sprintf("%s: %s is %v, want %v", name, key, r[key], value)
			}
		}
	}
	if len(hashes) != 1 || hashes[""] {
		return fmt.Sprintf("the state hashes are %v", hashes)
	}
	if want := float64(c.all[leader].host.Groups()[0].Leading()); len(terms) != 1 || !terms[want] {
		return fmt.Sprintf("the terms are %v, want %v", terms, want)
	}
	return ""
}

// The vhost of a new cluster gets what new vhosts get.
func TestDefaultVHostIsSeeded(t *testing.T) {
	seeds := &mgmt.Seeds{Limits: []mgmt.LimitSeed{{VHosts: "^/$", Limits: map[string]int64{"max-queues": 5}}}}
	c := mustCluster(t, func(c *nodes) {
		c.first, c.through, c.change = []string{"n1"}, "n1", func(config *Config) { config.Seeds = seeds }
	})
	limits := c.all["n1"].catalog.View().Limits(false)
	if len(limits) != 1 || limits[0].GetOf() != "/" || limits[0].GetValue() != 5 {
		t.Errorf("limits %v", limits)
	}
}
