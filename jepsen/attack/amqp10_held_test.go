package attack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// blind sends what write writes to a node after a login and does not look at what comes back, except for what f is called
// for; then it waits until the node has done all of it. A sink answers nothing.
func blind(addr string, sink bool, write func(w io.Writer) error, f func(answer10)) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	done := make(chan error, 1)
	go func() {
		if sink {
			_, err := io.Copy(io.Discard, conn)
			done <- err
			return
		}
		done <- read10(conn, func(a answer10) bool {
			f(a)
			return a.code == close10
		})
	}()
	w := bufio.NewWriterSize(conn, 1<<16)
	if _, err = w.WriteString(login10); err == nil {
		err = write(w)
	}
	if err == nil {
		_, err = w.WriteString(frame10(0, composite10(close10)))
	}
	err = errors.Join(err, w.Flush())
	if sink {
		return err
	}
	answered := <-done
	if err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") && !strings.Contains(err.Error(), "broken pipe") {
		return err // otherwise the node has hung up, which it may
	}
	if late, ok := errors.AsType[net.Error](answered); ok && late.Timeout() {
		return errors.New("the node neither answers nor hangs up")
	}
	return nil
}

// repeat writes something many times.
func repeat(times int, text func(i int) string) func(w io.Writer) error {
	return func(w io.Writer) error {
		for i := range times {
			if _, err := io.WriteString(w, text(i)); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestHeld10: what a client of AMQP 1.0 makes a node hold, or do, is bounded, and others are served meanwhile.
func TestHeld10(t *testing.T) {
	long.Test(t)
	t.Parallel()
	const fanout = "/exchanges/amq.fanout"
	for name, a := range map[string]struct {
		write func(w io.Writer) error
		told  string // a condition that some answer names
	}{
		"empty frames":       {write: repeat(1_000_000, func(int) string { return frame10(0, "") })},
		"sessions in a loop": {write: repeat(20_000, func(i int) string { return begins(1) + ends(1) })},
		"links in a loop":    {write: repeat(20_000, func(i int) string { return sender(0, fmt.Sprint("l", i), fanout) + detaches(0) })},
		"receivers in a loop": {
			write: repeat(3_000, func(i int) string { return receiver(0, fmt.Sprint("l", i), "/queues/honest") + detaches(0) }),
		},
		"links that are refused": {
			write: repeat(20_000, func(i int) string {
				return sender(uint32(i%256), strings.Repeat("n", 3000), "/queues/"+strings.Repeat("x", 3000)) + map[bool]string{true: detaches(uint32(i % 256))}[i > 512]
			}),
		},
		"flows that want an answer": {write: repeat(300_000, func(int) string {
			return frame10(0, composite10(flow10, number10(0), number10(100), number10(0), number10(100), null10, null10, null10, null10, false10, true10))
		})},
		"credit of a receiver, again and again": {write: func(w io.Writer) error {
			_, err := io.WriteString(w, receiver(0, "r", "/queues/honest"))
			return errors.Join(err, repeat(200_000, func(i int) string { return credit(0, uint32(i%2)*1000) })(w))
		}},
		"dispositions of 4 billion deliveries": {write: repeat(300_000, func(int) string {
			return frame10(0, composite10(disposition10, true10, number10(0), number10(1<<31-1), true10, composite10(0x24)))
		})},
		"300 MiB of incomplete messages on many links": {told: "amqp:resource-limit-exceeded", write: func(w io.Writer) error {
			const links, parts = 16, 30 // of 87 KiB
			part := strings.Repeat("x", 87<<10)
			for channel := range uint16(8) {
				if channel > 0 {
					if _, err := io.WriteString(w, begins(channel)); err != nil {
						return err
					}
				}
				for l := range uint32(links) {
					// The attaches of other channels than 0 have another channel's number in their head.
					attach := []byte(sender(l, fmt.Sprint("l", l), fanout))
					attach[6], attach[7] = byte(channel>>8), byte(channel)
					if _, err := w.Write(attach); err != nil {
						return err
					}
					for p := range parts {
						if _, err := io.WriteString(w, transfer(channel, l, l, true, map[bool]string{true: "\x00\x53\x75\xb0\x00\xa0\x00\x00"}[p == 0]+part)); err != nil {
							return err
						}
					}
				}
			}
			return nil
		}},
		"annotations behind a link that waits": {told: "", write: func(w io.Writer) error {
			_, err := io.WriteString(w, receiver(0, "r", "/queues/honest"))
			poison := map10(symbol10("x-k"), "\xf0"+be32(6)+be32(60_000)+"\x40")
			return errors.Join(err, repeat(4_000, func(i int) string {
				return sender(uint32(1+i%200), "l", fanout, null10, null10, null10, poison) + detaches(uint32(1+i%200))
			})(w))
		}},
	} {
		attack(t, "held", "1.0: "+name, func(t *testing.T) {
			n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
			sink := mustSink(t)
			told := a.told == ""
			mustBound(t, n, func() error {
				return blind(n.AMQP, false, a.write, func(x answer10) { told = told || x.condition == a.told })
			},
				func() error { return blind(sink, true, a.write, nil) })
			if !told {
				t.Errorf("nobody is told %s", a.told)
			}
			if p := gauge(t, n, "quorate_panics_total"); p != 0 {
				t.Errorf("%d panics", p)
			}
		})
	}
}

// TestGreedy10: a receiver that takes all and reads nothing, or settles nothing, holds no more than a bound, and what it holds
// goes back with it.
func TestGreedy10(t *testing.T) {
	long.Test(t)
	t.Parallel()
	fill := func(t *testing.T, n *cluster.Node, count, size int) {
		t.Helper()
		ch, end := mustChannel(t, n, "")
		defer end()
		if _, err := ch.QueueDeclare("full", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		var last *amqp.DeferredConfirmation
		for range count {
			var err error
			if last, err = ch.PublishWithDeferredConfirm("", "full", false, false, amqp.Publishing{Body: make([]byte, size)}); err != nil {
				t.Fatal(err)
			}
		}
		if ok, err := last.WaitContext(t.Context()); !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
	}
	attack(t, "held", "1.0: a receiver that does not read", func(t *testing.T) {
		n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
		fill(t, n, 300, mib)
		before, err := n.RSSBytes()
		if err != nil {
			t.Fatal(err)
		}
		mustConnect10(t, n, login10+receiver(0, "r", "/queues/full")+credit(0, 1<<31-1))
		mustAwait(t, "some to be delivered", func() (bool, error) {
			q, err := n.Queue(t.Context(), "full")
			return q.Unacknowledged > 0, err
		})
		mustConfirm(t, n, 200)
		peak, err := n.PeakRSSBytes()
		if err != nil || peak-before > 192*mib {
			t.Errorf("%d MiB become resident, %v", (peak-before)/mib, err)
		}
		t.Logf("%d MiB more at most", (peak-before)/mib)
	})
	attack(t, "held", "1.0: a receiver that settles nothing", func(t *testing.T) {
		const most, count = 65_535, 70_000 // that it may hold, and that there are
		n := mustStart(t, cluster.Options{Nodes: 1}).Nodes[0]
		fill(t, n, count, 10)
		conn := mustConnect10(t, n, login10+receiver(0, "r", "/queues/full")+credit(0, 1<<31-1))
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		mustAwait(t, "it to hold what it may", func() (bool, error) {
			q, err := n.Queue(t.Context(), "full")
			return q.Unacknowledged == most, err
		})
		began := time.Now()
		mustConfirm(t, n, 100)
		if q, err := n.Queue(t.Context(), "full"); err != nil || q.Unacknowledged != most {
			t.Errorf("it holds %d after %v, %v", q.Unacknowledged, time.Since(began), err)
		}
		conn.Close()
		mustAwait(t, "all to be back", func() (bool, error) {
			q, err := n.Queue(t.Context(), "full")
			return q.Ready == count && q.Unacknowledged == 0, err
		})
	})
}
