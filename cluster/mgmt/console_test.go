package mgmt

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The console is served to everybody at its own paths only, and the API is as it is without.
func TestConsole(t *testing.T) {
	w := newWorld(t)
	ask := func(method, path string, headers ...string) *http.Response {
		r := httptest.NewRequest(method, path, http.NoBody)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		answer := httptest.NewRecorder()
		w.handler.ServeHTTP(answer, r)
		return answer.Result()
	}
	for _, path := range []string{"/", "/console/app.js"} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r := ask(method, path)
			if h := r.Header; r.StatusCode != http.StatusOK || !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'") || h.Get("X-Content-Type-Options") != "nosniff" ||
				h.Get("Referrer-Policy") != "no-referrer" || h.Get("X-Frame-Options") != "DENY" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" || h.Get("Cache-Control") != "no-cache" {
				t.Errorf("%s %s: %d %v", method, path, r.StatusCode, h)
			}
		}
		if r := ask(http.MethodPost, path); r.StatusCode != http.StatusMethodNotAllowed || r.Header.Get("Allow") != "GET, HEAD, OPTIONS" {
			t.Errorf("POST %s: %d %v", path, r.StatusCode, r.Header)
		}
	}
	for _, path := range []string{"/console", "/console/", "/console/nothing.js", "/console/%2e%2e/console.go", "/index.html", "/api", "/api/"} {
		if r := ask(http.MethodGet, path); r.StatusCode != http.StatusNotFound || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %v", path, r.StatusCode, r.Header)
		}
	}
	r := ask(http.MethodGet, "/api/overview")
	if h := r.Header; r.StatusCode != http.StatusUnauthorized || h.Get("WWW-Authenticate") == "" || h.Get("Cache-Control") != "no-store" || h.Get("Content-Security-Policy") != "default-src 'none'; frame-ancestors 'none'" {
		t.Errorf("the API: %d %v", r.StatusCode, h)
	}
	if r := ask(http.MethodGet, "http://127.0.0.1/api/overview", "Sec-Fetch-Dest", "empty", "Sec-Fetch-Site", "same-origin"); r.StatusCode != http.StatusUnauthorized || r.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("the API, asked by a script: %d %v", r.StatusCode, r.Header)
	}
}
