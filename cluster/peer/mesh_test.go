package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const (
	testMessage = FirstKind + iota
	testEcho
	testHang
)

// onBoth runs a test in memory and over loopback TCP.
func onBoth(t *testing.T, f func(t *testing.T, tcp bool)) {
	t.Run("memory", func(t *testing.T) { f(t, false) })
	t.Run("tcp", func(t *testing.T) { f(t, true) })
}

type received struct {
	from          string
	head, payload []byte
}

func collect(ch chan received) func(*member) {
	return func(m *member) {
		m.Handle(testMessage, func(from string, head, payload []byte) {
			ch <- received{from, head, payload}
		})
	}
}

func TestMessagesArriveInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		const count = 5000
		c := newCluster(t, tcp, 3, nil)
		inboxes := map[string]chan received{}
		c.startAll(func(m *member) {
			inboxes[m.name] = make(chan received, 2*count)
			collect(inboxes[m.name])(m)
		})
		for _, from := range c.members {
			for to := range c.members {
				if to == from.name {
					continue
				}
				go func() {
					for i := range uint64(count) {
						head := binary.BigEndian.AppendUint64(nil, i)
						payload := bytes.Repeat([]byte{byte(i)}, int(i%100))
						if i%500 == 0 { // long enough to travel by reference
							payload = bytes.Repeat([]byte{byte(i)}, copyLimit+int(i))
						}
						if err := from.Send(to, testMessage, head, payload[:len(payload)/2], payload[len(payload)/2:]); err != nil {
							t.Error(err)
							return
						}
					}
				}()
			}
		}
		for to := range c.members {
			next := map[string]uint64{}
			for range 2 * count {
				r := mustReceive(t, inboxes[to], "message")
				i := binary.BigEndian.Uint64(r.head)
				want := int(i % 100)
				if i%500 == 0 {
					want = copyLimit + int(i)
				}
				if i != next[r.from] || len(r.payload) != want || bytes.Count(r.payload, []byte{byte(i)}) != want {
					t.Fatalf("%s from %s: message %d with %d bytes, want %d with %d", to, r.from, i, len(r.payload), next[r.from], want)
				}
				next[r.from]++
			}
		}
		for _, m := range c.members {
			for _, p := range m.Peers() {
				if p.Sent < count {
					t.Errorf("%s has sent %d frames to %s", m.name, p.Sent, p.Node)
				}
			}
		}
	})
}

func TestSendRefusals(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	m := c.members["n1"]
	if err := m.Send("n1", testMessage, nil); !errors.Is(err, ErrUnknownNode) {
		t.Errorf("to itself: %v", err)
	}
	if err := m.Send("n9", testMessage, nil); !errors.Is(err, ErrUnknownNode) {
		t.Errorf("to a stranger: %v", err)
	}
	if err := m.Send("n2", testMessage, nil, make([]byte, MaxMessage)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	c.members["n2"].Close()
	mustEvent(t, m, isDown("n2"), "down")
	if err := m.Send("n2", testMessage, nil); !errors.Is(err, ErrDown) {
		t.Errorf("to a dead node: %v", err)
	}
	if m.HasMajority([]string{"n1", "n2"}) || !m.HasMajority([]string{"n1"}) {
		t.Error("majority is wrong")
	}
}

func TestLargestMessage(t *testing.T) {
	c := newCluster(t, true, 2, nil)
	inbox := make(chan received, 1)
	c.startAll(collect(inbox))
	payload := bytes.Repeat([]byte("0123456789abcdef"), MaxMessage/16-2)
	if err := c.members["n1"].Send("n2", testMessage, []byte("head"), payload); err != nil {
		t.Fatal(err)
	}
	r := mustReceive(t, inbox, "large message")
	if string(r.head) != "head" || !bytes.Equal(r.payload, payload) {
		t.Fatal("large message is damaged")
	}
}

func echo(m *member) {
	m.HandleCall(testEcho, func(_ context.Context, from string, req []byte) ([]byte, error) {
		if string(req) == "fail" {
			return nil, errors.New("asked to fail")
		}
		return append([]byte(from+" "), req...), nil
	})
}

func TestCall(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		c := newCluster(t, tcp, 2, nil)
		c.startAll(echo)
		m := c.members["n1"]
		ctx := t.Context()
		big := strings.Repeat("x", 1<<20)
		for _, req := range []string{"", "hello", big} {
			reply, err := m.Call(ctx, "n2", testEcho, []byte(req))
			if err != nil || string(reply) != "n1 "+req {
				t.Fatalf("%d bytes: %d bytes, %v", len(req), len(reply), err)
			}
		}
		const calls = 200
		for range calls {
			if _, err := m.Call(ctx, "n2", testEcho, nil); err != nil {
				t.Fatal(err)
			}
		}
		if sent := c.members["n2"].Peers()[0].Sent; sent < calls {
			t.Errorf("n2 has sent %d frames, its answers among them", sent)
		}
		_, err := m.Call(ctx, "n2", testEcho, []byte("fail"))
		var remote *RemoteError
		if !errors.As(err, &remote) || remote.Node != "n2" || remote.Text != "asked to fail" || errors.Unwrap(err) != nil {
			t.Fatalf("refusal: %v", err)
		}
		if _, err := m.Call(ctx, "n2", testEcho+100, nil); !errors.Is(err, ErrNoHandler) {
			t.Fatalf("no handler: %v", err)
		}
	})
}

