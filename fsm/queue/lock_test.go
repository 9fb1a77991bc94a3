package queue

import (
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// lockAll hands out n messages to the consumer of taker, all locked for a second.
func (d *driver) lockAll(t testing.TB, n int, more *logpb.Consume) {
	t.Helper()
	more.Consumer, more.Lock = 1, 1000
	d.cmd = logpb.Command{Kind: logpb.Command_CONSUME, Consume: more}
	d.do(t, taker)
	for range n {
		d.enqueue(t, 0)
	}
}

// renew renews locks from a delivery on.
func (d *driver) renew(t testing.TB, from uint64) fsm.Result {
	t.Helper()
	d.meta.Index++
	d.meta.Session = taker
	d.seq[taker]++
	d.eff.Reset()
	return d.m.Apply(d.meta, &logpb.Command{Kind: logpb.Command_RENEW, Seq: d.seq[taker], Renew: &logpb.Renew{Consumer: 1, Ranges: []uint64{from, ^uint64(0)}}}, &d.eff)
}

// TestRenewInPieces: a command renews no more locks than a tick may end, and tells
// where to go on.
func TestRenewInPieces(t *testing.T) {
	const n = 2*dueInTick + 100
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: -1})
	d.lockAll(t, n, &logpb.Consume{})
	from, renewed := uint64(1), uint64(0)
	for pieces := 1; from != 0; pieces++ {
		d.meta.Now += 10
		r := d.renew(t, from)
		if r.Code != fsm.OK || r.Count > dueInTick || r.Until != d.meta.Now+1000 || pieces > 3 {
			t.Fatalf("piece %d: %+v", pieces, r)
		}
		if steps := d.m.scratch.steps; steps > 2*dueInTick {
			t.Errorf("piece %d: %d steps", pieces, steps)
		}
		from, renewed = r.Next, renewed+r.Count
	}
	if renewed != n || d.stats().Counters.LocksRenewed != n {
		t.Errorf("%d renewed, counted %d", renewed, d.stats().Counters.LocksRenewed)
	}
	mustCheck(t, d.m)
}

// TestLocksEndInPieces: many locks that end at once are taken away by several
// ticks, each within its bound, and the consumer remembers the newest ones.
func TestLocksEndInPieces(t *testing.T) {
	const n = 2 * dueInTick
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: -1})
	d.lockAll(t, n, &logpb.Consume{Prefetch: n})
	d.cmd = logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}} // it gets nothing again
	d.do(t, taker)
	d.meta.Now += 999
	d.tick(t)
	if lost := d.stats().Counters.LocksLost; lost != 0 {
		t.Fatalf("%d locks end early", lost)
	}
	d.meta.Now++
	for tick := uint64(1); tick <= 2; tick++ {
		d.tick(t)
		if lost := d.stats().Counters.LocksLost; lost != tick*dueInTick {
			t.Errorf("after tick %d: %d lost", tick, lost)
		}
		mustCheck(t, d.m)
		if tick == 1 {
			for c := range d.m.Consumers() {
				if c.LostLocks != lostLocks {
					t.Errorf("%d lost locks are remembered", c.LostLocks)
				}
			}
		}
	}
	if st := d.stats(); st.Locked != 0 || st.Ready.Messages != n {
		t.Errorf("%d locked, %d ready", st.Locked, st.Ready.Messages)
	}
}

// TestDetachInOneStep: a session with many locked deliveries ends in as few steps
// as one with none, and what it held counts as held.
func TestDetachInOneStep(t *testing.T) {
	const n = 2 * dueInTick
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: -1})
	d.lockAll(t, n, &logpb.Consume{LockDetachGrace: 500})
	d.cmd = logpb.Command{Kind: logpb.Command_SESSION_DOWN}
	d.do(t, taker)
	if steps := d.m.scratch.steps; steps > 10 {
		t.Errorf("%d steps", steps)
	}
	if st := d.stats(); st.Unacknowledged.Messages != n || st.Consumers != 0 {
		t.Errorf("%d held, %d consumers", st.Unacknowledged.Messages, st.Consumers)
	}
	mustCheck(t, d.m)
	if seen, more := peekAt(d.m, NewPeek([]Place{CheckedOut}, n-2, 9, d.meta.Now)); len(seen) != 2 || more || seen[1].Holder.Session != taker || seen[1].LockedUntil == 0 {
		t.Errorf("a look at what is held shows %v", seen)
	}
	d.meta.Now += 500
	d.finish(t)
	if st := d.stats(); st.Ready.Messages != n || st.Locked != 0 {
		t.Errorf("%d ready, %d locked", st.Ready.Messages, st.Locked)
	}
	mustCheck(t, d.m)
}

// BenchmarkRenew renews one of many locks, and all of them in pieces.
func BenchmarkRenew(b *testing.B) {
	const n = 50_000
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: -1})
	d.lockAll(b, n, &logpb.Consume{})
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		renew := &logpb.Renew{Consumer: 1, Ranges: []uint64{1, 1}}
		d.cmd = logpb.Command{Kind: logpb.Command_RENEW, Renew: renew}
		for i := range b.N {
			renew.Ranges[0] = 1 + uint64(i)%n
			d.meta.Now += fsm.Time(i % n / (n - 1) * 900)
			d.do(b, taker)
		}
	})
	b.Run("all", func(b *testing.B) {
		for range b.N {
			d.meta.Now++
			for from := uint64(1); from != 0; {
				from = d.renew(b, from).Next
			}
		}
	})
}
