package v091_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

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
	s.ServeConn(amqptest.NewReplay(append(prefix[:len(prefix):len(prefix)], data...), nil, 0, 0))
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
			s.ServeConn(amqptest.NewReplay(first, again, b.N, 0))
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
			s := mustNew(b, amqptest.NewFeeder(payload, b.N))
			first := wire.AppendMethod(opening(), 1, &wire.BasicConsume{Queue: "q", ConsumerTag: "c", NoAck: true})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			s.ServeConn(amqptest.NewReplay(first, nil, 0, b.N*size))
		})
	}
}
