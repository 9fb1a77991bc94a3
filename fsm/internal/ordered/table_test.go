package ordered

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// mustBeSorted checks what holds for a table, and that it holds want.
func mustBeSorted(t *testing.T, s *Table[uint64], want map[Key]uint64) {
	t.Helper()
	if s.Len() != len(want) || len(s.blocks) != len(s.firsts) {
		t.Fatalf("%d entries in %d blocks, want %d entries", s.Len(), len(s.blocks), len(want))
	}
	n := 0
	for i, b := range s.blocks {
		if b.len() == 0 || b.len() > blockLen || b.keys[b.head] != s.firsts[i] || len(b.keys) != len(b.vals) {
			t.Fatalf("block %d has %d entries from %v, the table says %v", i, b.len(), b.keys[b.head], s.firsts[i])
		}
		n += b.len()
	}
	last, any := Key{}, false
	for k, v := range s.All() {
		if any && !last.Before(k) || want[k] != *v {
			t.Fatalf("%v behind %v, with %d, want %d", k, last, *v, want[k])
		}
		last, any = k, true
		n--
	}
	if n != 0 {
		t.Fatalf("%d entries are not seen", n)
	}
	k, first, ok := s.Peek()
	if ok != (len(want) > 0) || first != want[k] || s.Value(k) != first {
		t.Fatalf("the first is %d at %v, there %d", first, k, s.Value(k))
	}
	for v := range s.Values(Key{At: k.At, Seq: k.Seq + 1}) {
		if v == first {
			t.Fatalf("%d is behind %v", v, k)
		}
		break
	}
	if room := len(s.blocks) * blockLen; room > 8*len(want)+2*blockLen {
		t.Fatalf("%d blocks for %d entries", len(s.blocks), len(want))
	}
}

// TestSorted compares with a map, for keys that come in order, at random and
// mixed, with frozen copies that must not change.
func TestSorted(t *testing.T) {
	for name, at := range map[string]func(r *rand.Rand, step int) fsm.Time{
		"uniform": func(_ *rand.Rand, step int) fsm.Time { return fsm.Time(step / 3) },
		"random":  func(r *rand.Rand, _ int) fsm.Time { return fsm.Time(r.IntN(5000)) },
		"mixed": func(r *rand.Rand, step int) fsm.Time {
			return fsm.Time(step + []int{10, 10, 10, 500}[r.IntN(4)])
		},
		"backwards": func(_ *rand.Rand, step int) fsm.Time { return fsm.Time(-step) },
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(4, 4))
			var s Table[uint64]
			want := map[Key]uint64{}
			var keys []Key
			type frozen struct {
				s    Table[uint64]
				want map[Key]uint64
			}
			var copies []frozen
			for step := range 30_000 {
				switch what, most := r.IntN(20), (step/5000%4)*1500; {
				case what < 14 && (len(keys) <= most || r.IntN(3) == 0):
					k := Key{At: at(r, step), Seq: uint64(step)}
					s.Put(k, uint64(step)+1)
					want[k] = uint64(step) + 1
					keys = append(keys, k)
				case what < 15 && len(keys) > 0:
					k := keys[r.IntN(len(keys))]
					if p := s.Edit(k); (p != nil) != (want[k] != 0) {
						t.Fatalf("step %d: %v found: %v", step, k, p)
					} else if p != nil {
						*p += 100_000
						want[k] += 100_000
					}
				case what < 16 && r.IntN(50) == 0:
					cutSome(t, r, &s, want)
				case what < 18 && len(want) > 0:
					k, v := s.First()
					if last, _ := s.Last(); *v != want[k] || last.Before(k) {
						t.Fatalf("step %d: the first is %v", step, k)
					}
					s.Remove(k)
					delete(want, k)
				case len(keys) > 0:
					i := r.IntN(len(keys))
					k := keys[i]
					if v, ok := s.Remove(k); v != want[k] || ok != (v != 0) || s.Get(k) != nil {
						t.Fatalf("step %d: removed %d, want %d", step, v, want[k])
					}
					delete(want, k)
					keys = slices.Delete(keys, i, i+1)
				}
				if step%500 == 0 {
					mustBeSorted(t, &s, want)
				}
				if r.IntN(4000) == 0 {
					copies = append(copies, frozen{s.Freeze(), maps.Clone(want)})
				}
			}
			for _, c := range copies {
				mustBeSorted(t, &c.s, c.want)
			}
			s.Clear()
			mustBeSorted(t, &s, nil)
		})
	}
}

