package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/history"
)

var rewrite = flag.Bool("rewrite", false, "record the golden reports")

// sample is a short run with everything that a report can contain.
func sample() Run {
	const s = time.Second
	orders, held := &history.History{
		Faults: []history.Fault{
			{Kind: "kill", Node: 2, At: 2 * s, Healed: 4 * s}, {Kind: "clock offset", At: 5 * s},
			{Kind: PowerLoss, Node: 1, At: 6 * s, Healed: 7 * s}, {Kind: PowerLoss, Node: 2, At: 6*s + 1, Healed: 7 * s}, {Kind: PowerLoss, Node: 3, At: 6*s + 2, Healed: 7 * s},
			{Kind: PowerLoss, Node: 3, At: 8 * s, Healed: 9 * s},
		},
		Skipped: []history.Skipped{{Name: "loss of 30 %", Kind: "loss", Reason: "no <netem> & no rights"}},
		Leaders: []history.Led{{Queue: "orders", Node: 2, Term: 2, At: s / 2}, {Queue: "orders", Node: 1, Term: 4, At: 3 * s}, {Queue: `a "<b>"`, Node: 1, Term: 1, At: s}},
		Stalls:  []history.Stalled{{At: s, Longest: 3 * time.Millisecond}, {At: 3 * s, Longest: 40 * time.Millisecond}},
	}, &history.History{}
	for i := range 20 {
		at := time.Duration(i) * s / 2
		a := history.Attempt{Key: uint64(i + 1), Queue: "orders", Call: at, Return: at + time.Duration(i*i)*time.Millisecond, Result: history.OK}
		if at > 2*s && at < 4*s {
			a.Return, a.Result = 0, history.Unknown
		}
		orders.Attempts = append(orders.Attempts, a)
		orders.Deliveries = append(orders.Deliveries, history.Delivery{Key: a.Key, Queue: "orders", At: at + s/10, Redelivered: i == 3})
	}
	held.Faults = orders.Faults
	held.Attempts = []history.Attempt{{Key: 1, Queue: "locks", Call: s, Return: s + s/4, Result: history.OK}, {Key: 2, Queue: "locks", Call: s, Return: s, Result: history.No}}
	held.Ops = []history.Op{{Kind: history.Deliver, Key: 1, On: 1, Return: 2 * s}, {Kind: history.Renew, Key: 1, On: 1, Call: 3 * s, Return: 3 * s, Result: history.OK}}
	return Run{
		Test: "TestSample", Commit: "0123456789ab", Seed: 7, Again: "go test ./jepsen -run '^TestSample$' -jepsen.seed 7", Nodes: 3, Failed: true,
		Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Lasted: 12 * s,
		Workloads: []Workload{{"orders", orders}, {"locks", held}},
		Verdicts: []checker.Verdict{
			{Checker: "lost"}, {Checker: "ghost"}, {Checker: "lost", Count: 1, Problems: []string{"lost: key 5 <of> &c."}},
			{Checker: "early"}, {Checker: "replicas"}, {Checker: "lock"}, {Checker: "unheard of", Count: 2, Problems: []string{"unheard of: both"}},
		},
		Problems: []string{"stop: node 2 had ended by itself"},
	}
}

// The files of a report are those in testdata.
func TestGoldenReport(t *testing.T) {
	files, err := Make(sample()).Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join("testdata", name)
		if *rewrite {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(text, want) {
			t.Errorf("%s is another one; see go test ./jepsen/report -rewrite and git diff", path)
		}
	}
}

func TestSums(t *testing.T) {
	s := Make(sample()).Sums
	want := map[string][2]int{
		"confirmed": {18, s.Confirmed}, "delivered": {21, s.Delivered}, "leader changes": {1, s.LeaderChanges}, "elections": {2, s.Elections},
		"losses of all": {1, s.PowerAll}, "losses of one": {1, s.PowerOne}, "kills": {1, s.Faults["kill"]}, "clocks": {1, s.Faults["clock offset"]},
		"lost": {1, s.Found.Lost}, "other": {2, s.Found.Other}, "ghosts": {0, s.Found.Ghosts}, "failed": {1, s.Failed},
	}
	for name, n := range want {
		if n[0] != n[1] {
			t.Errorf("%s: %d, want %d", name, n[1], n[0])
		}
	}
	var two Sums
	two.Add(s)
	two.Add(s)
	if two.Runs != 2 || two.Confirmed != 36 || two.Faults["kill"] != 2 || two.Wall != 2*s.Wall || two.Found.Other != 4 {
		t.Errorf("two of them: %+v", two)
	}
}

