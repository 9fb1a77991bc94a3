package route

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// weighted makes a table of members 0 … n-1 with these weights.
func weighted(weights ...uint64) Rendezvous[int] {
	var s Rendezvous[int]
	for i, w := range weights {
		s = s.With(name(i), i, w)
	}
	return s
}

func name(i int) string { return fmt.Sprintf("queue-%d", i) }

func mustPick(t *testing.T, s Rendezvous[int], key int) int {
	t.Helper()
	m, ok := s.Pick(HashString(fmt.Sprintf("key-%d", key)))
	if !ok {
		t.Fatal("nobody is picked")
	}
	return m
}

// TestPickIsFair: each member gets its part of 10,000 keys.
func TestPickIsFair(t *testing.T) {
	const keys = 10_000
	for _, weights := range [][]uint64{{1, 1, 1}, {7, 7, 7, 7, 7, 7}, {1, 2, 3}, {1, 10}, {1, 1, 1, 1, 96}, {1000, 2000, 1000}, {1, MaxWeight}} {
		s, total := weighted(weights...), uint64(0)
		for _, w := range weights {
			total += w
		}
		got := make([]int, len(weights))
		for k := range keys {
			got[mustPick(t, s, k)]++
		}
		for i, w := range weights {
			p := float64(w) / float64(total)
			slack := 4*math.Sqrt(keys*p*(1-p)) + 1 // four standard deviations
			if want := p * keys; math.Abs(float64(got[i])-want) > slack {
				t.Errorf("weights %v: member %d has %d keys, want %.0f ± %.0f", weights, i, got[i], want, slack)
			}
		}
	}
}

// TestPickMovesLittle: who comes takes keys for itself only, who goes gives
// up its own only, and so with weights.
func TestPickMovesLittle(t *testing.T) {
	before := weighted(1, 3, 1, 2)
	for what, change := range map[string]struct {
		after Rendezvous[int]
		mover int
		to    bool // keys may move to the mover, otherwise from it
	}{
		"one comes":       {before.With(name(4), 4, 2), 4, true},
		"one goes":        {before.Without(name(2), 1), 2, false},
		"one gets more":   {before.With(name(0), 0, 5), 0, true},
		"one gets less":   {before.With(name(1), 1, 9).Without(name(1), 9).Without(name(1), 3).With(name(1), 1, 1), 1, false},
		"nothing happens": {before.With(name(1), 1, 9).Without(name(1), 9), -1, true},
	} {
		moved := 0
		for k := range 5000 {
			old, now := mustPick(t, before, k), mustPick(t, change.after, k)
			if old == now {
				continue
			}
			moved++
			if change.to && now != change.mover || !change.to && old != change.mover {
				t.Errorf("%s: key %d moves from %d to %d", what, k, old, now)
			}
		}
		if (moved == 0) != (change.mover < 0) {
			t.Errorf("%s: %d keys move", what, moved)
		}
	}
}

// TestPickIsForEver pins the choice: clients rely on it over restarts and
// versions.
func TestPickIsForEver(t *testing.T) {
	s := weighted(1, 2, 3)
	var got []int
	for k := range 20 {
		got = append(got, mustPick(t, s, k))
	}
	if want := []int{0, 2, 1, 0, 1, 0, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1, 0, 2, 2}; !slices.Equal(got, want) {
		t.Errorf("picked %v, want %v", got, want)
	}
	if h := HashString("abc"); h != 0xdd490490804b508 || h != HashBytes([]byte("abc")) || h != text("abc").Hash() {
		t.Errorf("hash of abc is %#x", h)
	}
}

