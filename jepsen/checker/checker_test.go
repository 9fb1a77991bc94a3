package checker

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

var rewrite = flag.Bool("rewrite", false, "record the problems found in the golden histories")

// checkers are named by the folders of their golden histories.
var checkers = map[string]func(*history.History) Verdict{
	"lost":        Lost,
	"unanswered":  Unanswered,
	"ghosts":      Ghosts,
	"redelivered": Redelivered,
	"doubled":     Doubled,
	"disorder":    Disorder,
	"returned":    func(h *history.History) Verdict { return Returned(h, 2*time.Second) },
	"early":       Early,
	"late":        func(h *history.History) Verdict { return Late(h, 2*time.Second) },
	"deaths":      func(h *history.History) Verdict { return Deaths(h, Expired("waiting")) },
	"locks":       Locks,
	"promised":    Promised,
	"sessions":    Sessions,
	"due":         Due,
	"finished":    Finished,
	"holders":     Holders,
	"grouporder":  GroupOrder,
	"deferred":    Deferred,
	"schedules":   Schedules,
	"renewals":    Renewals,
	"mutex":       Mutex,
	"active":      func(h *history.History) Verdict { return Active(h, 2*time.Second) },
	"timeouts":    func(h *history.History) Verdict { return TimedOut(h, 2*time.Second) },
	"leases":      func(h *history.History) Verdict { return Leases(h, 2*time.Second) },
	"limit":       Limit(2),
	"dropped":     Dropped(2),
	"fanout":      Fanout,
	"registers":   func(h *history.History) Verdict { return Registers(h, 2*time.Second) },
	"online":      online,
	"slow":        slowBy400,
	"flips":       func(h *history.History) Verdict { return Flips(h, 2*time.Second) },

	"lives-lost":    eachLife.Lost,
	"lives-ghosts":  eachLife.Ghosts,
	"lives-doubled": eachLife.Doubled,
	"lives-held":    eachLife.Held,
	"lives-early":   eachLife.Early,
	"lives-order":   eachLife.Order,
	"lives-parked":  eachLife.Parked,
}

// eachLife are the rules of the golden histories of lives.
var eachLife = Lives{
	Dead: "dead", Forwards: map[string]string{"f": "t"}, Once: map[string]time.Duration{"once": time.Minute},
	Refuses: map[string]bool{"refusing": true}, Orders: map[string]bool{"q": true},
}

// slowBy400 is Slow for links that delay an answer by 400 ms.
func slowBy400(h *history.History) Verdict {
	v, tried := Slow(h, "delay", 400*time.Millisecond)
	if !tried {
		v.Problems = append(v.Problems, "slow: nothing is proven")
	}
	return v
}

// A golden history names the expected problems in lines that begin with "#= ".
// Files named good-… have none, files named bad-… some.
func TestGoldenHistories(t *testing.T) {
	for name, check := range checkers {
		files, err := filepath.Glob(filepath.Join("testdata", name, "*.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		good, bad := 0, 0
		for _, path := range files {
			found := verify(t, path, check)
			switch kind := filepath.Base(path); {
			case strings.HasPrefix(kind, "good-"):
				good++
				if len(found) != 0 {
					t.Errorf("%s: %q in a good history", path, found)
				}
			case strings.HasPrefix(kind, "bad-"):
				bad++
				if len(found) == 0 {
					t.Errorf("%s: nothing found in a bad history", path)
				}
			default:
				t.Errorf("%s is neither good nor bad", path)
			}
		}
		if good == 0 || bad == 0 {
			t.Errorf("checker %s has %d good and %d bad histories", name, good, bad)
		}
	}
}

// check compares a checker's findings with those in the file, or records them.
func verify(t *testing.T, path string, check func(*history.History) Verdict) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := history.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	found := check(h).Problems
	if *rewrite {
		record(t, path, text, found)
	} else if want := wanted(text); !slices.Equal(found, want) {
		t.Errorf("%s:\nfound %q\nwant  %q", path, found, want)
	}
	return found
}

func wanted(text []byte) []string {
	var want []string
	for line := range strings.Lines(string(text)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "#= "); ok {
			want = append(want, p)
		}
	}
	return want
}

