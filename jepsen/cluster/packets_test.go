package cluster

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// mustPackets opens the links of two nodes in namespaces. The second one echoes what comes to
// port 4000.
func mustPackets(t *testing.T) *Links {
	t.Helper()
	l, err := newPacketLinks(2, 4000, 4001)
	if errors.Is(err, ErrNoNamespaces) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	var echo net.Listener
	if err := l.packets.hosts[2].within(func() (err error) {
		echo, err = net.Listen("tcp", l.address(1, 2))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l
}

func mustDialFrom(t *testing.T, l *Links, from int) net.Conn {
	t.Helper()
	c, err := l.packets.hosts[from].dial(l.address(from, 2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// arrivals sends numbered packets, one in each interval, and returns those that arrive, with
// the times that they took.
func arrivals(t *testing.T, l *Links, count, size int, every time.Duration) (numbers []int, took []time.Duration) {
	t.Helper()
	var from net.Conn
	var in net.PacketConn
	err := l.packets.hosts[2].within(func() (err error) {
		in, err = net.ListenPacket("udp", hostAddress(2)+":5000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	err = l.packets.hosts[1].within(func() (err error) {
		from, err = net.Dial("udp", hostAddress(2)+":5000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		bytes := make([]byte, size)
		for {
			n, _, err := in.ReadFrom(bytes)
			if err != nil || n < 12 {
				return
			}
			numbers = append(numbers, int(binary.BigEndian.Uint32(bytes)))
			took = append(took, time.Since(began)-time.Duration(binary.BigEndian.Uint64(bytes[4:])))
		}
	}()
	bytes := make([]byte, size)
	pace := time.NewTicker(every)
	defer pace.Stop()
	for k := range count {
		binary.BigEndian.PutUint32(bytes, uint32(k))
		binary.BigEndian.PutUint64(bytes[4:], uint64(time.Since(began)))
		if _, err := from.Write(bytes); err != nil {
			t.Fatal(err)
		}
		<-pace.C
	}
	_ = in.SetReadDeadline(time.Now().Add(time.Second))
	<-done
	return numbers, took
}

// Undisturbed packets all arrive, in order.
func TestPackets(t *testing.T) {
	l := mustPackets(t)
	numbers, _ := arrivals(t, l, 500, 200, 100*time.Microsecond)
	for i, n := range numbers {
		if n != i {
			t.Fatalf("packet %d arrives as number %d", n, i)
		}
	}
	if len(numbers) != 500 {
		t.Errorf("%d of 500 arrive", len(numbers))
	}
}

func TestLostPackets(t *testing.T) {
	l := mustPackets(t)
	const count, loss = 3000, 0.2
	l.Set(1, 2, Shape{Loss: loss})
	numbers, _ := arrivals(t, l, count, 200, 50*time.Microsecond)
	lost := float64(count-len(numbers)) / count
	t.Logf("%.3f of the packets are lost", lost)
	if lost < loss-0.05 || lost > loss+0.05 {
		t.Errorf("%.3f of the packets are lost, not %v", lost, loss)
	}
	l.Set(1, 2, Shape{Cut: true})
	if numbers, _ := arrivals(t, l, 10, 200, time.Millisecond); len(numbers) != 0 {
		t.Errorf("%d packets arrive through a cut", len(numbers))
	}
}

func TestDelayedPackets(t *testing.T) {
	l := mustPackets(t)
	const least, jitter = 200 * time.Millisecond, 100 * time.Millisecond
	l.Set(1, 2, Shape{Delay: least})
	numbers, took := arrivals(t, l, 100, 200, time.Millisecond)
	for i, d := range took {
		if d < least {
			t.Errorf("packet %d takes %v", numbers[i], d)
		}
		if numbers[i] != i {
			t.Errorf("packet %d arrives as number %d", numbers[i], i)
		}
	}
	l.Set(1, 2, Shape{Delay: least, Jitter: jitter})
	numbers, took = arrivals(t, l, 100, 200, time.Millisecond)
	overtaken, spread := 0, time.Duration(0)
	for i, d := range took {
		if d < least {
			t.Errorf("packet %d takes %v", numbers[i], d)
		}
		spread = max(spread, d-least)
		if i > 0 && numbers[i] < numbers[i-1] {
			overtaken++
		}
	}
	if len(numbers) != 100 || overtaken == 0 || spread < jitter/2 {
		t.Errorf("%d packets arrive, %d are overtaken, the slowest takes %v more", len(numbers), overtaken, spread)
	}
}

func TestReorderedPackets(t *testing.T) {
	l := mustPackets(t)
	l.Set(1, 2, Shape{Delay: 10 * time.Millisecond, Reorder: 0.2})
	numbers, _ := arrivals(t, l, 500, 200, time.Millisecond)
	early := 0
	for i := 1; i < len(numbers); i++ {
		if numbers[i] < numbers[i-1] {
			early++
		}
	}
	if t.Logf("%d of %d packets come after a later one", early, len(numbers)); len(numbers) != 500 || early < 20 {
		t.Errorf("%d packets arrive, %d come after a later one", len(numbers), early)
	}
}

func TestSlowPackets(t *testing.T) {
	l := mustPackets(t)
	const rate, size = 1 << 20, 512 << 10
	c := mustDialFrom(t, l, 1)
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
}

// Connections are refused, reset, silent and half open as those through proxies are.
func TestConnectionsOfPackets(t *testing.T) {
	l := mustPackets(t)
	must := func(c net.Conn) net.Conn {
		t.Helper()
		if err := echoed(c, time.Minute); err != nil {
			t.Fatal(err)
		}
		return c
	}
	broken := func(what string, c net.Conn) {
		t.Helper()
		if err := echoed(c, time.Minute); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	silent := func(what string, c net.Conn) {
		t.Helper()
		if err := echoed(c, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	other := must(mustDialFrom(t, l, Clients))

	c := must(mustDialFrom(t, l, 1))
	l.Refuse(1, 2)
	broken("refused", c)
	if _, err := l.packets.hosts[1].dial(l.address(1, 2)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v", err)
	}
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}

	c = must(mustDialFrom(t, l, 1))
	l.Reset(1, 2)
	broken("reset", c)
	c = must(mustDialFrom(t, l, 1))

	l.Stall(1, 2)
	silent("stalled", c)
	must(mustDialFrom(t, l, 1))
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("healed: %v", err)
	}

	l.HalfOpen(1, 2)
	silent("half open", c)
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}
	broken("half open and healed", c)
	must(other)
}