func TestCallsAreBoundedAndCancelled(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	started := make(chan struct{}, callsPerPeer)
	ended := make(chan struct{}, callsPerPeer)
	c.startAll(func(m *member) {
		echo(m)
		m.HandleCall(testHang, func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
			started <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return nil, ctx.Err()
		})
	})
	m := c.members["n1"]
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, callsPerPeer)
	for range callsPerPeer {
		go func() {
			_, err := m.Call(ctx, "n2", testHang, nil)
			results <- err
		}()
	}
	for range callsPerPeer {
		mustReceive(t, started, "call")
	}
	if _, err := m.Call(t.Context(), "n2", testEcho, nil); !errors.Is(err, ErrBusy) {
		t.Fatalf("one call too many: %v", err)
	}
	cancel()
	for range callsPerPeer {
		if err := mustReceive(t, results, "result"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	c.net.cut("n1", c.addrs["n2"]) // the handlers' context ends with the link
	for range callsPerPeer {
		mustReceive(t, ended, "end of a handler")
	}
	mustWait(t, func() bool {
		_, err := m.Call(t.Context(), "n2", testEcho, nil)
		return err == nil
	}, "calls do not recover")
}

// A link that replaces another one does not overtake what came over that: a
// message that is still being handled is before those of the new link.
func TestNewLinkWaitsForTheOldOne(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		c := newCluster(t, tcp, 2, nil)
		entered, release := make(chan byte, 2), make(chan struct{})
		c.startAll(func(m *member) {
			m.Handle(testMessage, func(_ string, head, _ []byte) {
				entered <- head[0]
				<-release
			})
		})
		m, other := c.members["n1"], c.members["n2"]
		send := func(b byte) {
			c.mustUp(m, "n2")
			if err := m.Send("n2", testMessage, []byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		first := mustEvent(t, other, isUp("n1"), "up")
		send(1)
		if got := mustReceive(t, entered, "the first message"); got != 1 {
			t.Fatalf("message %d is first", got)
		}
		c.net.cut("n1", c.addrs["n2"])
		if again := mustEvent(t, other, isUp("n1"), "up again"); again.Epoch <= first.Epoch {
			t.Fatalf("after %+v came %+v", first, again)
		}
		send(2)
		select {
		case b := <-entered:
			t.Errorf("message %d is handled while the first one is", b)
		case <-time.After(300 * time.Millisecond): // it has every chance to be
		}
		close(release)
		if got := mustReceive(t, entered, "the second message"); got != 2 {
			t.Errorf("message %d is second", got)
		}
	})
}

func TestBrokenLinkFailsCallsAndComesBack(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		c := newCluster(t, tcp, 2, nil)
		started := make(chan struct{}, 1)
		c.startAll(func(m *member) {
			m.HandleCall(testHang, func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
				started <- struct{}{}
				<-ctx.Done()
				return nil, nil
			})
		})
		m := c.members["n1"]
		first := mustEvent(t, m, isUp("n2"), "up")
		result := make(chan error, 1)
		go func() {
			_, err := m.Call(context.Background(), "n2", testHang, nil)
			result <- err
		}()
		mustReceive(t, started, "call")
		c.net.cut("n1", c.addrs["n2"])
		if err := mustReceive(t, result, "end of the call"); !errors.Is(err, ErrBroken) {
			t.Fatalf("pending call: %v", err)
		}
		again := mustEvent(t, m, func(ev Event) bool { return ev.Node == "n2" }, "up again")
		if !again.Up || again.Epoch <= first.Epoch || again.Incarnation != first.Incarnation {
			t.Fatalf("after %+v came %+v", first, again)
		}
		// The other side learns that what n1 sent may be lost.
		other := c.members["n2"]
		up := mustEvent(t, other, isUp("n1"), "up")
		if ev := mustEvent(t, other, isUp("n1"), "up again"); ev.Epoch <= up.Epoch {
			t.Fatalf("after %+v came %+v", up, ev)
		}
	})
}

