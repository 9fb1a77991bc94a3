package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// patience bounds what has to happen, on a machine that is busy.
const patience = time.Minute

// mustAwait waits for a state.
func mustAwait(t *testing.T, what string, done func() (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := await.Until(ctx, 20*time.Millisecond, what, done); err != nil {
		t.Fatal(err)
	}
}

// mustOpen opens so many connections that send some bytes each and then nothing.
func mustOpen(t *testing.T, count int, from, to, sent string) []net.Conn {
	t.Helper()
	var all []net.Conn
	t.Cleanup(func() {
		for _, k := range all {
			k.Close()
		}
	})
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	for range count {
		k, err := d.DialContext(t.Context(), "tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
		_, _ = io.WriteString(k, sent) // it may have been closed already
	}
	return all
}

// mustWork has somebody honest, at an address of its own, publish, consume and
// use the API.
func mustWork(t *testing.T, n *cluster.Node, queue string) {
	t.Helper()
	host := newHost()
	ch, end := mustChannel(t, n, host)
	defer end()
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	// Enough for several tables of the log, which are merged and deleted; the last ones go to a segment.
	const count, large = 400, 20
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range count {
		size := 16 << 10
		if i >= count-large {
			size = 64 << 10
		}
		confirm, err := ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{Body: make([]byte, size)})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := confirm.WaitContext(ctx); !ok || err != nil {
			t.Fatalf("confirmed: %v, %v", ok, err)
		}
	}
	if gone, err := ch.QueuePurge(queue, false); err != nil || gone != count {
		t.Fatalf("%d of %d messages: %v", gone, count, err)
	}
	if got := mustAsk(t, httpFrom(t, host), n, "guest", "guest"); !strings.HasPrefix(got, "200 ") {
		t.Fatalf("by HTTP: %s", got)
	}
}

// gauge reads a metric of a node.
func gauge(t *testing.T, n *cluster.Node, name string, words ...string) int {
	t.Helper()
	v, err := n.Metric(t.Context(), name, words...)
	if err != nil {
		t.Fatal(err)
	}
	return int(v)
}

// tables are the table files of a node's log.
func tables(t *testing.T, n *cluster.Node) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.DataDir(), "queues", "*.sst"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

const basicGuest = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"

// TestFloods: however many come, and whatever they leave unsaid, a node with few
// file descriptors stores, and serves those who come from elsewhere.
func TestFloods(t *testing.T) {
	long.Test(t)
	const files, crowd = 300, 3000
	c := mustStart(t, cluster.Options{Nodes: 1, OpenFiles: files, Args: []string{"--set", "raft.wal_max_size_bytes=1048576"}})
	n := c.Nodes[0]
	metrics := n.HTTP[:strings.LastIndexByte(n.HTTP, ':')+1]
	var port int
	if _, err := fmt.Sscan(n.HTTP[len(metrics):], &port); err != nil {
		t.Fatal(err)
	}
	metrics += fmt.Sprint(port + 20)
	post := "POST /api/quorate/settle HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
	for _, flood := range []struct {
		name, to, listener, sent string
		answered                 string
	}{
		{"bodies that never come", n.HTTP, "http", post + "\r\n", "HTTP/1.1 503 "},
		{"bodies of somebody who may", n.HTTP, "http", post + basicGuest + "\r\n", "HTTP/1.1 503 "},
		{"chunks that never come", n.HTTP, "http", "PUT /api/users/u HTTP/1.1\r\nHost: h\r\n" + basicGuest + "Transfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 503 "},
		{"headers that do not end", n.HTTP, "http", "GET /api/whoami HTTP/1.1\r\nHost: h\r\n", "HTTP/1.1 503 "},
		{"HTTP clients that say nothing", n.HTTP, "http", "", "HTTP/1.1 503 "},
		{"AMQP clients that say nothing", n.AMQP, "amqp", "", ""},
		{"AMQP clients that do not log in", n.AMQP, "amqp", client.ProtocolHeader, ""},
	} {
		attack(t, "limits", flood.name, func(t *testing.T) {
			refused := gauge(t, n, "quorate_listener_connections_refused_total", `listener="`+flood.listener+`"`)
			all := mustOpen(t, crowd, newHost(), flood.to, flood.sent)
			mustAwait(t, "most to be refused", func() (bool, error) {
				return gauge(t, n, "quorate_listener_connections_refused_total", `listener="`+flood.listener+`"`) > refused+crowd/2, nil
			})
			if flood.answered != "" {
				r := client.NewRaw(all[crowd-1])
				answer, err := r.Bytes(patience)
				if err != nil || !strings.HasPrefix(string(answer), flood.answered) {
					t.Errorf("the last is answered with %q, %v", answer, err)
				}
			}
			before := tables(t, n)
			mustWork(t, n, "honest")
			mustAwait(t, "tables of the log to be made, and others to go", func() (bool, error) {
				after := tables(t, n)
				made := slices.ContainsFunc(after, func(f string) bool { return !slices.Contains(before, f) })
				gone := slices.ContainsFunc(before, func(f string) bool { return !slices.Contains(after, f) })
				return made && (gone || len(before) == 0), nil
			})
		})
	}
	attack(t, "limits", "a crowd at the metrics", func(t *testing.T) {
		mustOpen(t, 500, newHost(), metrics, "GET /metrics HTTP/1.1\r\nHost: h\r\n")
		mustAwait(t, "some to be refused", func() (bool, error) {
			return gauge(t, n, "quorate_listener_connections_refused_total", `listener="http/prometheus"`) > 0, nil
		})
		mustWork(t, n, "honest")
	})
	attack(t, "limits", "a crowd that has logged in", func(t *testing.T) {
		most := gauge(t, n, "quorate_listener_connections_max", `listener="amqp"`)
		most -= gaugeShare(most)
		for i := 0; ; i++ {
			r, err := client.Dial(t.Context(), n.AMQP)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			err = r.Login("/", client.DefaultTune)
			if err == nil && i < most {
				continue
			}
			want := fmt.Sprintf("closed with 530 NOT_ALLOWED - connection refused: node connection limit (%d) is reached (10,40)", most)
			if i != most || err == nil || err.Error() != want {
				t.Errorf("connection %d of %d: %v, want %s", i+1, most, err, want)
			}
			break
		}
	})
	attack(t, "limits", "no descriptor was missing", func(t *testing.T) {
		if n := c.Logged("too many open files"); n != 0 {
			t.Errorf("%d log lines say so", n)
		}
		if n := c.Logged("too many connections: new ones are closed"); n == 0 || n > 100 {
			t.Errorf("%d log lines about floods, want some", n)
		}
	})
}

// gaugeShare is the part of the sockets that is kept for telling clients that
// there are too many.
func gaugeShare(sockets int) int { return sockets / 8 }

// TestFewFiles: a node that could not keep what it promises does not start.
func TestFewFiles(t *testing.T) {
	attack(t, "limits", "a node with few file descriptors", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := cluster.Start(ctx, cluster.Options{Binary: server, Dir: t.TempDir(), Nodes: 1, OpenFiles: 100})
		if err == nil {
			t.Fatal(errors.Join(errors.New("it starts"), c.Stop()))
		}
		if want := "the limit of open files is 100, but a node needs at least 128"; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	})
}

