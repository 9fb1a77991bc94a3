package queue

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// driver feeds a machine with commands that it uses again and again.
type driver struct {
	m    *Machine
	eff  fsm.Effects
	meta fsm.Meta
	seq  map[fsm.SessionID]uint64
	cmd  logpb.Command
	enq  logpb.Enqueue
	set  logpb.Settle
}

func newDriver(config *logpb.QueueConfig) *driver {
	d := &driver{m: New("q", 1), seq: map[fsm.SessionID]uint64{}}
	d.meta = fsm.Meta{Term: 1, Now: 1_000_000}
	d.m.Apply(d.meta, &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: config}}, &d.eff)
	return d
}

var (
	publisher = fsm.SessionID{Node: 1, Boot: 1, Num: 1}
	taker     = fsm.SessionID{Node: 2, Boot: 1, Num: 1}
)

func (d *driver) do(b testing.TB, s fsm.SessionID) {
	d.meta.Index++
	d.meta.Session = s
	d.cmd.Seq = 0
	if s != (fsm.SessionID{}) {
		d.seq[s]++
		d.cmd.Seq = d.seq[s]
	}
	d.eff.Reset()
	if r := d.m.Apply(d.meta, &d.cmd, &d.eff); r.Code != fsm.OK {
		b.Fatalf("%v: code %d", d.cmd.Kind, r.Code)
	}
}

func (d *driver) enqueue(b testing.TB, ttlPlusOne uint64) {
	d.enq = logpb.Enqueue{Size: 100, TtlPlusOne: ttlPlusOne}
	d.cmd = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &d.enq}
	d.do(b, publisher)
}

func (d *driver) consume(b testing.TB, prefetch uint32) {
	d.cmd = logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: prefetch}}
	d.do(b, taker)
}

func (d *driver) ack(b testing.TB, first, n uint64) {
	d.set.Consumer, d.set.Outcome = 1, logpb.Settle_ACK
	d.set.Ranges = append(d.set.Ranges[:0], first, n)
	d.cmd = logpb.Command{Kind: logpb.Command_SETTLE, Settle: &d.set}
	d.do(b, taker)
}

func (d *driver) tick(b testing.TB) {
	d.cmd = logpb.Command{Kind: logpb.Command_TICK}
	d.do(b, fsm.SessionID{})
}

// BenchmarkThroughput is the life of one message: enqueued, delivered, acked.
func BenchmarkThroughput(b *testing.B) {
	for _, c := range []struct {
		name   string
		config *logpb.QueueConfig
		window uint64 // messages held by the consumer
	}{
		{"plain", &logpb.QueueConfig{DeliveryLimit: 20}, 1},
		{"locked", &logpb.QueueConfig{DeliveryLimit: 20, Lock: 30_000}, 1},
		{"window=100", &logpb.QueueConfig{DeliveryLimit: 20}, 100},
		{"timeout", &logpb.QueueConfig{DeliveryLimit: 20, ConsumerTimeoutPlusOne: 1_800_001}, 100},
		{"ttl+timeout", &logpb.QueueConfig{DeliveryLimit: 20, TtlPlusOne: 60_001, ConsumerTimeoutPlusOne: 1_800_001}, 100},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := newDriver(c.config)
			d.consume(b, 0)
			id := uint64(1)
			for range c.window {
				d.enqueue(b, 0)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				d.enqueue(b, 0)
				d.ack(b, id, 1)
				id++
			}
		})
	}
}

// BenchmarkDispatch is one message that is handed to one of many consumers, and one of
// what they hold that is settled, by chance.
func BenchmarkDispatch(b *testing.B) {
	for _, order := range []logpb.QueueConfig_Dispatch{logpb.QueueConfig_ROUND_ROBIN, logpb.QueueConfig_LEAST_LOADED} {
		for _, n := range []int{1, 100, 8000} {
			b.Run(fmt.Sprintf("%v/consumers=%d", order, n), func(b *testing.B) {
				d, random := newDriver(&logpb.QueueConfig{DeliveryLimit: 20, Dispatch: order}), rand.New(rand.NewPCG(1, 1))
				for i := range n {
					d.cmd = logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: uint64(i + 1)}}
					d.do(b, taker)
				}
				var held []fsm.Delivery
				next := func() {
					d.enqueue(b, 0)
					held = append(held, d.eff.Deliveries...)
				}
				for range 10 * n {
					next()
				}
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					next()
					i := random.IntN(len(held))
					d.set = logpb.Settle{Consumer: held[i].To.Number, Outcome: logpb.Settle_ACK, Ranges: append(d.set.Ranges[:0], held[i].ID, 1)}
					d.cmd = logpb.Command{Kind: logpb.Command_SETTLE, Settle: &d.set}
					d.do(b, taker)
					held[i] = held[len(held)-1]
					held = held[:len(held)-1]
				}
			})
		}
	}
}

