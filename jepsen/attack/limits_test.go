package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
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
	conn, err := amqp.DialConfig(n.URI(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}, Timeout: patience}
		return d.DialContext(t.Context(), network, addr)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	// Enough for several tables of the log, which are merged and deleted.
	const count, size = 200, 64 << 10
	var last *amqp.DeferredConfirmation
	for range count {
		last, err = ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{Body: make([]byte, size)})
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if ok, err := last.WaitContext(ctx); !ok || err != nil {
		t.Fatalf("confirmed: %v, %v", ok, err)
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

const basicGuest = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"

// TestFloods: however many come, and whatever they leave unsaid, a node with few
// file descriptors stores, and serves those who come from elsewhere.
func TestFloods(t *testing.T) {
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
			before := gauge(t, n, "quorate_listener_connections_refused_total", `listener="`+flood.listener+`"`)
			all := mustOpen(t, crowd, newHost(), flood.to, flood.sent)
			mustAwait(t, "most to be refused", func() (bool, error) {
				return gauge(t, n, "quorate_listener_connections_refused_total", `listener="`+flood.listener+`"`) > before+crowd/2, nil
			})
			if flood.answered != "" {
				r := client.NewRaw(all[crowd-1])
				answer, err := r.Bytes(patience)
				if err != nil || !strings.HasPrefix(string(answer), flood.answered) {
					t.Errorf("the last is answered with %q, %v", answer, err)
				}
			}
			mustWork(t, n, "honest")
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
		if n := c.Logged("connections are closed, there are too many"); n == 0 || n > 100 {
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
		if want := "the limit of open files is 100, a node needs at least 128"; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	})
}
