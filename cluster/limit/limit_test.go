package limit

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"
)

// patience bounds how long a test waits for something that must happen.
const patience = time.Minute

// world is a listener below a limiter, and the connections that it has accepted.
type world struct {
	t       *testing.T
	limiter *Limiter
	at      string
	in      chan net.Conn
}

func newWorld(t *testing.T, c Config) *world {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	w := &world{t: t, limiter: New(c), in: make(chan net.Conn, 100)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.at = l.Addr().String()
	l = w.limiter.Listen(l)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			k, err := l.Accept()
			if err != nil {
				return
			}
			w.in <- k
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return w
}

func (w *world) mustDial(from string) net.Conn {
	w.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	k, err := d.Dial("tcp", w.at)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { k.Close() })
	return k
}

// mustEnter connects, and returns both ends.
func (w *world) mustEnter(from string) (outside, inside net.Conn) {
	w.t.Helper()
	outside = w.mustDial(from)
	select {
	case inside = <-w.in:
		return outside, inside
	case <-time.After(patience):
		w.t.Fatalf("the connection from %s is not let in: %+v", from, w.limiter.Status())
		return nil, nil
	}
}

// mustEnd reads a connection to its end.
func (w *world) mustEnd(outside net.Conn, answer string) {
	w.t.Helper()
	if err := outside.SetReadDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	got, err := io.ReadAll(outside)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) || string(got) != answer {
		w.t.Fatalf("%q, %v, want %q", got, err, answer)
	}
}

func (w *world) mustStand(want Status) {
	w.t.Helper()
	want.Name = w.limiter.config.Name
	if got := w.limiter.Status(); got != want {
		w.t.Fatalf("%+v, want %+v", got, want)
	}
}

const one, two = "127.0.0.1", "127.0.0.2"

// Connections above the limit are answered and closed; closing one frees its
// place, once.
func TestLimit(t *testing.T) {
	w := newWorld(t, Config{Name: "l", Max: 3, Answer: "no"})
	var inside net.Conn
	for range 3 {
		_, inside = w.mustEnter(one)
	}
	w.mustEnd(w.mustDial(one), "no")
	w.mustStand(Status{Open: 3, Pending: 3, Max: 3, Refused: 1})
	inside.Close()
	inside.Close()
	w.mustStand(Status{Open: 2, Pending: 2, Max: 3, Refused: 1})
	w.mustEnter(one)
	w.mustEnd(w.mustDial(one), "no")
}

// The address with the most connections loses its newest to other addresses, until
// they have as many.
func TestCrowdedAddress(t *testing.T) {
	w := newWorld(t, Config{Max: 4})
	var outside []net.Conn
	for range 4 {
		k, _ := w.mustEnter(one)
		outside = append(outside, k)
	}
	w.mustEnter(two)
	w.mustEnd(outside[3], "")
	w.mustEnter(two)
	w.mustEnd(outside[2], "")
	w.mustEnd(w.mustDial(two), "")
	w.mustEnd(w.mustDial(one), "")
	w.mustStand(Status{Open: 4, Pending: 4, Max: 4, Refused: 4})
}

// Connections that have not logged in have half of the places, and never take the
// place of one that has.
func TestLoggedIn(t *testing.T) {
	w := newWorld(t, Config{Max: 4, Logins: true})
	login := func(inside net.Conn) { inside.(interface{ LoggedIn() }).LoggedIn() }
	_, first := w.mustEnter(one)
	_, second := w.mustEnter(one)
	w.mustEnd(w.mustDial(one), "")
	login(first)
	login(first)
	login(second)
	w.mustStand(Status{Open: 2, Max: 4, Refused: 1})
	_, third := w.mustEnter(one)
	_, fourth := w.mustEnter(one)
	login(third)
	login(fourth)
	w.mustEnd(w.mustDial(two), "")
	w.mustStand(Status{Open: 4, Max: 4, Refused: 2})
	first.Close()
	login(first)
	w.mustStand(Status{Open: 3, Max: 4, Refused: 2})
	w.mustEnter(two)
}

func TestDivide(t *testing.T) {
	if _, err := Divide(127); err == nil {
		t.Error("a node with 127 files starts")
	}
	for _, files := range []int{128, 256, 300, 1024, 4096, 65536, maxFiles, 1 << 30} {
		s, err := Divide(files)
		if err != nil {
			t.Fatal(err)
		}
		if s.Clients < 8 || s.HTTP < 8 || s.Metrics < 4 || s.Links < 8 || s.Tables < 16 {
			t.Errorf("%d: too little for somebody: %+v", files, s)
		}
		if sum := s.Clients + s.HTTP + s.Metrics + s.Links + s.Tables + others; sum > files {
			t.Errorf("%d: %+v is %d", files, s, sum)
		}
	}
	if Smaller(0, 7) != 7 || Smaller(5, 7) != 5 || Smaller(9, 7) != 7 {
		t.Error("a setting is not the smaller of itself and the share")
	}
}
