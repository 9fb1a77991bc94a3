package attack

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

// hostileNames are what users may call things, and would like to have done with it.
var hostileNames = []string{
	"../../../../tmp/escaped", "a\nlevel=ERROR msg=forged", "a\r\nX-Injected: yes", "\x1b[2J\x1b[31mred", "nul\x00nul", "<script>alert(1)</script>",
	strings.Repeat("/", 255), "\"}\n{\"outcome\":\"ok\"", "\u202egnirts", "%00%0a", "tab\tbell\a", "\u2028\u0085",
}

// hostile uses hostile names for all that has one, and looks at what has become
// of logs, files and answers.
func hostile(t *testing.T, p *party, auditLog string) {
	var logins sync.WaitGroup
	for i, name := range hostileNames {
		conn, err := amqp.DialConfig(p.c.Nodes[0].URI(), amqp.Config{
			SASL: []amqp.Authentication{&amqp.PlainAuth{Username: p.user, Password: p.user}}, Vhost: p.vhost,
			Properties: amqp.Table{"connection_name": name, "product": name},
		})
		if err != nil {
			t.Fatal(err)
		}
		ch := p.channel(conn)
		steps := []func() error{
			func() error { return ch.ExchangeDeclare(name, "topic", true, false, false, false, nil) },
			func() error {
				_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{name: name})
				return err
			},
			func() error { return ch.QueueBind(name, name, name, false, nil) },
			func() error {
				return ch.Publish(name, name, false, false, amqp.Publishing{MessageId: name, Headers: amqp.Table{name: name}})
			},
			func() error { _, err := ch.Consume(name, name, true, false, false, false, nil); return err },
		}
		for n, step := range steps {
			if err := step(); err != nil {
				t.Logf("name %d, step %d: %v", i, n, err) // it may be refused, as long as it breaks nothing
				ch = p.channel(conn)
			}
		}
		conn.Close()
		logins.Go(func() { _, _ = client.ConnectAs(t.Context(), p.c.Nodes[0].URI(), name, name, name) }) // is answered late
		p.web = httpFrom(t, newHost())
		p.askAs(name, name, 0, "GET", "/api/whoami", "")
		p.askAs("guest", "guest", 0, "PUT", p.path("users", name), `{"password":"x","tags":""}`)
		p.askAs("guest", "guest", 0, "DELETE", p.path("users", name), "")
	}
	logins.Wait()
	cleanAnswers(t, p)
	cleanLogs(t, p)
	cleanFiles(t, p)
	records(t, auditLog)
}

// cleanAnswers: what lists hostile names is JSON, says so, and holds no markup.
func cleanAnswers(t *testing.T, p *party) {
	t.Helper()
	for _, path := range []string{"/api/queues", "/api/exchanges", "/api/bindings", "/api/connections", "/api/consumers", "/api/users"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.c.Nodes[0].HTTP+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("guest", "guest")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var list []any
		err = json.NewDecoder(resp.Body).Decode(&list)
		resp.Body.Close()
		if err != nil || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") || resp.Header.Get("X-Injected") != "" {
			t.Errorf("%s: %v, %v", path, err, resp.Header)
		}
		if _, text := p.askAs("guest", "guest", 0, "GET", path, ""); strings.Contains(text, "<script>") {
			t.Errorf("%s answers with markup", path)
		}
	}
}

// cleanLogs: no line of a log was made by a user.
func cleanLogs(t *testing.T, p *party) {
	t.Helper()
	dir := t.TempDir()
	if err := p.c.CollectLogs(dir); err != nil {
		t.Fatal(err)
	}
	eachFile(t, dir, func(path, text string) {
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if i := strings.IndexFunc(line, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u202e' }); i >= 0 {
				t.Errorf("%s: %q", filepath.Base(path), line)
			}
			if strings.HasPrefix(line, "level=ERROR msg=forged") {
				t.Errorf("%s: a forged line", filepath.Base(path))
			}
		}
	})
}

