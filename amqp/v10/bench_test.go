package v10_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// opening is all that a client sends up to an open session and an attach.
func opening(a *wire.Attach, more ...wire.Composite) []byte {
	login, open := wire.ProtocolHeader(3), wire.ProtocolHeader(0)
	b := append([]byte(nil), login[:]...)
	b = wire.AppendFrame(b, 0, &wire.SASLInit{Mechanism: "PLAIN", InitialResponse: []byte("\x00guest\x00guest")})
	b = append(b, open[:]...)
	b = wire.AppendFrame(b, 0, &wire.Open{ContainerID: "c", MaxFrameSize: 1 << 20, ChannelMax: 1})
	b = wire.AppendFrame(b, 0, &wire.Begin{IncomingWindow: 1 << 30, OutgoingWindow: 1 << 30, HandleMax: 1})
	b = wire.AppendFrame(b, 0, a)
	for _, m := range more {
		b = wire.AppendFrame(b, 0, m)
	}
	return b
}

func mustNew(t testing.TB, b amqp.Broker) *amqp.Server {
	t.Helper()
	s, err := amqp.New(amqp.Config{Protocols: []amqp.Protocol{v10.Protocol{}}, Broker: b})
	must(t, err)
	t.Cleanup(func() { must(t, s.Shutdown(context.Background())) })
	return s
}

// publishing serves a client that publishes n messages.
func publishing(t testing.TB, size, n int) {
	broker := amqptest.NewSink(n)
	s := mustNew(t, broker)
	first := opening(&wire.Attach{Name: "p", Source: &wire.Source{}, Target: &wire.Target{Address: wire.Some("/exchanges/orders/orders.eu")}, InitialDeliveryCount: wire.Some[uint32](0)})
	m := append(wire.Append(nil, &wire.Header{Durable: true}), message(string(make([]byte, size)))...)
	again := append(wire.AppendTransfer(nil, 0, &wire.Transfer{DeliveryID: wire.Some[uint32](0), DeliveryTag: []byte("t")}, len(m)), m...)
	client := amqptest.NewReplay(first, again, n, 0)
	client.Until = broker.All()
	s.ServeConn(client)
}

// receiving serves a client that receives n messages.
func receiving(t testing.TB, size, n int) {
	payload, err := fsm.AppendBareHead(nil, "orders", "orders.eu", fsm.BareHeader{Durable: true, Priority: -1, TTL: -1}, nil, nil)
	must(t, err)
	payload = append(payload, message(string(make([]byte, size)))...)
	s := mustNew(t, amqptest.NewFeeder(payload, n))
	first := opening(&wire.Attach{Name: "c", Role: true, SndSettleMode: 1, Source: &wire.Source{Address: wire.Some("/queues/q")}, Target: &wire.Target{}},
		&wire.Flow{IncomingWindow: 1 << 30, OutgoingWindow: 1 << 30, NextIncomingID: wire.Some[uint32](0), Handle: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](1 << 30)})
	s.ServeConn(amqptest.NewReplay(first, nil, 0, n*size))
}

// BenchmarkPublish is the way of a message from the socket to the broker, with its outcome back.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{100, 1000, 100_000} {
		b.Run(fmt.Sprint(size, "B"), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			publishing(b, size, b.N)
		})
	}
}

// BenchmarkDeliver is the way of a message from the broker to the socket.
func BenchmarkDeliver(b *testing.B) {
	for _, size := range []int{100, 1000, 100_000} {
		b.Run(fmt.Sprint(size, "B"), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			receiving(b, size, b.N)
		})
	}
}

// A message costs the connection one allocation on its way in, and none on its way out.
func TestAllocations(t *testing.T) {
	const n = 20_000
	for _, c := range []struct {
		name  string
		serve func(testing.TB, int, int)
		most  float64
	}{{"in", publishing, 1}, {"out", receiving, 0}} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c.serve(t, 100, n)
		runtime.ReadMemStats(&after)
		// What the connection itself costs is little beside so many messages.
		if each := float64(after.Mallocs-before.Mallocs) / n; each > c.most+0.1 {
			t.Errorf("%s: %.2f allocations a message", c.name, each)
		}
	}
}