// cutSome cuts a range out.
func cutSome(t *testing.T, r *rand.Rand, s *Table[uint64], want map[Key]uint64) {
	t.Helper()
	all := slices.SortedFunc(maps.Keys(want), func(a, b Key) int {
		if a.Before(b) {
			return -1
		}
		return 1
	})
	if len(all) == 0 {
		return
	}
	i := r.IntN(len(all))
	j := min(i+r.IntN(700), len(all)-1)
	from, upto := all[i], all[j]
	if r.IntN(2) == 0 {
		from.Seq, upto.At = from.Seq-min(from.Seq, 1), upto.At+1
	}
	var cut []Key
	s.Cut(from, upto, func(k Key, v uint64) {
		if want[k] != v {
			t.Fatalf("cut %v with %d, want %d", k, v, want[k])
		}
		cut = append(cut, k)
	})
	for _, k := range all {
		if !k.Before(from) && !upto.Before(k) {
			if len(cut) == 0 || cut[0] != k {
				t.Fatalf("%v is not cut in its place", k)
			}
			cut = cut[1:]
			delete(want, k)
		}
	}
	if len(cut) > 0 {
		t.Fatalf("cut too much: %v", cut)
	}
}

// Any range comes out as a table of its own, which holds on its own and joins
// its source, or what was severed before, again; frozen copies keep what they had.
func TestSortedSeverAndJoin(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		s, want := Table[uint64]{}, map[Key]uint64{}
		for range r.IntN(1200) {
			k := Key{At: fsm.Time(r.IntN(3)), Seq: uint64(r.IntN(3000))}
			if _, known := want[k]; !known {
				want[k] = r.Uint64()
				s.Put(k, want[k])
			}
		}
		frozen, before := s.Freeze(), maps.Clone(want)
		var rest Table[uint64]
		taken := map[Key]uint64{}
		for range 3 {
			from := Key{At: fsm.Time(r.IntN(3)), Seq: uint64(r.IntN(3000))}
			upto := Key{At: fsm.Time(r.IntN(3)), Seq: uint64(r.IntN(3000))}
			switch r.IntN(8) {
			case 0:
				from = Key{}
			case 1:
				upto.Seq = ^uint64(0)
			}
			part := s.Sever(from, upto)
			out := map[Key]uint64{}
			for k, v := range want {
				if !k.Before(from) && !upto.Before(k) {
					out[k] = v
				}
			}
			mustBeSorted(t, &part, out)
			for k, v := range out {
				delete(want, k)
				taken[k] = v
			}
			mustBeSorted(t, &s, want)
			for n := r.IntN(5); n > 0 && part.Len() > 0; n-- { // a part is used, too
				k, _ := part.First()
				part.Remove(k)
				delete(taken, k)
			}
			rest.Join(part)
			mustBeSorted(t, &rest, taken)
		}
		k := Key{At: 1, Seq: 5000}
		s.Put(k, 1)
		want[k] = 1
		mustBeSorted(t, &s, want)
		s.Join(rest)
		maps.Copy(want, taken)
		mustBeSorted(t, &s, want)
		mustBeSorted(t, &frozen, before)
	}
}

// Whatever is missing between them, the entry with an At is found, or that there is
// none; the table may change behind it.
func TestTableLocate(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for _, gap := range []int{1, 2, 50} {
		var s Table[uint64]
		want := map[fsm.Time]uint64{}
		at, last := fsm.Time(0), fsm.Time(0)
		for range 3000 {
			at += fsm.Time(1 + r.IntN(gap))
			s.Put(Key{At: at, Seq: r.Uint64()}, uint64(at))
			want[at], last = uint64(at), at
			probe := fsm.Time(r.IntN(int(last) + 3))
			p, ok := s.Locate(probe)
			if ok != (want[probe] != 0) || ok && (s.KeyAt(p).At != probe || *s.EditAt(p) != uint64(probe)) {
				t.Fatalf("gap %d: %d is there: %v", gap, probe, ok)
			}
			if ok && r.IntN(2) == 0 {
				s.RemoveAt(p)
				delete(want, probe)
			}
		}
		if s.Len() != len(want) {
			t.Fatalf("gap %d: %d are left, want %d", gap, s.Len(), len(want))
		}
	}
}

// A table with one entry at a time needs no space for each.
func TestEmptiedTable(t *testing.T) {
	var s Table[int]
	n := uint64(0)
	if per := testing.AllocsPerRun(1000, func() {
		n++
		s.Put(Key{Seq: n}, 1)
		s.Remove(Key{Seq: n})
	}); per != 0 {
		t.Errorf("%v allocations for an entry", per)
	}
}
