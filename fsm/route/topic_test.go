package route

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// naiveTopic matches by the definition.
func naiveTopic(pattern, key []string) bool {
	if len(pattern) == 0 {
		return len(key) == 0
	}
	switch pattern[0] {
	case "#":
		for i := 0; i <= len(key); i++ {
			if naiveTopic(pattern[1:], key[i:]) {
				return true
			}
		}
		return false
	case "*":
		return len(key) > 0 && naiveTopic(pattern[1:], key[1:])
	}
	return len(key) > 0 && key[0] == pattern[0] && naiveTopic(pattern[1:], key[1:])
}

func words(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, ".")
}

func topicOf(patterns ...string) Topic[string] {
	var t Topic[string]
	for _, p := range patterns {
		t = t.With(p, p)
	}
	return t
}

// matches returns the members that match, sorted; twice if emitted twice.
func (t Topic[T]) matches(key string) []T {
	var got []T
	t.Match(key, func(s Set[T]) {
		for m := range s.All() {
			got = append(got, m)
		}
	})
	return got
}

func checkTopic(t interface{ Fatalf(string, ...any) }, table Topic[string], patterns []string, key string) {
	var want []string
	for _, p := range patterns {
		if naiveTopic(words(p), words(key)) {
			want = append(want, p)
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	got := table.matches(key)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("patterns %q, key %q: matched %q, want %q", patterns, key, got, want)
	}
}

func TestTopicTable(t *testing.T) {
	patterns := []string{"", "#", "#.#", "*", "a", "a.*", "a.#", "*.b", "#.b", "#.a.#", "a.b.c", "a.#.c", "*.*", "a*", "#.*", "*.#", "a..b"}
	table := topicOf(patterns...)
	for key, want := range map[string]string{
		"":        "|#|#.#",
		"a":       "#|#.#|#.*|#.a.#|*|*.#|a|a.#",
		"a.":      "#|#.#|#.*|#.a.#|*.#|*.*|a.#|a.*",
		"a.b":     "#|#.#|#.*|#.a.#|#.b|*.#|*.*|*.b|a.#|a.*",
		"a.b.c":   "#|#.#|#.*|#.a.#|*.#|a.#|a.#.c|a.b.c",
		"a..b":    "#|#.#|#.*|#.a.#|#.b|*.#|a.#|a..b",
		"a*":      "#|#.#|#.*|*|*.#|a*",
		"*":       "#|#.#|#.*|*|*.#",
		"#":       "#|#.#|#.*|*|*.#",
		".":       "#|#.#|#.*|*.#|*.*",
		"x.a.y":   "#|#.#|#.*|#.a.#|*.#",
		"a.c":     "#|#.#|#.*|#.a.#|*.#|*.*|a.#|a.#.c|a.*",
		"a.a.a.c": "#|#.#|#.*|#.a.#|*.#|a.#|a.#.c",
	} {
		got := table.matches(key)
		slices.Sort(got)
		if s := strings.Join(got, "|"); s != want {
			t.Errorf("key %q matches %s, want %s", key, s, want)
		}
		checkTopic(t, table, patterns, key)
	}
}

func TestHashes(t *testing.T) {
	for pattern, want := range map[string]int{"": 0, "#": 1, "#.a.#": 2, "#.a.#.b.#": 3, "##": 0, "a.#b": 0, ".#.": 1} {
		if got := Hashes(pattern); got != want {
			t.Errorf("%q has %d, want %d", pattern, got, want)
		}
	}
}

// TestTopicChanges adds and removes patterns and compares each version of
// the table with the naive matcher, the old ones after the newer were made.
func TestTopicChanges(t *testing.T) {
	pattern := rapid.StringMatching(`([ab*#]|)(\.([ab*#]|)){0,4}`)
	key := rapid.StringMatching(`([abc]|)(\.([abc]|)){0,5}`)
	rapid.Check(t, func(t *rapid.T) {
		patterns := rapid.SliceOfN(pattern, 1, 30).Draw(t, "patterns")
		keys := rapid.SliceOfN(key, 1, 8).Draw(t, "keys")
		var versions []Topic[string]
		var held [][]string
		var table Topic[string]
		var now []string
		for _, p := range patterns {
			if i := rapid.IntRange(-len(now)-2, len(now)-1).Draw(t, "remove"); i >= 0 {
				table = table.Without(now[i], now[i], 1)
				now = slices.Delete(slices.Clone(now), i, i+1)
			} else {
				table = table.With(p, p)
				now = append(slices.Clone(now), p)
			}
			versions, held = append(versions, table), append(held, now)
		}
		for i, v := range versions {
			for _, k := range keys {
				checkTopic(t, v, held[i], k)
			}
			for _, p := range patterns {
				want := 0
				for _, h := range held[i] {
					if h == p {
						want++
					}
				}
				if got := v.Under(p).Times(p); got != want {
					t.Fatalf("%q stands %d times, want %d", p, got, want)
				}
			}
		}
		if distinct := len(slices.Compact(slices.Sorted(slices.Values(now)))); table.Len() != distinct {
			t.Fatalf("%d patterns, want %d", table.Len(), distinct)
		}
		for _, p := range now {
			table = table.Without(p, p, 1)
		}
		if nodes, patterns := table.root.count(); nodes+patterns != 0 {
			t.Fatalf("%d nodes are left of nothing", nodes)
		}
	})
}

func FuzzTopic(f *testing.F) {
	f.Add("#.a.#\n*.b\na.#", "a.b")
	f.Add("\n#\n*\n.", "")
	f.Add("#.#.#\n#.*.#\n*.#.*", "a..b.")
	f.Fuzz(func(t *testing.T, list, key string) {
		patterns := strings.Split(list, "\n")
		if len(patterns) > 40 || len(key) > 24 {
			return // the naive matcher is exponential
		}
		for _, p := range patterns {
			if Hashes(p) > 3 {
				return
			}
		}
		checkTopic(t, topicOf(patterns...), patterns, key)
	})
}

// TestTopicManyStay has more '#' nodes reached than the short list is for.
func TestTopicManyStay(t *testing.T) {
	var patterns []string
	for i := range 40 {
		patterns = append(patterns, "#"+strings.Repeat(".*", i)+".#", "#"+strings.Repeat(".a", i)+".#.b")
	}
	table := topicOf(patterns...)
	for _, key := range []string{"", "a", strings.Repeat("a.", 20) + "b", strings.Repeat("a.", 60) + "b", strings.Repeat(".", 100)} {
		checkTopic(t, table, patterns, key)
	}
}

// hostile is a table and a key made to cost as much as 255 bytes can.
func hostile() (Topic[string], string) {
	var patterns []string
	for i := range 120 {
		patterns = append(patterns, "#"+strings.Repeat(".*", i)+".#.b", "#"+strings.Repeat(".a", i)+".#.c")
	}
	return topicOf(patterns...), strings.Repeat("a.", 127) + "a"
}

func BenchmarkTopic(b *testing.B) {
	var table Topic[string]
	for i := range 10000 {
		table = table.With(fmt.Sprintf("sensor.%d.*.temperature", i), "q")
	}
	table = table.With("sensor.#", "all").With("#.temperature", "hot")
	b.Run("10000", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			found := 0
			table.Match("sensor.77.room.temperature", func(s Set[string]) { found += s.Len() })
			if found != 3 {
				b.Fatal(found)
			}
		}
	})
	b.Run("hostile", func(b *testing.B) {
		table, key := hostile()
		b.ReportAllocs()
		for b.Loop() {
			table.Match(key, func(Set[string]) {})
		}
	})
}

func TestNoAllocations(t *testing.T) {
	topic := topicOf("a.*", "a.#", "#.b", "x.y.z", "#.c.#")
	var direct Direct[int]
	direct = direct.With("k", 1).With("k", 2)
	sum := 0
	if n := testing.AllocsPerRun(100, func() {
		topic.Match("a.b", func(s Set[string]) { sum += s.Len() })
		for m := range direct.Match("k").All() {
			sum += m
		}
	}); n != 0 {
		t.Errorf("%v allocations for a match", n)
	}
}
