package v091_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// memory is a socket whose input is there from the beginning: first, then
// repeat times again. What is written is counted and forgotten.
type memory struct {
	first, again []byte
	repeat       int
	at           []byte

	mu      sync.Mutex
	written int
	enough  int           // input ends when this much is written; 0: at once
	reached chan struct{} // closed then
	closed  bool
}

func newMemory(first, again []byte, repeat, enough int) *memory {
	return &memory{first: first, again: again, repeat: repeat, at: first, enough: enough, reached: make(chan struct{})}
}

func (m *memory) Read(p []byte) (int, error) {
	for len(m.at) == 0 {
		if m.repeat == 0 {
			if m.enough > 0 {
				<-m.reached
			}
			return 0, io.EOF
		}
		m.repeat--
		m.at = m.again
	}
	n := copy(p, m.at)
	m.at = m.at[n:]
	return n, nil
}

func (m *memory) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, net.ErrClosed
	}
	m.written += len(p)
	m.reach()
	return len(p), nil
}

func (m *memory) reach() {
	if m.enough > 0 && (m.written >= m.enough || m.closed) {
		m.enough = 0
		close(m.reached)
	}
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.reach()
	return nil
}

func (m *memory) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (m *memory) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (m *memory) SetDeadline(time.Time) error      { return nil }
func (m *memory) SetReadDeadline(time.Time) error  { return nil }
func (m *memory) SetWriteDeadline(time.Time) error { return nil }

// opening is all that a client sends up to an open channel 1.
func opening() []byte {
	b := []byte(protocolHeader)
	tune := amqptest.Tune()
	b = wire.AppendMethod(b, 0, amqptest.StartOK("PLAIN", "\x00guest\x00guest", "consumer_cancel_notify"))
	b = wire.AppendMethod(b, 0, &tune)
	b = wire.AppendMethod(b, 0, &wire.ConnectionOpen{VirtualHost: "/"})
	return wire.AppendMethod(b, 1, &wire.ChannelOpen{})
}

func mustNew(t testing.TB, b amqp.Broker) *amqp.Server {
	t.Helper()
	s, err := amqp.New(amqp.Config{Protocols: protocols, Broker: b})
	must(t, err)
	t.Cleanup(func() { must(t, s.Shutdown(context.Background())) })
	return s
}

func fuzzSeeds() [][]byte {
	publish := func(channel uint16, size uint64, properties, body string) []byte {
		b := wire.AppendMethod(nil, channel, &wire.BasicPublish{RoutingKey: "q", Mandatory: true})
		b = wire.AppendHeader(b, channel, wire.ClassBasic, size, []byte(properties))
		return wire.AppendBody(b, channel, []byte(body), 4096)
	}
	methods := func(ms ...wire.Method) []byte {
		var b []byte
		for _, m := range ms {
			b = wire.AppendMethod(b, 1, m)
		}
		return b
	}
	return [][]byte{
		methods(&wire.QueueDeclare{Queue: "q"}, &wire.BasicConsume{Queue: "q"}, &wire.ConfirmSelect{}),
		methods(&wire.BasicQos{PrefetchCount: 1}, &wire.BasicGet{Queue: "q"}, &wire.BasicAck{DeliveryTag: 1, Multiple: true}),
		methods(&wire.QueueDeclare{Queue: "q"}, &wire.QueuePurge{}, &wire.ChannelClose{}, &wire.ChannelOpen{}),
		methods(&wire.BasicReject{DeliveryTag: 9}, &wire.ChannelCloseOK{}, &wire.ChannelOpen{}, &wire.BasicRecover{Requeue: true}),
		methods(&wire.ExchangeDeclare{Exchange: "x", Type: "fanout", Arguments: wire.Table{{Name: "a", Value: wire.Nested(nil)}}}),
		publish(1, 1, "\x00\x00", "x"),
		publish(1, 3, "\x01\x00\x03abc", "xyz"), // expiration
		publish(1, 600<<20, "\x00\x00", "x"),
		publish(2, 1, "\x20\x00\x00\x00\x00\x05\x03BCCV", "x"),
		wire.AppendMethod(nil, 0, &wire.ConnectionClose{}),
		wire.AppendHeartbeat(nil),
		{1, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF},
	}
}

// FuzzSession sends octets on a connection with an open channel.
func FuzzSession(f *testing.F) {
	for _, seed := range fuzzSeeds() {
		f.Add(seed)
	}
	f.Add(bytes.Join(fuzzSeeds(), nil))
	prefix := opening()
	f.Fuzz(func(t *testing.T, data []byte) { serveOctets(t, prefix, data) })
}

