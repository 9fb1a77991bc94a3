package peer

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// lateConn is a connection on which everything takes so long, both ways.
type lateConn struct {
	net.Conn
	late    *atomic.Int64
	in, out chan lateBytes
	rest    []byte
	err     error
	once    sync.Once
	gone    chan struct{}
}

type lateBytes struct {
	due  time.Time
	data []byte
	err  error
}

func newLateConn(c net.Conn, late *atomic.Int64) *lateConn {
	l := &lateConn{Conn: c, late: late, in: make(chan lateBytes, 4096), out: make(chan lateBytes, 4096), gone: make(chan struct{})}
	go func() {
		for err := error(nil); err == nil; {
			var n int
			data := make([]byte, 32<<10)
			n, err = c.Read(data)
			l.pass(l.in, data[:n], err)
		}
	}()
	go func() {
		for {
			x, ok := l.take(l.out)
			if !ok {
				return
			}
			if _, err := c.Write(x.data); err != nil {
				return
			}
		}
	}()
	return l
}

// pass gives bytes to one end of the way, and reports whether there still is one.
func (l *lateConn) pass(to chan lateBytes, data []byte, err error) bool {
	select {
	case to <- lateBytes{time.Now().Add(time.Duration(l.late.Load())), data, err}:
		return true
	case <-l.gone:
		return false
	}
}

// take takes them at the other end when they are due.
func (l *lateConn) take(from chan lateBytes) (x lateBytes, ok bool) {
	select {
	case x = <-from:
	case <-l.gone:
		return x, false
	}
	select {
	case <-time.After(time.Until(x.due)):
		return x, true
	case <-l.gone:
		return x, false
	}
}

func (l *lateConn) Read(p []byte) (int, error) {
	for len(l.rest) == 0 && l.err == nil {
		x, ok := l.take(l.in)
		if !ok {
			return 0, io.EOF
		}
		l.rest, l.err = x.data, x.err
	}
	n := copy(p, l.rest)
	if l.rest = l.rest[n:]; n == 0 {
		return 0, l.err
	}
	return n, nil
}

func (l *lateConn) Write(p []byte) (int, error) {
	if !l.pass(l.out, append([]byte(nil), p...), nil) {
		return 0, net.ErrClosed
	}
	return len(p), nil
}

func (l *lateConn) Close() error {
	l.once.Do(func() { close(l.gone) })
	return l.Conn.Close()
}

// newFarPair creates n1 and n2 without starting them. Each way between them takes as long as late says;
// nobody listens at the address "stale".
func newFarPair(t *testing.T, late *atomic.Int64) (n1, n2 *member) {
	t.Helper()
	c := newCluster(t, false, 2, func(cfg *Config) {
		cfg.SuspectAfter = 0 // the default
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == "stale" {
				return nil, syscall.ECONNREFUSED
			}
			conn, err := dial(ctx, addr)
			if err != nil {
				return nil, err
			}
			return newLateConn(conn, late), nil
		}
	})
	return c.create("n1"), c.create("n2")
}

// mustLink starts two nodes and returns how long it takes until one has a link to the other.
func mustLink(t *testing.T, n1, n2 *member) (took time.Duration) {
	t.Helper()
	began := time.Now()
	n1.Start()
	n2.Start()
	for !n1.Peers()[0].Linked {
		if took = time.Since(began); took > time.Minute {
			t.Fatal("no link after a minute")
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// A node that is far is linked within seconds, whether or not nobody listens any more at another address
// of it.
func TestFarNodeWithStaleAddress(t *testing.T) {
	for name, addrs := range map[string][]string{"one address": {"n2"}, "and a stale one": {"stale", "n2"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var late atomic.Int64
				late.Store(int64(500 * time.Millisecond))
				n1, n2 := newFarPair(t, &late)
				if err := n1.AddPeer("n2", addrs...); err != nil {
					t.Fatal(err)
				}
				took := mustLink(t, n1, n2)
				t.Logf("linked after %v", took)
				if took > 12*time.Second {
					t.Errorf("linked after %v", took)
				}
				n1.Close()
				n2.Close()
			})
		})
	}
}

