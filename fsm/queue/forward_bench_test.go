package queue

import (
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// BenchmarkForward is the life of one message that goes on to another queue: enqueued, routed with
// others, arrived there. It is forwarded, or dies and is dead-lettered.
func BenchmarkForward(b *testing.B) {
	const batch = 100
	for _, c := range []struct {
		name   string
		config *logpb.QueueConfig
		ttl    uint64
	}{
		{"forwarded", &logpb.QueueConfig{Forward: true}, 0},
		{"forwarded, no record of ends", &logpb.QueueConfig{Forward: true, AuditMaxPlusOne: 1}, 0},
		{"dead-lettered", &logpb.QueueConfig{DeadLetter: true}, 1}, // TTL 0
		{"at-least-once", &logpb.QueueConfig{DeadLetter: true, DeadLetterStrategy: logpb.QueueConfig_AT_LEAST_ONCE}, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := newDriver(c.config)
			routes := make([]*logpb.DeadRoute, batch)
			for i := range routes {
				routes[i] = &logpb.DeadRoute{Targets: []uint64{9}}
			}
			sent := uint64(0)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if d.enqueue(b, c.ttl); (i+1)%batch != 0 {
					continue
				}
				d.cmd = logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{First: sent + 1, Routes: routes}}
				d.do(b, fsm.SessionID{})
				sent += batch
				d.cmd = logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: 9, Last: sent}}
				d.do(b, fsm.SessionID{})
			}
			if n := d.stats().Outbox.Messages; n >= batch {
				b.Fatalf("%d letters are left", n)
			}
		})
	}
}
