package attack

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/long"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// TestAdvisories: what has been published as a vulnerability of RabbitMQ, as far
// as it could be one here. Other cases hold the rest: docs/security.md lists all.
func TestAdvisories(t *testing.T) {
	long.Test(t)
	n := shared.mustGet(t).Nodes[0]
	attack(t, "advisory", "CVE-2023-46118, a large message over HTTP", func(t *testing.T) {
		body := `{"properties":{},"routing_key":"q","payload_encoding":"string","payload":"` + strings.Repeat("x", 20<<20) + `"}`
		a := mustAskAPI(t, "POST", "/api/exchanges/%2F/amq.default/publish", body, adminLogin)
		a.refused(t, 413, "payload_too_large")
	})
	attack(t, "advisory", "CVE-2024-51988, a queue deleted over HTTP without the right", func(t *testing.T) {
		p := newParty(t, "management")
		p.queue("q")
		p.grant("^$", ".*", ".*")
		status, text := p.ask(1, "DELETE", p.path("queues", p.vhost, "q"), "")
		if status != 401 && status != 405 {
			t.Errorf("%d %s", status, text)
		}
		p.ready("q")
	})
	attack(t, "advisory", "CVE-2014-9494, an address in a header", func(t *testing.T) {
		// Whoever comes from this host is not turned away, nor let in, for what
		// they say of where they come from.
		for _, h := range []string{"X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1", "X-Real-IP: 192.0.2.1"} {
			if a := mustAskAPI(t, "GET", "/api/whoami", "", adminLogin, h); a.status != 200 {
				t.Errorf("%s: %v", h, a)
			}
		}
		r, err := client.Dial(t.Context(), n.AMQP)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := r.Write([]byte("PROXY TCP4 127.0.0.1 127.0.0.1 1 5672\r\n" + client.ProtocolHeader)); err != nil {
			t.Fatal(err)
		}
		if answer, err := r.Bytes(patience); err != nil || string(answer) != "AMQP\x03\x01\x00\x00" {
			t.Errorf("a proxy's header: %q, %v", answer, err)
		}
	})
	attack(t, "advisory", "CVE-2015-8786, parameters of a list that cost memory", func(t *testing.T) {
		for _, q := range []string{
			"lengths_age=4000000000&lengths_incr=1", "msg_rates_age=999999999&msg_rates_incr=1", "page=1&page_size=999999999999", "page=-1", "page=99999999999999999999",
			"columns=" + strings.Repeat("a.", 20_000) + "a", "sort=" + strings.Repeat("a.", 20_000), "name=" + strings.Repeat("x", 30_000),
		} {
			if a := mustAskAPI(t, "GET", "/api/queues?"+q, "", adminLogin); a.status != 200 && a.status != 400 {
				t.Errorf("%.40s: %v", q, a)
			}
		}
	})
	attack(t, "advisory", "CVE-2019-11287, a reason full of formats", func(t *testing.T) {
		p := newParty(t)
		gone := p.connect(1).NotifyClose(make(chan *amqp.Error, 1))
		reason := "%s%d%n~p~99999999999c" + strings.Repeat("~1000000000c", 100)
		a := mustAskAPI(t, "DELETE", p.path("connections", "username", p.user), "", adminLogin, "X-Reason: "+reason)
		if a.status != 204 {
			t.Fatal(a)
		}
		p.refused(soon(p, time.Now(), "the close", gone), 320, "%s%d%n~p~99999999999c~1000000000c")
	})
	attack(t, "advisory", "CVE-2025-50200, a login in the log", func(t *testing.T) {
		for _, path := range []string{"/api/nothing", "/api/queues?page=x", "/api/users/%zz"} {
			mustAskAPI(t, "GET", path, "", adminLogin)
		}
		mustSendRaw(t, apiAddress(t), "GET /api/users HTTP/1.1\r\nHost: 127.0.0.1\r\n"+adminLogin+"\r\nContent-Length: x\r\n\r\n")
		if n := shared.c.Logged(strings.TrimPrefix(adminLogin, "Authorization: Basic ")); n != 0 {
			t.Errorf("%d log lines hold it", n)
		}
	})
	attack(t, "advisory", "CVE-2026-66070, an origin that is echoed", func(t *testing.T) {
		a := mustAskAPI(t, "GET", "/api/health/checks/is-in-service", "", "Origin: https://evil.example")
		b := mustAskAPI(t, "GET", "/api/whoami", "", adminLogin, "Origin: https://evil.example")
		for _, h := range []http.Header{a.header, b.header} {
			if h.Get("Access-Control-Allow-Origin") != "" || h.Get("Access-Control-Allow-Credentials") != "" {
				t.Error(h)
			}
		}
	})
	attack(t, "advisory", "CVE-2026-66074, a filter that takes long", func(t *testing.T) {
		p := newParty(t, "management")
		for i := range 50 {
			p.exchange(strings.Repeat("a", 200)+fmt.Sprint(i), "fanout", nil)
		}
		began := time.Now()
		for _, filter := range []string{"(a*)*b", "(a|a)*b", "(a%2B)%2Bb", "((a{0,200}){0,4})b"} {
			status, text := p.ask(0, "GET", p.path("exchanges", p.vhost)+"?use_regex=true&name="+filter, "")
			if status != 200 && status != 400 {
				t.Errorf("%s: %d %s", filter, status, text)
			}
		}
		if took, allowed := time.Since(began), stall.Tolerance(machine.Longest(began)); took > allowed {
			t.Errorf("the filters take %v, allowed are %v", took, allowed)
		}
	})
	attack(t, "advisory", "CVE-2026-66076, queues of a vhost that is not one's own", func(t *testing.T) {
		p, other := newParty(t, "management"), newParty(t)
		other.queue("hidden")
		for _, path := range []string{"/api/queues/VHOST", "/api/queues/VHOST/hidden", "/api/exchanges/VHOST", "/api/bindings/VHOST", "/api/consumers/VHOST", "/api/queues/VHOST/hidden/bindings"} {
			if status, text := p.ask(2, "GET", other.fill(path), ""); status != 404 && status != 401 {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
		for _, path := range []string{"/api/queues", "/api/exchanges", "/api/bindings", "/api/consumers", "/api/connections", "/api/vhosts"} {
			if status, text := p.ask(2, "GET", path, ""); status != 200 || strings.Contains(text, other.vhost+`"`) {
				t.Errorf("%s: %d, and tells of the other vhost", path, status)
			}
		}
	})
	attack(t, "advisory", "CVE-2026-67233, changes by who may look only", func(t *testing.T) {
		p := newParty(t, "monitoring")
		p.queue("q")
		for _, what := range changingRoutes {
			method, path, _ := strings.Cut(what, " ")
			if strings.Contains(path, "/none") { // of things that are not there: others hold these
				continue
			}
			if status, text := p.ask(0, method, path, "{}"); status < 400 {
				t.Errorf("%s: %d %s", what, status, text)
			}
		}
	})
	attack(t, "advisory", "CVE-2026-67238, names of replies that nobody made", func(t *testing.T) {
		p := newParty(t)
		ch := p.channel(p.connect(1))
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		var last *amqp.DeferredConfirmation
		for i := range 5000 {
			var err error
			last, err = ch.PublishWithDeferredConfirm("", fmt.Sprintf("amq.rabbitmq.reply-to.g1h2%06d.%s", i, strings.Repeat("A", 100)), false, false, amqp.Publishing{})
			if err != nil {
				t.Fatal(err)
			}
		}
		if !last.Wait() {
			t.Error("the last is not confirmed")
		}
	})
	attack(t, "advisory", "CVE-2026-66078, users deleted in bulk", func(t *testing.T) {
		p := newParty(t, "monitoring")
		if status, text := p.ask(0, "POST", "/api/users/bulk-delete", `{"users":["guest"]}`); status < 400 {
			t.Errorf("%d %s", status, text)
		}
		p.admin("GET", "/api/users/guest", nil)
	})
	attack(t, "advisory", "CVE-2026-57219, what is told without a login", func(t *testing.T) {
		for _, path := range []string{"/api/auth", "/api/version", "/api/definitions", "/api/parameters", "/api/global-parameters", "/js/oidc-oauth/bootstrap.js", "/api/login", "/api/auth/attempts/n1", "/api/quorate/status", "/api/quorate/pprof/heap", "/cli/rabbitmqadmin"} {
			if a := mustAskAPI(t, "GET", path, ""); a.status != 401 && a.status != 404 {
				t.Errorf("%s: %v", path, a)
			}
		}
	})
	attack(t, "advisory", "CVE-2026-67236, a login that is kept in a cookie", func(t *testing.T) {
		a := mustAskAPI(t, "GET", "/api/whoami", "", adminLogin)
		b := mustAskAPI(t, "POST", "/api/login", `{"username":"guest","password":"guest"}`)
		if a.header.Get("Set-Cookie") != "" || b.header.Get("Set-Cookie") != "" {
			t.Errorf("%v, %v", a.header, b.header)
		}
	})
	attack(t, "advisory", "CVE-2026-67421, markup in an error", func(t *testing.T) {
		const markup = "%3Cimg%20src=x%20onerror=alert(1)%3E"
		for _, path := range []string{"/" + markup, "/api/" + markup, "/api/vhosts/" + markup, "/api/queues?page=" + markup, "/api/queues?sort=" + markup} {
			a := mustAskAPI(t, "GET", path, "", adminLogin)
			if strings.Contains(a.body, "<img") || a.body != "" && !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
				t.Errorf("%s: %v %v", path, a.header, a)
			}
		}
		// The console is the same page whatever is asked of it.
		page, with := mustAskAPI(t, "GET", "/", ""), mustAskAPI(t, "GET", "/?error="+markup+"&error_description="+markup, "")
		if with.status != 200 || with.body != page.body || !strings.Contains(with.header.Get("Content-Security-Policy"), "script-src 'self';") {
			t.Errorf("the console: %v %v", with.header, with)
		}
	})
}
