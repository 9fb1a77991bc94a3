package ordered

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// TestLabels compares labels with a map, over random changes and frozen copies.
func TestLabels(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var l Labels
		want, next := map[uint64][2]string{}, uint64(1)
		frozen, then := l.Capture(true), map[uint64][2]string{}
		for range 3000 {
			switch n := r.IntN(20); {
			case n < 9+int(seed%3):
				next += uint64(r.IntN(3))
				a, b := fmt.Sprint("m", next), fmt.Sprint("c", r.IntN(100))
				if r.IntN(4) == 0 {
					a = ""
				}
				l.Add(next, a, b)
				want[next] = [2]string{a, b}
				next++
			case n < 19:
				for seq := range want {
					if l.Drop(seq); r.IntN(2) == 0 { // maps are iterated in any order: that is the draw
						delete(want, seq)
						break
					}
					delete(want, seq)
					break
				}
			default:
				for seq, label := range then {
					if a, b := frozen.Of(seq); string(a) != label[0] || string(b) != label[1] {
						t.Fatalf("seed %d: frozen label of %d is %q %q, not %q", seed, seq, a, b, label)
					}
				}
				frozen, then = l.Capture(true), map[uint64][2]string{}
				for seq, label := range want {
					then[seq] = label
				}
			}
		}
		for seq, label := range want {
			if a, b := l.Of(seq); string(a) != label[0] || string(b) != label[1] {
				t.Fatalf("seed %d: label of %d is %q %q, not %q", seed, seq, a, b, label)
			}
		}
		if err := l.Check(len(want)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestMemoryOfLabels: labels go with their messages, and a few that stay do not keep the others.
func TestMemoryOfLabels(t *testing.T) {
	var l Labels
	const n, id = 200_000, "0123456789abcdef0123456789abcdef0123"
	bytes := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := bytes()
	for seq := range uint64(n) {
		l.Add(seq+1, id, "")
	}
	each := (bytes() - before) / n
	t.Logf("%d bytes a label of %d", each, len(id))
	if each > int64(len(id))+20 {
		t.Errorf("%d bytes a label of %d", each, len(id))
	}
	for seq := range uint64(n) {
		if seq%64 != 63 {
			l.Drop(seq + 1)
		}
	}
	if left := bytes() - before; left > n/64*300 {
		t.Errorf("%d bytes for %d labels", left, n/64)
	}
	runtime.KeepAlive(&l)
}

// BenchmarkLabels is what the ids of one message cost: stored, and dropped a hundred later.
func BenchmarkLabels(b *testing.B) {
	var l Labels
	b.ReportAllocs()
	for i := range uint64(b.N) {
		l.Add(i+1, "0123456789abcdef0123456789abcdef0123", "")
		if i >= 100 {
			l.Drop(i - 99)
		}
	}
}
