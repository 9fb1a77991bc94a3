package mutants

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

var (
	chosen = flag.String("mutants", "", "TestMutants: all, ids or patterns of them, folders, promises, a share like 10%, separated by commas; empty: it is not run")
	shard  = flag.String("mutants.shard", "", "2/4: the second of four parts of them")
	jobs   = flag.Int("mutants.jobs", 2, "how many at a time")
	limit  = flag.Duration("mutants.limit", 4*time.Minute, "for the tests of one package")
	depth  = flag.Int("mutants.depth", int(Further), "1: only tests that the entries name; 2: those of their packages, too; 3: those of further packages, too")
	trust  = flag.Bool("mutants.trust", false, "tests that find a mutant are not run without it")
	count  = flag.Bool("mutants.count", false, "TestCounts writes the numbers")
	record = flag.String("mutants.record", "", "a table in which the row of each mutant is replaced as it ends")
)

// perPromise is how many mutants break each promise, at least.
const perPromise = 3

// further are packages whose tests are tried last, by the mutant's package.
var further = map[string][]Run{
	"fsm":                {{Package: "fsm/queue"}, {Package: "fsm/fsmtest"}},
	"fsm/queue":          {{Package: "fsm/fsmtest"}, {Package: "jepsen/conform"}},
	"fsm/catalog":        {{Package: "cluster/session"}, {Package: "cluster"}},
	"fsm/route":          {{Package: "fsm/catalog"}},
	"amqp":               {{Package: "amqp/v091"}, {Package: "jepsen/conform"}, {Package: "jepsen/attack"}},
	"amqp/v091":          {{Package: "jepsen/conform"}, {Package: "jepsen/attack"}},
	"amqp/v091/wire":     {{Package: "amqp/v091"}, {Package: "jepsen/attack"}},
	"cluster/session":    {{Package: "cluster"}, {Package: "jepsen/conform"}},
	"cluster/queues":     {{Package: "cluster/session"}, {Package: "cluster"}, {Package: "jepsen/conform"}},
	"cluster/failure":    {{Package: "cluster"}, {Package: "jepsen"}},
	"cluster/self":       {{Package: "cluster/session"}, {Package: "cluster"}},
	"cluster/deadletter": {{Package: "cluster"}, {Package: "jepsen/conform"}},
	"cluster/host":       {{Package: "cluster/group"}, {Package: "cluster"}, {Package: "jepsen"}},
	"cluster/group":      {{Package: "cluster/host"}, {Package: "cluster"}, {Package: "jepsen"}},
	"cluster/mgmt":       {{Package: "jepsen/attack"}, {Package: "jepsen/conform"}},
	"cluster/peer":       {{Package: "cluster"}, {Package: "jepsen"}},
	"cluster/replica":    {{Package: "cluster/group"}, {Package: "cluster"}, {Package: "jepsen"}},
	"cluster/raftlog":    {{Package: "cluster/group"}, {Package: "cluster"}, {Package: "jepsen"}},
	"cluster/stream":     {{Package: "cluster/session"}, {Package: "cluster"}},
	"cluster/membership": {{Package: "cluster"}, {Package: "jepsen"}},
	"cluster/placement":  {{Package: "cluster"}},
	"cluster/watchdog":   {{Package: "cluster"}},
	"cluster/catalog":    {{Package: "cluster"}, {Package: "jepsen"}},
	"cluster/clock":      {{Package: "cluster"}},
}

func mustLoad(t *testing.T) []Mutant {
	t.Helper()
	all, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Every entry still changes what it was written for, and names tests that are
// there.
func TestListFits(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	broken := map[string]int{}
	for _, m := range mustLoad(t) {
		if seen[m.ID] {
			t.Errorf("%s: twice", m.ID)
		}
		seen[m.ID] = true
		for _, p := range m.Breaks {
			broken[p]++
		}
		if _, _, err := m.Change.Apply(); err != nil {
			t.Errorf("%s: %v", m.ID, err)
		}
		for _, r := range m.Runs {
			checkTests(t, root, m.ID, r)
		}
	}
	for _, p := range Promises {
		if broken[p] < perPromise {
			t.Errorf("%s is broken by %d mutants only", p, broken[p])
		}
	}
}

// checkTests checks that each name in the pattern of a run begins the name of a test
// in its package.
func checkTests(t *testing.T, root, id string, r Run) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(r.Package), "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("%s: no tests in %s", id, r.Package)
	}
	var text strings.Builder
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(source)
	}
	for name := range strings.SplitSeq(r.Pattern, "|") {
		name, _, _ = strings.Cut(name, "/")
		name = strings.Trim(name, "^$()")
		if !strings.Contains(text.String(), "\nfunc "+name) {
			t.Errorf("%s: %s has no test %q", id, r.Package, name)
		}
	}
}