// TestRendezvousIgnoresOrder: what was added in whatever order, and what was
// removed again, chooses alike.
func TestRendezvousIgnoresOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type add struct {
			member int
			weight uint64
		}
		adds := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) add {
			return add{rapid.IntRange(0, 6).Draw(t, "member"), rapid.Uint64Range(1, 5).Draw(t, "weight")}
		}), 0, 20).Draw(t, "adds")
		var s, other Rendezvous[int]
		members := map[int]bool{}
		for _, a := range adds {
			s = s.With(name(a.member), a.member, a.weight)
			members[a.member] = true
		}
		extra := rapid.IntRange(0, 6).Draw(t, "extra")
		other = other.With(name(extra), extra, 3)
		for _, i := range rapid.Permutation(indexes(len(adds))).Draw(t, "order") {
			other = other.With(name(adds[i].member), adds[i].member, adds[i].weight)
		}
		other = other.Without(name(extra), 3)
		if s.Len() != len(members) || other.Len() != s.Len() {
			t.Fatalf("%d and %d members, want %d", s.Len(), other.Len(), len(members))
		}
		for h := range uint64(50) {
			a, okA := s.Pick(mix(h))
			b, okB := other.Pick(mix(h))
			c, okC := s.At(h)
			d, okD := other.At(h)
			if a != b || c != d || okA != (len(members) > 0) || okB != okA || okC != okA || okD != okA {
				t.Fatalf("hash %d: %d %d, %d %d", h, a, b, c, d)
			}
		}
	})
}

func indexes(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

func TestAtOf(t *testing.T) {
	s := weighted(1, 1, 1, 1)
	odd := func(m int) bool { return m%2 == 1 }
	var got []int
	for n := range uint64(4) {
		m, ok := s.AtOf(n, odd)
		if !ok {
			t.Fatal("nobody")
		}
		got = append(got, m)
	}
	if want := []int{1, 3, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("chosen %v, want %v", got, want)
	}
	if _, ok := s.AtOf(1, func(int) bool { return false }); ok {
		t.Error("one that does not fit is chosen")
	}
}

// TestDistance compares with the logarithm of floating point numbers.
func TestDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := rapid.Uint64Range(1, 1<<53).Draw(t, "u") << rapid.IntRange(0, 10).Draw(t, "shift")
		got, want := float64(distance(u))/(1<<fraction), 64-math.Log2(float64(u))
		if math.Abs(got-want) > 1e-12 {
			t.Fatalf("distance of %d is %v, want %v", u, got, want)
		}
	})
}

// TestBeats: the estimate never decides against the exact comparison, close
// calls and the ends of the range included.
func TestBeats(t *testing.T) {
	exact := func(u, w, v, x uint64) bool {
		ah, al := bits.Mul64(distance(u), x)
		bh, bl := bits.Mul64(distance(v), w)
		return ah < bh || ah == bh && al < bl
	}
	draw := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 9), rapid.Uint64Range(math.MaxUint64-9, math.MaxUint64))
	rapid.Check(t, func(t *rapid.T) {
		u, v := draw.Draw(t, "u"), draw.Draw(t, "v")
		w, x := rapid.Uint64Range(1, 1<<20).Draw(t, "w"), rapid.Uint64Range(1, 1<<20).Draw(t, "x")
		if w == x || min(u, v) >= math.MaxUint64-9 {
			return // more than fraction bits can tell
		}
		if got, want := beats(u, w, v, x), exact(u, w, v, x); got != want {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

func TestPickAllocatesNothing(t *testing.T) {
	s := weighted(1, 5, 2, 9, 3)
	h := uint64(0)
	if n := testing.AllocsPerRun(100, func() { h++; s.Pick(mix(h)); s.At(h) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, c := range []struct {
		name    string
		members int
		weights uint64 // how many different ones
	}{{"3 equal", 3, 1}, {"3 different", 3, 3}, {"100 equal", 100, 1}, {"100 different", 100, 100}} {
		b.Run(c.name, func(b *testing.B) {
			var s Rendezvous[int]
			for i := range c.members {
				s = s.With(name(i), i, 1+uint64(i)%c.weights)
			}
			b.ReportAllocs()
			for i := range b.N {
				s.Pick(mix(uint64(i)))
			}
		})
	}
}