func record(t *testing.T, path string, text []byte, found []string) {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#= ") {
			out.WriteString(line)
		}
	}
	for _, p := range found {
		out.WriteString("#= " + p + "\n")
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestManyProblemsAreCounted(t *testing.T) {
	h := history.New()
	for range 2*limit + 3 {
		h.End(h.Begin(history.Attempt{Queue: "q"}), history.OK)
	}
	v := Lost(h)
	if v.Checker != "lost" || v.Count != 2*limit+3 || v.Held() {
		t.Errorf("%s: %d problems, held: %t", v.Checker, v.Count, v.Held())
	}
	if found := v.Problems; len(found) != limit+1 || found[limit] != "lost: and 13 more" {
		t.Errorf("%d problems are described, the last one is %q", len(found), found[len(found)-1])
	}
}

func TestDisagreement(t *testing.T) {
	agreeing := func() []Replica {
		return []Replica{
			{"/ a", 1, "n1", true, 9, "ff"}, {"/ a", 1, "n2", false, 9, "ff"}, {"/ a", 1, "n3", false, 9, "ff"},
			{"/ b", 2, "n1", false, 4, "00"}, {"/ b", 2, "n2", true, 4, "00"}, {"/ b", 2, "n3", false, 4, "00"},
		}
	}
	cases := []struct {
		name   string
		change func([]Replica) []Replica
		want   string // part of the only problem; empty: none
	}{
		{"all equal", func(r []Replica) []Replica { return r }, ""},
		{"one behind", func(r []Replica) []Replica { r[2].Applied = 8; return r }, "node n3 has applied 8, node n1 9"},
		{"one differs", func(r []Replica) []Replica { r[1].Hash = "fe"; return r }, `state "fe" on node n2, "ff" on node n1`},
		{"no leader", func(r []Replica) []Replica { r[4].Leader = false; return r }, "queue / b (id 2) has 0 leaders"},
		{"two leaders", func(r []Replica) []Replica { r[1].Leader = true; return r }, "queue / a (id 1) has 2 leaders"},
		{"one missing", func(r []Replica) []Replica { return r[:5] }, "has 2 replicas, not 3"},
		{"twice on a node", func(r []Replica) []Replica { r[5].Node = "n2"; return r }, "two replicas on node n2"},
		{"an old queue on one node", func(r []Replica) []Replica {
			return append(r, Replica{"/ b", 1, "n1", true, 7, "11"})
		}, "queue / b (id 1) has 1 replicas, not 3"},
	}
	for _, c := range cases {
		found := Disagreement(c.change(agreeing()), 3).Problems
		switch {
		case c.want == "" && len(found) != 0:
			t.Errorf("%s: %q", c.name, found)
		case c.want != "" && (len(found) != 1 || !strings.Contains(found[0], c.want)):
			t.Errorf("%s: %q, want one with %q", c.name, found, c.want)
		}
	}
	none := agreeing()
	for i := range none[:3] {
		none[i].Hash = ""
	}
	if Disagreement(none, 3).Held() {
		t.Error("replicas without a hash pass for equal")
	}
}

func TestPercentiles(t *testing.T) {
	var all []time.Duration
	for i := range 101 {
		all = append(all, time.Duration(i)*time.Millisecond)
	}
	if got, want := Percentiles(all), "n=101 min=0s p50=50ms p90=90ms p99=99ms max=100ms"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := Percentiles(nil); got != "none" {
		t.Errorf("of nothing: %s", got)
	}
}

// A machine that is so busy that a slow part would not be noticed proves nothing, nor do few
// confirms.
func TestSlowIsTried(t *testing.T) {
	const late = 400 * time.Millisecond
	for _, c := range []struct {
		name    string
		count   int
		healthy time.Duration
		tried   bool
	}{{"quick", 30, 5 * time.Millisecond, true}, {"busy", 30, 250 * time.Millisecond, false}, {"few", 5, 5 * time.Millisecond, false}} {
		h := history.New()
		h.Faults = []history.Fault{{Kind: "delay", At: time.Minute, Healed: 2 * time.Minute}}
		for i := range 2 * c.count {
			at := time.Duration(i)
			if i >= c.count {
				at += time.Minute
			}
			h.Attempts = append(h.Attempts, history.Attempt{Queue: "q", Call: at, Return: at + c.healthy, Result: history.OK})
		}
		if _, tried := Slow(h, "delay", late); tried != c.tried {
			t.Errorf("%s: tried: %t", c.name, tried)
		}
	}
}

// Ops without an answer may happen at any later time. The search for their order ends all the same, also where it finds
// that there is none.
func TestManyUnanswered(t *testing.T) {
	for name, check := range map[string]func(*history.History) Verdict{"renewals": Renewals, "mutex": Mutex} {
		h := &history.History{}
		for on := 1; on <= 40; on++ {
			client, at := fmt.Sprint("c", on), time.Duration(on)*time.Minute
			h.Ops = append(h.Ops,
				history.Op{Kind: history.Deliver, Client: client, Key: 1, On: on, Call: at, Return: at + 1, Lock: time.Second},
				history.Op{Kind: history.Renew, Client: client, Key: 1, On: on, Call: at + 2, Lock: time.Second, Result: history.Unknown},
				history.Op{Kind: history.Requeue, Client: client, Key: 1, On: on, Call: at + 3, Result: history.Unknown},
				history.Op{Kind: history.Lost, Client: client, Call: at + 4, Return: at + 5, Result: history.Unknown})
		}
		if v := check(h); len(v.Problems) > 0 {
			t.Errorf("%s: %v", name, v.Problems)
		}
		last := h.Ops[len(h.Ops)-4]
		h.Ops = append(h.Ops, history.Op{Kind: history.Settle, Client: last.Client, Key: 1, On: last.On, Call: last.Return + 9, Return: last.Return + 10, Result: history.OK},
			history.Op{Kind: history.Deliver, Client: "twice", Key: 1, On: 99, Call: last.Return + time.Minute, Return: last.Return + time.Minute + 1, Lock: time.Second})
		if v := check(h); len(v.Problems) != 1 || !strings.Contains(v.Problems[0], "no order explains") {
			t.Errorf("%s, which is settled and back: %v", name, v.Problems)
		}
	}
}
