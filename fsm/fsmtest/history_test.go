package fsmtest

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// entry is one entry of a log.
type entry struct {
	index, term uint64
	header      *logpb.Entry
}

// history is a log, as text one line per entry:
//
//	INDEX TERM {"version":1,"now":"…","commands":[…]}
//
// with the header as JSON. Empty lines and lines that begin with # are
// comments.
type history []entry

// add appends a step.
func (h *history) add(s step) {
	if !s.more || len(*h) == 0 {
		*h = append(*h, entry{s.meta.Index, s.meta.Term, &logpb.Entry{Version: s.meta.Version, Now: int64(s.meta.Now)}})
	}
	last := (*h)[len(*h)-1].header
	last.Commands = append(last.Commands, s.cmd)
}

// steps takes an entry apart, as it lies in the log: each command with what
// the machine is told about it.
func (e entry) steps() []step {
	m := fsm.Meta{Index: e.index, Term: e.term, Now: fsm.Time(e.header.Now), Version: e.header.Version}
	steps := make([]step, len(e.header.Commands))
	for i, c := range e.header.Commands {
		m.Session = fsm.SessionFrom(c.Session)
		steps[i] = step{m, c, i > 0}
		m.Offset += payloadOf(c)
	}
	return steps
}

// overWire encodes and decodes an entry.
func (e entry) overWire(t fataler) entry {
	b, err := e.header.MarshalVT()
	if err != nil {
		t.Fatalf("encode entry %d: %v", e.index, err)
	}
	header := new(logpb.Entry)
	if err := header.UnmarshalVT(b); err != nil {
		t.Fatalf("decode entry %d: %v", e.index, err)
	}
	return entry{e.index, e.term, header}
}

func (h history) String() string {
	var b strings.Builder
	for _, e := range h {
		text, err := protojson.Marshal(e.header)
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "%d %d %s\n", e.index, e.term, text)
	}
	return b.String()
}

// parseHistory is the inverse of String.
func parseHistory(text string) (history, error) {
	var h history
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		fields := strings.SplitN(line, " ", 3)
		e := entry{header: new(logpb.Entry)}
		if len(fields) != 3 {
			return nil, fmt.Errorf("no entry in %q", line)
		}
		if _, err := fmt.Sscan(fields[0], &e.index); err != nil {
			return nil, fmt.Errorf("index in %q: %w", line, err)
		}
		if _, err := fmt.Sscan(fields[1], &e.term); err != nil {
			return nil, fmt.Errorf("term in %q: %w", line, err)
		}
		if err := protojson.Unmarshal([]byte(fields[2]), e.header); err != nil {
			return nil, fmt.Errorf("header in %q: %w", line, err)
		}
		h = append(h, e)
	}
	return h, lines.Err()
}

