package mutants

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
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
