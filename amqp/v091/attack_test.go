package v091_test

import (
	"io"
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/amqp"
)

// attackers is how many connections each attack opens.
const attackers = 200

// attacks are what clients do that mean harm, or are broken: sent goes out when
// the connection is there, then drip, an octet at a time, and then nothing.
var attacks = []struct {
	name, sent, drip string
}{
	{"half open", "", ""},
	{"slow header", "AMQ", ""},
	{"slow login", protocolHeader, "\x01\x00\x00\x00\x00\x01\x00"},
	{"oversized frame", protocolHeader + "\x01\x00\x00\xff\xff\xff\xff\x00\x0a\x00\x0b", ""},
	{"oversized table", protocolHeader + "\x01\x00\x00\x00\x00\x20\x00\x00\x0a\x00\x0b\xff\xff\xff\xff", ""},
	{"noise", "GET / HTTP/1.1\r\n\r\n", "\x00\xff"},
}

// TestAttacks lets hundreds of bad clients do their worst before they have
// logged in. They cost little memory, a good client does not notice them, and
// all of them are gone when their time is up.
func TestAttacks(t *testing.T) {
	const patience = 3 * time.Second
	s := mustServe(t, func(c *amqp.Config) { c.HandshakeTimeout = patience })
	ch := mustChannel(t, s.mustOpen())
	must(t, ch.Confirm(false))
	confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, 1))
	_, err := ch.QueueDeclare("q", false, false, false, false, nil)
	must(t, err)
	in, err := ch.Consume("q", "", true, false, false, false, nil)
	must(t, err)

	before := heap()
	ended := make(chan error, attackers*len(attacks))
	for _, a := range attacks {
		for range attackers {
			conn, err := net.Dial("tcp", s.addr)
			must(t, err)
			t.Cleanup(func() { conn.Close() })
			go func() { ended <- attack(conn, a.sent, a.drip) }()
		}
	}
	for i := range 200 {
		must(t, ch.PublishWithContext(t.Context(), "", "q", true, false, amqp091.Publishing{Body: []byte(strconv.Itoa(i))}))
		if c := receive(t, confirms); !c.Ack {
			t.Fatal("not confirmed")
		}
		if d := receive(t, in); string(d.Body) != strconv.Itoa(i) {
			t.Fatalf("%q, want %d", d.Body, i)
		}
	}
	const limit = 64 << 10 // for each, this side of the connection included
	if grown := heap() - before; grown > int64(limit*attackers*len(attacks)) {
		t.Errorf("%d connections take %d octets", attackers*len(attacks), grown)
	}
	for range attackers * len(attacks) {
		receive(t, ended)
	}
	if n := len(s.Connections()); n != 1 {
		t.Errorf("%d connections are open", n)
	}
}

// attack sends what it has and returns when the server has ended it.
func attack(conn net.Conn, sent, drip string) error {
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, conn) // to the end, however it comes
	}()
	if _, err := io.WriteString(conn, sent); err != nil {
		<-over
		return err
	}
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case <-over:
			return conn.Close()
		case <-pause.C:
			if drip != "" {
				if _, err := conn.Write([]byte(drip[:1])); err == nil {
					drip = drip[1:]
				}
			}
		}
	}
}

// heap is how much memory is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
