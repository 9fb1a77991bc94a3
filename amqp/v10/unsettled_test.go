package v10

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// take settles a range and returns the deliveries' numbers.
func (u *unsettled) take(first, last uint32) (numbers []uint64) {
	u.each(first, last, true, func(d delivery) { numbers = append(numbers, d.number) })
	return numbers
}

func TestSettledRanges(t *testing.T) {
	a, b, settled := &outgoingLink{}, &outgoingLink{}, &outgoingLink{settled: true}
	for _, begin := range []uint64{0, math.MaxUint32 - 3, 1<<40 - 2} {
		u := unsettled{next: begin}
		start := uint32(begin)
		for i, l := range []*outgoingLink{a, b, settled, a, a, b, a, b} {
			if id := u.number(l, &fsm.Message{ID: uint64(i)}); id != start+uint32(i) {
				t.Fatalf("id %d, want %d", id, start+uint32(i))
			}
		}
		for _, c := range []struct {
			first, last uint32
			want        []uint64
		}{
			{3, 4, []uint64{3, 4}},
			{3, 4, nil},         // again
			{1, 3, []uint64{1}}, // a hole, and a settled one
			{8, 9, nil},         // not sent yet
			{7, 6, nil},         // the wrong way round
			{6, 1_000_000, []uint64{6, 7}},
			{math.MaxUint32 - 10, 0, []uint64{0}}, // before the first
		} {
			if got := u.take(start+c.first, start+c.last); !slices.Equal(got, c.want) {
				t.Errorf("from %d: %d to %d: %v, want %v", begin, c.first, c.last, got, c.want)
			}
		}
		var rest []uint64
		u.of(b, func(d delivery) { rest = append(rest, d.number) })
		if !slices.Equal(rest, []uint64{5}) || u.live != 0 || len(u.list) != 0 {
			t.Errorf("%v, %d left", rest, u.live)
		}
	}
}

// A huge range costs what is unsettled.
func TestHugeRange(t *testing.T) {
	u := unsettled{}
	u.number(&outgoingLink{}, &fsm.Message{ID: 7})
	if got := u.take(0, math.MaxInt32); !slices.Equal(got, []uint64{7}) {
		t.Error(got)
	}
	if got := u.take(0, math.MaxUint32); got != nil {
		t.Error(got)
	}
}

// One delivery that is never settled costs its own record.
func TestUnsettledAreFew(t *testing.T) {
	l := &outgoingLink{}
	u := unsettled{next: 1<<32 - 5000}
	u.number(l, &fsm.Message{})
	r := rand.New(rand.NewPCG(3, 4))
	var open []uint32
	for i := range uint64(10_000) {
		open = append(open, u.number(l, &fsm.Message{ID: i}))
		if len(open) > 20 {
			n := r.IntN(len(open))
			if len(u.take(open[n], open[n])) != 1 {
				t.Fatalf("%d was not there", open[n])
			}
			open = slices.Delete(open, n, n+1)
		}
	}
	if u.live != len(open)+1 || cap(u.list) > 200 {
		t.Errorf("%d live, room for %d", u.live, cap(u.list))
	}
}
