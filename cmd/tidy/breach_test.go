package tidy

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// Every rule finds what it forbids, and accepts similar permitted code.

func mustParse(t *testing.T, name, text string) *source {
	t.Helper()
	s, err := parse(token.NewFileSet(), name, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}

func mustParseAll(t *testing.T, texts map[string]string) []*source {
	t.Helper()
	tree := fstest.MapFS{}
	for name, text := range texts {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	files, err := goFiles(tree)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// expect compares breaches with want, one "place: part of the text" each.
func expect(t *testing.T, found []breach, want ...string) {
	t.Helper()
	for i := range max(len(found), len(want)) {
		switch {
		case i >= len(found):
			t.Errorf("not seen: %s", want[i])
		case i >= len(want):
			t.Errorf("not expected: %s", found[i])
		default:
			at, text, _ := strings.Cut(want[i], ": ")
			if found[i].at != at || !strings.Contains(found[i].text, text) {
				t.Errorf("got  %s\nwant %s", found[i], want[i])
			}
		}
	}
}

func TestImportBreaches(t *testing.T) {
	const own = module + "/"
	for _, c := range []struct {
		file, imported string
		allowed        bool
	}{
		{"proto/peerpb/x.go", own + "proto/logpb", true},
		{"proto/peerpb/x.go", own + "fsm", false},
		{"fsm/x.go", own + "proto/logpb", true},
		{"fsm/x.go", own + "fsm/queue", false},
		{"fsm/x.go", "time", false},
		{"fsm/route/x.go", own + "fsm", false},
		{"fsm/queue/x.go", own + "fsm", true},
		{"fsm/queue/x.go", own + "fsm/route", true},
		{"fsm/queue/x.go", own + "fsm/catalog", false},
		{"fsm/queue/x.go", own + "fsm/queue/internal/heap", true},
		{"fsm/queue/x.go", own + "fsm/catalog/internal/heap", false},
		{"fsm/queue/x.go", own + "proto/peerpb", false},
		{"fsm/queue/x.go", own + "cluster/group", false},
		{"fsm/queue/x.go", own + "fsm/fsmtest", false},
		{"fsm/queue/x.go", "google.golang.org/protobuf/proto", true},
		{"fsm/queue/x.go", "github.com/cockroachdb/pebble/v2", false},
		{"fsm/queue/x.go", "slices", true},
		{"fsm/queue/x.go", "time", false},
		{"fsm/queue/x.go", "os", false},
		{"fsm/queue/x.go", "os/exec", false},
		{"fsm/queue/x.go", "net", false},
		{"fsm/queue/x.go", "net/netip", false},
		{"fsm/queue/x.go", "sync", false},
		{"fsm/queue/x.go", "sync/atomic", false},
		{"fsm/queue/x.go", "context", false},
		{"fsm/queue/x.go", "log", false},
		{"fsm/queue/x.go", "log/slog", false},
		{"fsm/queue/x.go", "math/rand", false},
		{"fsm/queue/x.go", "math/rand/v2", false},
		{"fsm/queue/x.go", "runtime", false},
		{"fsm/queue/x.go", "runtime/debug", false},
		{"fsm/queue/x.go", "unsafe", false},
		{"fsm/queue/x.go", "math/bits", true},
		{"fsm/queue/x_test.go", "time", true},
		{"fsm/catalog/x.go", own + "fsm/queue", false},
		{"fsm/fsmtest/x.go", own + "fsm/queue", true},
		{"fsm/fsmtest/x.go", "time", true},
		{"fsm/fsmtest/x.go", own + "cluster/group", false},
		{"amqp/v091/wire/x.go", own + "fsm", false},
		{"amqp/v091/wire/x.go", "net", true},
		{"amqp/v091/x.go", own + "amqp/v091/wire", true},
		{"amqp/v091/x.go", own + "amqp", true},
		{"amqp/v091/x.go", own + "amqp/v10", false},
		{"amqp/v091/x.go", own + "fsm", true},
		{"amqp/v091/x.go", own + "proto/logpb", true},
		{"amqp/v091/x.go", own + "fsm/queue", false},
		{"amqp/x.go", own + "amqp/v091", false},
		{"amqp/x.go", own + "fsm", true},
		{"amqp/x.go", own + "fsm/queue", false},
		{"amqp/x.go", own + "fsm/catalog", false},
		{"amqp/x.go", own + "cluster/session", false},
		{"amqp/x.go", own + "proto/peerpb", false},
		{"amqp/x.go", "github.com/hashicorp/raft", false},
		{"cluster/session/x.go", own + "fsm/catalog", true},
		{"cluster/session/x.go", own + "amqp", false},
		{"cluster/session/x.go", own + "cluster/queues", true},
		{"cluster/queues/x.go", own + "cluster/session", false},
		{"cluster/failure/x.go", own + "cluster/queues", false},
		{"cluster/session/x.go", "github.com/hashicorp/raft", false},
		{"cluster/session/x.go", "github.com/hashicorp/raft-boltdb/v2", false},
		{"cluster/session/x.go", "github.com/cockroachdb/pebble/v2", true},
		{"cluster/x.go", "github.com/hashicorp/raft", false},
		{"cluster/group/x.go", "github.com/hashicorp/raft", true},
		{"cluster/group/x.go", own + "cluster/replica", true},
		{"cluster/group/x.go", own + "cluster/catalog", false},
		{"cluster/group/x.go", own + "cluster/host", false},
		{"cluster/host/x.go", own + "cluster/group", true},
		{"cluster/catalog/x.go", "github.com/hashicorp/raft", true},
		{"cluster/catalog/x.go", own + "cluster/group", false},
		{"cluster/replica/x.go", "github.com/hashicorp/raft", true},
		{"cluster/replica/x.go", own + "fsm/queue", false},
		{"cluster/raftlog/x.go", "github.com/hashicorp/raft-boltdb/v2", true},
		{"cluster/peer/x.go", "github.com/hashicorp/raft", true},
		{"cmd/quorate/x.go", own + "cluster", true},
		{"cmd/quorate/x.go", own + "amqp", true},
		{"cmd/quorate/x.go", "github.com/hashicorp/raft", false},
		{"cmd/quoratectl/x.go", own + "cluster/session", false},
		{"jepsen/bench/x.go", "github.com/rabbitmq/amqp091-go", true},
		{"jepsen/bench/x.go", own + "fsm", false},
		{"jepsen/bench/x.go", own + "cluster/mgmt/api", true},
		{"jepsen/bench/x.go", own + "jepsen/cluster", true},
		{"jepsen/bench/x.go", own + "jepsen/workload", true},
		{"jepsen/bench/x.go", "google.golang.org/grpc", false},
		{"jepsen/bench/x_test.go", own + "amqp", false},
		{"cmd/tidy/x.go", own + "fsm", false},
		{"jepsen/checker/x.go", own + "jepsen/history", true},
		{"jepsen/checker/x.go", own + "fsm", false},
		{"jepsen/x_test.go", own + "cluster", false},
		{"jepsen/x.go", "github.com/rabbitmq/amqp091-go", true},
		{"docs/examples/hello/main.go", "github.com/rabbitmq/amqp091-go", true},
		{"docs/examples/hello/main.go", own + "fsm", false},
		{"docs/examples/x_test.go", own + "amqp", false},
		{"tools/x.go", "fmt", false}, // no rule for the folder
	} {
		s := mustParse(t, c.file, fmt.Sprintf("package x\n\nimport _ %q\n", c.imported))
		if found := checkImports([]*source{s}); (len(found) == 0) != c.allowed {
			t.Errorf("%s imports %s: got %v, allowed is %v", c.file, c.imported, found, c.allowed)
		}
	}
}

func TestDeterminismBreaches(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"goroutine", "func f() { go f() }", []string{"go statement"}},
		{"select", "func f() { select {} }", []string{"select"}},
		{"channel in a struct", "type s struct{ c chan int }", []string{"channel"}},
		{"send and receive", "func f(c chan int) { c <- 1; <-c }", []string{"channel", "send", "receive"}},
		{"range over a channel", "func f(c <-chan int) { for range c {} }", []string{"channel", "range over a channel"}},
		{"float field", "type s struct{ a int; b float64 }", []string{"float"}},
		{"floats behind a name", "type f []float32\ntype s struct{ a map[string]f; b *complex128 }", []string{"float", "float"}},
		{"float inside a struct that is named elsewhere", "type a struct{ f float64 }\ntype b struct{ a a }", []string{"float"}},
		{"package variable", "var load = 0.5", []string{"float"}},
		{"float in passing", "func f(a, b int) bool { x := float64(a) / float64(b); return x > 0.5 }", nil},
		{"map", "func f(m map[int]int) { for range m {} }", []string{"range over a map"}},
		{"map behind a name", "type set map[int]bool\nfunc f(m set) { for k := range m { _ = k } }", []string{"range over a map"}},
		{"map as type parameter", "func f[M ~map[K]V, K comparable, V any](m M) { for range m {} }", []string{"range over a map"}},
		{"map with a reason", "func f(m map[int]int) (n int) {\n\tfor _, v := range m { // det: a sum has no order\n\t\tn += v\n\t}\n\t// det: as above\n\tfor _, v := range m {\n\t\tn += v\n\t}\n\treturn n\n}", nil},
		{"reason too far away", "func f(m map[int]int) {\n\t// det: no order\n\n\tfor range m {\n\t}\n}", []string{"range over a map"}},
		{"no reason in the comment", "func f(m map[int]int) {\n\tfor range m { // det:\n\t}\n}", []string{"range over a map"}},
		{"slice", "func f(m []int) { for range m {}; for range 3 {}; for range \"abc\" {} }", nil},
		{"iterator over a map", "func f(m map[int]int) { for range maps.Keys(m) {}; _ = maps.All(m) }", []string{"unsorted maps.Keys", "unsorted maps.All"}},
		{"sorted iterator", "func f(m map[int]int) []int { return slices.Sorted(maps.Keys(m)) }", nil},
		{"collected and not sorted", "func f(m map[int]int) []int { return slices.Collect(maps.Values(m)) }", []string{"unsorted maps.Values"}},
	} {
		text := "package x\n\nimport (\n\t\"maps\"\n\t\"slices\"\n)\n\nvar _ = maps.Clone[map[int]int]\nvar _ = slices.Sort[[]int]\n\n" + c.text + "\n"
		s := mustParse(t, "fsm/queue/x.go", text)
		found := checkDeterminism(s, mustCheck(t, s))
		texts := make([]string, len(found))
		for i, b := range found {
			texts[i] = b.text
		}
		if !slices.EqualFunc(texts, c.want, strings.Contains) {
			t.Errorf("%s: got %q, want %q", c.name, texts, c.want)
		}
	}
	for dir, want := range map[string]bool{"fsm": true, "fsm/queue": true, "fsm/catalog/x": true, "fsm/fsmtest": false, "cluster": false, "fsmx": false} {
		if mustBeDeterministic(dir) != want {
			t.Errorf("%s: deterministic is %v", dir, !want)
		}
	}
}

// mustCheck type-checks one fixture.
func mustCheck(t *testing.T, s *source) *types.Info {
	t.Helper()
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Defs:  map[*ast.Ident]types.Object{},
		Uses:  map[*ast.Ident]types.Object{},
	}
	conf := types.Config{Importer: importer.Default()}
	if _, err := conf.Check("x", s.fset, []*ast.File{s.ast}, info); err != nil {
		t.Fatalf("%v\nin %s", err, s.path)
	}
	return info
}