func TestRefusedNodeIsDownSoon(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		c := newCluster(t, tcp, 3, func(cfg *Config) { cfg.SuspectAfter = time.Minute })
		c.startAll(nil)
		start := time.Now()
		c.members["n3"].Close()
		for _, name := range []string{"n1", "n2"} {
			m := c.members[name]
			ev := mustEvent(t, m, isDown("n3"), "down")
			if ev.Reason != Refused || ev.Incarnation != c.configs["n3"].Incarnation {
				t.Errorf("%s: %+v", name, ev)
			}
			if m.Alive("n3") || !m.HasMajority([]string{"n1", "n2", "n3"}) || m.HasMajority([]string{"n1", "n3"}) {
				t.Errorf("%s: wrong about who is alive", name)
			}
		}
		if d := time.Since(start); d < c.members["n1"].cfg.RefusedAfter {
			t.Errorf("declared dead after %v only", d)
		}
		m := c.restart("n3", nil)
		for _, name := range []string{"n1", "n2"} {
			ev := mustEvent(t, c.members[name], isUp("n3"), "up again")
			if ev.Incarnation != m.cfg.Incarnation {
				t.Errorf("%s: %+v", name, ev)
			}
		}
	})
}

func TestUnheardNodeIsDown(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		const unheard = 1500 * time.Millisecond
		c := newCluster(t, tcp, 2, func(cfg *Config) {
			cfg.SuspectAfter = unheard
			cfg.PingInterval = 50 * time.Millisecond
		})
		c.startAll(nil)
		m := c.members["n1"]
		first := mustEvent(t, m, isUp("n2"), "up")
		start := time.Now()
		c.net.setDeaf(c.addrs["n2"], true)
		ev := mustEvent(t, m, isDown("n2"), "down")
		if ev.Reason != Suspected || ev.Epoch != first.Epoch {
			t.Errorf("%+v", ev)
		}
		if d := time.Since(start); d < unheard/2 {
			t.Errorf("declared dead after %v", d)
		}
		c.net.setDeaf(c.addrs["n2"], false)
		if up := mustEvent(t, m, isUp("n2"), "up again"); up.Epoch <= ev.Epoch {
			t.Errorf("after %+v came %+v", ev, up)
		}
	})
}

