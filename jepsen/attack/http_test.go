package attack

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/internal/long"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// adminLogin is what an administrator sends.
const adminLogin = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=" // guest:guest

// httpAnswer is what a node says to a request.
type httpAnswer struct {
	status int // 0: it has closed the connection without a word
	header http.Header
	body   string
}

func (a httpAnswer) String() string { return fmt.Sprintf("%d %.300s", a.status, a.body) }

// mustSendRaw sends bytes as they are to an address and reads the answer. What is
// to be sent may be refused before its end.
func mustSendRaw(t *testing.T, address, request string) httpAnswer {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(c, request) }() // the answer tells
	return mustReadRaw(t, c, strings.HasPrefix(request, "HEAD "))
}

func mustReadRaw(t *testing.T, c net.Conn, head bool) httpAnswer {
	t.Helper()
	r := &http.Request{Method: http.MethodGet}
	if head {
		r.Method = http.MethodHead
	}
	res, err := http.ReadResponse(bufio.NewReader(c), r)
	if late, ok := err.(net.Error); ok && late.Timeout() {
		t.Fatal("no httpAnswer, and the connection stays")
	}
	if err != nil {
		return httpAnswer{}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Logf("the answer breaks off: %v", err)
	}
	return httpAnswer{res.StatusCode, res.Header, string(body)}
}

// api is the address of the HTTP API of the first node of all.
func apiAddress(t *testing.T) string { return shared.mustGet(t).Nodes[0].HTTP }

// mustAskAPI sends a request with NAME: VALUE headers, the last of each name, to
// the shared cluster. Host is the node's address unless it is among them.
func mustAskAPI(t *testing.T, method, path, body string, headers ...string) httpAnswer {
	t.Helper()
	list, last := []string{"Host: " + apiAddress(t), "Connection: close"}, map[string]string{}
	if body != "" {
		list = append(list, "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body)))
	}
	for _, h := range append(list, headers...) {
		name, _, _ := strings.Cut(h, ":")
		last[name] = h
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", method, path)
	for _, h := range last {
		b.WriteString(h + "\r\n")
	}
	return mustSendRaw(t, apiAddress(t), b.String()+"\r\n"+body)
}

// refused checks a refusal.
func (a httpAnswer) refused(t *testing.T, status int, text string) {
	t.Helper()
	if a.status != status || !strings.Contains(a.body, text) {
		t.Errorf("answered %v, want %d …%s…", a, status, text)
	}
}

const (
	otherSite = "the request comes from another site"
	wrongHost = "is not a name of this node"
	wrongType = "a body must have the header Content-Type: application/json"
	noLogin   = "Not_Authorized"
)

// changing are the requests that change something, with the names of things
// that are not there.
var changingRoutes = []string{
	"PUT /api/quorate/settings/max_clock_skew", "DELETE /api/quorate/settings/max_clock_skew", "POST /api/quorate/settle",
	"POST /api/rebalance/queues", "POST /api/quorate/rebalance", "PUT /api/quorate/queues/%2F/none/leader", "DELETE /api/quorate/queues/%2F/none/quarantine",
	"PUT /api/quorate/limits/vm_memory_high_watermark", "POST /api/quorate/drain", "POST /api/quorate/revive",
	"PUT /api/vhosts/page", "DELETE /api/vhosts/page", "POST /api/queues/%2F/none/get",
	"DELETE /api/connections/none", "DELETE /api/connections/username/none",
	"DELETE /api/exchanges/%2F/none/delayed", "DELETE /api/exchanges/%2F/none/delayed/1", "PATCH /api/exchanges/%2F/none/delayed/1", "POST /api/exchanges/%2F/none/delayed/1/fire",
	"DELETE /api/queues/%2F/none/scheduled", "DELETE /api/queues/%2F/none/scheduled/1", "PATCH /api/queues/%2F/none/scheduled/1", "POST /api/queues/%2F/none/scheduled/1/fire",
	"PUT /api/policies/%2F/page", "DELETE /api/policies/%2F/page", "PUT /api/operator-policies/%2F/page", "DELETE /api/operator-policies/%2F/page",
	"POST /api/queues/quorum/%2F/none/replicas/add", "DELETE /api/queues/quorum/%2F/none/replicas/delete", "POST /api/queues/quorum/replicas/on/n3/grow",
	"DELETE /api/queues/quorum/replicas/on/n3/shrink", "POST /api/queues/quorum/replicas/grow-to-count", "DELETE /api/nodes/n3",
	"PUT /api/users/page", "DELETE /api/users/page", "PUT /api/topic-permissions/%2F/guest", "DELETE /api/topic-permissions/%2F/guest", "DELETE /api/topic-permissions/%2F/guest/x",
	"PUT /api/vhost-limits/%2F/max-queues", "DELETE /api/vhost-limits/%2F/max-queues", "PUT /api/user-limits/guest/max-channels", "DELETE /api/user-limits/guest/max-channels",
	"PUT /api/permissions/%2F/guest", "DELETE /api/permissions/%2F/guest",
}

// A page that knows an administrator's password changes nothing: not from
// another site, not by a form, not by a name of its own that leads to the node.
func TestPagesChangeNothing(t *testing.T) {
	for _, what := range changingRoutes {
		attack(t, "http", "a page's "+what, func(t *testing.T) {
			method, path, _ := strings.Cut(what, " ")
			host := apiAddress(t)
			for _, mark := range [][]string{
				{"Sec-Fetch-Site: cross-site", "Origin: https://evil.example"}, {"Sec-Fetch-Site: same-site", "Origin: http://127.0.0.1:8080"},
				{"Origin: http://evil.example"}, {"Origin: null"}, {"Origin: http://" + host + ".evil.example"},
			} {
				a := mustAskAPI(t, method, path, "{}", append(mark, adminLogin)...)
				a.refused(t, 403, otherSite)
				if a.header.Get("WWW-Authenticate") != "" || a.header.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("%v: the page is helped: %v", mark, a.header)
				}
			}
			mustAskAPI(t, method, path, "{}", adminLogin, "Host: evil.example:15672").refused(t, 403, wrongHost)
			mustAskAPI(t, method, path, "{}", adminLogin, "Host: evil.example:15672", "Origin: http://evil.example:15672").refused(t, 403, wrongHost)
			for _, kind := range []string{"text/plain;charset=UTF-8", "multipart/form-data; boundary=x"} {
				mustAskAPI(t, method, path, "{}", adminLogin, "Content-Type: "+kind).refused(t, 415, wrongType)
			}
			for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", ""} {
				mustAskAPI(t, method, path, "{}", adminLogin, "Sec-Fetch-Site: none", "Content-Type: "+kind).refused(t, 415, wrongType)
			}
		})
	}
}