func TestSizeBreaches(t *testing.T) {
	long := func(name string, lines int) string {
		return "func " + name + " {\n" + strings.Repeat("\t_ = 1\n", lines-2) + "}\n"
	}
	files := mustParseAll(t, map[string]string{
		"a/fits.go":       "package a\n" + long("f()", maxFunction) + strings.Repeat("\n", maxFile-maxFunction-1),
		"a/function.go":   "package a\n" + long("g()", maxFunction+1) + long("(t *T[K]) m()", maxFunction+2) + "type T[K any] struct{}\n",
		"a/generated.go":  "// Code generated by hand. DO NOT EDIT.\n\npackage a\n" + strings.Repeat("\n", maxFile),
		"a/listed.go":     "package a\n" + long("h()", maxFunction+5) + strings.Repeat("\n", maxFile),
		"a/long.go":       "package a\n" + strings.Repeat("\n", maxFile),
		"a/long_test.go":  "package a\n" + long("table()", maxFunction+9) + strings.Repeat("\n", maxFile),
		"a/testdata/x.go": "package a\n" + strings.Repeat("\n", maxFile),
	})
	expect(t, checkSizes(files, map[string]int{"a/listed.go": maxFile + 100, "a/listed.go#h": maxFunction + 4}),
		"a/function.go:2 g: 71 lines, 70 allowed",
		"a/function.go:73 T.m: 72 lines, 70 allowed",
		"a/listed.go:2 h: 75 lines, 74 allowed",
		"a/long.go: 1001 lines, 1000 allowed",
		fmt.Sprintf("a/long_test.go: %d lines, 1000 allowed", maxFile+maxFunction+10),
	)
}

