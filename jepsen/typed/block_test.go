package typed

import (
	"maps"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/tidy/page"
)

// step is what is typed at once.
type step struct {
	line     int // of the page
	script   string
	answered bool // the page has the answer
	answer   string
}

// lines returns the lines of a block as a reader sees them.
func lines(b page.Block) []string {
	all := strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n")
	for i, line := range all {
		if b.Language == "" {
			line = strings.TrimPrefix(line, "    ")
		}
		all[i] = strings.TrimRight(line, " ")
	}
	return all
}

// steps are the commands of a block. What untyped says about a line of commands is left out; an
// answer is of the command above it.
func steps(b page.Block, untyped func(line string) bool) (all []step) {
	text := lines(b)
	if untyped(text[0]) {
		return nil
	}
	if !strings.HasPrefix(text[0], "$ ") {
		return script(b.Line, text, untyped)
	}
	skipped := false
	for i, line := range text {
		command, begins := strings.CutPrefix(line, "$ ")
		more, continues := strings.CutPrefix(line, "> ")
		last := len(all) - 1
		switch {
		case begins:
			if skipped = i > 0 && untyped(line); !skipped {
				all = append(all, step{line: b.Line + i, script: command, answered: true})
			}
		case skipped:
		case continues && all[last].answer == "":
			all[last].script += "\n" + more
		default:
			all[last].answer += line + "\n"
		}
	}
	return all
}

// script is a block that is typed as a whole, but for some of its lines.
func script(at int, text []string, untyped func(line string) bool) []step {
	var typed []string
	more, skipped := false, false // the line goes on one that ends in \
	for i, line := range text {
		if !more {
			skipped = i > 0 && untyped(line)
		}
		if more = strings.HasSuffix(line, `\`); !skipped {
			typed = append(typed, line)
		}
	}
	return []step{{line: at, script: strings.Join(typed, "\n")}}
}

// values are what names of a page stand for, once they have been answered.
type values map[string]string

// fill puts values in the place of names.
func (v values) fill(text string) string {
	for name, value := range v {
		text = strings.ReplaceAll(text, name, value)
	}
	return text
}

// anything is what stands for any text within a line, with the blanks around it.
var anything = regexp.MustCompile(` *… *`)

// word is what a name is looked for in.
var word = regexp.MustCompile(`\w+`)

// matches reports whether an answer is what a page says, and learns what its names stand for.
func (v values) matches(want, have string, names map[string]string) bool {
	var expression strings.Builder
	var unknown []string
	for line := range strings.Lines(v.fill(want)) {
		if strings.TrimSpace(line) == "…" {
			expression.WriteString(`(?:.*\n)*`)
			continue
		}
		quoted := anything.ReplaceAllString(regexp.QuoteMeta(line), ".*")
		expression.WriteString(word.ReplaceAllStringFunc(quoted, func(name string) string {
			if names[name] == "" {
				return name
			}
			unknown = append(unknown, name)
			return "(" + names[name] + ")"
		}))
	}
	found := regexp.MustCompile(`^` + expression.String() + `$`).FindStringSubmatch(have)
	if found == nil {
		return false
	}
	met := values{}
	for i, name := range unknown {
		if value := found[i+1]; met[name] == "" {
			met[name] = value
		} else if met[name] != value {
			return false
		}
	}
	maps.Copy(v, met)
	return true
}

func TestSteps(t *testing.T) {
	skip := func(line string) bool { return strings.Contains(line, "never") }
	for _, c := range []struct {
		name, text string
		want       []step
	}{
		{"commands", "    a \\\n      b\n\n    c\n", []step{{line: 7, script: "a \\\n  b\n\nc"}}},
		{"a line that is not typed", "    a\n    never \\\n      b\n    c\n", []step{{line: 7, script: "a\nc"}}},
		{"a block that is not typed", "    never\n    c\n", nil},
		{"a recording", "    $ a\n    > b\n    one\n\n    two\n    $ c\n", []step{
			{line: 7, script: "a\nb", answered: true, answer: "one\n\ntwo\n"}, {line: 12, script: "c", answered: true},
		}},
		{"a recording with what is not typed", "    $ a\n    $ never\n    > b\n    one\n    $ c\n    > d\n", []step{
			{line: 7, script: "a", answered: true}, {line: 11, script: "c\nd", answered: true},
		}},
	} {
		if have := steps(page.Block{Line: 7, Text: c.text}, skip); !reflect.DeepEqual(have, c.want) {
			t.Errorf("%s: %+v", c.name, have)
		}
	}
}

func TestMatches(t *testing.T) {
	names := map[string]string{"4711": `\d+`}
	for _, c := range []struct {
		want, have string
		matches    bool
	}{
		{"", "", true},
		{"", "a\n", false},
		{"a\n", "", false},
		{"a.c\n", "abc\n", false},
		{"a … c\n", "a  b  c\n", true},
		{"a …\n", "a\n", true},
		{"a … c\n", "a\nc\n", false},
		{"…\nc\n", "a\nb\nc\n", true},
		{"…\nc\n", "c\n", true},
		{"a\n…\n", "b\n", false},
		{"pid 4711, 4711\n", "pid 12, 12\n", true},
		{"pid 4711, 4711\n", "pid 12, 13\n", false},
		{"pid 4711\n", "pid x\n", false},
	} {
		if v := (values{}); v.matches(c.want, c.have, names) != c.matches {
			t.Errorf("%q, %q: not %t", c.want, c.have, c.matches)
		}
	}
	v := values{}
	if !v.matches("4711 a\n", "12 a\n", names) || v.fill("kill 4711") != "kill 12" || v.matches("4711\n", "13\n", names) {
		t.Errorf("what a name stands for is not kept: %v", v)
	}
}