// TestFrozenNodeIsDown lets a node freeze whose connection takes no more
// bytes. That is noticed as soon as with any other node: a connection's farewell, which
// cannot be written, is not waited for.
func TestFrozenNodeIsDown(t *testing.T) {
	c := newCluster(t, false, 2, func(cfg *Config) {
		cfg.SuspectAfter = 400 * time.Millisecond
		cfg.PingInterval = 50 * time.Millisecond
	})
	c.net.full = true
	c.startAll(nil)
	m := c.members["n1"]
	mustEvent(t, m, isUp("n2"), "up")
	const farewell = 5 * time.Second // gRPC's patience
	soonest := time.Hour
	for range 5 { // a busy machine may be late as well
		start := time.Now()
		c.net.setDeaf(c.addrs["n2"], true)
		mustEvent(t, m, isDown("n2"), "down")
		soonest = min(soonest, time.Since(start))
		c.net.setDeaf(c.addrs["n2"], false)
		mustEvent(t, m, isUp("n2"), "up again")
		if soonest < farewell {
			return
		}
	}
	t.Errorf("declared dead after %v", soonest)
}

// Nodes whose connections take longer than the first attempt to dial is given
// find each other all the same.
func TestSlowConnectionIsWaitedFor(t *testing.T) {
	const unheard = 400 * time.Millisecond
	c := newCluster(t, false, 2, func(cfg *Config) {
		cfg.SuspectAfter = unheard
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			select {
			case <-time.After(unheard):
				return dial(ctx, addr)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	c.startAll(nil)
}

func TestQuickRestartIsNoticed(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		// Refusals prove nothing here, so only the incarnation can tell.
		c := newCluster(t, tcp, 2, func(cfg *Config) { cfg.RefusedAfter, cfg.SuspectAfter = time.Minute, time.Minute })
		c.startAll(nil)
		m := c.members["n1"]
		first := mustEvent(t, m, isUp("n2"), "up")
		c.members["n2"].Close()
		c.restart("n2", nil)
		down := mustEvent(t, m, isDown("n2"), "down")
		if down.Reason != Restarted || down.Incarnation != first.Incarnation {
			t.Errorf("%+v", down)
		}
		up := mustEvent(t, m, isUp("n2"), "up")
		if up.Incarnation == first.Incarnation || up.Epoch <= down.Epoch {
			t.Errorf("after %+v came %+v", down, up)
		}
	})
}

func TestBacklogOverflow(t *testing.T) {
	c := newCluster(t, false, 2, func(cfg *Config) { cfg.SuspectAfter = time.Minute })
	release := make(chan struct{})
	c.startAll(func(m *member) {
		m.Handle(testMessage, func(string, []byte, []byte) { <-release })
	})
	defer close(release)
	m := c.members["n1"]
	payload := make([]byte, 1<<20)
	sent := 0
	var err error
	for ; err == nil && sent < 1000; sent++ {
		err = m.Send("n2", testMessage, nil, payload)
	}
	if !errors.Is(err, ErrBacklog) {
		t.Fatalf("after %d MiB: %v", sent, err)
	}
	if sent < maxBacklog>>20 {
		t.Errorf("refused after %d MiB", sent)
	}
	if b := m.Peers()[0].Backlog; b < maxBacklog-8<<20 || b > maxBacklog+1<<20 {
		t.Errorf("backlog of %d bytes", b)
	}
}

func TestHelloRefusals(t *testing.T) {
	for _, tc := range []struct {
		name string
		tune func(*Config)
	}{
		{"other cluster", func(cfg *Config) { cfg.Cluster = "elsewhere" }},
		{"unknown node", func(cfg *Config) { cfg.Node = "stranger" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, false, 2, nil)
			cfg := c.configs["n2"]
			tc.tune(&cfg)
			c.configs["n2"] = cfg
			m, other := c.create("n1"), c.create("n2")
			m.Start()
			other.Start()
			for _, l := range []*member{m, other} {
				p := l.sortedPeers()[0]
				mustWait(t, func() bool {
					p.mu.Lock()
					defer p.mu.Unlock()
					return len(p.logged) > 0
				}, "%s has no complaint", l.name)
				if p.link.Load() != nil || p.isAlive() {
					t.Errorf("%s has a link", l.name)
				}
			}
		})
	}
}