func TestTypeBreaches(t *testing.T) {
	methods := func(name string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "func (x *%s) m%d() {}\n", name, i)
		}
		return b.String()
	}
	files := mustParseAll(t, map[string]string{
		"a/fits.go":     "package a\ntype Fits struct { x int }\n" + methods("Fits", maxMethods),
		"a/methods.go":  "package a\ntype Methods int\n" + methods("Methods", maxMethods-1),
		"a/disguise.go": "package a\nfunc f(m *Methods, n int) {}\nfunc g(m *Methods) {}\nfunc h(n int, m *Methods) {}\n",
		"a/listed.go":   "package a\ntype Listed[K any] int\n" + methods("Listed[K]", maxMethods+5),
		"a/a_test.go":   "package a\nfunc (x *Fits) more() {}\n",
		"b/parts.go": `package b
type Part struct { x int }
type Generic[K any] struct { k K }
type Name string
type Owner struct { a, b *Part; c *Generic[int]; d *Part; n Name }
type Hub struct { a, b *Part; c *Generic[int]; *Part; e *Part; n Name }
type Record struct { a, b, c, d, e *Part; n Name }
type Wrapper struct { p *Part }
type Pair struct { p, q *Part }
type Other struct { p *Name; q *int; r Part }
type Values struct { Part }
`,
		"b/methods.go": "package b\n" + methods("Owner", 9) + methods("Hub", 5) + methods("Record", 4) + methods("Wrapper", 1) + methods("Other", 1) + methods("Values", 1),
	})
	expect(t, checkMethods(files, map[string]int{"a.Listed": maxMethods + 5}), "a/methods.go:2: a.Methods has 61 methods, 60 allowed")
	expect(t, checkMethods(files, map[string]int{"a.Listed": maxMethods + 4, "a.Methods": 61}), "a/listed.go:2: a.Listed has 65 methods, 64 allowed")
	is := []string{"b.Hub points to 5 siblings", "b.Wrapper owns nothing"}
	if have := hubs(files); !slices.Equal(have, is) {
		t.Errorf("%q, want %q", have, is)
	}
	expect(t, checkHubs(files, is))
	expect(t, checkHubs(files, is[:1]), "b.Wrapper owns nothing: ")
	expect(t, checkHubs(files, append(is, "b.Gone owns nothing")), "b.Gone owns nothing: it is in the list")
	was := []string{"b.Hub points to 6 siblings", "b.Pair owns nothing", "b.Wrapper points to 7 siblings"}
	if have := worse(was, []string{"b.Hub points to 7 siblings", "b.New owns nothing", "b.Pair points to 5 siblings", "b.Wrapper owns nothing"}); len(have) != 3 {
		t.Errorf("worse: %q", have)
	}
}