// FuzzHandshake sends octets from the first one on.
func FuzzHandshake(f *testing.F) {
	f.Add([]byte(protocolHeader))
	f.Add([]byte("AMQP\x01\x01\x00\x09"))
	f.Add(opening())
	f.Add(bytes.Replace(opening(), []byte("PLAIN"), []byte("AMQPL"), 1))
	f.Fuzz(func(t *testing.T, data []byte) { serveOctets(t, nil, data) })
}

// serveOctets serves a client that sends all of it at once. Nothing may
// panic, and nothing may be left.
func serveOctets(t *testing.T, prefix, data []byte) {
	b := amqptest.NewBroker()
	s, err := amqp.New(amqp.Config{Protocols: protocols, Broker: b, OperationTimeout: time.Second, MaxMessageSize: 1 << 16})
	must(t, err)
	s.ServeConn(newMemory(append(prefix[:len(prefix):len(prefix)], data...), nil, 0, 0))
	must(t, s.Shutdown(context.Background()))
	b.AwaitSessions(0)
}

// BenchmarkPublish is the way of a message from the socket to the broker, with
// a confirm back.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{100, 1000, 100_000} {
		b.Run(byteSize(size), func(b *testing.B) {
			broker := amqptest.NewBroker()
			broker.DropPublishes()
			s := mustNew(b, broker)
			first := wire.AppendMethod(opening(), 1, &wire.ConfirmSelect{})
			p := wire.Properties{Present: wire.FlagDeliveryMode | wire.FlagContentType, DeliveryMode: 2, ContentType: []byte("text/plain")}
			again := wire.AppendMethod(nil, 1, &wire.BasicPublish{Exchange: "orders", RoutingKey: "orders.eu"})
			again = wire.AppendHeader(again, 1, wire.ClassBasic, uint64(size), wire.AppendProperties(nil, &p))
			again = wire.AppendBody(again, 1, make([]byte, size), 131072)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			s.ServeConn(newMemory(first, again, b.N, 0))
			if n := broker.Published(); n != b.N {
				b.Fatalf("%d publishes, want %d", n, b.N)
			}
		})
	}
}

func byteSize(n int) string { return fmt.Sprint(n, "B") }

// BenchmarkDeliver is the way of a message from the broker to the socket.
func BenchmarkDeliver(b *testing.B) {
	for _, size := range []int{100, 1000, 100_000} {
		b.Run(byteSize(size), func(b *testing.B) {
			payload := fsm.AppendPayloadHead(nil, "orders", "orders.eu", []byte{0, 0})
			payload = append(payload, make([]byte, size)...)
			s := mustNew(b, &feeder{Broker: amqptest.NewBroker(), payload: payload, n: b.N})
			first := wire.AppendMethod(opening(), 1, &wire.BasicConsume{Queue: "q", ConsumerTag: "c", NoAck: true})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			s.ServeConn(newMemory(first, nil, 0, b.N*size))
		})
	}
}

// feeder is a broker that has n messages for any consumer.
type feeder struct {
	*amqptest.Broker
	payload fsm.Payload
	n       int
}

type feederConnection struct {
	amqp.Connection
	*feeder
}

type feederSession struct {
	amqp.Session
	*feeder
	events fsm.SessionEvents
	credit chan int
	ended  chan struct{}
}

func (f *feeder) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := f.Broker.Connect(ctx, user, vhost)
	return &feederConnection{c, f}, err
}

func (c *feederConnection) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	return &feederSession{s, c.feeder, events, make(chan int, 4096), make(chan struct{})}, err
}

func (s *feederSession) Consume(context.Context, fsm.ConsumeSpec) error {
	go func() {
		defer close(s.ended)
		const batch = 64
		messages := make([]fsm.Message, 0, batch)
		credit := 2000
		for id := 1; id <= s.n; {
			for credit < batch {
				n, ok := <-s.credit
				if !ok {
					return
				}
				credit += n
			}
			messages = messages[:0]
			for len(messages) < batch && id <= s.n {
				messages = append(messages, fsm.Message{Consumer: 1, ID: uint64(id), Payload: s.payload})
				id++
			}
			credit -= len(messages)
			s.events.Deliver(messages)
		}
	}()
	return nil
}

func (s *feederSession) Settle(_ uint64, ids []uint64, _ fsm.Outcome) { s.credit <- len(ids) }

func (s *feederSession) Close(ctx context.Context) {
	close(s.credit)
	<-s.ended
	s.Session.Close(ctx)
}