func TestAddAndRemovePeer(t *testing.T) {
	c := newCluster(t, false, 3, func(cfg *Config) { cfg.SuspectAfter = 2 * time.Second })
	c.startAll(nil)
	m := c.members["n1"]
	m.RemovePeer("n2")
	if ev := mustEvent(t, m, isDown("n2"), "removed"); ev.Reason != Removed {
		t.Fatalf("%+v", ev)
	}
	if _, err := m.Call(t.Context(), "n2", testEcho, nil); !errors.Is(err, ErrUnknownNode) {
		t.Fatal(err)
	}
	mustEvent(t, c.members["n2"], isDown("n1"), "refused by who removed it")
	if err := m.AddPeer("n2", c.addrs["n2"]); err != nil {
		t.Fatal(err)
	}
	c.mustUp(m, "n2")
	c.mustUp(c.members["n2"], "n1")
	if err := m.AddPeer("n1", "somewhere"); err == nil {
		t.Fatal("a node is its own peer")
	}
	m.RemovePeer("n2")
	mustEvent(t, m, isDown("n2"), "removed")
	if err := m.AddPeer("n2", c.addrs["n3"], "127.0.0.1:1", c.addrs["n2"]); err != nil {
		t.Fatal(err)
	}
	c.mustUp(m, "n2") // it is found at whichever address it is
	c.mustUp(c.members["n2"], "n1")
}

// Being refused where a node has never been proves nothing about it.
func TestRefusalElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Logger: slog.New(slog.DiscardHandler)}
		cfg.setDefaults()
		m := &Mesh{cfg: cfg, log: cfg.Logger, ctx: t.Context()}
		m.events.init()
		p := newPeer(m, "n2", []string{"here", "there"})
		p.live.linked([16]byte{1})
		p.live.lostAt = time.Now()
		here, there := p.addresses.all[0], p.addresses.all[1]
		p.addresses.reached(here)
		for range 10 {
			p.notReached(there, syscall.ECONNREFUSED, 0)
			time.Sleep(100 * time.Millisecond)
		}
		if !p.isAlive() || p.refusedFor() != 0 {
			t.Errorf("alive %v, refused for %v", p.isAlive(), p.refusedFor())
		}
		for range 5 {
			p.notReached(here, syscall.ECONNREFUSED, 0)
			time.Sleep(100 * time.Millisecond)
		}
		if p.isAlive() {
			t.Error("it is alive though its host refuses")
		}
		p.setAddresses([]string{"there"})
		if a, _ := p.address(); p.addresses.linked != "" || a != there {
			t.Errorf("it is tried at %+v, was at %q", a, p.addresses.linked)
		}
	})
}

func TestWatchStartsWithWhoIsUp(t *testing.T) {
	c := newCluster(t, false, 3, nil)
	c.startAll(nil)
	late := make(chan Event, 100)
	c.members["n1"].Watch(func(ev Event) { late <- ev })
	seen := map[string]bool{}
	for len(seen) < 2 {
		ev := mustReceive(t, late, "event")
		if !ev.Up {
			t.Fatalf("%+v", ev)
		}
		seen[ev.Node] = true
	}
	c.members["n2"].Close()
	for ev := mustReceive(t, late, "down"); ev.Up || ev.Node != "n2"; ev = mustReceive(t, late, "down") {
	}
}

func TestNewRefusesIncompleteConfig(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i, cfg := range []Config{
		{Listener: l, Incarnation: nextIncarnation()},
		{Node: "n1", Incarnation: nextIncarnation()},
		{Node: "n1", Listener: l},
		{Node: "n1", Listener: l, Incarnation: nextIncarnation(), Peers: map[string]string{"n1": "x"}},
	} {
		if _, err := New(cfg); err == nil {
			t.Error(fmt.Sprint("accepted: ", i))
		}
	}
}

func TestCloseBeforeStart(t *testing.T) {
	c := newCluster(t, false, 1, nil)
	m := c.create("n1")
	for range 2 {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.AddPeer("n2", "x"); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}