func TestWordBreaches(t *testing.T) {
	banned := bans(`
| target | nothing above the heading counts | |

## Not in names

| not | but | except in |
|---|---|---|
| lane, courier | command stream | |
| target | leader route | dead letter target, target audience, b/... |
| plus one | an optional value | |
`)
	files := mustParseAll(t, map[string]string{
		"a/lane.go": "package a\n",
		"a/names.go": `package a

type planets struct{ lanes, inLane int }

type I interface{ DeadLetterTarget(target int) (lane int); LaneTarget() }

var ttlPlusOne, plusMinusOne, HTTPCourier = 1, 2, func() { type lane int }

func (planets) targetAudience(lane int) { target := lane; _ = target }

func targetDead() {}
`,
		"b/c/target.go": "package c\nvar target, lane int\n",
	})
	expect(t, checkWords(files, banned),
		`a/lane.go: lane: not "lane" but command stream`,
		`a/names.go:3: inLane: not "lane"`,
		`a/names.go:5: LaneTarget: not "lane"`,
		`a/names.go:5: LaneTarget: not "target" but leader route`,
		`a/names.go:7: ttlPlusOne: not "plus one"`,
		`a/names.go:7: HTTPCourier: not "courier"`,
		`a/names.go:11: targetDead: not "target"`,
		`b/c/target.go:2: lane: not "lane"`,
	)
}

