package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// record is a line of the audit log.
type record struct {
	Time, Node, Kind, Action, User, Protocol, Address, Connection, Outcome, Reason string

	Target   map[string]string
	Detail   map[string]any
	Unlogged int
}

// records reads an audit log: every line of it is one object of letters that print.
func records(t *testing.T, path string) (all []record) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if _, err := time.Parse(time.RFC3339, r.Time); err != nil || r.Node == "" || r.Kind == "" || r.Action == "" || r.Outcome == "" {
			t.Errorf("%s: %v", line, err)
		}
		if i := bytes.IndexFunc(bytes.TrimSuffix(line, []byte("\n")), unicode.IsControl); i >= 0 {
			t.Errorf("%q: a control character", line)
		}
		all = append(all, r)
	}
	return all
}

// awaitRecord waits for a line.
func awaitRecord(t *testing.T, path, what string, is func(r record) bool) record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), partyWait)
	defer cancel()
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		all := records(t, path)
		for _, r := range all {
			if is(r) {
				return r
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no record of %s among %d", what, len(all))
		case <-pause.C:
		}
	}
}

// TestAudit runs one cluster for all its attacks: what is noted of them, and what
// is not.
func TestAudit(t *testing.T) {
	long.Test(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	c := mustStart(t, cluster.Options{Args: []string{"--set", "log.audit.file=" + path, "--set", "log.console.level=debug"}})
	trace := func(name string, try func(t *testing.T, p *party)) {
		attack(t, "audit", name, func(t *testing.T) { try(t, partyOf(t, c)) })
	}
	trace("a wrong password by AMQP", func(t *testing.T, p *party) {
		if _, err := client.ConnectAs(t.Context(), c.Nodes[1].URI(), p.user, "hunter2", p.vhost); err == nil {
			t.Fatal("let in")
		}
		r := awaitRecord(t, path, "it", func(r record) bool { return r.Kind == "login" && r.User == p.user })
		if r.Protocol != "amqp" || r.Outcome != "refused" || r.Reason != "wrong password" || !strings.HasPrefix(r.Address, "127.0.0.1") || r.Node != "n2" {
			t.Errorf("%+v", r)
		}
	})
	trace("a wrong password by AMQP 1.0", func(t *testing.T, p *party) {
		conn := mustConnect10(t, c.Nodes[1], saslHeader10+frameOf10(1, 0, composite10(0x41, symbol10("PLAIN"), binary10("\x00"+p.user+"\x00hunter2"))))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Fatal(err)
		}
		r := awaitRecord(t, path, "it", func(r record) bool { return r.Kind == "login" && r.User == p.user })
		if r.Protocol != "amqp10" || r.Outcome != "refused" || r.Reason != "wrong password" || !strings.HasPrefix(r.Address, "127.0.0.1") || r.Node != "n2" {
			t.Errorf("%+v", r)
		}
	})
	trace("a wrong password by HTTP", func(t *testing.T, p *party) {
		p.askAs(p.user, "hunter2", 2, "GET", "/api/whoami", "")
		r := awaitRecord(t, path, "it", func(r record) bool { return r.Kind == "login" && r.User == p.user })
		if r.Protocol != "http" || r.Reason != "wrong password" || r.Node != "n3" {
			t.Errorf("%+v", r)
		}
	})
	trace("an unknown user", func(t *testing.T, p *party) {
		name := p.user + "-who-is-not"
		p.askAs(name, "hunter2", 0, "GET", "/api/whoami", "")
		awaitRecord(t, path, "it", func(r record) bool { return r.User == name && r.Reason == "no such user" })
	})
	trace("a user, permissions and a vhost that are made", func(t *testing.T, p *party) {
		r := awaitRecord(t, path, "the user", func(r record) bool {
			return r.Action == "PUT /api/users/{user}" && r.Target["user"] == p.user
		})
		if r.User != "guest" || r.Outcome != "ok" || r.Kind != "definition" || r.Protocol != "http" || r.Detail["tags"] != "" || r.Detail["password"] != nil {
			t.Errorf("%+v", r)
		}
		r = awaitRecord(t, path, "the permission", func(r record) bool {
			return r.Action == "PUT /api/permissions/{vhost}/{user}" && r.Target["user"] == p.user
		})
		if r.Target["vhost"] != p.vhost || r.Detail["read"] != ".*" {
			t.Errorf("%+v", r)
		}
		awaitRecord(t, path, "the vhost", func(r record) bool { return r.Target["vhost"] == p.vhost && r.Action == "PUT /api/vhosts/{vhost}" })
	})
	trace("definitions by AMQP", func(t *testing.T, p *party) {
		ch := p.channel(p.connect(1))
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(ch.ExchangeDeclare("x", "direct", true, false, false, false, nil))
		_, err := ch.QueueDeclare("q", true, false, false, false, nil)
		must(err)
		must(ch.QueueBind("q", "k", "x", false, nil))
		must(ch.QueueUnbind("q", "k", "x", nil))
		_, err = ch.QueueDelete("q", false, false, false)
		must(err)
		must(ch.ExchangeDelete("x", false, false))
		for _, action := range []string{"exchange.declare", "queue.declare", "queue.bind", "queue.unbind", "queue.delete", "exchange.delete"} {
			r := awaitRecord(t, path, action, func(r record) bool { return r.Action == action && r.Target["vhost"] == p.vhost })
			if r.User != p.user || r.Protocol != "amqp" || r.Outcome != "ok" || r.Connection == "" || r.Address == "" || r.Kind != "definition" {
				t.Errorf("%+v", r)
			}
		}
	})
	trace("a right that is not there by AMQP", func(t *testing.T, p *party) {
		p.grant("", "", "")
		_, err := p.channel(p.connect(0)).QueueDeclare("q", true, false, false, false, nil)
		p.refused(err, 403, "configure access")
		r := awaitRecord(t, path, "it", func(r record) bool { return r.Kind == "access" && r.User == p.user })
		if r.Action != "queue.declare" || r.Outcome != "refused" || !strings.Contains(r.Reason, "configure access to queue 'q'") || r.Target["vhost"] != p.vhost {
			t.Errorf("%+v", r)
		}
	})
	trace("a right that is not there by HTTP", func(t *testing.T, p *party) {
		p.denied(0, "GET", "/api/users", "", 401, "Not management user")
		r := awaitRecord(t, path, "it", func(r record) bool { return r.Kind == "access" && r.User == p.user })
		if r.Action != "GET /api/users" || r.Reason != "Not management user" || r.Protocol != "http" {
			t.Errorf("%+v", r)
		}
	})
	trace("a right that is taken away", func(t *testing.T, p *party) {
		p.queue("q")
		gone := p.connect(1).NotifyClose(make(chan *amqp.Error, 1))
		since := time.Now()
		p.admin("DELETE", p.path("users", p.user), nil)
		soon(p, since, "the close", gone)
		awaitRecord(t, path, "it", func(r record) bool {
			return r.Action == "revoke" && r.User == p.user && strings.Contains(r.Reason, "was deleted")
		})
	})
	trace("an operation", func(t *testing.T, p *party) {
		p.admin("POST", "/api/rebalance/queues", map[string]any{})
		awaitRecord(t, path, "it", func(r record) bool {
			return r.Action == "POST /api/rebalance/queues" && r.Kind == "operation" && r.User == "guest"
		})
	})
	trace("a flood of wrong passwords", func(t *testing.T, p *party) {
		before := len(records(t, path))
		p.web = httpFrom(t, newHost())
		const tries = 60
		for i := range tries {
			p.askAs(p.user, fmt.Sprint("hunter", i), 0, "GET", "/api/whoami", "")
		}
		if n := len(records(t, path)) - before; n >= tries {
			t.Errorf("%d lines for %d tries", n, tries)
		}
		if n := c.Logged("login refused", p.user); n >= tries {
			t.Errorf("%d lines in the log for %d tries", n, tries)
		}
		counted := 0.0
		for _, outcome := range []string{"refused", "held_back", "busy"} {
			n, err := c.Nodes[0].Metric(t.Context(), "quorate_logins_total", `outcome="`+outcome+`"`)
			if err != nil {
				t.Fatal(err)
			}
			counted += n
		}
		if counted < tries {
			t.Errorf("%v are counted", counted)
		}
	})
	trace("names that would break a line", func(t *testing.T, p *party) { hostile(t, p, path) })
	trace("secrets", func(t *testing.T, p *party) { secrets(t, p, path) })
	trace("a log that is moved away", func(t *testing.T, p *party) {
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		for _, n := range c.Nodes {
			if err := syscall.Kill(n.PID, syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), partyWait)
		defer cancel()
		for {
			p.putUser()
			if text, err := os.ReadFile(path); err == nil && len(text) > 0 || ctx.Err() != nil {
				break
			}
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		awaitRecord(t, path, "what comes after", func(r record) bool { return r.Target["user"] == p.user })
	})
}
