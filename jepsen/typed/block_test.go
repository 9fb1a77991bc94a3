package typed

import (
	"fmt"
	"regexp"
	"strings"

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
		for name, pattern := range names {
			if v[name] == "" && strings.Contains(quoted, name) {
				quoted = strings.Replace(quoted, name, fmt.Sprintf("(%s)", pattern), 1)
				unknown = append(unknown, name)
			}
		}
		expression.WriteString(quoted)
	}
	found := regexp.MustCompile(`^` + expression.String() + `$`).FindStringSubmatch(have)
	for i, name := range unknown {
		if found != nil {
			v[name] = found[i+1]
		}
	}
	return found != nil
}