func TestDocBreaches(t *testing.T) {
	files := mustParseAll(t, map[string]string{
		"fsm/x/doc.go": "// Package x is described.\npackage x\n",
		"fsm/x/x.go": `package x

// T is documented.
type T int

const (
	One T = iota
	Two
)

type U int

const Three = 3

var Four = 4 // with a comment on its line

var (
	// Five is documented.
	Five = 5
	Six  = 6
	seven = 7
)

func F() {}

// G is documented.
func G() {}

func (T) M() {}

func (T) String() string { return "" }

func (u *unseen) M() {}

type unseen struct{}

type (
	// V is documented.
	V int
	W int
)
`,
		"fsm/y/y.go":      "package y\n",
		"fsm/y/y_test.go": "// Package y is described in the wrong place.\npackage y\nfunc H() {}\n",
		"fsm/z/z.go":      "// Code generated by hand. DO NOT EDIT.\n\npackage z\n\nfunc J() {}\n",
		"jepsen/x/x.go":   "// Package x is described.\npackage x\nfunc K() {}\n",
	})
	expect(t, checkPackageComments(files),
		"fsm/y: package y has no doc comment",
		"fsm/z: package z has no doc comment",
	)
	expect(t, checkDocs(files),
		"fsm/x/x.go:11: exported U",
		"fsm/x/x.go:13: exported Three",
		"fsm/x/x.go:20: exported Six",
		"fsm/x/x.go:24: exported F",
		"fsm/x/x.go:29: exported T.M",
		"fsm/x/x.go:40: exported W",
	)
}

func TestPromiseBreaches(t *testing.T) {
	files := mustParseAll(t, map[string]string{"a/a.go": strings.ReplaceAll(`package a

// LATER: some day
var a = "LATER in a string is no promise"

// LATER(#12): when the issue is done
var b = 2 /* LATER(me) */

// FIX`+`ME
var todo = 1 // XX`+`X
`, "LATER", "TO"+"DO")})
	expect(t, checkPromises(files),
		"a/a.go:3: issue number", "a/a.go:7: issue number", "a/a.go:9: issue number", "a/a.go:10: issue number")
}

func TestSleepBreaches(t *testing.T) {
	files := mustParseAll(t, map[string]string{
		"a/a.go":         "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }\n",
		"a/a_test.go":    "package a\nimport \"time\"\nfunc g() { time.Sleep(1) }\n",
		"a/b_test.go":    "package a\nimport clock \"time\"\nfunc h() { f := clock.Sleep; f(1) }\n",
		"a/c_test.go":    "package a\nimport . \"time\"\nfunc i() { Sleep(1) }\n",
		"a/d_test.go":    "package a\nimport \"a/time2\"\nfunc j() { time.Sleep(1) }\n",
		"a/sync_test.go": "package a\nimport (\n\t\"testing/synctest\"\n\t\"time\"\n)\nfunc k() { synctest.Wait(); time.Sleep(1) }\n",
	})
	expect(t, checkSleeps(files), "a/a_test.go:3: time.Sleep", "a/b_test.go:3: time.Sleep", "a/c_test.go:3: time.Sleep")
}

