package queue

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// mustBeSorted checks what holds for a table, and that it holds want.
func mustBeSorted(t *testing.T, s *sorted[uint64], want map[key]uint64) {
	t.Helper()
	if s.len() != len(want) || len(s.blocks) != len(s.firsts) {
		t.Fatalf("%d entries in %d blocks, want %d entries", s.len(), len(s.blocks), len(want))
	}
	n := 0
	for i, b := range s.blocks {
		if b.len() == 0 || b.len() > blockLen || b.keys[b.head] != s.firsts[i] || len(b.keys) != len(b.vals) {
			t.Fatalf("block %d has %d entries from %v, the table says %v", i, b.len(), b.keys[b.head], s.firsts[i])
		}
		n += b.len()
	}
	last, any := key{}, false
	for k, v := range s.all() {
		if any && !last.before(k) || want[k] != *v {
			t.Fatalf("%v behind %v, with %d, want %d", k, last, *v, want[k])
		}
		last, any = k, true
		n--
	}
	if n != 0 {
		t.Fatalf("%d entries are not seen", n)
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
			var s sorted[uint64]
			want := map[key]uint64{}
			var keys []key
			type frozen struct {
				s    sorted[uint64]
				want map[key]uint64
			}
			var copies []frozen
			for step := range 30_000 {
				switch what, most := r.IntN(20), (step/5000%4)*1500; {
				case what < 14 && (len(keys) <= most || r.IntN(3) == 0):
					k := key{at(r, step), uint64(step)}
					s.put(k, uint64(step)+1)
					want[k] = uint64(step) + 1
					keys = append(keys, k)
				case what < 15 && len(keys) > 0:
					k := keys[r.IntN(len(keys))]
					if p := s.edit(k); (p != nil) != (want[k] != 0) {
						t.Fatalf("step %d: %v found: %v", step, k, p)
					} else if p != nil {
						*p += 100_000
						want[k] += 100_000
					}
				case what < 16 && r.IntN(50) == 0:
					cutSome(t, r, &s, want)
				case what < 18 && len(want) > 0:
					k, v := s.first()
					if last, _ := s.last(); *v != want[k] || last.before(k) {
						t.Fatalf("step %d: the first is %v", step, k)
					}
					s.remove(k)
					delete(want, k)
				case len(keys) > 0:
					i := r.IntN(len(keys))
					k := keys[i]
					if v, ok := s.remove(k); v != want[k] || ok != (v != 0) || s.get(k) != nil {
						t.Fatalf("step %d: removed %d, want %d", step, v, want[k])
					}
					delete(want, k)
					keys = slices.Delete(keys, i, i+1)
				}
				if step%500 == 0 {
					mustBeSorted(t, &s, want)
				}
				if r.IntN(4000) == 0 {
					copies = append(copies, frozen{s.freeze(), maps.Clone(want)})
				}
			}
			for _, c := range copies {
				mustBeSorted(t, &c.s, c.want)
			}
			s.clear()
			mustBeSorted(t, &s, nil)
		})
	}
}

// cutSome cuts a range out.
func cutSome(t *testing.T, r *rand.Rand, s *sorted[uint64], want map[key]uint64) {
	t.Helper()
	all := slices.SortedFunc(maps.Keys(want), func(a, b key) int {
		if a.before(b) {
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
		from.seq, upto.at = from.seq-min(from.seq, 1), upto.at+1
	}
	var cut []key
	s.cut(from, upto, func(k key, v uint64) {
		if want[k] != v {
			t.Fatalf("cut %v with %d, want %d", k, v, want[k])
		}
		cut = append(cut, k)
	})
	for _, k := range all {
		if !k.before(from) && !upto.before(k) {
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
		s, want := sorted[uint64]{}, map[key]uint64{}
		for range r.IntN(1200) {
			k := key{at: fsm.Time(r.IntN(3)), seq: uint64(r.IntN(3000))}
			if _, known := want[k]; !known {
				want[k] = r.Uint64()
				s.put(k, want[k])
			}
		}
		frozen, before := s.freeze(), maps.Clone(want)
		var rest sorted[uint64]
		taken := map[key]uint64{}
		for range 3 {
			from := key{at: fsm.Time(r.IntN(3)), seq: uint64(r.IntN(3000))}
			upto := key{at: fsm.Time(r.IntN(3)), seq: uint64(r.IntN(3000))}
			switch r.IntN(8) {
			case 0:
				from = key{}
			case 1:
				upto.seq = ^uint64(0)
			}
			part := s.sever(from, upto)
			out := map[key]uint64{}
			for k, v := range want {
				if !k.before(from) && !upto.before(k) {
					out[k] = v
				}
			}
			mustBeSorted(t, &part, out)
			for k, v := range out {
				delete(want, k)
				taken[k] = v
			}
			mustBeSorted(t, &s, want)
			for n := r.IntN(5); n > 0 && part.len() > 0; n-- { // a part is used, too
				k, _ := part.first()
				part.remove(k)
				delete(taken, k)
			}
			rest.join(part)
			mustBeSorted(t, &rest, taken)
		}
		k := key{at: 1, seq: 5000}
		s.put(k, 1)
		want[k] = 1
		mustBeSorted(t, &s, want)
		s.join(rest)
		maps.Copy(want, taken)
		mustBeSorted(t, &s, want)
		mustBeSorted(t, &frozen, before)
	}
}