// Nor does it read anything.
func TestPagesReadNothing(t *testing.T) {
	for _, path := range []string{"/api/overview", "/api/users", "/api/queues/%2F/none/messages/peek", "/api/quorate/pprof/heap", "/api/quorate/status"} {
		attack(t, "http", "a page reads "+path, func(t *testing.T) {
			mustAskAPI(t, "GET", path, "", adminLogin, "Sec-Fetch-Site: cross-site").refused(t, 403, otherSite)
			mustAskAPI(t, "GET", path, "", adminLogin, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate").refused(t, 403, otherSite)
			mustAskAPI(t, "GET", path, "", adminLogin, "Origin: http://evil.example").refused(t, 403, otherSite)
			mustAskAPI(t, "GET", path, "", adminLogin, "Host: evil.example").refused(t, 403, wrongHost)
			mustAskAPI(t, "HEAD", path, "", adminLogin, "Host: evil.example").refused(t, 403, "")
		})
	}
	attack(t, "http", "a page asks first whether it may", func(t *testing.T) {
		a := mustAskAPI(t, "OPTIONS", "/api/users/page", "", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site",
			"Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: authorization,content-type")
		a.refused(t, 403, otherSite)
		for name := range a.header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("it is told %s: %s", name, a.header.Get(name))
			}
		}
	})
	attack(t, "http", "a page asks on from here where it may not", func(t *testing.T) {
		mustAskAPI(t, "OPTIONS", "/api/users/page", "", "Origin: http://"+apiAddress(t), "Access-Control-Request-Method: PUT").refused(t, 401, noLogin)
	})
	attack(t, "http", "a page frames, keeps or runs an answer", func(t *testing.T) {
		for _, path := range []string{"/api/overview", "/api/none", "/api/health/checks/is-in-service"} {
			a := mustAskAPI(t, "GET", path, "", adminLogin)
			for name, want := range map[string]string{
				"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
				"Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "Content-Type": "application/json",
			} {
				if got := a.header.Get(name); got != want {
					t.Errorf("%s has %s: %q, want %q", path, name, got, want)
				}
			}
		}
	})
}