func TestGoroutineBreaches(t *testing.T) {
	files := mustParseAll(t, map[string]string{
		"cluster/a/a.go": `package a
import "sync"
func f(w *sync.WaitGroup) { w.Go(f1); go f1() }
func f1() {}
func (t *T[K]) g() { h(func() { go f1() }) }
func (t *T[K]) listed() { go f1() }
var v = func() { go f1() }
`,
		"cluster/a/a_test.go": "package a\nfunc k() { go f1() }\n",
		"amqp/a.go":           "package a\nfunc k() { go f1() }\n",
	})
	expect(t, checkGoroutines(files, map[string]string{"cluster/a/a.go#T.listed": "why"}),
		"cluster/a/a.go:3: go statement", "cluster/a/a.go:5: go statement", "cluster/a/a.go:7: go statement")
}

func TestLayoutBreaches(t *testing.T) {
	files := fstest.MapFS{}
	for _, name := range []string{"cmd/x", "fsm/x", ".git/x", "README.md", "Makefile", "bin/quorate", "x.test", "main.go", "utils/x", "notes.txt"} {
		files[name] = &fstest.MapFile{}
	}
	found, err := checkTopLevel(files, gitignored("# built\n/bin/\n*.test\ndocs/out\n\n"))
	if err != nil {
		t.Fatal(err)
	}
	expect(t, found, "main.go: top level", "notes.txt: top level", "utils: top level")

	expect(t, checkFolders(mustParseAll(t, map[string]string{
		"cluster/util/x.go":      "package util\n",
		"cluster/util/y.go":      "package util\n",
		"cluster/pkg/store/x.go": "package store\n",
		"cluster/utility/x.go":   "package utility\n",
	})), "cluster/pkg/store: named pkg", "cluster/util: named util")
}

func TestWalkBreaches(t *testing.T) {
	files := mustParseAll(t, map[string]string{
		"a/one.go": "package a\n\nfunc run(b B) { b.Take() }\n", "b/one.go": "package b\n\nfunc (B) Take() {}\n",
		"b/alone.go": "package b\n\nfunc rest() {}\n",
	})
	for _, c := range []struct {
		steps string
		files int
		want  []string
	}{
		{"1. `a/one.go`\n2. `b/one.go`; `a/one.go`, *again*\n", 2, nil},
		{"1. `a/one.go` and `b/one.go`\n2. `a/one.go`\n", 2, []string{"walk: a/one.go is entered twice"}},
		{"1. `a/one.go` and `b/one.go`\n2. *Again* `one.go`\n", 2, []string{"walk: one.go may be a/one.go and b/one.go"}},
		{"1. `a/one.go` and `b/one.go`\n2. `a/two.go`\n", 2, []string{"walk: a/two.go does not exist"}},
		{"1. `b/one.go`\n2. `alone.go`, *again*, and `a/one.go`\n", 2, []string{"walk: alone.go does not exist, or does not stand"}},
		{"1. `a/one.go`, `b/one.go`, `b/alone.go`\n", 3, []string{"walk: b/alone.go neither calls"}},
		{"1. `a/one.go`, `b/one.go`\n", 1, []string{"walk: 2 files, 1 in the list"}},
		{strings.Repeat("1. `a/one.go`, `b/one.go`, again\n", 12), 2, []string{"walk: 12 steps, 11 allowed"}},
		{"no steps\n", 2, []string{"docs/internals.md: 0 walks, not 1"}},
	} {
		t.Run(c.steps, func(t *testing.T) {
			expect(t, checkWalks("# page\n\n## walk\n\n"+c.steps+"\n## other\n\ntext\n", files, map[string]int{"walk": c.files}), c.want...)
		})
	}
}

func TestDependencyBreaches(t *testing.T) {
	got := moduleList("b\n\na\nb\n" + module + "\n")
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("got %q", got)
	}
	expect(t, differences(got, got))
	expect(t, differences([]string{"a", "c"}, got), "b: new dependency", "c: no dependency")
}
