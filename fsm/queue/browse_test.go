package queue

import (
	"bytes"
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// readyAbove are the ready messages that have not expired, by number, as a walk over all of them finds them.
func readyAbove(m *Machine, after uint64, now fsm.Time) (all []uint64) {
	for h := uint32(1); h < m.messages.End(); h++ {
		if x := m.messages.Get(h); x.seq > after && x.ready() && !x.due(now) {
			all = append(all, x.seq)
		}
	}
	slices.Sort(all)
	return all
}

// Whatever comes, goes, returns or is purged: a browser is shown what is ready above a number, in order and with no gap
// up to where it says that it has been, and in the end it has been everywhere. The queue does not notice.
func TestBrowse(t *testing.T) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		d := newDriver(&logpb.QueueConfig{DeliveryLimit: 1000})
		groups := seed%2 == 1
		if groups {
			d = newDriver(&logpb.QueueConfig{DeliveryLimit: 1000, Groups: logpb.QueueConfig_BY_APP_ID})
		}
		held := uint64(0)
		for range 100 {
			switch n := r.IntN(10); {
			case n < 4:
				for range 1 + r.IntN(400) {
					e := &logpb.Enqueue{Size: 10}
					if seed < 2 && r.IntN(4) == 0 {
						e.PriorityPlusOne = 1 + r.Uint32N(3)
					}
					if r.IntN(3) == 0 {
						e.TtlPlusOne = 2 + r.Uint64N(400)
					}
					if groups && r.IntN(4) == 0 {
						e.GroupId = string(rune('a' + r.IntN(5)))
					}
					d.cmd = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e}
					d.do(t, publisher)
				}
			case n < 6:
				for range r.IntN(300) {
					if d.stats().Ready.Messages > 100 {
						d.cmd = logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}}
						d.do(t, taker)
						held++
					}
				}
			case n < 8:
				if held > 0 {
					outcome := []logpb.Settle_Outcome{logpb.Settle_ACK, logpb.Settle_REQUEUE}[r.IntN(2)]
					d.cmd = logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Outcome: outcome, Ranges: []uint64{1 + r.Uint64N(held), 1 + r.Uint64N(60)}}}
					d.do(t, taker)
				}
			case n == 8:
				d.meta.Now += fsm.Time(r.IntN(200))
			case r.IntN(6) == 0:
				d.mustAnswer(t, fsm.OK, publisher, &logpb.Command{Kind: logpb.Command_PURGE})
			case r.IntN(3) == 0:
				var b bytes.Buffer
				if _, err := d.m.Snapshot().WriteTo(&b); err != nil {
					t.Fatal(err)
				}
				if err := d.m.Restore(&b); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.m.Check(); err != nil {
				t.Fatal(err)
			}
			before := d.m.Hash()
			after, now, limit := r.Uint64N(d.m.messages.next+2), d.meta.Now+fsm.Time(r.IntN(50)), 30+r.IntN(200)
			for newest := d.m.messages.next - 1; after < newest; {
				b := Browse{After: after, Limit: limit, Now: now}
				b.Scan(d.m)
				found, seen := b.Found, b.Seen
				want := readyAbove(d.m, after, now)
				want = want[:countUpTo(want, seen)]
				if got := numbersOf(found); seen <= after || len(found) > limit || !slices.Equal(got, want) {
					t.Fatalf("seed %d: %d after %d: %v up to %d, want %v", seed, limit, after, got, seen, want)
				}
				if len(found) == 0 && seen < newest && seen-after < browseWalk {
					t.Fatalf("seed %d: nothing from %d to %d, and it stops", seed, after, seen)
				}
				after = seen
			}
			if d.m.Hash() != before {
				t.Fatal("a browser has changed the queue")
			}
		}
	}
}

func countUpTo(list []uint64, top uint64) int {
	n, found := slices.BinarySearch(list, top)
	if found {
		n++
	}
	return n
}

func numbersOf(list []Message) (numbers []uint64) {
	for i := range list {
		numbers = append(numbers, list[i].Seq)
	}
	if !slices.IsSortedFunc(list, func(a, b Message) int { return cmp.Compare(a.Seq, b.Seq) }) {
		return nil
	}
	return numbers
}

// However long a queue is, a browser in the midst of it costs a few steps.
func TestBrowseCost(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	const n = 50_000
	for range n {
		d.enqueue(t, 0)
	}
	if marks := d.m.messages.marks.Len(); marks != n>>markBits {
		t.Errorf("%d marks of %d messages", marks, n)
	}
	for range 3 << markBits {
		d.cmd = logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: true}}
		d.do(t, taker)
	}
	if marks := d.m.messages.marks.Len(); marks != n>>markBits-3 {
		t.Errorf("%d marks once %d were taken", marks, 3<<markBits)
	}
	if took := testing.AllocsPerRun(10, func() { (&Browse{After: n / 2, Limit: 10}).Scan(d.m) }); took > 30 {
		t.Errorf("%v allocations", took)
	}
}