// Credentials count in one place only.
func TestCredentialsElsewhere(t *testing.T) {
	const secret = "Z3Vlc3Q6Z3Vlc3Q="
	for name, a := range map[string]func(t *testing.T) httpAnswer{
		"the host of an URL": func(t *testing.T) httpAnswer {
			return mustAskAPI(t, "GET", "http://guest:guest@"+apiAddress(t)+"/api/whoami", "")
		},
		"the query": func(t *testing.T) httpAnswer {
			return mustAskAPI(t, "GET", "/api/whoami?auth="+secret+"&authorization=Basic+"+secret+"&username=guest&password=guest", "")
		},
		"a cookie": func(t *testing.T) httpAnswer {
			return mustAskAPI(t, "GET", "/api/whoami", "", "Cookie: m=2258:"+secret)
		},
		"a proxy's header": func(t *testing.T) httpAnswer {
			return mustAskAPI(t, "GET", "/api/whoami", "", "Proxy-Authorization: Basic "+secret)
		},
		"a user's header": func(t *testing.T) httpAnswer {
			return mustAskAPI(t, "GET", "/api/whoami", "", "X-Forwarded-User: guest")
		},
		"another scheme": func(t *testing.T) httpAnswer {
			return mustAskAPI(t, "GET", "/api/whoami", "", "Authorization: Bearer "+secret)
		},
		"nothing but a scheme": func(t *testing.T) httpAnswer { return mustAskAPI(t, "GET", "/api/whoami", "", "Authorization: Basic") },
		"no colon": func(t *testing.T) httpAnswer {
			return mustAskAPI(t, "GET", "/api/whoami", "", "Authorization: Basic Z3Vlc3Q=")
		},
		"no base64": func(t *testing.T) httpAnswer {
			return mustAskAPI(t, "GET", "/api/whoami", "", "Authorization: Basic guest:guest")
		},
		"a NUL behind the name": func(t *testing.T) httpAnswer {
			return mustAskAPI(t, "GET", "/api/whoami", "", "Authorization: Basic Z3Vlc3QAOmd1ZXN0")
		},
	} {
		attack(t, "http", "credentials in "+name, func(t *testing.T) { a(t).refused(t, 401, noLogin) })
	}
}

// No way of writing a path leads past the login.
func TestPaths(t *testing.T) {
	for path, status := range map[string]int{
		"/api/users": 401, "/api/users/": 401, "/%61pi/users": 401, "/api/users?x=/api/health/checks/is-in-service": 401, "/api/users#/api/health/checks/is-in-service": 404,
		"//api/users": 404, "/api//users": 404, "/api/./users": 404, "/api/x/../users": 404, "/api/%2e%2e/api/users": 404, "/api/users%2F": 404, "/api/users%00": 404,
		"/api/users;x=1": 404, "/API/users": 404, "/api\\users": 404, "/api/users%20": 404, "/api%2Fusers": 404,
		"/api/health/checks/../../users": 404, "/api/health/checks/is-in-service/../../../users": 404, "/api/health/checks/is-in-service/..%2f..%2f..%2fusers": 404,
		"/api/users%": 400, "/api/users%zz": 400, "/../../../../etc/passwd": 404, "/api/vhosts/..%2F..%2Fetc%2Fpasswd": 401, "*": 404, "/": 200, "/console/": 404, "/console/..%2Fconsole.go": 404, "/console/%2e%2e/": 404, "/debug/pprof/": 404, "/metrics": 404,
	} {
		attack(t, "http", "path "+path, func(t *testing.T) { mustAskAPI(t, "GET", path, "").refused(t, status, "") })
	}
	attack(t, "http", "a path of 60,000 segments", func(t *testing.T) {
		mustAskAPI(t, "GET", strings.Repeat("/a", 30_000), "").refused(t, 404, "Not Found")
	})
}

// Methods are what stands in the first line.
func TestMethods(t *testing.T) {
	const vhost = "/api/vhosts/overridden"
	attack(t, "http", "another method in a header", func(t *testing.T) {
		if a := mustAskAPI(t, "PUT", vhost, "", adminLogin); a.status != 201 {
			t.Fatal(a)
		}
		for _, h := range []string{"X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE"} {
			mustAskAPI(t, "POST", vhost, "{}", adminLogin, h).refused(t, 405, "Method Not Allowed")
			mustAskAPI(t, "GET", vhost+"?_method=DELETE", "", adminLogin, h)
		}
		if a := mustAskAPI(t, "GET", vhost, "", adminLogin); a.status != 200 {
			t.Errorf("the vhost is gone: %v", a)
		}
		mustAskAPI(t, "DELETE", vhost, "", adminLogin)
	})
	for method, status := range map[string]int{"TRACE": 405, "CONNECT": 405, "PROPFIND": 405, "get": 405, "DELETE": 405} {
		attack(t, "http", "method "+method, func(t *testing.T) {
			a := mustAskAPI(t, method, "/api/overview", "", adminLogin)
			a.refused(t, status, "Method Not Allowed")
			if strings.Contains(a.body, "Z3Vlc3Q") {
				t.Error("it tells the login again")
			}
			mustAskAPI(t, method, "/api/overview", "").refused(t, 401, noLogin)
		})
	}
}