// raw opens a channel as guest.
func raw(t *testing.T, n *cluster.Node) *client.Raw {
	t.Helper()
	r, err := client.DialRaw(t.Context(), n.AMQP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// table is a table as it stands in a method.
func table(fields ...[]byte) []byte { return client.LongString(string(client.Join(fields...))) }

// Methods with a table of arguments at their end; each names something anew.
var withArguments = map[string]func(r *client.Raw, arguments []byte) error{
	"queue": func(r *client.Raw, arguments []byte) error {
		return r.Method(1, 50<<16|10, client.Join([]byte{0, 0}, client.ShortString("large"), []byte{2}, arguments))
	},
	"exchange": func(r *client.Raw, arguments []byte) error {
		return r.Method(1, 40<<16|10, client.Join([]byte{0, 0}, client.ShortString("large"), client.ShortString("fanout"), []byte{2}, arguments))
	},
	"binding to": func(r *client.Raw, arguments []byte) error {
		return r.Method(1, 50<<16|20, client.Join([]byte{0, 0}, client.ShortString("bound"), client.ShortString("amq.headers"), client.ShortString("k"), []byte{0}, arguments))
	},
	"a consumer of": func(r *client.Raw, arguments []byte) error {
		return r.Method(1, 60<<16|20, client.Join([]byte{0, 0}, client.ShortString("bound"), client.ShortString("c"), []byte{0}, arguments))
	},
}

// TestArguments: what is kept of a declare on every node is small.
func TestArguments(t *testing.T) {
	n := shared.mustGet(t).Nodes[0]
	r := raw(t, n)
	if err := r.Declare("bound", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Expect(50<<16 | 11); err != nil {
		t.Fatal(err)
	}
	text := func(size int) []byte {
		return table(client.Field("k", 'S', client.LongString(strings.Repeat("x", size))...))
	}
	numbers := func(count int) []byte {
		return table(client.Field("k", 'A', client.LongString(strings.Repeat("b\x01", count))...))
	}
	nest := func(depth int) []byte {
		inner := client.Field("k", 't', 1)
		for range depth {
			inner = client.Field("k", 'F', client.LongString(string(inner))...)
		}
		return table(inner)
	}
	names := map[string]string{"queue": "large", "exchange": "large", "binding to": "bound", "a consumer of": "bound"}
	for what, declare := range withArguments {
		for size, test := range map[string]struct {
			arguments []byte
			want      string
		}{
			"125 kB":     {text(125_000), "have 125007 bytes, at most 4096 are allowed"},
			"1 too long": {text(4090), "have 4097 bytes, at most 4096 are allowed"},
			"257 values": {numbers(256), "have 257 values, at most 256 are allowed"},
			"4,000":      {numbers(4_000), "have 8007 bytes, at most 4096 are allowed"},
			"60,000":     {numbers(60_000), ""},
			"nested":     {nest(300), ""},
		} {
			attack(t, "limits", "arguments of "+what+", "+size, func(t *testing.T) {
				r := raw(t, n)
				if err := declare(r, test.arguments); err != nil {
					t.Fatal(err)
				}
				_, err := r.Expect(0)
				var closed *client.Closed
				if !errors.As(err, &closed) {
					t.Fatal(err)
				}
				if size == "60,000" { // more than are decoded
					if !closed.Connection || closed.Code != 502 {
						t.Errorf("%v", closed)
					}
					return
				}
				if size == "nested" { // refused either for its depth or for its values
					if closed.Code != 406 && closed.Code != 502 {
						t.Errorf("%v", closed)
					}
					return
				}
				want := fmt.Sprintf("PRECONDITION_FAILED - arguments of %s '%s' %s", what, names[what], test.want)
				if closed.Connection || closed.Code != 406 || closed.Text != want {
					t.Errorf("%v, want 406 %s", closed, want)
				}
			})
		}
	}
	long := strings.Repeat("x", 5000)
	for path, test := range map[string]struct {
		body map[string]any
		want string
	}{
		"/api/policies/%2F/large": {map[string]any{"pattern": "none", "definition": map[string]any{"alternate-exchange": long}}, "at most"},
		"/api/users/large":        {map[string]any{"tags": long, "password": "p"}, "tags of user 'large' have 5000 bytes, at most 4096 are allowed"},
		"/api/vhosts/large":       {map[string]any{"description": long}, "description and tags of vhost 'large' have 5000 bytes, at most 4096 are allowed"},
	} {
		attack(t, "limits", "PUT of 5 kB to "+path, func(t *testing.T) {
			status, answer, err := n.Do(t.Context(), "PUT", path, test.body)
			if err != nil || status != 400 || !strings.Contains(string(answer), test.want) {
				t.Errorf("%d %s, %v, want 400 …%s…", status, answer, err, test.want)
			}
		})
	}
}