// A node whose link breaks is given the slack of that link before it is declared dead, which would end the
// link that it may have got meanwhile.
func TestLateRedial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Int64
		n1, n2 := newFarPair(t, &late)
		mustLink(t, n1, n2)
		const slack = 2 * time.Second
		late.Store(int64(time.Hour))
		n1.peer("n2").slack.Store(int64(slack))
		n1.peer("n2").link.Load().cancel(ErrBroken)
		time.Sleep(n1.cfg.SuspectAfter + slack - time.Millisecond)
		if !n1.Alive("n2") {
			t.Error("declared dead too early")
		}
		time.Sleep(10 * time.Second)
		if n1.Alive("n2") {
			t.Error("not declared dead")
		}
		n1.Close()
		n2.Close()
	})
}

// A link to a node a second away rests without being found silent, and when it breaks it is back by
// the first attempt: how long that takes is known then.
func TestFarLinkStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Int64
		late.Store(int64(500 * time.Millisecond))
		n1, n2 := newFarPair(t, &late)
		mustLink(t, n1, n2)
		epoch := n1.Peers()[0].Epoch
		time.Sleep(time.Minute)
		if s := n1.Peers()[0]; s.Epoch != epoch || !s.Linked {
			t.Errorf("a link at rest broke: %+v", s)
		}
		if slack := n1.Slack("n2"); slack < time.Second || slack > 1200*time.Millisecond {
			t.Errorf("a slack of %v for a round trip of 1 s", slack)
		}
		if slack := n1.Slack("n1", "n2", "n3"); slack != 0 {
			t.Errorf("a slack of %v where a majority is near", slack)
		}
		if far, near := n1.RoundTrip("n1", "n2"), n1.RoundTrip("n1", "n2", "n3"); far != time.Second || near != 0 {
			t.Errorf("round trips of %v and %v", far, near)
		}
		broke := time.Now()
		n1.peer("n2").link.Load().cancel(ErrBroken)
		time.Sleep(time.Second)
		for !n1.Peers()[0].Linked && time.Since(broke) < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(broke); took > 2500*time.Millisecond {
			t.Errorf("linked again after %v", took)
		}
		frozen := time.Now()
		late.Store(int64(time.Hour))
		for n1.Alive("n2") && time.Since(frozen) < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(frozen); took > 3*time.Second {
			t.Errorf("noticed after %v", took)
		}
		n1.Close()
		n2.Close()
	})
}

// A leader whose members are all a second away has signs of life of them as often as one whose members are
// near, and soon none when they are gone.
func TestFarHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Int64
		late.Store(int64(500 * time.Millisecond))
		n1, n2 := newFarPair(t, &late)
		done := make(chan struct{})
		defer close(done)
		for _, m := range []*member{n1, n2} {
			tr := m.Transport(1)
			go func() {
				for {
					select {
					case rpc := <-tr.Consumer():
						rpc.Respond(&raft.AppendEntriesResponse{Term: rpc.Command.(*raft.AppendEntriesRequest).Term, Success: true}, nil)
					case <-done:
						return
					}
				}
			}()
			m.Prompt(1)
		}
		mustLink(t, n1, n2)
		header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1"), Addr: []byte("n1")}
		var last time.Time
		beat := func(term uint64) {
			time.Sleep(150 * time.Millisecond)
			var resp raft.AppendEntriesResponse
			err := n1.Mesh.groups.find(1).AppendEntries("n2", "n2", &raft.AppendEntriesRequest{RPCHeader: header, Term: term}, &resp)
			if err == nil && resp.Success {
				last = time.Now()
			}
		}
		for _, term := range []uint64{5, 6} {
			last = time.Now()
			for range 50 {
				before := last
				if beat(term); last.Sub(before) > 300*time.Millisecond {
					t.Fatalf("no sign of life for %v in term %d", last.Sub(before), term)
				}
			}
		}
		gone := time.Now()
		late.Store(int64(time.Hour))
		for n1.Alive("n2") {
			beat(6)
		}
		if after := last.Sub(gone); after > 2200*time.Millisecond {
			t.Errorf("there were signs of life %v after the last one", after)
		}
		n1.Close()
		n2.Close()
	})
}