// Requests that proxies read differently are refused, and so are those that are
// no requests.
func TestMalformedRequests(t *testing.T) {
	const line, host = "POST /api/quorate/settle HTTP/1.1\r\n", "Host: 127.0.0.1\r\n"
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"two lengths":                 {line + host + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 400},
		"a negative length":           {line + host + "Content-Length: -1\r\n\r\n", 400},
		"a length with a sign":        {line + host + "Content-Length: +2\r\n\r\n{}", 400},
		"an unknown encoding":         {line + host + "Transfer-Encoding: xchunked\r\n\r\n", 501},
		"two encodings":               {line + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501},
		"a space before the colon":    {line + host + "Content-Length : 2\r\n\r\n{}", 400},
		"a NUL in a header":           {line + host + "X-Reason: a\x00b\r\n\r\n", 400},
		"a bare return in a header":   {line + host + "X-Reason: a\rX-Other: b\r\n\r\n", 400},
		"a header without a name":     {line + host + ": b\r\n\r\n", 400},
		"no Host":                     {line + "\r\n", 400},
		"two Hosts":                   {line + host + "Host: evil.example\r\n\r\n", 400},
		"a Host with a path":          {line + "Host: evil.example/x\r\n\r\n", 400},
		"HTTP/0.9":                    {"GET /api/users\r\n\r\n", 400},
		"HTTP/3.0":                    {"GET /api/users HTTP/3.0\r\nHost: x\r\n\r\n", 505},
		"HTTP/2 without TLS":          {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404},
		"a TLS hello":                 {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00", 505) + "\r\n\r\n", 400},
		"AMQP":                        {"AMQP\x00\x00\x09\x01\r\n\r\n", 400},
		"junk":                        {strings.Repeat("\xff\x00", 4096) + "\r\n\r\n", 400},
		"a header of 100,000 bytes":   {line + host + "X-Long: " + strings.Repeat("x", 100_000) + "\r\n\r\n", 431},
		"10,000 headers":              {line + host + strings.Repeat("X-Many: x\r\n", 10_000) + "\r\n", 431},
		"a first line of 100,000":     {"GET /" + strings.Repeat("x", 100_000) + " HTTP/1.1\r\n" + host + "\r\n", 431},
		"an expectation it knows not": {line + host + adminLogin + "\r\nExpect: 200-nothing\r\n\r\n", 417},
	} {
		attack(t, "http", "malformed: "+name, func(t *testing.T) { mustSendRaw(t, apiAddress(t), c.request).refused(t, c.status, "") })
	}
	attack(t, "http", "a length and chunks", func(t *testing.T) {
		// The chunks count: by the length the body would end within them.
		mustSendRaw(t, apiAddress(t), line+host+adminLogin+"\r\nContent-Type: application/json\r\nContent-Length: 8\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n").refused(t, 204, "")
		mustSendRaw(t, apiAddress(t), "PUT /api/vhosts/chunks HTTP/1.1\r\n"+host+adminLogin+"\r\nContent-Type: application/json\r\nContent-Length: 8\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n").refused(t, 400, "the request body is truncated")
	})
	attack(t, "http", "a body announced without a login", func(t *testing.T) {
		// Nobody is told to go on before they have logged in.
		mustSendRaw(t, apiAddress(t), line+host+"Content-Type: application/json\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n").refused(t, 401, noLogin)
	})
}

