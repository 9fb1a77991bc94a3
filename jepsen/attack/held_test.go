package attack

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// incomplete sends a message of so many octets on a channel, but for the last one.
func incomplete(r *client.Raw, channel uint16, size int) error {
	err := r.Method(channel, 60<<16|40, client.Join([]byte{0, 0}, client.ShortString(""), client.ShortString("q"), []byte{0}))
	if err == nil {
		err = r.Frame(client.FrameHeader, channel, append(binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, uint64(size)), 0, 0))
	}
	for left := size - 1; left > 0 && err == nil; {
		n := min(left, 131072-8)
		err = r.Frame(client.FrameBody, channel, make([]byte, n))
		left -= n
	}
	return err
}

// p99 is what 99 of 100 confirms took at most.
func p99(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// mustBound runs an attack on a node while somebody honest publishes, and fails if more than the bound of a connection,
// 64 MiB, and 64 MiB besides become resident, or if a confirm is late. With -v it prints what confirms took while the
// attack was repeated, and while it was made on something that is no node: the attack, the honest one and the node share
// the processors of this machine, so that is the least that they can take.
func mustBound(t *testing.T, n *cluster.Node, try, sink func() error) {
	t.Helper()
	before, err := n.RSSBytes()
	if err != nil {
		t.Fatal(err)
	}
	calm := p99(mustConfirm(t, n, 300))
	mustConfirm(t, n, 50, func(context.Context) error { return try() })
	peak, err := n.PeakRSSBytes()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB more at most", (peak-before)/mib)
	if peak-before > 128*mib {
		t.Errorf("%d MiB become resident, 128 are allowed", (peak-before)/mib)
	}
	floor, during := p99(mustConfirm(t, n, 0, repeated(sink))), p99(mustConfirm(t, n, 0, repeated(try)))
	t.Logf("confirms of the honest: p99 %v before, %v at least and %v during the attack, %.1f times that",
		calm.Round(time.Microsecond), floor.Round(time.Microsecond), during.Round(time.Microsecond), float64(during)/float64(floor))
}

// repeated makes an attack again and again for a second.
func repeated(try func() error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		for began := time.Now(); time.Since(began) < time.Second && ctx.Err() == nil; {
			if err := try(); err != nil {
				return err
			}
		}
		return nil
	}
}

// mustSink listens, and has another process read and drop what is sent to it.
func mustSink(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			socket, err := conn.(*net.TCPConn).File()
			conn.Close()
			if err != nil {
				return
			}
			drop := exec.Command("cat")
			drop.Stdin = socket
			if drop.Start() == nil {
				go func() { _ = drop.Wait() }() // until the attack closes the socket
			}
			socket.Close()
		}
	}()
	return l.Addr().String()
}

