package attack

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// importedHash is the example of RabbitMQ's documentation: the password test12.
const importedHash = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"

// hosts hands out loopback addresses: each stands for a host of its own.
var hosts atomic.Uint32

func newHost() string {
	n := hosts.Add(1)
	return fmt.Sprintf("127.77.%d.%d", n>>8, n&255)
}

// httpFrom is an HTTP client at one of this machine's addresses.
func httpFrom(t *testing.T, host string) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	tr := &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 64}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// mustAsk asks who it is that asks, and returns the answer as a line.
func mustAsk(t *testing.T, c *http.Client, n *cluster.Node, user, password string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+n.HTTP+"/api/whoami", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth(user, password)
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(body)))
}

const notAuthorized = `401 {"error":"not_authorized","reason":"Not_Authorized"}`

// mustLogin tries to log in by AMQP from an address, and returns the answer to
// start-ok as a line: tune, or why the connection is closed.
func mustLogin(t *testing.T, from string, n *cluster.Node, mechanism, response string) string {
	t.Helper()
	r, err := client.DialFrom(t.Context(), from, n.AMQP)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Start(mechanism, response, "authentication_failure_close"); err != nil {
		t.Fatal(err)
	}
	_, err = r.Expect(10<<16 | 30)
	var closed *client.Closed
	if errors.As(err, &closed) {
		return closed.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	return "tune"
}

func plain(user, password string) string { return "\x00" + user + "\x00" + password }

func amqplain(user, password string) string {
	field := func(name, value string) []byte { return client.Field(name, 'S', client.LongString(value)...) }
	return string(append(field("LOGIN", user), field("PASSWORD", password)...))
}

func refusedLogin(mechanism string) string {
	return "closed with 403 ACCESS_REFUSED - Login was refused using authentication mechanism " + mechanism +
		". For details see the broker logfile. (0,0)"
}

// mustPut puts an object by the HTTP API.
func mustPut(t *testing.T, n *cluster.Node, path string, body map[string]any) {
	t.Helper()
	if err := n.Call(t.Context(), "PUT", path, body, nil); err != nil {
		t.Fatal(err)
	}
}

// wrong are logins that are refused; the user bob exists, ann came with a hash
// from elsewhere, carl has no password.
var wrong = map[string]struct{ user, password string }{
	"wrong password":          {"bob", "wrong"},
	"empty password":          {"bob", ""},
	"unknown user":            {"nobody", "wrong"},
	"unknown, empty password": {"nobody", ""},
	"empty user":              {"", ""},
	"imported hash":           {"ann", "wrong"},
	"imported, empty":         {"ann", ""},
	"no password to match":    {"carl", ""},
	"long password":           {"bob", strings.Repeat("p", 3000)},
	"long name":               {strings.Repeat("b", 3000), "wrong"},
	"NUL in the name":         {"bob\x00", "right"},
	"NUL in the password":     {"bob", "right\x00"},
	"other case":              {"BOB", "right"},
	"blank at the end":        {"bob ", "right"},
	"path":                    {"../bob", "right"},
	"control characters":      {"b\x1b[31mob\nlevel=ERROR", "right"},
	"no UTF-8":                {"b\xffob", "right"},
}

func mustHaveUsers(t *testing.T, n *cluster.Node) {
	t.Helper()
	mustPut(t, n, "/api/users/bob", map[string]any{"password": "right", "tags": "management"})
	mustPut(t, n, "/api/users/ann", map[string]any{"password_hash": importedHash, "tags": ""})
	mustPut(t, n, "/api/users/carl", map[string]any{"tags": ""})
}

// TestLogins: from outside nothing tells why a login is refused: neither the
// answer nor its time.
func TestLogins(t *testing.T) {
	long.Test(t)
	c := shared.mustGet(t)
	n := c.Nodes[0]
	mustHaveUsers(t, n)
	if got := mustAsk(t, httpFrom(t, newHost()), n, "bob", "right"); !strings.HasPrefix(got, "200 ") {
		t.Fatalf("the right password: %s", got) // from now on it is known as good
	}
	for how, try := range map[string]struct {
		want string
		do   func(t *testing.T, user, password string) string
	}{
		"http": {notAuthorized, func(t *testing.T, user, password string) string {
			return mustAsk(t, httpFrom(t, newHost()), n, user, password)
		}},
		"AMQPLAIN": {refusedLogin("AMQPLAIN"), func(t *testing.T, user, password string) string {
			return mustLogin(t, newHost(), n, "AMQPLAIN", amqplain(user, password))
		}},
		"PLAIN": {refusedLogin("PLAIN"), func(t *testing.T, user, password string) string {
			return mustLogin(t, newHost(), n, "PLAIN", plain(user, password))
		}},
	} {
		best := map[string]time.Duration{}
		for name, w := range wrong {
			if how == "PLAIN" && strings.Contains(w.user+w.password, "\x00") {
				continue // cannot be said
			}
			best[name] = time.Hour
			attack(t, "login", how+", "+name, func(t *testing.T) {
				for range 3 {
					began := time.Now()
					if got := try.do(t, w.user, w.password); got != try.want {
						t.Fatalf("%q, want %q", got, try.want)
					}
					best[name] = min(best[name], time.Since(began))
				}
			})
		}
		attack(t, "login", how+", times", func(t *testing.T) {
			// On a busy machine some take longer. None is answered in less time than
			// it takes to look at a password of somebody who is there.
			look := min(best["wrong password"], best["empty password"], best["long password"])
			for name, took := range best {
				if took < look/4 {
					t.Errorf("%s: refused after %v, a look takes %v", name, took, look)
				}
			}
		})
	}
	attack(t, "login", "a name does not write to the log", func(t *testing.T) {
		if n := c.Logged("\x1b"); n != 0 {
			t.Errorf("%d log lines hold an escape character", n)
		}
	})
	for name, response := range map[string]string{
		"foreign authzid": "bob" + plain("bob", "right"), "NUL in PLAIN": plain("bob\x00", "right"), "no password": "\x00bob", "nothing": "",
	} {
		attack(t, "login", name, func(t *testing.T) {
			const want = "closed with 502 SYNTAX_ERROR - response to authentication mechanism PLAIN invalid (0,0)"
			if got := mustLogin(t, newHost(), n, "PLAIN", response); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
	attack(t, "login", "a name of 1 MiB", func(t *testing.T) {
		r, err := client.Dial(t.Context(), n.AMQP)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		// The node hangs up while it is written to.
		_, _ = r.Start("PLAIN", plain(strings.Repeat("b", 1<<20), "right"))
		if answer, err := r.Bytes(time.Minute); err == nil && strings.Contains(string(answer), "ACCESS_REFUSED") {
			t.Errorf("it was looked at: %q", answer)
		}
	})
}

// TestImportedHash: it lets its user in, once: then it is another one.
func TestImportedHash(t *testing.T) {
	n := shared.mustGet(t).Nodes[0]
	attack(t, "login", "an imported hash is replaced", func(t *testing.T) {
		mustPut(t, n, "/api/users/imported", map[string]any{"password_hash": importedHash, "tags": "management"})
		var u struct {
			Hash      string `json:"password_hash"`
			Algorithm string `json:"hashing_algorithm"`
		}
		hash := func() string {
			if err := n.Call(t.Context(), "GET", "/api/users/imported", nil, &u); err != nil {
				t.Fatal(err)
			}
			return u.Hash
		}
		from := httpFrom(t, newHost())
		if got := mustAsk(t, from, n, "imported", "test13"); got != notAuthorized || hash() != importedHash {
			t.Errorf("a wrong password: %s, hash %s", got, u.Hash)
		}
		if got := mustAsk(t, from, n, "imported", "test12"); !strings.HasPrefix(got, "200 ") {
			t.Fatalf("the right password: %s", got)
		}
		mustAwait(t, "another hash", func() (bool, error) { return hash() != importedHash, nil })
		raw, err := base64.StdEncoding.DecodeString(u.Hash)
		if err != nil || u.Algorithm != "pbkdf2_sha256" || len(raw) < 4 || binary.BigEndian.Uint32(raw) < 100_000 {
			t.Errorf("the new hash is %s of %s", u.Hash, u.Algorithm)
		}
		for password, want := range map[string]string{"test12": "200 ", "test13": "401 "} {
			if got := mustAsk(t, from, n, "imported", password); !strings.HasPrefix(got, want) {
				t.Errorf("then %s: %s", password, got)
			}
		}
	})
}

// logins reads how logins at a node have ended.
func logins(t *testing.T, n *cluster.Node, outcome string) int {
	t.Helper()
	v, err := n.Metric(t.Context(), "quorate_logins_total", `outcome="`+outcome+`"`)
	if err != nil {
		t.Fatal(err)
	}
	return int(v)
}

// TestGuessing: guesses are looked at ever more rarely, and cost others nothing.
func TestGuessing(t *testing.T) {
	long.Test(t)
	n := shared.mustGet(t).Nodes[1]
	mustPut(t, n, "/api/users/victim", map[string]any{"password": "right", "tags": "management"})
	// guess tries so many passwords and says how many were looked at.
	guess := func(t *testing.T, count int, try func(i int) string, want string) int {
		t.Helper()
		before := logins(t, n, "refused")
		for i := range count {
			if got := try(i); got != want {
				t.Fatalf("guess %d: %s", i, got)
			}
		}
		return logins(t, n, "refused") - before
	}
	// bound is how many are looked at in a time: the free ones, then after half a
	// second, one, two … 30 s; and one more every 30 s.
	bound := func(free int, d time.Duration) int {
		for wait := 500 * time.Millisecond; d > 0; wait = min(2*wait, 30*time.Second) {
			d -= wait
			free++
		}
		return free + 1
	}
	attack(t, "login", "guesses of a password", func(t *testing.T) {
		began, from := time.Now(), httpFrom(t, newHost())
		looked := guess(t, 500, func(i int) string { return mustAsk(t, from, n, "victim", fmt.Sprint("guess", i)) }, notAuthorized)
		if most := bound(10, time.Since(began)); looked < 11 || looked > most {
			t.Errorf("%d of 500 were looked at, want 11 to %d", looked, most)
		}
		if got := mustAsk(t, from, n, "victim", "right"); got != notAuthorized {
			t.Errorf("a lucky guess: %s", got)
		}
		if got := mustAsk(t, httpFrom(t, newHost()), n, "victim", "right"); !strings.HasPrefix(got, "200 ") {
			t.Errorf("the user, from elsewhere: %s", got)
		}
	})
	attack(t, "login", "guesses of a password by AMQP", func(t *testing.T) {
		began, from := time.Now(), newHost()
		looked := guess(t, 40, func(i int) string { return mustLogin(t, from, n, "PLAIN", plain("victim", fmt.Sprint("guess", i))) }, refusedLogin("PLAIN"))
		if most := bound(10, time.Since(began)); looked < 11 || looked > most {
			t.Errorf("%d of 40 were looked at, want 11 to %d", looked, most)
		}
		if got := mustLogin(t, newHost(), n, "PLAIN", plain("victim", "right")); got != "tune" {
			t.Errorf("the user, from elsewhere: %s", got)
		}
	})
	attack(t, "login", "guesses of users", func(t *testing.T) {
		host := newHost()
		began, from := time.Now(), httpFrom(t, host)
		if got := mustAsk(t, from, n, "victim", "right"); !strings.HasPrefix(got, "200 ") {
			t.Fatal(got)
		}
		looked := guess(t, 500, func(i int) string { return mustAsk(t, from, n, fmt.Sprint("user", i), "password") }, notAuthorized)
		if most := bound(50, time.Since(began)); looked < 51 || looked > most {
			t.Errorf("%d of 500 were looked at, want 51 to %d", looked, most)
		}
		if got := mustAsk(t, from, n, "victim", "right"); !strings.HasPrefix(got, "200 ") {
			t.Errorf("a user who has logged in there before: %s", got)
		}
	})
	attack(t, "login", "a crowd that guesses", func(t *testing.T) {
		var crowd sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		for range 100 {
			from := httpFrom(t, newHost())
			crowd.Go(func() {
				for ctx.Err() == nil {
					// Not all of them have their turn in time.
					if got := askOr(ctx, from, n); got != "" && got != notAuthorized && !strings.HasPrefix(got, "503 ") {
						t.Errorf("one of the crowd: %s", got)
						return
					}
				}
			})
		}
		before := logins(t, n, "refused")
		busy := func() (bool, error) { return logins(t, n, "refused") >= before+50, nil }
		mustAwait(t, "guesses", busy)
		if got := mustLogin(t, newHost(), n, "PLAIN", plain("victim", "right")); got != "tune" {
			t.Errorf("the user, from elsewhere: %s", got)
		}
		stop()
		crowd.Wait()
	})
}

// askOr asks with a wrong password; empty: ctx has ended.
func askOr(ctx context.Context, c *http.Client, n *cluster.Node) string {
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+n.HTTP+"/api/whoami", nil)
	if err != nil {
		return err.Error()
	}
	r.SetBasicAuth("victim", "guess")
	resp, err := c.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return ""
		}
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil && ctx.Err() != nil {
		return ""
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(body)))
}