// cleanFiles: nothing on disk is called what users call things.
func cleanFiles(t *testing.T, p *party) {
	t.Helper()
	if _, err := os.Stat("/tmp/escaped"); err == nil {
		t.Error("a name has left the data folder")
	}
	for _, n := range p.c.Nodes {
		eachFile(t, n.DataDir(), func(path, _ string) {
			for _, word := range []string{"script", "escaped", "forged", "Injected", "gnirts"} {
				if strings.Contains(filepath.Base(path), word) {
					t.Errorf("a file is called %q", path)
				}
			}
		})
	}
}

func eachFile(t *testing.T, dir string, visit func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // a file that has gone meanwhile
		}
		text, err := os.ReadFile(path)
		if err == nil {
			visit(path, string(text))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// secrets lets secrets pass by every way, and looks for them in all that is
// written for people.
func secrets(t *testing.T, p *party, auditLog string) {
	const password, wrong, body, header, updated = "Pa55w0rd-of-hers", "Wr0ng-passw0rd", "b0dy-of-a-message", "he4der-of-a-message", "s3cret-renewed"
	p.admin("PUT", p.path("users", p.user), map[string]any{"password": password, "tags": "administrator"})
	conn, err := client.ConnectAs(t.Context(), p.c.Nodes[0].URI(), p.user, password, p.vhost)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.UpdateSecret(updated, "it is time"); err != nil {
		t.Fatal(err)
	}
	_, _ = client.ConnectAs(t.Context(), p.c.Nodes[0].URI(), p.user, wrong, p.vhost)
	p.askAs(p.user, wrong, 0, "GET", "/api/users", "")
	_, hashes := p.askAs(p.user, password, 0, "GET", p.path("users", p.user), "")
	var user struct {
		PasswordHash string `json:"password_hash"`
	}
	if err := json.Unmarshal([]byte(hashes), &user); err != nil || user.PasswordHash == "" {
		t.Fatalf("%s: %v", hashes, err)
	}
	p.askAs(p.user, password, 0, "PUT", p.path("users", p.user+"-copy"), fmt.Sprintf(`{"password_hash":%q,"hashing_algorithm":"pbkdf2_sha256","tags":""}`, user.PasswordHash))
	p.askAs(p.user, password, 0, "PUT", p.path("users", p.user+"-copy"), `{"password":"`+password+`","tags":7}`)
	p.askAs(p.user, password, 0, "POST", p.path("users", p.user), `{"password":"`+password+`"}`)
	ch := p.channel(conn)
	for range 3 {
		_ = ch.Publish("", "none", true, false, amqp.Publishing{Body: []byte(body), Headers: amqp.Table{"h": header}, Expiration: "wrong"})
		ch = p.channel(conn)
		_ = ch.Publish("amq.quorate.command", "schedule.cancel", true, false, amqp.Publishing{Body: []byte(body), Headers: amqp.Table{"h": header}})
	}
	conn.Close()
	awaitRecord(t, auditLog, "what was done", func(r record) bool { return r.Target["user"] == p.user+"-copy" })
	where := map[string]string{}
	dir := t.TempDir()
	if err := p.c.CollectLogs(dir); err != nil {
		t.Fatal(err)
	}
	eachFile(t, dir, func(path, text string) { where[filepath.Base(path)] = text })
	text, err := os.ReadFile(auditLog)
	if err != nil {
		t.Fatal(err)
	}
	where["audit"] = string(text)
	where["metrics"] = p.metrics()
	for _, path := range []string{"/api/quorate/status", "/api/quorate/pprof/goroutine?debug=2", "/api/overview", "/api/connections", "/api/queues", "/api/exchanges"} {
		status, answer := p.askAs("guest", "guest", 0, "GET", path, "")
		if status != 200 {
			t.Errorf("%s: %d", path, status)
		}
		where[path] = answer
	}
	for name, text := range where {
		for _, secret := range []string{password, wrong, body, header, updated, user.PasswordHash} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds %q", name, secret)
			}
		}
	}
	if len(where) < 10 || len(where["metrics"]) == 0 {
		t.Errorf("only %d things were looked at", len(where))
	}
}
