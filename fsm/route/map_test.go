package route

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// collide makes all but a few hashes equal until the test ends.
func collide(t *testing.T, mask uint64) {
	old := hashMask
	hashMask = mask
	t.Cleanup(func() { hashMask = old })
}

func contents[K comparable, V any](m Map[K, V]) map[K]V {
	got := map[K]V{}
	for k, v := range m.All() {
		got[k] = v
	}
	return got
}

// TestMap compares a Map with Go's own, and every older version with what it
// held when it was the newest.
func TestMap(t *testing.T) {
	for name, mask := range map[string]uint64{"spread": ^uint64(0), "crowded": 0x7, "deep": 3 << 58, "equal": 0} {
		t.Run(name, func(t *testing.T) {
			collide(t, mask)
			rapid.Check(t, checkMap)
		})
	}
}

func checkMap(t *rapid.T) {
	type version struct {
		m    Map[int, int]
		want map[int]int
	}
	var m Map[int, int]
	want := map[int]int{}
	var versions []version
	for i, key := range rapid.SliceOfN(rapid.IntRange(-40, 40), 1, 120).Draw(t, "keys") {
		k := max(key, -key)
		if key < 0 {
			m = m.Without(k)
			delete(want, k)
		} else {
			m = m.With(k, i)
			want[k] = i
		}
		versions = append(versions, version{m, maps.Clone(want)})
	}
	for _, v := range versions {
		if got := contents(v.m); !maps.Equal(got, v.want) || v.m.Len() != len(v.want) {
			t.Fatalf("have %v (%d), want %v", got, v.m.Len(), v.want)
		}
		for k := range 41 {
			got, ok := v.m.Get(k)
			if w, has := v.want[k]; ok != has || got != w {
				t.Fatalf("key %d: %d %v, want %d %v", k, got, ok, w, has)
			}
		}
		checkMapNode(t, v.m.root, 0)
	}
}

// TestMapOf compares maps that are made at once with those that are made value by value: with other hashes than their own
// they have the same form.
func TestMapOf(t *testing.T) {
	for name, mask := range map[string]uint64{"spread": ^uint64(0), "crowded": 0x7, "deep": 3 << 58, "equal": 0} {
		t.Run(name, func(t *testing.T) {
			collide(t, mask)
			rapid.Check(t, func(t *rapid.T) {
				values := rapid.SliceOf(rapid.IntRange(0, 200)).Draw(t, "values")
				key := func(v int) int { return v % 150 }
				var one Map[int, int]
				for _, v := range values {
					one = one.With(key(v), v)
				}
				all := MapOf(values, key)
				if !maps.Equal(contents(all), contents(one)) || all.Len() != one.Len() || !sameForm(all.root, one.root) {
					t.Fatalf("have %v (%d), want %v", contents(all), all.Len(), contents(one))
				}
				checkMapNode(t, all.root, 0)
				for _, v := range values {
					if w, ok := all.Get(key(v)); !ok || w != one.At(key(v)) {
						t.Fatalf("key %d: %d %v", key(v), w, ok)
					}
				}
			})
		})
	}
}

func sameForm[K comparable, V any](a, b *mapNode[K, V]) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.leaves == b.leaves && a.inner == b.inner && len(a.entries) == len(b.entries) && slices.EqualFunc(a.nodes, b.nodes, sameForm)
}

// checkMapNode holds the form of the trie: no node below the root that could
// be an entry of the one above.
func checkMapNode(t *rapid.T, n *mapNode[int, int], depth int) {
	if n == nil {
		return
	}
	if depth > 0 && len(n.nodes) == 0 && len(n.entries) < 2 {
		t.Fatalf("a node at depth %d with %d entries", depth, len(n.entries))
	}
	if n.leaves&n.inner != 0 {
		t.Fatalf("slots %b and %b overlap", n.leaves, n.inner)
	}
	for _, below := range n.nodes {
		checkMapNode(t, below, depth+1)
	}
}

func TestMapWalkStops(t *testing.T) {
	var m Map[string, int]
	for i := range 1000 {
		m = m.With(fmt.Sprint(i), i)
	}
	seen := 0
	for range m.All() {
		if seen++; seen == 10 {
			break
		}
	}
	for range m.Values() {
		if seen++; seen == 20 {
			break
		}
	}
	if seen != 20 {
		t.Fatalf("saw %d", seen)
	}
}

// TestSet compares a Set with a count per member, below and above the size at
// which it becomes a Map.
func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Set[int]
		want := map[int]int{}
		for _, step := range rapid.SliceOfN(rapid.IntRange(-60, 90), 1, 150).Draw(t, "steps") {
			member := max(step, -step) % 30
			if step >= 0 {
				s = s.With(member)
				want[member]++
			} else {
				times := 1 + -step/30
				s = s.Without(member, times)
				if want[member] -= times; want[member] <= 0 {
					delete(want, member)
				}
			}
			got := map[int]int{}
			for m := range s.All() {
				if got[m] != 0 {
					t.Fatalf("%d comes twice", m)
				}
				got[m] = s.Times(m)
			}
			if !maps.Equal(got, want) || s.Len() != len(want) {
				t.Fatalf("have %v (%d), want %v", got, s.Len(), want)
			}
		}
	})
}

func TestDirect(t *testing.T) {
	var d Direct[string]
	d = d.With("k", "q1").With("k", "q1").With("k", "q2").With("", "q3")
	before := d
	d = d.Without("k", "q1", 1)
	if d.Match("k").Times("q1") != 1 || d.Match("k").Len() != 2 || d.Match("").Len() != 1 || d.Match("x").Len() != 0 {
		t.Fatalf("wrong members: %+v", d)
	}
	d = d.Without("k", "q1", 1).Without("k", "q2", 5).Without("nothing", "q2", 1)
	if d.Len() != 1 || before.Match("k").Len() != 2 || before.Match("k").Times("q1") != 2 {
		t.Fatalf("wrong members: %+v, before %+v", d, before)
	}
}

func BenchmarkMapGet(b *testing.B) {
	var m Map[string, int]
	keys := make([]string, 10000)
	for i := range keys {
		keys[i] = fmt.Sprintf("queue-%d", i)
		m = m.With(keys[i], i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, ok := m.Get(keys[i%len(keys)]); !ok {
			b.Fatal("lost")
		}
	}
}

func BenchmarkMapWith(b *testing.B) {
	var m Map[string, int]
	for i := range 10000 {
		m = m.With(fmt.Sprintf("queue-%d", i), i)
	}
	b.ReportAllocs()
	for b.Loop() {
		m.With("another", 1)
	}
}
