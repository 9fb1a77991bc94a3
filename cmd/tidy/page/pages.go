package page

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Pages are the README and the pages of docs, by their paths from the root of the
// repository, which is where the path root leads.
func Pages(t testing.TB, root string) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/evidence/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			pages[filepath.ToSlash(name)] = string(text)
		}
	}
	return pages
}

// Block is a piece of code in a page.
type Block struct {
	Language string // after the fence; empty: none, or the block is indented or part of a line
	Line     int    // of the page, counted from 1, where the code begins
	Text     string
}

// fence begins and ends a block; the group is its language.
var fence = regexp.MustCompile("^ *```(\\w*) *$")

// indented is a line of a block without a fence.
var indented = regexp.MustCompile(`^(    |\t)`)

// span is code within a line.
var span = regexp.MustCompile("`([^`]+)`")

// Code returns the pieces of code of a page in Markdown: blocks with fences, indented ones, which
// go on behind empty lines, and spans within lines.
func Code(text string) []Block {
	var blocks []Block
	fenced, empty, open := false, true, false // open: the last block goes on, if the line is indented
	gap := ""                                 // the empty lines behind it
	for i, line := range strings.Split(text, "\n") {
		last := len(blocks) - 1
		language := fence.FindStringSubmatch(line)
		switch {
		case language != nil && fenced:
			fenced = false
		case language != nil:
			fenced, open, gap = true, false, ""
			blocks = append(blocks, Block{Language: language[1], Line: i + 2})
		case fenced, open && indented.MatchString(line):
			blocks[last].Text += gap + line + "\n"
			gap = ""
		case open && strings.TrimSpace(line) == "":
			gap += "\n"
		case empty && indented.MatchString(line):
			open = true
			blocks = append(blocks, Block{Line: i + 1, Text: line + "\n"})
		default:
			open, gap = false, ""
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				blocks = append(blocks, Block{Line: i + 1, Text: m[1]})
			}
		}
		empty = strings.TrimSpace(line) == ""
	}
	return blocks
}

// Prose is a page without its code.
func Prose(text string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if fence.MatchString(strings.TrimRight(line, "\n")) {
			fenced = !fenced
			line = "\n"
		}
		if fenced {
			line = "\n"
		}
		b.WriteString(span.ReplaceAllStringFunc(line, func(code string) string { return strings.Repeat("`", len(code)) }))
	}
	return b.String()
}

// Command is a command line that a page shows.
type Command struct {
	At    string // the page and its line
	Words []string
}

// before is what may stand before the name of a program in a command line.
var before = regexp.MustCompile(`^\s*(?:[$#] +)?(?:sudo |[A-Z_]+=\S* |bin/|/usr/bin/|docker exec \S+ |kubectl [^|]*-- )*`)

// behind is what separates command lines.
var behind = regexp.MustCompile(`<\(| \| | && |; `)

// Commands are the command lines of a program in the code of the pages, also behind a pipe.
func Commands(t testing.TB, root, program string) []Command {
	t.Helper()
	var found []Command
	for name, text := range Pages(t, root) {
		for _, block := range Code(text) {
			if block.Language != "" && block.Language != "sh" && block.Language != "bash" {
				continue
			}
			for line := range strings.Lines(strings.ReplaceAll(block.Text, "\\\n", " ")) {
				for _, part := range behind.Split(line, -1) {
					words := ShellWords(before.ReplaceAllString(part, ""))
					if len(words) > 1 && words[0] == program {
						found = append(found, Command{At: fmt.Sprintf("%s:%d", name, block.Line), Words: words[1:]})
					}
				}
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("the pages show no command line of %s", program)
	}
	return found
}

// ShellWords splits a command line as a shell does, as far as examples use it: single and double
// quotes, and comments.
func ShellWords(line string) (words []string) {
	var word strings.Builder
	quote, begun := rune(0), false
	end := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ' || r == '\t' || r == '\n':
			end()
		case r == '#' && !begun:
			return words
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	end()
	return words
}