// BenchmarkRequeue is a delivery that is requeued, and handed out again behind the thousand
// that are returned already.
func BenchmarkRequeue(b *testing.B) {
	for name, classic := range map[string]bool{"end": false, "place": true} {
		b.Run(name, func(b *testing.B) {
			d := newDriver(&logpb.QueueConfig{DeliveryLimit: -1, Classic: classic})
			for range 2000 {
				d.enqueue(b, 0)
			}
			d.consume(b, 1000)
			d.set = logpb.Settle{Consumer: 1, Outcome: logpb.Settle_REQUEUE, Ranges: []uint64{1, 1000}}
			d.cmd = logpb.Command{Kind: logpb.Command_SETTLE, Settle: &d.set}
			d.do(b, taker)
			b.ReportAllocs()
			b.ResetTimer()
			for id := range uint64(b.N) {
				d.set.Ranges[0], d.set.Ranges[1] = id+1001, 1
				d.cmd = logpb.Command{Kind: logpb.Command_SETTLE, Settle: &d.set}
				d.do(b, taker)
			}
		})
	}
}

// BenchmarkBacklog is enqueueing without consumers and then draining.
func BenchmarkBacklog(b *testing.B) {
	for _, ttl := range []uint64{0, 3_600_001} {
		b.Run(fmt.Sprintf("ttl=%v", ttl > 0), func(b *testing.B) {
			const n = 1_000_000
			for range b.N {
				before := heap()
				d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
				for range n {
					d.enqueue(b, ttl)
				}
				b.ReportMetric(float64(heap()-before)/n, "B/message")
				d.consume(b, 1000)
				for id := uint64(1); id < n; id += 1000 {
					d.ack(b, id, 1000)
				}
				if st := d.m.Stats(); st.Ready.Messages+st.Unacknowledged.Messages != 0 {
					b.Fatal("not drained")
				}
				runtime.KeepAlive(d)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/message")
		})
	}
}

func heap() int64 {
	runtime.GC()
	var st runtime.MemStats
	runtime.ReadMemStats(&st)
	return int64(st.HeapAlloc)
}

// BenchmarkExpire is enqueueing with a TTL and expiring, per message.
func BenchmarkExpire(b *testing.B) {
	for _, c := range []struct {
		name string
		ttl  func(i uint64) uint64
	}{
		{"uniform", func(uint64) uint64 { return 1001 }},
		{"mixed", func(i uint64) uint64 { return 1 + (i*2654435761)%2000 }},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if d.enqueue(b, c.ttl(uint64(i))+1); i%100 == 0 {
					d.meta.Now++
					d.tick(b)
				}
			}
		})
	}
}

// BenchmarkExpireBacklog is a million messages with random TTLs that expire,
// by ticks as a leader proposes them; and how long the longest tick takes.
func BenchmarkExpireBacklog(b *testing.B) {
	const n = 1_000_000
	for _, c := range []struct {
		name   string
		config *logpb.QueueConfig
	}{
		{"dropped", &logpb.QueueConfig{DeliveryLimit: 20}},
		{"outbox", &logpb.QueueConfig{DeliveryLimit: 20, DeadLetter: true}},
		{"sent-once", &logpb.QueueConfig{DeadLetter: true, DeadLetterStrategy: logpb.QueueConfig_AT_MOST_ONCE}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var longest, all time.Duration
			ticks := 0
			for range b.N {
				d := newDriver(c.config)
				random := rand.New(rand.NewPCG(1, 1))
				for range n {
					d.enqueue(b, 2+random.Uint64N(10_000))
				}
				d.meta.Now += 20_000
				for d.stats().Ready.Messages > 0 {
					start := time.Now()
					d.tick(b)
					took := time.Since(start)
					longest, all = max(longest, took), all+took
					ticks++
				}
				runtime.KeepAlive(d)
			}
			b.ReportMetric(float64(b.N)*n/all.Seconds(), "expired/s")
			b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
			b.ReportMetric(float64(all.Microseconds())/float64(ticks), "µs/tick")
		})
	}
}

// BenchmarkPurge is a purge of a million messages: how long Apply takes for it,
// and for the longest of the ticks that forget them.
func BenchmarkPurge(b *testing.B) {
	const n = 1_000_000
	var purge, longest time.Duration
	for range b.N {
		d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
		for i := range n {
			d.enqueue(b, uint64(i%2)*3_600_001)
		}
		d.cmd = logpb.Command{Kind: logpb.Command_PURGE}
		start := time.Now()
		d.do(b, publisher)
		purge += time.Since(start)
		for d.m.NextDeadline() != 0 {
			start = time.Now()
			d.tick(b)
			longest = max(longest, time.Since(start))
		}
	}
	b.ReportMetric(float64(purge.Microseconds())/float64(b.N), "purge-µs")
	b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
}

// BenchmarkSnapshot is what Snapshot makes Apply wait at a million messages,
// and what writing, hashing and restoring take beside it.
func BenchmarkSnapshot(b *testing.B) {
	const n = 1_000_000
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	for range n {
		d.enqueue(b, 0)
	}
	b.Run("pause", func(b *testing.B) {
		for range b.N {
			d.m.Snapshot()
		}
	})
	b.Run("write", func(b *testing.B) {
		for range b.N {
			size, _ := d.m.Snapshot().WriteTo(io.Discard)
			b.ReportMetric(float64(size), "B")
		}
	})
	b.Run("restore", func(b *testing.B) {
		for range b.N {
			r, w := io.Pipe()
			go func() {
				_, err := d.m.Snapshot().WriteTo(w)
				w.CloseWithError(err)
			}()
			if err := New("q", 1).Restore(r); err != nil {
				b.Fatal(err)
			}
		}
	})
}
