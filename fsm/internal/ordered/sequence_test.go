package ordered

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSequence compares a sequence with a slice: items are put at its end, behind the last
// older one, and removed, at random and mostly from the front.
func TestSequence(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		var s Sequence
		slots, numbers := map[uint32]uint32{}, map[uint32]uint64{}
		var want []uint32
		moved := func(h, slot uint32) { slots[h] = slot }
		next := uint32(1)
		for step := range 4000 {
			switch what := r.IntN(10); {
			case what < 5 && (len(want) < 600 || step < 2000):
				run := make([]uint32, 1+r.IntN(40))
				for i := range run {
					run[i], numbers[next] = next, uint64(r.IntN(5000))*100_000+uint64(next)
					next++
				}
				slices.SortFunc(run, func(a, b uint32) int { return int(numbers[a]) - int(numbers[b]) })
				at, to := s.End(), len(want)
				if what < 3 {
					at, _ = s.BehindOlder(at, numbers[run[0]])
					for to > 0 && numbers[want[to-1]] > numbers[run[0]] {
						to--
					}
					if older := s.NumberBefore(at); to > 0 && older != numbers[want[to-1]] || to == 0 && older != 0 {
						t.Fatalf("seed %d: %d is the last older one", seed, older)
					}
				}
				s.Insert(at, len(run), func(i int) (uint32, uint64) { return run[i], numbers[run[i]] }, moved)
				want = slices.Insert(want, to, run...)
			case len(want) > 0:
				i := 0
				if r.IntN(3) == 0 {
					i = r.IntN(len(want))
				}
				before, h := s.Remove(s.PlaceOf(slots[want[i]], want[i]), moved), uint32(0)
				if i > 0 {
					h = want[i-1]
				}
				if before != h {
					t.Fatalf("seed %d: %d is before %d, not %d", seed, before, want[i], h)
				}
				want = slices.Delete(want, i, i+1)
			}
			if step%50 != 0 {
				continue
			}
			var got []uint32
			for h, x := range s.All() {
				got = append(got, h)
				if x != (Item{numbers[h], slots[h]}) {
					t.Fatalf("seed %d: item %d is %+v", seed, h, x)
				}
			}
			if err := s.Check(); err != nil || !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v, %d items of %d", seed, err, len(got), len(want))
			}
		}
	}
}