// Bodies are bounded in bytes, in depth and in what they may hold.
func TestBodies(t *testing.T) {
	const path = "/api/policies/%2F/body"
	around := func(n int, open, inner, end string) string {
		return `{"pattern":"","definition":{"max-length":` + strings.Repeat(open, n) + inner + strings.Repeat(end, n) + `}}`
	}
	for name, c := range map[string]struct {
		body   string
		status int
		text   string
	}{
		"larger than it may be":                   {`{"pattern":"` + strings.Repeat("x", 1<<20) + `"}`, 413, "the body is longer than 1048576 bytes"},
		"100,000 lists, no end":                   {strings.Repeat("[", 100_000), 400, "not_json"},
		"100,000 lists":                           {around(100_000, "[", "", "]"), 400, "not_json"},
		"9,000 lists":                             {around(9_000, "[", "", "]"), 400, "is not a valid"},
		"9,000 objects":                           {around(9_000, `{"a":`, "1", "}"), 400, "is not a valid"},
		"a number without bounds":                 {around(0, "", strings.Repeat("9", 500_000), ""), 400, "is not a valid"},
		"an exponent without them":                {around(0, "", "1e999999999", ""), 400, "is not a valid"},
		"two values":                              {`{} {}`, 400, "not_json"},
		"a JSON text in a text":                   {`"{}"`, 400, "doubly-JSON-encoded"},
		"another's types":                         {`{"pattern":{},"definition":[]}`, 400, ""},
		"no UTF-8":                                {"{\"pattern\":\"\xff\xfe\",\"definition\":{\"nosuch\":1}}", 400, "are not recognised policy settings"},
		"an expression that takes long elsewhere": {`{"pattern":"(a*)*(a*)*(a*)*b","definition":{"nosuch":1}}`, 400, "are not recognised policy settings"},
		"an expression that grows":                {`{"pattern":"((a{100}){100}){100}","definition":{"expires":1}}`, 400, "should be regular expression but is invalid"},
	} {
		attack(t, "http", "body: "+name, func(t *testing.T) { mustAskAPI(t, "PUT", path, c.body, adminLogin).refused(t, c.status, c.text) })
	}
	attack(t, "http", "body: chunks beyond the limit", func(t *testing.T) {
		chunk := "10000\r\n" + strings.Repeat(" ", 0x10000) + "\r\n"
		mustSendRaw(t, apiAddress(t), "PUT "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\n"+adminLogin+"\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"+
			strings.Repeat(chunk, 17)).refused(t, 413, "the body is longer than 1048576 bytes")
	})
	attack(t, "http", "body: it is of another type than it says", func(t *testing.T) {
		mustAskAPI(t, "PUT", path, "<script>", adminLogin).refused(t, 400, "not_json")
	})
}

// Names end up in bodies and logs, never as lines of a header or a log.
func TestInjection(t *testing.T) {
	const name = "in%0D%0ASet-Cookie:%20m=1%0D%0A%0D%0A%3Cscript%3E%1B%5B2J"
	quiet := func(t *testing.T, a httpAnswer) {
		t.Helper()
		if a.header.Get("Set-Cookie") != "" || strings.Contains(a.body, "<script>") || strings.Contains(a.body, "\x1b") {
			t.Errorf("it comes back as it is: %v %v", a.header, a)
		}
	}
	for what, path := range map[string]string{
		"a vhost": "/api/vhosts/" + name, "a user": "/api/users/" + name, "a policy": "/api/policies/%2F/" + name, "a connection": "/api/connections/" + name,
		"a pattern": "/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/(" + name, "a column": "/api/queues?columns=" + name,
		"a page": "/api/queues?page=1&page_size=" + name, "a sort": "/api/queues?sort=" + name, "a filter": "/api/queues?use_regex=true&name=(" + name, "a profile": "/api/quorate/pprof/" + name,
	} {
		attack(t, "http", "lines in the name of "+what, func(t *testing.T) { quiet(t, mustAskAPI(t, "GET", path, "", adminLogin)) })
	}
	attack(t, "http", "lines in a name that is stored", func(t *testing.T) {
		for _, method := range []string{"PUT", "GET", "DELETE"} {
			quiet(t, mustAskAPI(t, method, "/api/vhosts/"+name, "", adminLogin))
		}
		if n := shared.c.Logged("Set-Cookie"); n != shared.c.Logged("Set-Cookie", "time=") {
			t.Error("a log line begins with the name")
		}
	})
	attack(t, "http", "a login of lines", func(t *testing.T) {
		// "a\r\nlevel=ERROR msg=forged:b"
		quiet(t, mustAskAPI(t, "GET", "/api/whoami", "", "Authorization: Basic YQ0KbGV2ZWw9RVJST1IgbXNnPWZvcmdlZDpi"))
		if n := shared.c.Logged("msg=forged"); n != shared.c.Logged("msg=forged", "time=") {
			t.Error("the log holds a forged line")
		}
	})
}

// Headers that never end do not keep a connection.
func TestSlowHeader(t *testing.T) {
	long.Test(t)
	t.Parallel()
	attack(t, "http", "a header that does not end", func(t *testing.T) {
		const bound = 10 * time.Second // ReadHeaderTimeout
		began := time.Now()
		c, err := net.Dial("tcp", apiAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /api/whoami HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(began.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		_, err = io.Copy(&said, c)
		if late, limit := time.Since(began)-bound, stall.Tolerance(machine.Longest(began)); err != nil || late > limit {
			t.Errorf("%v late, %v allowed: %q, %v", late, limit, &said, err)
		}
	})
}
