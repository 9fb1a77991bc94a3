package origin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func mustNew(t *testing.T, own, allowed []string) *Guard {
	t.Helper()
	g, err := New(own, allowed)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// request returns a request to an address, with NAME: VALUE headers.
func request(method, host, at string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, "/api/overview", http.NoBody)
	r.Host = host
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(at), Port: 15672}))
}

func TestCheck(t *testing.T) {
	const loopback, other = "127.0.0.1", "10.0.0.5"
	const site, host = "the request comes from another site", "is not a name of this node"
	plain := mustNew(t, []string{"mq1.firm.example", "Mq1", ""}, nil)
	listed := mustNew(t, []string{"mq1"}, []string{"queues.firm.example", "*.svc.example"})
	open := mustNew(t, nil, []string{"*"})
	for _, c := range []struct {
		name    string
		guard   *Guard
		request *http.Request
		want    string // empty: accepted
	}{
		{"a program", plain, request("POST", "127.0.0.1:15672", loopback), ""},
		{"a program by a name of its own, from elsewhere", plain, request("POST", "service.example:15672", other), ""},
		{"HTTP/1.0", plain, request("GET", "", loopback), ""},
		{"a browser's own page", plain, request("POST", "127.0.0.1:15672", loopback, "Sec-Fetch-Site: same-origin", "Origin: http://127.0.0.1:15672"), ""},
		{"an address typed in", plain, request("GET", "localhost:15672", loopback, "Sec-Fetch-Site: none"), ""},
		{"IPv6", plain, request("GET", "[::1]:15672", "::1", "Sec-Fetch-Site: none"), ""},
		{"IPv6 without a port", plain, request("GET", "[::1]", "::1"), ""},
		{"a name of this node", plain, request("PUT", "MQ1.firm.example.:15672", loopback, "Origin: http://MQ1.firm.example.:15672"), ""},
		{"a name below localhost", plain, request("GET", "mq.localhost", loopback), ""},
		{"another site posts", plain, request("POST", "127.0.0.1:15672", loopback, "Sec-Fetch-Site: cross-site"), site},
		{"another port of this host posts", plain, request("POST", "127.0.0.1:15672", loopback, "Sec-Fetch-Site: same-site"), site},
		{"another site reads", plain, request("GET", "127.0.0.1:15672", loopback, "Sec-Fetch-Site: cross-site"), site},
		{"another site in an old browser", plain, request("DELETE", "127.0.0.1:15672", loopback, "Origin: http://evil.example"), site},
		{"another site reads in an old browser", plain, request("GET", "127.0.0.1:15672", other, "Origin: http://evil.example"), site},
		{"another port in an old browser", plain, request("POST", "127.0.0.1:15672", loopback, "Origin: http://127.0.0.1:8080"), site},
		{"a page without a site", plain, request("POST", "127.0.0.1:15672", loopback, "Origin: null"), site},
		{"rebound, posts", plain, request("POST", "evil.example:15672", loopback, "Origin: http://evil.example:15672"), host},
		{"rebound, posts, elsewhere", plain, request("POST", "evil.example:15672", other, "Origin: http://evil.example:15672"), host},
		{"rebound, reads", plain, request("GET", "evil.example:15672", loopback), host},
		{"rebound, reads, IPv6", plain, request("GET", "evil.example:15672", "::1"), host},
		{"rebound, a name like an address", plain, request("GET", "127.0.0.1.evil.example", loopback), host},
		{"rebound, a name like localhost", plain, request("GET", "localhost.evil.example", loopback), host},
		{"rebound, a name like this node's", plain, request("GET", "xmq1", loopback), host},
		{"listed", listed, request("GET", "queues.firm.example", other), ""},
		{"listed with those below", listed, request("GET", "a.b.svc.example:80", other), ""},
		{"only those below are listed", listed, request("GET", "svc.example", other), host},
		{"a list holds for programs", listed, request("POST", "service.example", other), host},
		{"a list lets addresses through", listed, request("POST", "10.0.0.5:15672", other), ""},
		{"any name", open, request("POST", "evil.example", loopback, "Origin: http://evil.example"), ""},
		{"any name, not any site", open, request("POST", "mq1.example", loopback, "Origin: http://evil.example"), site},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.guard.Check(c.request)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestAllowed(t *testing.T) {
	for _, bad := range []string{"", "*.", "**", "a.*", "http://a", "a:80", "a b"} {
		if _, err := New(nil, []string{bad}); err == nil {
			t.Errorf("%q is taken for a name", bad)
		}
	}
}

func TestHasType(t *testing.T) {
	for _, tc := range []struct {
		kind              string
		programs, browser bool
	}{
		{"application/json", true, true},
		{"Application/JSON; charset=utf-8", true, true},
		{"", true, false},
		{"application/x-www-form-urlencoded", true, false},
		{"text/plain", false, false},
		{"text/plain;charset=UTF-8", false, false},
		{"multipart/form-data; boundary=b", false, false},
		{"text/plain; application/json", false, false},
		{"application/jsonp", false, false},
		{"application/json, text/plain", false, false},
	} {
		for _, mark := range []string{"", "Origin", "Sec-Fetch-Site"} {
			r, want := httptest.NewRequest("PUT", "/", strings.NewReader("{}")), tc.programs
			if mark != "" {
				r.Header.Set(mark, "same-origin")
				want = tc.browser
			}
			if tc.kind != "" {
				r.Header.Set("Content-Type", tc.kind)
			}
			if HasType(r) != want {
				t.Errorf("%q with %q is read: %t", tc.kind, mark, !want)
			}
			r.ContentLength = -1 // chunks
			if HasType(r) != want {
				t.Errorf("%q in chunks with %q is read: %t", tc.kind, mark, !want)
			}
			r.ContentLength = 0
			if !HasType(r) {
				t.Errorf("%q is refused although there is no body", tc.kind)
			}
		}
	}
	r := httptest.NewRequest("PUT", "/", strings.NewReader("{}"))
	r.Header["Content-Type"] = []string{"application/json", "text/plain"}
	if HasType(r) {
		t.Error("two types are read")
	}
}
