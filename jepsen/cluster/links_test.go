package cluster

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// mustLinks opens the links of two nodes that echo what they receive.
func mustLinks(t *testing.T) *Links {
	t.Helper()
	base, guard, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guard.Close() })
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	l, err := newLinks(2, base+portOffsets[3], func(int, int) string { return echo.Addr().String() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

func mustDial(t *testing.T, l *Links, from, to int) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.address(from, to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// echoed sends a byte and waits for its echo.
func echoed(c net.Conn, patience time.Duration) error {
	if _, err := c.Write([]byte{7}); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, err := c.Read(make([]byte, 1))
	return err
}

func TestRefusedLink(t *testing.T) {
	l := mustLinks(t)
	there, back := mustDial(t, l, 1, 2), mustDial(t, l, 2, 1)
	if err := echoed(there, time.Minute); err != nil {
		t.Fatal(err)
	}
	l.Refuse(1, 2)
	l.Refuse(1, 2)
	if err := echoed(there, time.Minute); err == nil {
		t.Error("an open connection lives on")
	}
	if _, err := net.Dial("tcp", l.address(1, 2)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v", err)
	}
	if err := echoed(back, time.Minute); err != nil {
		t.Errorf("the other direction: %v", err)
	}
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := echoed(mustDial(t, l, 1, 2), time.Minute); err != nil {
		t.Errorf("after it has healed: %v", err)
	}
}

// A cut concerns the direction of bytes, whichever node dialled, and loses none.
func TestCutLink(t *testing.T) {
	l := mustLinks(t)
	for _, dialled := range []pair{{1, 2}, {2, 1}} {
		c := mustDial(t, l, dialled.from, dialled.to)
		l.Cut(1, 2)
		if err := echoed(c, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v: %v", dialled, err)
		}
		if err := l.Heal(); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Errorf("%v, healed: %v", dialled, err)
		}
	}
}

func TestDelayedLink(t *testing.T) {
	l := mustLinks(t)
	c := mustDial(t, l, 1, 2)
	l.Delay(1, 2, 30*time.Millisecond)
	l.Delay(2, 1, 30*time.Millisecond)
	began := time.Now()
	if err := echoed(c, time.Minute); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 60*time.Millisecond {
		t.Errorf("there and back in %v", took)
	}
}

// A way with a rate carries no more, whatever is sent, and none of it is lost.
func TestSlowLink(t *testing.T) {
	l := mustLinks(t)
	const rate, size = 1 << 20, 256 << 10
	c := mustDial(t, l, 1, 2)
	l.Set(1, 2, Shape{Rate: rate})
	began := time.Now()
	go func() { _, _ = c.Write(make([]byte, size)) }()
	_ = c.SetReadDeadline(began.Add(time.Minute))
	if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < size*time.Second/rate {
		t.Errorf("%d bytes in %v, at %d a second", size, took, rate)
	}
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}
}

// Jitter delays each byte anew, and changes their order in no stream.
func TestJitteringLink(t *testing.T) {
	l := mustLinks(t)
	c := mustDial(t, l, 1, 2)
	const least, most, tries = 20 * time.Millisecond, 60 * time.Millisecond, 12
	l.Set(1, 2, Shape{Delay: least, Jitter: most - least})
	var shortest, longest time.Duration
	for i := range tries {
		began := time.Now()
		if err := echoed(c, time.Minute); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		if longest = max(longest, took); i == 0 || took < shortest {
			shortest = took
		}
	}
	if shortest < least || longest-shortest < (most-least)/4 {
		t.Errorf("there and back in %v to %v", shortest, longest)
	}
}

// A stall concerns the connections that are open; their bytes arrive later.
func TestStalledConnections(t *testing.T) {
	l := mustLinks(t)
	c := mustDial(t, l, 1, 2)
	if err := echoed(c, time.Minute); err != nil {
		t.Fatal(err)
	}
	l.Stall(1, 2)
	if err := echoed(c, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("stalled: %v", err)
	}
	if err := echoed(mustDial(t, l, 1, 2), time.Minute); err != nil {
		t.Errorf("a new connection: %v", err)
	}
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("healed: %v", err)
	}
}

// A half-open connection is silent for who dialled it, until it is healed: then it is gone.
func TestHalfOpenConnections(t *testing.T) {
	l := mustLinks(t)
	c := mustDial(t, l, Clients, 2)
	if err := echoed(c, time.Minute); err != nil {
		t.Fatal(err)
	}
	l.HalfOpen(Clients, 2)
	for range 2 {
		if err := echoed(c, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("half open: %v", err)
		}
	}
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := echoed(c, time.Minute); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("healed: %v", err)
	}
}

// A reset ends what is open, and nothing else.
func TestResetConnections(t *testing.T) {
	l := mustLinks(t)
	c, other := mustDial(t, l, 1, 2), mustDial(t, l, 2, 1)
	for _, c := range []net.Conn{c, other} {
		if err := echoed(c, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	l.Reset(1, 2)
	if err := echoed(c, time.Minute); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reset: %v", err)
	}
	for _, c := range []net.Conn{mustDial(t, l, 1, 2), other} {
		if err := echoed(c, time.Minute); err != nil {
			t.Errorf("another connection: %v", err)
		}
	}
}

// One end does not learn that the other is gone while nothing arrives from there.
func TestEndBehindACut(t *testing.T) {
	l := mustLinks(t)
	c := mustDial(t, l, 1, 2)
	if err := echoed(c, time.Minute); err != nil {
		t.Fatal(err)
	}
	l.Cut(2, 1)
	way := l.carrier.(proxies)[pair{1, 2}]
	way.mu.Lock()
	for p := range way.conns {
		reset(p.target)
	}
	way.mu.Unlock()
	for range 3 {
		if err := echoed(c, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("behind a cut: %v", err)
		}
	}
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}
}