// TestHeld: what a client makes a node hold is bounded, and is not an alarm that stays.
func TestHeld(t *testing.T) {
	long.Test(t)
	t.Parallel()
	const channels = 20
	node := func(ctx context.Context, n *cluster.Node) (*client.Raw, error) {
		r, err := client.DialRaw(ctx, n.AMQP)
		for i := uint16(2); i <= channels && err == nil; i++ {
			err = r.OpenChannel(i)
		}
		return r, err
	}
	// mustBothBound has an attack that leaves its connection open made on a node, and on a sink.
	mustBothBound := func(t *testing.T, n *cluster.Node, try func(r *client.Raw) error) (last *client.Raw) {
		t.Helper()
		attackBy := func(dial func() (*client.Raw, error)) func() error {
			return func() error {
				if last != nil {
					last.Close()
				}
				r, err := dial()
				if last = r; err != nil {
					return err
				}
				return try(r)
			}
		}
		addr := mustSink(t)
		t.Cleanup(func() { last.Close() })
		mustBound(t, n, attackBy(func() (*client.Raw, error) { return node(t.Context(), n) }),
			attackBy(func() (*client.Raw, error) { return client.Dial(t.Context(), addr) }))
		return last
	}
	attack(t, "held", "300 MiB of incomplete messages", func(t *testing.T) {
		n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
		r := mustBothBound(t, n, func(r *client.Raw) error {
			for i := range uint16(channels) {
				if err := incomplete(r, i+1, 15*mib); err != nil {
					return err
				}
			}
			return nil
		})
		var nodes []struct {
			Held struct{ Channels, Publishes, Answers, HTTP int } `json:"held_memory"`
		}
		if err := n.Call(t.Context(), http.MethodGet, "/api/nodes", nil, &nodes); err != nil || len(nodes) != 1 {
			t.Fatalf("%d nodes, %v", len(nodes), err)
		}
		if held, shown := gauge(t, n, "quorate_held_memory_bytes", `by="channels"`), nodes[0].Held.Channels; held < 32*mib || held > 65*mib || held != shown {
			t.Errorf("a metric says that %d octets are held for channels, the API %d", held, shown)
		}
		mustEndWith(t, r, false, "memory held for clients has reached its limit, held_memory.connection = 67108864", 506)
	})
	attack(t, "held", "tables behind a method", func(t *testing.T) {
		n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
		poison := client.Field("a", 'A', client.LongString(strings.Repeat("V", 4000))...)
		mustBothBound(t, n, func(r *client.Raw) error {
			go func() { // the answers
				for {
					if _, _, _, err := r.Read(); err != nil {
						return
					}
				}
			}()
			for i := range 4000 {
				ch := uint16(i%channels + 1)
				args := client.Join([]byte{0, 0}, client.ShortString(fmt.Sprint("v", ch)), []byte{2}, client.LongString(""))
				if i >= channels {
					args = client.Join([]byte{0, 0}, client.ShortString("v"), []byte{2}, client.LongString(string(poison)))
				}
				if err := r.Method(ch, 50<<16|10, args); err != nil {
					return err
				}
			}
			return nil
		})
	})
	attack(t, "held", "a transaction that is the alarm", func(t *testing.T) {
		n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
		ch, end := mustChannel(t, n, "")
		defer end()
		if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		rss, err := n.RSSBytes()
		if err != nil {
			t.Fatal(err)
		}
		limit := map[string]any{"absolute": fmt.Sprint(rss + 40*mib)}
		if err := n.Call(t.Context(), http.MethodPut, "/api/quorate/limits/vm_memory_high_watermark", limit, nil); err != nil {
			t.Fatal(err)
		}
		tx, endTx := mustChannel(t, n, "")
		defer endTx()
		if err := tx.Tx(); err != nil {
			t.Fatal(err)
		}
		closed := tx.NotifyClose(make(chan *amqp.Error, 1))
		go func() {
			for range 6 {
				if tx.Publish("", "q", false, false, amqp.Publishing{Body: make([]byte, 10*mib)}) != nil {
					return
				}
			}
		}()
		if e := <-closed; e == nil || e.Code != 506 {
			t.Fatalf("closed with %v", e)
		}
		mustAwait(t, "the end of the alarm", func() (bool, error) {
			err := n.Call(t.Context(), http.MethodGet, "/api/health/checks/alarms", nil, nil)
			return err == nil, nil
		})
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		d, err := ch.PublishWithDeferredConfirm("", "q", false, false, amqp.Publishing{})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := d.WaitContext(t.Context()); !ok || err != nil {
			t.Errorf("after the alarm: %v, %v", ok, err)
		}
	})
	attack(t, "held", "a large message peeked at by many", func(t *testing.T) {
		n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
		ch, end := mustChannel(t, n, "")
		defer end()
		if _, err := ch.QueueDeclare("fat", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		d, err := ch.PublishWithDeferredConfirm("", "fat", false, false, amqp.Publishing{Body: make([]byte, 15*mib)})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := d.WaitContext(t.Context()); !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		answer, err := json.Marshal(map[string]any{"items": []any{map[string]any{"payload": strings.Repeat("A", 87<<10)}}})
		if err != nil {
			t.Fatal(err)
		}
		sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
		t.Cleanup(sink.Close)
		peek := func(n *cluster.Node) error {
			var all sync.WaitGroup
			errs := make(chan error, 20)
			for range 20 {
				all.Go(func() {
					var page struct{ Items []struct{ Payload string } }
					err := n.Call(t.Context(), http.MethodGet, "/api/queues/%2F/fat/messages/peek?limit=1", nil, &page)
					if err == nil && (len(page.Items) != 1 || len(page.Items[0].Payload) > 100<<10) {
						err = errors.New("the page is not what it should be")
					}
					if err != nil && !strings.Contains(err.Error(), "503") {
						errs <- err
					}
				})
			}
			all.Wait()
			close(errs)
			return <-errs
		}
		mustBound(t, n, func() error { return peek(n) }, func() error { return peek(&cluster.Node{HTTP: sink.Listener.Addr().String()}) })
	})
}
