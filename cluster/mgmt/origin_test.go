package mgmt

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// eachEndpoint walks the table of all there is. Names in paths are filled in.
func (w *world) eachEndpoint(t *testing.T, visit func(t *testing.T, e endpoint, path string)) {
	names := regexp.MustCompile(`\{\w+\}`)
	for _, x := range w.server.resources {
		for _, e := range x.endpoints {
			t.Run(e.method+x.path, func(t *testing.T) { visit(t, e, names.ReplaceAllString(x.path, "x")) })
		}
	}
}

// ask makes a request as root, over loopback, with NAME: VALUE headers.
func (w *world) ask(method, path, host string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader("{}"))
	r.Host = host
	r.Header.Set("Content-Type", "application/json")
	r.SetBasicAuth("root", "root")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	out := httptest.NewRecorder()
	w.handler.ServeHTTP(out, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})))
	return out
}

// Everything but what everybody may ask is refused without a login, and to pages
// of other sites whoever has logged in. Nothing is answered by a page's own name,
// and no body that a form can send is read.
func TestEveryEndpoint(t *testing.T) {
	w := newWorld(t)
	open := 0
	w.eachEndpoint(t, func(t *testing.T, e endpoint, path string) {
		if e.need == anybody {
			open++
			if !strings.HasPrefix(path, "/api/health/checks/") && path != "/healthz" && path != "/readyz" || e.method != http.MethodGet {
				t.Error("everybody may use it")
			}
			return
		}
		w.t = t
		expect := func(out *httptest.ResponseRecorder, status int, answer string) {
			t.Helper()
			if out.Code != status || !strings.Contains(out.Body.String(), answer) {
				t.Errorf("answers %d %s, want %d %s", out.Code, out.Body, status, answer)
			}
		}
		const host = "127.0.0.1:15672"
		expect(w.request("", e.method, path, ""), 401, "Not_Authorized")
		expect(w.request("", "OPTIONS", path, ""), 401, "Not_Authorized")
		expect(w.request("", "PATCH", path, ""), 401, "Not_Authorized")
		for _, mark := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: http://evil.example", "Origin: null"} {
			out := w.ask(e.method, path, host, mark)
			expect(out, 403, "the request comes from another site")
			if out.Header().Get("WWW-Authenticate") != "" {
				t.Error("the page's browser is asked for a login")
			}
		}
		expect(w.ask(e.method, path, "evil.example:15672"), 403, "is not a name of this node")
		for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"} {
			expect(w.ask(e.method, path, host, "Sec-Fetch-Site: same-origin", "Content-Type: "+kind), 415, "a body must have the header Content-Type: application/json")
		}
	})
	if open != 5 {
		t.Errorf("everybody may use %d endpoints, want 5", open)
	}
}

// Whatever is answered, browsers are told to keep and run nothing of it.
func TestHeaders(t *testing.T) {
	w := newWorld(t)
	for _, x := range []struct {
		user, method, path string
		status             int
	}{
		{"root", "GET", "/api/overview", 200}, {"root", "PUT", "/api/vhosts/v", 201}, {"", "GET", "/api/overview", 401}, {"root", "GET", "/api/none", 404},
		{"root", "PATCH", "/api/overview", 405}, {"root", "OPTIONS", "/api/overview", 200}, {"", "GET", "/api/health/checks/is-in-service", 200},
		{"root", "GET", "/api/quorate/pprof/goroutine", 200},
	} {
		out := w.request(x.user, x.method, x.path, "")
		if out.Code != x.status {
			t.Errorf("%s %s answers %d", x.method, x.path, out.Code)
		}
		for name, value := range map[string]string{
			"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
			"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Access-Control-Allow-Origin": "", "Access-Control-Allow-Credentials": "",
		} {
			if got := out.Header().Get(name); got != value {
				t.Errorf("%s %s has %s: %q, want %q", x.method, x.path, name, got, value)
			}
		}
	}
}