// TestMain sets how much is tried. Without flags the number of histories and
// the seed are fixed, so that a run tells something about the code and not
// about luck. QUORATE_FSM_LONG=1 tries new seeds, and more of them; so do
// -rapid.seed, -rapid.checks and -rapid.steps, which count as usual.
func TestMain(m *testing.M) {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	defaults := map[string]string{"rapid.checks": "2000", "rapid.steps": "200", "rapid.seed": "1"}
	if os.Getenv("QUORATE_FSM_LONG") != "" {
		defaults = map[string]string{"rapid.checks": "100000", "rapid.steps": "300"}
	} else if testing.Short() {
		defaults["rapid.checks"] = "300"
	} else if raceDetector {
		defaults["rapid.checks"] = "80" // the one goroutine there is races with nobody
	}
	for name, value := range defaults {
		if !given[name] {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
	debug.SetGCPercent(400) // histories are short-lived, and many
	os.Exit(m.Run())
}

// TestModel is the main property: machine and model agree after every command
// of any history, and the other replicas answer, cause and become the same.
func TestModel(t *testing.T) { check(t, 1, modelProperty) }

// TestModelOfGroups is the same for queues with groups.
func TestModelOfGroups(t *testing.T) { check(t, 4, groupsProperty) }

func modelProperty(t *rapid.T) { agree(t, false) }

func groupsProperty(t *rapid.T) { agree(t, true) }

// agree draws a history, and fails if machine and model do not agree in it.
func agree(t *rapid.T, groups bool) {
	b := rules
	if rapid.Bool().Draw(t, "small bounds") {
		b = small
	}
	r := newTrial(b)
	g := newGenerator(t, r.model, groups)
	fail := func(d diffs) {
		if len(d) > 0 {
			t.Fatalf("%s\nhistory:\n%s", strings.Join(d, "\n"), r.history)
		}
	}
	t.Repeat(map[string]func(*rapid.T){"step": func(*rapid.T) {
		if r.model.phase == gone && !g.oneIn("more", 8) {
			return // there is little to see
		}
		s := g.next()
		if !s.more {
			fail(r.endEntry(t, g.choice()))
		}
		fail(r.step(s))
	}})
	fail(r.endEntry(t, choice{restore: true, restart: true, last: true}))
}

// check tries a property on every share-th part of the histories asked for.
func check(t *testing.T, share int, property func(*rapid.T)) {
	t.Helper()
	all := flag.Lookup("rapid.checks").Value.String()
	n, err := strconv.Atoi(all)
	if err != nil {
		t.Fatal(err)
	}
	set := func(value string) {
		if err := flag.Set("rapid.checks", value); err != nil {
			t.Fatal(err)
		}
	}
	defer set(all)
	set(strconv.Itoa(max(1, n/share)))
	rapid.Check(t, property)
}

// choice draws what happens to the replicas after an entry.
func (g *generator) choice() choice {
	kind := g.n("replicas", 32)
	return choice{restore: kind >= 9 && kind <= 10 || kind >= 20 && kind <= 21, snapshot: kind == 11 || kind == 22, restart: kind == 13}
}

// TestEndedSessions: the first command of a session that has ended does not
// begin it anew, however late it comes and however many sessions have ended
// since; and the queue does not remember them all for ever.
func TestEndedSessions(t *testing.T) {
	r := newTrial(rules)
	id := func(n uint64) *logpb.Session { return fsm.SessionID{Node: 1, Boot: 1, Num: n}.Proto() }
	index, now, opened := uint64(0), start, start
	apply := func(c *logpb.Command) fsm.Result {
		t.Helper()
		index++
		m := fsm.Meta{Index: index, Term: 1, Now: now, Session: fsm.SessionFrom(c.Session)}
		if d := r.step(step{m, c, false}); len(d) > 0 {
			t.Fatal(strings.Join(d, "\n"))
		}
		return r.results[0]
	}
	begin := func(n uint64) fsm.Result {
		t.Helper()
		return apply(&logpb.Command{Kind: logpb.Command_ENQUEUE, Session: id(n), Seq: 1, OpenedAt: int64(opened), Enqueue: &logpb.Enqueue{Size: 9}})
	}
	const many = 3000
	for n := range uint64(many) {
		apply(&logpb.Command{Kind: logpb.Command_SESSION_DOWN, Session: id(n + 1)})
	}
	for _, passed := range []fsm.Time{0, beginWithin, beginWithin + 1, endedFor + 1, 100 * endedFor} {
		now = start + passed
		apply(&logpb.Command{Kind: logpb.Command_SESSION_DOWN, Session: id(2*many + uint64(passed))})
		for _, n := range []uint64{1, 2, many / 2, many} {
			if got := begin(n); got.Code != fsm.NoSession && got.Code != fsm.Late {
				t.Errorf("%d ms later: the first command of session %d, which has ended, answers %v", passed, n, got)
			}
		}
	}
	if text := r.straight.String(); strings.Count(text, "ended") > many {
		t.Errorf("%d ended sessions are remembered for good", strings.Count(text, "ended"))
	}
	// What was made too early or too late is told the time, and may begin with it.
	for _, opened = range []fsm.Time{now - beginWithin - 1, now + beginWithin + 1, -1} {
		if got := begin(many + 1); got.Code != fsm.Late || got.Next != uint64(now) {
			t.Errorf("made %d ms from now: %v", opened-now, got)
		}
	}
	for i, made := range []fsm.Time{now - beginWithin, now + beginWithin, now} {
		opened = made
		if got := begin(many + 2 + uint64(i)); got.Code != fsm.OK {
			t.Errorf("made %d ms from now: %v", opened-now, got)
		}
	}
}

// TestRegressions replays histories that have failed once.
func TestRegressions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			h, err := parseHistory(string(text))
			if err != nil {
				t.Fatal(err)
			}
			replay(t, h)
		})
	}
}

// replay runs a history through everything that TestModel compares, with all
// that may happen to a replica happening after every entry.
func replay(t *testing.T, h history) {
	t.Helper()
	r := newTrial(rules)
	for i, e := range h {
		var d diffs
		for _, s := range e.steps() {
			d = append(d, r.step(s)...)
		}
		d = append(d, r.endEntry(t, choice{restore: true, snapshot: i%3 == 2, restart: true, last: true})...)
		if len(d) > 0 {
			t.Fatalf("entry %d, %v:\n%s", e.index, e.header, strings.Join(d, "\n"))
		}
	}
}
