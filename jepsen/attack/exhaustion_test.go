package attack

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// TestQuotas: who has been given a limit is held to it at every node, and told.
func TestQuotas(t *testing.T) {
	limit := func(p *party, path string, most int) { p.admin("PUT", path, map[string]any{"value": most}) }
	connect := func(p *party, node int) error {
		conn, err := client.ConnectAs(p.Context(), p.c.Nodes[node].URI(), p.user, p.user, p.vhost)
		if err == nil {
			p.Cleanup(func() { conn.Close() })
		}
		return err
	}
	attack(t, "limits", "connections of a user", func(t *testing.T) {
		p := newParty(t)
		limit(p, p.path("user-limits", p.user, "max-connections"), 2)
		p.connect(0)
		p.connect(1)
		p.refused(connect(p, 2), 530, fmt.Sprintf("connection refused for user '%s': user connection limit (2) is reached", p.user))
	})
	attack(t, "limits", "connections to a vhost", func(t *testing.T) {
		p := newParty(t)
		limit(p, p.path("vhost-limits", p.vhost, "max-connections"), 3)
		p.connect(0) // the owner has one
		p.connect(1)
		p.refused(connect(p, 2), 530, fmt.Sprintf("access to vhost '%s' refused for user '%s': connection limit (3) is reached", p.vhost, p.user))
	})
	attack(t, "limits", "channels of a user", func(t *testing.T) {
		p := newParty(t)
		limit(p, p.path("user-limits", p.user, "max-channels"), 3)
		first, second := p.connect(0), p.connect(1)
		p.channel(first)
		p.channel(first)
		p.channel(second)
		_, err := second.Channel()
		p.refused(err, 530, fmt.Sprintf("number of channels opened for user '%s' has reached the maximum allowed user limit of 3", p.user))
	})
	attack(t, "limits", "queues of a vhost", func(t *testing.T) {
		p := newParty(t)
		limit(p, p.path("vhost-limits", p.vhost, "max-queues"), 2)
		ch := p.channel(p.connect(1))
		p.queue("q")
		if _, err := ch.QueueDeclare("", false, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
		_, err := ch.QueueDeclare("more", true, false, false, false, nil)
		p.refused(err, 406, fmt.Sprintf("cannot declare queue 'more': queue limit in vhost '%s' (2) is reached", p.vhost))
	})
	attack(t, "limits", "more channels than were agreed on", func(t *testing.T) {
		r := raw(t, shared.mustGet(t).Nodes[0])
		for number := uint16(2); number <= 2047; number++ {
			if err := r.Method(number, 20<<16|10, client.ShortString("")); err != nil {
				t.Fatal(err)
			}
		}
		for range 2046 {
			if _, err := r.Expect(20<<16 | 11); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Method(2048, 20<<16|10, client.ShortString("")); err != nil {
			t.Fatal(err)
		}
		mustEndWith(t, r, true, "number of channels opened (2047) has reached the negotiated channel_max (2047)", 530)
	})
	attack(t, "limits", "settings out of all bounds", func(t *testing.T) {
		p := newParty(t)
		for setting, value := range map[string]int{"max_argument_bytes": 1 << 30, "max_clock_skew": -1, "cluster_queue_limit": -5} {
			status, text := p.askAs("guest", "guest", 0, "PUT", p.path("quorate", "settings", setting), fmt.Sprintf(`{"value":%d}`, value))
			if status != 400 {
				t.Errorf("%s: %d %s", setting, status, text)
			}
		}
	})
}

// mustConfirm has somebody honest publish so many messages, one by one, and more
// for as long as others are busy. They end by themselves, or once ctx does, which
// is when the honest one has had enough. It returns how long confirms took while they
// were.
func mustConfirm(t *testing.T, n *cluster.Node, count int, others ...func(ctx context.Context) error) (took []time.Duration) {
	t.Helper()
	ch, end := mustChannel(t, n, "")
	defer end()
	if _, err := ch.QueueDeclare("honest", true, false, false, false, amqp.Table{"x-max-length": int32(10)}); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var busy atomic.Int64
	for _, other := range others {
		busy.Add(1)
		all.Go(func() {
			defer busy.Add(-1)
			if err := other(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	for i := 0; i < count || busy.Load() > 0 && i < maxHonest; i++ {
		began, alone := time.Now(), busy.Load() == 0
		d, err := ch.PublishWithDeferredConfirm("", "honest", false, false, amqp.Publishing{Body: make([]byte, 100)})
		if err != nil {
			t.Error(err)
			break
		}
		within, cancel := context.WithTimeout(t.Context(), patience)
		ok, err := d.WaitContext(within)
		cancel()
		waited := time.Since(began)
		if allowed := stall.Tolerance(machine.Longest(began)); !ok || err != nil || waited > allowed {
			t.Errorf("confirm %d: %v, %v, after %v, allowed are %v", i, ok, err, waited, allowed)
			break
		}
		if !alone || len(others) == 0 {
			took = append(took, waited)
		}
	}
	stop()
	all.Wait()
	return took
}

// maxHonest is how many messages the honest publish at most.
const maxHonest = 1000

// TestLoggedIn: whatever a user does that they may, others are served.
func TestLoggedIn(t *testing.T) {
	long.Test(t)
	n := shared.mustGet(t).Nodes[0]
	const honest, rounds = 50, 100
	attack(t, "exhaustion", "2,047 channels with 10,000 consumers", func(t *testing.T) {
		p := newParty(t)
		queues := []string{"q0", "q1", "q2", "q3", "q4"} // a single one may not have so many
		for _, q := range queues {
			p.queue(q)
		}
		conn := p.connect(0)
		mustConfirm(t, n, honest, func(ctx context.Context) error {
			for i := range 2047 {
				ch, err := conn.Channel()
				if err != nil {
					return fmt.Errorf("channel %d: %w", i, err)
				}
				for _, q := range queues {
					if _, err := ch.Consume(q, "", false, false, false, true, nil); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
	attack(t, "exhaustion", "more consumers than a queue may have", func(t *testing.T) {
		const most = 8192 // docs/security.md
		p := newParty(t)
		p.queue("q")
		ch := p.channel(p.connect(0))
		mustConfirm(t, n, honest, func(ctx context.Context) error {
			for i := range most {
				if _, err := ch.Consume("q", "", false, false, false, i < most-1, nil); err != nil {
					return fmt.Errorf("consumer %d: %w", i, err)
				}
			}
			return nil
		})
		_, err := ch.Consume("q", "", false, false, false, false, nil)
		p.refused(err, 406, "has reached the limit of consumers of a queue")
	})
	attack(t, "exhaustion", "20,000 deliveries that nobody settles", func(t *testing.T) {
		p := newParty(t)
		p.queue("q")
		conn := p.connect(1)
		mustConfirm(t, n, honest, func(ctx context.Context) error {
			ch := p.channel(conn)
			got, err := ch.Consume("q", "", false, false, false, false, nil)
			if err != nil {
				return err
			}
			for i := range 20_000 {
				if err := ch.Publish("", "q", false, false, amqp.Publishing{Body: make([]byte, 100)}); err != nil {
					return err
				}
				if i%2 == 0 {
					continue
				}
				select {
				case <-got:
				case <-time.After(patience):
					return fmt.Errorf("delivery %d does not come", i)
				}
			}
			return nil
		})
	})
	loops := map[string]func(p *party, ch *amqp.Channel, i int) error{
		"get in a loop, with requeue": func(_ *party, ch *amqp.Channel, _ int) error {
			d, ok, err := ch.Get("q", false)
			if err != nil || !ok {
				return err
			}
			return d.Nack(false, true)
		},
		"declare and delete in a loop": func(p *party, ch *amqp.Channel, i int) error {
			name := fmt.Sprint("loop", p.user, i)
			if _, err := ch.QueueDeclare(name, false, false, true, false, nil); err != nil {
				return err
			}
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		},
		"bind and unbind in a loop": func(_ *party, ch *amqp.Channel, i int) error {
			if err := ch.QueueBind("q", fmt.Sprint(i), "amq.topic", false, nil); err != nil {
				return err
			}
			return ch.QueueUnbind("q", fmt.Sprint(i), "amq.topic", nil)
		},
		"consume and cancel in a loop": func(_ *party, ch *amqp.Channel, i int) error {
			if _, err := ch.Consume("q", fmt.Sprint("c", i), false, false, false, false, nil); err != nil {
				return err
			}
			return ch.Cancel(fmt.Sprint("c", i), false)
		},
	}
	for name, loop := range loops {
		attack(t, "exhaustion", name, func(t *testing.T) {
			p := newParty(t)
			p.queue("q")
			p.publish("", "q", amqp.Publishing{Body: []byte("x")})
			var users []func(ctx context.Context) error
			for i := range 4 {
				ch := p.channel(p.connect(i % 3))
				users = append(users, func(context.Context) error {
					for n := range rounds {
						if err := loop(p, ch, 4*n+i); err != nil {
							return err
						}
					}
					return nil
				})
			}
			mustConfirm(t, n, honest, users...)
		})
	}
	attack(t, "exhaustion", "connections in a loop", func(t *testing.T) {
		p := newParty(t)
		mustConfirm(t, n, honest, func(ctx context.Context) error {
			for range rounds {
				conn, err := client.ConnectAs(ctx, p.c.Nodes[0].URI(), p.user, p.user, p.vhost)
				if err != nil {
					return err
				}
				conn.Close()
			}
			return nil
		})
	})
	attack(t, "exhaustion", "questions whose replies nobody reads", func(t *testing.T) {
		p := newParty(t)
		r := p.raw() // it never reads
		if err := r.Method(1, 60<<16|20, client.Join([]byte{0, 0}, client.ShortString("amq.rabbitmq.reply-to"), client.ShortString("r"), []byte{2}, client.LongString(""))); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Expect(60<<16 | 21); err != nil {
			t.Fatal(err)
		}
		p.queue("q")
		replyTo := client.Join([]byte{0x02, 0}, client.ShortString("amq.rabbitmq.reply-to"))
		if err := r.Publish("", "q", replyTo, []byte("question")); err != nil {
			t.Fatal(err)
		}
		var to string
		mustAwait(t, "the question", func() (bool, error) {
			d, ok, err := p.owner.Get("q", true)
			to = d.ReplyTo
			return ok, err
		})
		ch := p.channel(p.connect(2))
		mustConfirm(t, n, honest, func(ctx context.Context) error {
			for range 2000 {
				if err := ch.PublishWithContext(ctx, "", to, false, false, amqp.Publishing{Body: make([]byte, 64<<10)}); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// TestWrongPasswords: who tries passwords from many addresses takes a small share
// of the processors.
func TestWrongPasswords(t *testing.T) {
	long.Test(t)
	n := shared.mustGet(t).Nodes[2]
	attack(t, "login", "wrong passwords, many a second", func(t *testing.T) {
		const rate, tries = 40, 120
		mustConfirm(t, n, 100, func(context.Context) error {
			pace := time.NewTicker(time.Second / rate)
			defer pace.Stop()
			var all sync.WaitGroup
			defer all.Wait()
			for range tries {
				from := httpFrom(t, newHost())
				all.Go(func() {
					if got := askOr(t.Context(), from, n); got != notAuthorized && !strings.HasPrefix(got, "503 ") {
						t.Error(got)
					}
				})
				<-pace.C
			}
			return nil
		})
	})
}

// TestHalfOpen: who does not log in is waited for as long as the handshake may
// take, however slowly they speak, and costs little memory.
func TestHalfOpen(t *testing.T) {
	long.Test(t)
	t.Parallel()
	const handshake = 10 * time.Second
	n := shared.mustGet(t).Nodes[1]
	slow := map[string]string{"silence": "", "an octet each second": client.ProtocolHeader + "\x01\x00\x00\x00\x00\x10\x00", "no tune-ok": "", "a heartbeat each second": "",
		"an octet of AMQP 1.0 each second": login10, "a login of AMQP 1.0 and no open": "", "an empty frame of AMQP 1.0 each second": ""}
	type ending struct {
		name string
		took time.Duration
		err  error
	}
	ends := make(chan ending, len(slow))
	began := time.Now()
	for name, sent := range slow {
		k, err := net.Dial("tcp", n.AMQP)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.Close() })
		switch name {
		case "no tune-ok":
			r := client.NewRaw(k)
			if _, err := r.Start("PLAIN", plain("guest", "guest")); err != nil {
				t.Fatal(err)
			}
		case "a heartbeat each second":
			if _, err := io.WriteString(k, client.ProtocolHeader); err != nil {
				t.Fatal(err)
			}
		case "a login of AMQP 1.0 and no open", "an empty frame of AMQP 1.0 each second":
			if _, err := io.WriteString(k, sasl10+header10); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for i := 0; ; i++ {
				if name == "a heartbeat each second" {
					_, _ = k.Write([]byte{8, 0, 0, 0, 0, 0, 0, 0xCE})
				} else if name == "an empty frame of AMQP 1.0 each second" {
					_, _ = io.WriteString(k, frame10(0, ""))
				} else if i < len(sent) {
					_, _ = io.WriteString(k, sent[i:i+1])
				}
				select {
				case <-tick.C:
				case <-t.Context().Done():
					return
				}
			}
		}()
		go func() {
			_ = k.SetReadDeadline(began.Add(patience))
			_, err := io.Copy(io.Discard, k)
			ends <- ending{name, time.Since(began), err}
		}()
	}
	attack(t, "login", "half-open connections, up to 10,000", func(t *testing.T) {
		// They must not time out before all of them are open.
		n := mustStart(t, cluster.Options{Nodes: 1, Args: []string{"--set", "handshake_timeout=600000"}}).Nodes[0]
		count := min(10_000, gauge(t, n, "quorate_listener_connections_max", `listener="amqp"`)/2-10)
		before, err := n.RSSBytes()
		if err != nil {
			t.Fatal(err)
		}
		all := mustOpen(t, count, newHost(), n.AMQP, client.ProtocolHeader)
		mustAwait(t, "all of them", func() (bool, error) {
			return gauge(t, n, "quorate_listener_connections", `listener="amqp"`, `state="pending"`) >= count, nil
		})
		if got := mustLogin(t, newHost(), n, "PLAIN", plain("guest", "guest")); got != "tune" {
			t.Errorf("a login meanwhile: %s", got)
		}
		held, err := n.RSSBytes()
		if err != nil || held-before > 200*mib {
			t.Errorf("%d connections take %d MiB, %v", count, (held-before)/mib, err)
		}
		t.Logf("%d connections take %d MiB", count, (held-before)/mib)
		for _, k := range all {
			k.Close()
		}
	})
	for range slow {
		e := <-ends
		attack(t, "login", "nothing but "+e.name, func(t *testing.T) {
			late, allowed := e.took-handshake, stall.Tolerance(machine.Longest(began))
			if timeout, ok := e.err.(net.Error); ok && timeout.Timeout() || late > allowed {
				t.Errorf("ends %v late, %v, allowed are %v", late, e.err, allowed)
			}
		})
	}
}
