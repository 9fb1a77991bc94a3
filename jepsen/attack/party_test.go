package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// partyWait bounds what has no bound of its own.
const partyWait = time.Minute

// parties counts those there were: names are used once.
var parties atomic.Int64

// party is a vhost with a user who is under suspicion. The user's password is
// the name.
type party struct {
	*testing.T
	c           *cluster.Cluster
	user, vhost string
	owner       *amqp.Channel // of guest's, in the vhost
	web         *http.Client
}

// newParty makes a vhost of the shared cluster and a user with these tags and all
// rights in it.
func newParty(t *testing.T, tags ...string) *party { return partyOf(t, shared.mustGet(t), tags...) }

func partyOf(t *testing.T, c *cluster.Cluster, tags ...string) *party {
	t.Helper()
	n := parties.Add(1)
	p := &party{T: t, c: c, web: http.DefaultClient, user: fmt.Sprint("user", n), vhost: fmt.Sprint("vhost", n)}
	p.admin("PUT", p.path("vhosts", p.vhost), map[string]any{})
	p.putUser(tags...)
	p.grant(".*", ".*", ".*")
	p.owner = p.channel(p.connectAs("guest", 0))
	return p
}

// path makes a path of the API.
func (p *party) path(segments ...string) string {
	path := "/api"
	for _, s := range segments {
		path += "/" + url.PathEscape(s)
	}
	return path
}

// admin makes a request as guest at the first node, which must be done.
func (p *party) admin(method, path string, body any) {
	p.Helper()
	if err := p.c.Nodes[0].Call(p.Context(), method, path, body, nil); err != nil {
		p.Fatal(err)
	}
}

func (p *party) putUser(tags ...string) {
	p.Helper()
	p.admin("PUT", p.path("users", p.user), map[string]any{"password": p.user, "tags": strings.Join(tags, ",")})
}

func (p *party) grant(configure, write, read string) {
	p.Helper()
	p.admin("PUT", p.path("permissions", p.vhost, p.user), map[string]any{"configure": configure, "write": write, "read": read})
}

func (p *party) grantTopic(exchange, write, read string) {
	p.Helper()
	p.admin("PUT", p.path("topic-permissions", p.vhost, p.user), map[string]any{"exchange": exchange, "write": write, "read": read})
}

func (p *party) connectAs(user string, node int) *amqp.Connection {
	p.Helper()
	conn, err := client.ConnectAs(p.Context(), p.c.Nodes[node].URI(), user, user, p.vhost)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	return conn
}

// connect connects the suspect to a node.
func (p *party) connect(node int) *amqp.Connection {
	p.Helper()
	return p.connectAs(p.user, node)
}

func (p *party) channel(conn *amqp.Connection) *amqp.Channel {
	p.Helper()
	ch, err := conn.Channel()
	if err != nil {
		p.Fatal(err)
	}
	return ch
}

// queue declares a durable queue as its owner.
func (p *party) queue(name string) {
	p.Helper()
	if _, err := p.owner.QueueDeclare(name, true, false, false, false, nil); err != nil {
		p.Fatal(err)
	}
}

// exchange declares one as its owner.
func (p *party) exchange(name, kind string, arguments amqp.Table) {
	p.Helper()
	if err := p.owner.ExchangeDeclare(name, kind, true, false, false, false, arguments); err != nil {
		p.Fatal(err)
	}
}

// publish has the owner publish a message, which is confirmed.
func (p *party) publish(exchange, key string, m amqp.Publishing) {
	p.Helper()
	ch := p.channel(p.connectAs("guest", 0))
	if err := ch.Confirm(false); err != nil {
		p.Fatal(err)
	}
	d, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, m)
	if err != nil {
		p.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.Context(), partyWait)
	defer cancel()
	if ok, err := d.WaitContext(ctx); !ok || err != nil {
		p.Fatalf("publish by the owner: %v, %v", ok, err)
	}
}

// ready counts the messages of a queue.
func (p *party) ready(queue string) int {
	p.Helper()
	q, err := p.owner.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		p.Fatal(err)
	}
	return q.Messages
}

// refused checks what a channel or a connection was closed with.
func (p *party) refused(err error, code int, text string) {
	p.Helper()
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Reason, text) {
		p.Errorf("%v, want %d …%s…", err, code, text)
	}
}

// soon waits for news that has to come within a second, or what the machine
// needs.
func soon[V any](p *party, since time.Time, what string, from <-chan V) (v V) {
	p.Helper()
	limit := time.NewTimer(partyWait)
	defer limit.Stop()
	select {
	case v = <-from:
	case <-limit.C:
		p.Fatalf("%s: nothing has come", what)
	}
	if took, allowed := time.Since(since), stall.Tolerance(machine.Longest(since)); took > allowed {
		p.Errorf("%s: after %v, allowed are %v", what, took, allowed)
	}
	return v
}

// ask makes a request as the suspect at a node.
func (p *party) ask(node int, method, path, body string) (status int, answer string) {
	p.Helper()
	return p.askAs(p.user, p.user, node, method, path, body)
}

func (p *party) askAs(user, password string, node int, method, path, body string) (status int, answer string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), partyWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.c.Nodes[node].HTTP+path, strings.NewReader(body))
	if err != nil {
		p.Fatal(err)
	}
	r.SetBasicAuth(user, password)
	r.Header.Set("Content-Type", "application/json")
	resp, err := p.web.Do(r)
	if err != nil {
		p.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// denied checks that a request of the suspect's is refused with a reason.
func (p *party) denied(node int, method, path, body string, status int, reason string) {
	p.Helper()
	got, text := p.ask(node, method, path, body)
	var failure struct{ Reason string }
	if err := json.Unmarshal([]byte(text), &failure); got != status || err != nil || failure.Reason != reason {
		p.Errorf("%s %s: %d %.200s, want %d %s", method, path, got, text, status, reason)
	}
}

// fill puts the party's names into a text.
func (p *party) fill(text string) string {
	return strings.NewReplacer("VHOST", p.vhost, "USER", p.user).Replace(text)
}

// metrics is the page of the first node's metrics.
func (p *party) metrics() string {
	p.Helper()
	host, port, err := net.SplitHostPort(p.c.Nodes[0].HTTP)
	if err != nil {
		p.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		p.Fatal(err)
	}
	resp, err := http.Get(fmt.Sprintf("http://%s:%d/metrics", host, number+20))
	if err != nil {
		p.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		p.Fatal(resp.Status, err)
	}
	return string(text)
}