// A promise is kept only if one of its checkers has run, and a fault was there that
// could break it.
func TestPromiseVerdicts(t *testing.T) {
	want := map[string]string{
		"S1": Broken, "S2": Kept, "S5": NotTried, "S10": Kept, "S12": Kept, "S13": Kept, "S14": Broken, "S15": NotTried, "S16": Broken, "L2": Kept, "L3": NotTried,
	}
	for _, p := range Make(sample()).Promises {
		if v, ok := want[p.ID]; ok && v != p.Verdict {
			t.Errorf("%s is %s by %v, want %s", p.ID, p.Verdict, p.Checkers, v)
		}
	}
}

// What clients and tests choose is text, whatever it contains; nothing is loaded.
func TestNothingIsExecuted(t *testing.T) {
	r := sample()
	evil := `</svg></title><script>alert(1)</script>"'`
	r.Test, r.Again, r.Commit, r.Problems = evil, evil, evil, []string{evil}
	r.Workloads[0].Name = evil
	r.Workloads[0].Faults[0].Kind = evil
	r.Workloads[0].Leaders[0].Queue = evil
	rep := Make(r)
	text, err := rep.HTML()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range [][]byte{text, rep.SVG()} {
		if bytes.Contains(file, []byte("<script")) || bytes.Contains(file, []byte("src=")) || bytes.Contains(file, []byte("href=")) {
			t.Errorf("there is something to load or execute in %s", file)
		}
	}
	for dec := xml.NewDecoder(bytes.NewReader(rep.SVG())); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the SVG is no XML: %v", err)
		}
	}
}

// A run of any length has a timeline of a bounded size, and one without any message a
// timeline at all.
func TestTimeline(t *testing.T) {
	for _, lasted := range []time.Duration{0, time.Millisecond, time.Minute, 12 * time.Hour} {
		r := Run{Nodes: 3, Lasted: lasted, Workloads: []Workload{{"empty", &history.History{}}}}
		rep := Make(r)
		if n := len(rep.Timeline.Steps); n == 0 || n > maxSteps+1 || float64(n)*rep.Timeline.Step < ms(lasted) {
			t.Errorf("%v: %d steps of %v ms", lasted, n, rep.Timeline.Step)
		}
		if bytes.Contains(rep.SVG(), []byte("NaN")) || bytes.Contains(rep.SVG(), []byte("Inf")) {
			t.Errorf("%v: %s", lasted, rep.SVG())
		}
	}
}

// Every promise has its own name, and the JSON form is read back as it was.
func TestJSON(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Promises {
		if seen[p.ID] || p.Text == "" || len(p.Checkers) == 0 {
			t.Errorf("promise %+v", p)
		}
		seen[p.ID] = true
	}
	first, err := Make(sample()).JSON()
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(first, &back); err != nil {
		t.Fatal(err)
	}
	if again, err := back.JSON(); err != nil || !bytes.Equal(first, again) {
		t.Errorf("read back: %v\n%s", err, again)
	}
	if text := Markdown([]Report{back, back}); !strings.Contains(text, "| confirmed | 36 | 36 |") || !strings.Contains(text, "| fault: kill | 2 | 2 |") {
		t.Errorf("table:\n%s", text)
	}
}

// What was only counted is in the sums, in the timeline and in the latencies.
func TestCountedMessages(t *testing.T) {
	h := &history.History{Past: history.Counts{Published: 10, Confirmed: 8, Delivered: 9, Redelivered: 1}}
	h.Seconds = []history.Second{
		{At: time.Second, Counts: history.Counts{Published: 10, Confirmed: 3, Delivered: 2}, Took: []time.Duration{4 * time.Millisecond}},
		{At: 3 * time.Second, Counts: history.Counts{Confirmed: 5, Delivered: 7, Redelivered: 1}, Took: []time.Duration{2 * time.Second}},
	}
	rep := Make(Run{Nodes: 3, Lasted: 2 * time.Second, Workloads: []Workload{{"counted", h}}})
	if rep.Sums.Confirmed != 8 || rep.Sums.Published != 10 || rep.Sums.Delivered != 9 {
		t.Errorf("sums: %+v", rep.Sums)
	}
	if w := rep.Workloads[0]; w.Redelivered != 1 || w.Confirm.Max != 2000 || w.Confirm.P50 != 4 {
		t.Errorf("workload: %+v", w)
	}
	steps := rep.Timeline.Steps
	if steps[1].Confirmed != 3 || steps[1].Delivered != 2 || steps[3].Confirmed != 5 || steps[3].Confirm.Max != 2000 || steps[2].Confirmed != 0 {
		t.Errorf("timeline: %+v", steps)
	}
}
