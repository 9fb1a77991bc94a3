package queue

import (
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// settle settles one delivery of the consumer.
func (d *driver) settle(t testing.TB, s *logpb.Settle) {
	t.Helper()
	s.Consumer = 1
	d.cmd = logpb.Command{Kind: logpb.Command_SETTLE, Settle: s}
	d.do(t, taker)
}

// TestAheadBy: whatever has an instant is counted once, under what happens then, also after the time of held
// messages was put behind.
func TestAheadBy(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: -1, ConsumerTimeoutPlusOne: 5001, LockCredit: 500})
	for range 5 {
		d.enqueue(t, 0)
	}
	d.cmd = logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 5, Lock: 2000}}
	d.do(t, taker)
	d.settle(t, &logpb.Settle{Ranges: []uint64{1, 1}, Outcome: logpb.Settle_REQUEUE_FAILED, DelayPlusOne: 3001})
	d.settle(t, &logpb.Settle{Ranges: []uint64{2, 1}, Outcome: logpb.Settle_DEFER, Deferral: "later", DelayPlusOne: 4001})
	d.settle(t, &logpb.Settle{Ranges: []uint64{3, 1}, Outcome: logpb.Settle_DEFER, Deferral: "never"})
	d.cmd = logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}}
	d.do(t, taker)
	d.enqueue(t, 1001)
	d.cmd = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1, TtlPlusOne: 101, DelayPlusOne: 6001}}
	d.do(t, publisher)
	start := d.meta.Now
	by := func(after ...int64) Ahead {
		var instants []fsm.Time
		for _, ms := range after {
			instants = append(instants, start+fsm.Time(ms))
		}
		return AheadBy(d.m, instants, 1000)
	}
	check := func(what string, got Ahead, want ...[]uint64) {
		t.Helper()
		for i, counts := range [][]uint64{got.Expire, got.Unlock, got.Retry, got.Return, got.TimeOut, got.Fire} {
			if !slices.Equal(counts, want[i]) {
				t.Errorf("%s, kind %d: %d, want %d", what, i, counts, want[i])
			}
		}
		if got.AtLeast {
			t.Errorf("%s: not all is counted", what)
		}
	}
	at := by(999, 1000, 1999, 2000, 2999, 3000, 3999, 4000, 4999, 5000, 5999, 6000)
	step := func(at int, n uint64) []uint64 {
		list := make([]uint64, 12)
		for i := at; i < len(list); i++ {
			list[i] = n
		}
		return list
	}
	check("at once", at, step(1, 1), step(3, 2), step(5, 1), step(7, 1), step(9, 2), step(11, 1))

	d.meta.Term++
	d.meta.Now += 500
	d.tick(t)
	if credit := d.m.LockCredit(); credit != 500 {
		t.Fatalf("the credit is %d", credit)
	}
	check("with credit", by(1000, 2499, 2500, 3000, 4000, 5499, 5500, 6000), []uint64{1, 1, 1, 1, 1, 1, 1, 1}, []uint64{0, 0, 2, 2, 2, 2, 2, 2},
		[]uint64{0, 0, 0, 1, 1, 1, 1, 1}, []uint64{0, 0, 0, 0, 1, 1, 1, 1}, []uint64{0, 0, 0, 0, 0, 0, 2, 2}, []uint64{0, 0, 0, 0, 0, 0, 0, 1})
}

// blockLen is how many entries of the table of expiries one step passes.
const blockLen = 128

// TestAheadSteps: the steps are bounded, depend on what is due and not on what the queue holds, and a count that
// was cut short says so and is no more than there is.
func TestAheadSteps(t *testing.T) {
	const n = 200 * blockLen
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	for i := range n {
		d.enqueue(t, uint64(1000+i+1))
	}
	start := d.meta.Now
	for _, c := range []struct {
		after   int64
		allowed int
		steps   int
		count   uint64
		short   bool
	}{
		{999, 1000, 0, 0, false},
		{1000 + 10*blockLen - 1, 1000, 9, 10 * blockLen, false},
		{1000 + 10*blockLen - 1, 9, 9, 10 * blockLen, false},
		{1000 + 10*blockLen - 1, 8, 8, 9 * blockLen, true},
		{1000 + n, 1000, 199, n, false},
		{1000 + n, 0, 0, blockLen, true},
	} {
		got := AheadBy(d.m, []fsm.Time{start + fsm.Time(c.after)}, c.allowed)
		if got.Expire[0] != c.count || got.Steps != c.steps || got.AtLeast != c.short {
			t.Errorf("%d ms, %d allowed: %d after %d steps, short %t; want %d after %d", c.after, c.allowed, got.Expire[0], got.Steps, got.AtLeast, c.count, c.steps)
		}
	}
}

// TestAheadStepsOfLocks: while some deliveries are locked, each is looked at, some in a step.
func TestAheadStepsOfLocks(t *testing.T) {
	const n = 10 * heldAtOnce
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: -1, ConsumerTimeoutPlusOne: 5001})
	for range n {
		d.enqueue(t, 0)
	}
	d.cmd = logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: n, Lock: 2000}}
	d.do(t, taker)
	at := []fsm.Time{d.meta.Now + 2000, d.meta.Now + 5000}
	if got := AheadBy(d.m, at, 10); !slices.Equal(got.Unlock, []uint64{n, n}) || !slices.Equal(got.TimeOut, []uint64{0, n}) || got.Steps != 10 || got.AtLeast {
		t.Errorf("%+v", got)
	}
	if got := AheadBy(d.m, at, 4); got.Unlock[0] != 5*heldAtOnce-1 || got.TimeOut[1] != 5*heldAtOnce-1 || got.Steps != 4 || !got.AtLeast {
		t.Errorf("with 4 steps: %+v", got)
	}
}
