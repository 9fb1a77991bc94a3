package mutants

import (
	"bufio"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/jepsen/cluster"
)

// Promises are what a bug may break: safety and liveness.
var Promises = strings.Fields("S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11 S12 S13 S14 S15 S16 L1 L2 L3 L4 L5 L6 access protocol")

// Mutant is one deliberate bug.
type Mutant struct {
	ID     string
	Change cluster.Change
	Breaks []string // of Promises; not empty
	Bug    string   // what goes wrong, in a few words
	Runs   []Run    // the tests that are likely to find it, first ones first
}

// Run is a call of go test.
type Run struct {
	Package string // from the module's root
	Pattern string // of tests; empty: all of them
}

func (r Run) String() string { return strings.TrimSpace(r.Package + " " + r.Pattern) }

//go:embed list/*.txt
var list embed.FS

// ErrList means that an entry of the list cannot be read.
var ErrList = errors.New("list of mutants")

// Load returns the mutants of the list, by file and in the order there.
func Load() ([]Mutant, error) {
	files, err := fs.Glob(list, "list/*.txt")
	if err != nil {
		return nil, err
	}
	var all []Mutant
	for _, file := range files {
		text, err := fs.ReadFile(list, file)
		if err != nil {
			return nil, err
		}
		found, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// parse reads entries of this form; run may occur several times, or not at all:
//
//	=== id
//	file: fsm/queue/settle.go
//	breaks: S4 S6
//	bug: what goes wrong
//	run: fsm/queue TestScripts|TestSettle
//	--- old
//	text that occurs once in the file
//	--- new
//	text that replaces it; may be empty
func parse(text string) ([]Mutant, error) {
	var all []Mutant
	head, rest, _ := strings.Cut("\n"+text, "\n=== ")
	if strings.TrimSpace(head) != "" {
		return nil, fmt.Errorf("%w: text before the first entry", ErrList)
	}
	for entry := range strings.SplitSeq(rest, "\n=== ") {
		m, err := parseEntry(entry)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func parseEntry(entry string) (Mutant, error) {
	id, rest, _ := strings.Cut(entry, "\n")
	m := Mutant{ID: strings.TrimSpace(id)}
	head, texts, found := strings.Cut("\n"+rest, "\n--- old\n")
	from, to, both := strings.Cut(texts+"\n", "\n--- new\n")
	if !found || !both {
		return m, fmt.Errorf("%w: %s has no old and new text", ErrList, m.ID)
	}
	m.Change.Old, m.Change.New = from, strings.TrimRight(to, "\n")
	for line := range strings.Lines(head) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "":
		case "file":
			m.Change.File = value
		case "breaks":
			m.Breaks = strings.Fields(value)
		case "bug":
			m.Bug = value
		case "run":
			pkg, pattern, _ := strings.Cut(value, " ")
			m.Runs = append(m.Runs, Run{pkg, strings.TrimSpace(pattern)})
		default:
			return m, fmt.Errorf("%w: %s has a line %q", ErrList, m.ID, strings.TrimSpace(line))
		}
	}
	return m, m.verify()
}

var idForm = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)

// verify finds what is missing or wrong in an entry itself.
func (m Mutant) verify() error {
	switch {
	case !idForm.MatchString(m.ID):
		return fmt.Errorf("%w: id %q", ErrList, m.ID)
	case m.Bug == "" || m.Change.File == "" || m.Change.Old == "" || len(m.Breaks) == 0:
		return fmt.Errorf("%w: %s is incomplete", ErrList, m.ID)
	case m.Change.Old == m.Change.New:
		return fmt.Errorf("%w: %s changes nothing", ErrList, m.ID)
	}
	for _, p := range m.Breaks {
		if !slices.Contains(Promises, p) {
			return fmt.Errorf("%w: %s breaks an unknown promise %q", ErrList, m.ID, p)
		}
	}
	for _, r := range m.Runs {
		if _, err := regexp.Compile(r.Pattern); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrList, m.ID, err)
		}
	}
	return nil
}

// Choose returns the mutants that a list in words names, separated by commas:
// ids and patterns of them (queue-*), folders (fsm/queue), promises (S7), a share
// in percent (10%, spread over the list), or all.
func Choose(from []Mutant, words string) ([]Mutant, error) {
	chosen := make([]bool, len(from))
	for word := range strings.SplitSeq(words, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		some, err := matching(from, word)
		if err != nil {
			return nil, err
		}
		found := false
		for i, yes := range some {
			chosen[i] = chosen[i] || yes
			found = found || yes
		}
		if !found {
			return nil, fmt.Errorf("%w: nothing is %q", ErrList, word)
		}
	}
	return pick(from, chosen), nil
}

// matching says which mutants a word names.
func matching(from []Mutant, word string) ([]bool, error) {
	some := make([]bool, len(from))
	if percent, yes := strings.CutSuffix(word, "%"); yes {
		n, err := strconv.Atoi(percent)
		if err != nil || n < 1 || n > 100 {
			return nil, fmt.Errorf("%w: share %q", ErrList, word)
		}
		for i := range from {
			some[i] = i*n/100 != (i+1)*n/100
		}
		return some, nil
	}
	for i, m := range from {
		byID, err := path.Match(word, m.ID)
		if err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrList, word, err)
		}
		some[i] = word == "all" || byID || m.breaks(word) || path.Dir(m.Change.File) == word
	}
	return some, nil
}

func (m Mutant) breaks(promise string) bool {
	for _, p := range m.Breaks {
		if p == promise {
			return true
		}
	}
	return false
}

// Shard returns the part that a word like "2/4" names, the second of four:
// every mutant is in exactly one of them. Empty means all.
func Shard(from []Mutant, word string) ([]Mutant, error) {
	if word == "" {
		return from, nil
	}
	first, last, _ := strings.Cut(word, "/")
	k, err1 := strconv.Atoi(first)
	n, err2 := strconv.Atoi(last)
	if err1 != nil || err2 != nil || k < 1 || k > n {
		return nil, fmt.Errorf("%w: shard %q", ErrList, word)
	}
	chosen := make([]bool, len(from))
	for i := range from {
		chosen[i] = i%n == k-1
	}
	return pick(from, chosen), nil
}

func pick(from []Mutant, chosen []bool) []Mutant {
	var some []Mutant
	for i, yes := range chosen {
		if yes {
			some = append(some, from[i])
		}
	}
	return some
}

// Kill is how tests end that find a bug.
type Kill string

// What can come of a run of tests.
const (
	None    Kill = ""        // they pass
	Failure Kill = "failure" // a test says what is wrong
	Panic   Kill = "panic"   // the code, or an assertion in it, panics, or the process ends
	Timeout Kill = "timeout" // a test does not end
	NoBuild Kill = "does not compile"
)

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// evaluate reads the events of one go test and returns what came of it, and the
// test that found it; empty if that is unknown.
func evaluate(events io.Reader) (kill Kill, test string) {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		switch e.Action {
		case "build-fail":
			return NoBuild, ""
		case "output":
			if k := kindOf(e.Output); k != None {
				kill, test = k, running(e, test)
			}
		case "fail":
			if kill == None {
				kill = Failure
			}
			if test == "" { // subtests end before their test
				test = e.Test
			}
		}
	}
	return kill, test
}

// kindOf returns what a line of output says; None: nothing.
func kindOf(line string) Kill {
	switch {
	case strings.HasPrefix(line, "panic: test timed out after"):
		return Timeout
	case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
		return Panic
	}
	return None
}

// running is the test that a line belongs to, unless another was found before.
func running(e event, before string) string {
	if before != "" {
		return before
	}
	return e.Test
}