// The table of promises says how many mutants break each.
func TestCounts(t *testing.T) {
	const file = "../README.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all, counted := mustLoad(t), 0
	var is strings.Builder
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if names := strings.Split(strings.TrimSpace(cells[min(1, len(cells)-1)]), ", "); len(cells) == 7 && slices.Contains(Promises, names[0]) {
			n := 0
			for _, m := range all {
				if slices.ContainsFunc(names, m.breaks) {
					n++
				}
			}
			cells[5] = fmt.Sprintf(" %d ", n)
			counted += len(names)
		}
		now := strings.Join(cells, "|")
		if is.WriteString(now); now != line && !*count {
			t.Errorf("%s%sis right; -mutants.count writes it", line, now)
		}
	}
	if counted != len(Promises) {
		t.Errorf("%d of %d promises are in the table", counted, len(Promises))
	}
	if *count {
		err = os.WriteFile(file, []byte(is.String()), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestMutants(t *testing.T) {
	if *chosen == "" {
		t.Skip("takes hours: -mutants all")
	}
	all := mustLoad(t)
	some, err := Choose(all, *chosen)
	if err == nil {
		some, err = Shard(some, *shard)
	}
	if err != nil {
		t.Fatal(err)
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{Root: root, Dir: t.TempDir(), Limit: *limit, Further: further, Depth: Depth(*depth), Trusting: *trust}
	results := tryAll(t.Context(), r, some, func(res Result) {
		if err := enter(*record, all, res); err != nil {
			t.Error(err)
		}
	})
	fmt.Print("\n", Table(some, results), "\n", Summary(results), "\n")
	for _, m := range some {
		if r := results[m.ID]; r.Verdict != Killed {
			t.Errorf("%s (%s) %s %s", m.ID, m.Bug, r.Verdict, r.By)
		}
	}
}

// tryAll tries mutants in parallel and reports each as it ends, one at a time.
func tryAll(ctx context.Context, r *Runner, some []Mutant, ended func(Result)) map[string]Result {
	var mu sync.Mutex
	var workers sync.WaitGroup
	results, next := map[string]Result{}, make(chan Mutant)
	for range max(1, *jobs) {
		workers.Go(func() {
			for m := range next {
				res := r.Try(ctx, m)
				mu.Lock()
				results[m.ID] = res
				fmt.Printf("%3d/%d %s: %s %s %s (%.0f s)\n", len(results), len(some), m.ID, res.Verdict, res.How, res.By, res.Seconds)
				ended(res)
				mu.Unlock()
			}
		})
	}
	for _, m := range some {
		next <- m
	}
	close(next)
	workers.Wait()
	return results
}

// enter replaces the row of a mutant in a table in a file, below its first heading. No
// file: it does nothing.
func enter(file string, all []Mutant, res Result) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	head, table, _ := strings.Cut(string(text), "| id |")
	return os.WriteFile(file, []byte(head+Merge("| id |"+table, all, map[string]Result{res.ID: res})), 0o644)
}

func TestParseRefuses(t *testing.T) {
	const good = "=== one-bug\nfile: a.go\nbreaks: S1\nbug: lost\n--- old\nx\n--- new\ny\n"
	all, err := parse(good + "\n" + strings.Replace(good, "one", "other", 1))
	if err != nil || len(all) != 2 || all[1].ID != "other-bug" || all[0].Change != (cluster.Change{File: "a.go", Old: "x", New: "y"}) {
		t.Fatalf("%v %+v", err, all)
	}
	for name, bad := range map[string]string{
		"no id":           strings.Replace(good, "one-bug", "", 1),
		"no texts":        strings.Replace(good, "--- new\ny\n", "", 1),
		"no file":         strings.Replace(good, "file: a.go\n", "", 1),
		"no bug":          strings.Replace(good, "bug: lost\n", "", 1),
		"unknown promise": strings.Replace(good, "S1", "S99", 1),
		"unknown line":    strings.Replace(good, "bug:", "bugs:", 1),
		"no change":       strings.Replace(good, "\ny\n", "\nx\n", 1),
		"bad pattern":     strings.Replace(good, "--- old", "run: a (\n--- old", 1),
		"text before":     "hello\n" + good,
	} {
		if _, err := parse(bad); !errors.Is(err, ErrList) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestChoose(t *testing.T) {
	all := mustLoad(t)
	count := func(words string) int {
		some, err := Choose(all, words)
		if err != nil {
			return -1
		}
		return len(some)
	}
	if count("all") != len(all) || count(all[0].ID+","+all[1].ID) != 2 || count("nothing-like-it") != -1 || count("101%") != -1 || count("S7") < perPromise {
		t.Error("wrong mutants are chosen")
	}
	if n := count("10%"); n != len(all)/10 {
		t.Errorf("10%% of %d are %d", len(all), n)
	}
	sum := 0
	for _, word := range []string{"1/3", "2/3", "3/3"} {
		some, err := Shard(all, word)
		if err != nil {
			t.Fatal(err)
		}
		sum += len(some)
	}
	if sum != len(all) {
		t.Errorf("shards have %d of %d", sum, len(all))
	}
	if _, err := Shard(all, "4/3"); !errors.Is(err, ErrList) {
		t.Errorf("shard 4 of 3: %v", err)
	}
}

// One mutant of each kind, in a small module of its own.
func TestRunner(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example.com/sum\n\ngo 1.26\n",
		"a/a.go":      "package a\n\nimport \"time\"\n\nconst pause = 0\n\nfunc Sum(n int) (s int) {\n\ttime.Sleep(pause)\n\tfor i := 1; i <= n; i++ {\n\t\ts += i\n\t}\n\treturn s\n}\n\nfunc Unused() int { return 1 }\n",
		"a/a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tt.Run(\"three\", func(t *testing.T) {\n\t\tif s := Sum(3); s != 6 {\n\t\t\tt.Fatal(s)\n\t\t}\n\t})\n}\n",
	} {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root)
	r := &Runner{Root: root, Dir: t.TempDir(), Limit: 5 * time.Second, Depth: Further}
	for _, c := range []struct {
		name, from, to string
		want           Result
	}{
		{"wrong-sum", "i <= n", "i < n", Result{Verdict: Killed, How: Failure, By: "a TestSum/three"}},
		{"wrong-panic", "return s", "panic(s)", Result{Verdict: Killed, How: Panic, By: "a TestSum/three"}},
		{"wrong-pause", "pause = 0", "pause = time.Hour", Result{Verdict: Killed, How: Timeout, By: "a TestSum/three"}},
		{"wrong-type", "s += i", "s += \"\"", Result{Verdict: Broken, How: NoBuild}},
		{"wrong-text", "is not there", "", Result{Verdict: Broken}},
		{"unused-change", "return 1", "return 2", Result{Verdict: Survived}},
	} {
		m := Mutant{ID: c.name, Change: cluster.Change{File: "a/a.go", Old: c.from, New: c.to}, Runs: []Run{{"a", "TestSum"}}}
		got := r.Try(t.Context(), m)
		if c.want.Verdict == Broken {
			if got.By == "" {
				t.Errorf("%s: it does not say why", c.name)
			}
			got.By = ""
		}
		c.want.ID, c.want.Seconds = c.name, got.Seconds
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// A test that fails without the mutant, too, says nothing about it.
func TestRunnerIsUnsound(t *testing.T) {
	r := &Runner{control: map[Run]func() Kill{{"a", "^TestSum$"}: func() Kill { return Failure }}}
	if kill := r.withoutMutant(t.Context(), Run{"a", exactly("TestSum/three")}); kill != Failure {
		t.Errorf("%q without a mutant", kill)
	}
}

func TestMerge(t *testing.T) {
	all := []Mutant{{ID: "a-a", Breaks: []string{"S1"}, Bug: "x|y"}, {ID: "b-b", Breaks: []string{"S2"}}}
	old := Merge("", all[:1], map[string]Result{"a-a": {Verdict: Survived}, "gone-away": {}})
	table := Merge(old, all, map[string]Result{"b-b": {Verdict: Killed, How: Panic, By: "p TestX", Seconds: 3.4}})
	if want := "| a-a | S1 | x\\|y | survived |  | 0 |\n| b-b | S2 |  | killed, panic | p TestX | 3 |\n"; !strings.HasSuffix(table, want) {
		t.Errorf("%s\nwant at its end\n%s", table, want)
	}
	if missing := Missing(old, all); len(missing) != 1 || missing[0] != "b-b" {
		t.Errorf("missing %q", missing)
	}
}

// Rows stay where the results of a run are entered one after the other, and so does what is above.
func TestEnter(t *testing.T) {
	all := []Mutant{{ID: "a-a", Breaks: []string{"S1"}, Bug: "x"}, {ID: "b-b", Breaks: []string{"S2"}}}
	file := filepath.Join(t.TempDir(), "table.md")
	if err := os.WriteFile(file, []byte("# Results\n\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"b-b", "a-a"} {
		if err := enter(file, all, Result{ID: id, Verdict: Killed, By: "p TestX"}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	want := "| a-a | S1 | x | killed | p TestX | 0 |\n| b-b | S2 |  | killed | p TestX | 0 |\n"
	if err != nil || !strings.HasPrefix(string(text), "# Results\n\n| id |") || !strings.HasSuffix(string(text), want) {
		t.Errorf("%s, %v", text, err)
	}
}
