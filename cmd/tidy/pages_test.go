package tidy

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/quorate/quorate/cmd/tidy/page"
)

// markdown returns all pages in Markdown, by their paths.
func markdown(t *testing.T, tree fs.FS) map[string]string {
	t.Helper()
	pages := map[string]string{}
	ignored := []string{".git", "bin", "data", "report"} // at the root
	err := fs.WalkDir(tree, ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && slices.Contains(ignored, name):
			return fs.SkipDir
		case path.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		pages[name] = string(text)
		return err
	})
	if err != nil || len(pages) < 50 {
		t.Fatal(len(pages), err)
	}
	return pages
}

// TestLinks: whatever a page links to is there, and so is its heading.
func TestLinks(t *testing.T) {
	tree := os.DirFS(root)
	report(t, checkLinks(tree, markdown(t, tree)))
}

// maxProse is how many characters a line of prose has at most, so that a change of a word is one line of a change.
const maxProse = 160

// linkEnd is where a link leads.
var linkEnd = regexp.MustCompile(`\]\([^)]*\)`)

// TestProse: lines of prose are short. Tables, code and what a program writes are as long as they are.
func TestProse(t *testing.T) {
	for name, text := range markdown(t, os.DirFS(root)) {
		fenced, written := false, false
		for i, line := range strings.Split(text, "\n") {
			switch {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				fenced = !fenced
			case strings.HasPrefix(line, "<!-- end of "):
				written = false
			case strings.HasPrefix(line, "<!-- "):
				written = strings.Contains(text, "\n<!-- end of "+strings.TrimPrefix(line, "<!-- "))
			case fenced || written || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "<"):
			case utf8.RuneCountInString(linkEnd.ReplaceAllString(line, "]")) > maxProse:
				t.Errorf("%s:%d: %d characters, without targets of links", name, i+1, utf8.RuneCountInString(linkEnd.ReplaceAllString(line, "]")))
			}
		}
	}
}

// TestDesigns: the page about the design of a package begins with what to read first, and with five questions.
func TestDesigns(t *testing.T) {
	designs := 0
	for name, text := range markdown(t, os.DirFS(root)) {
		if path.Base(name) != "DESIGN.md" {
			continue
		}
		designs++
		start, parts, _ := strings.Cut(text, "Start here")
		questions, _, _ := strings.Cut(parts, "\n## ")
		if strings.Count(start, "\n## ") > 1 || strings.Count(questions, "?") < 5 {
			t.Errorf("%s: it does not begin with \"Start here\" and five questions", name)
		}
	}
	if designs < 15 {
		t.Errorf("%d pages about designs", designs)
	}
}

func TestCheckLinks(t *testing.T) {
	tree := fstest.MapFS{"docs/b.md": {Data: []byte("# One `x-two`\n```\n# no heading\n```\n## Same\n## Same\n")}, "docs/p.png": {}}
	for link, broken := range map[string]bool{
		"b.md": false, "b.md#one-x-two": false, "b.md#same-1": false, "#here": false, "p.png": false, "../docs/b.md": false, "https://example.org/x": false,
		"c.md": true, "b.md#three": true, "b.md#no-heading": true, "#there": true, "b.md#same-2": true,
	} {
		found := checkLinks(tree, map[string]string{"docs/a.md": "# Here\n\nsee [it](" + link + "), `[not](this)`\n"})
		if (len(found) > 0) != broken {
			t.Errorf("%s: %v", link, found)
		}
	}
}

// TestStartPage: the start page of the documentation, which is its navigation, links to every page.
func TestStartPage(t *testing.T) {
	pages := page.Pages(t, root)
	for name := range pages {
		if base, ok := strings.CutPrefix(name, "docs/"); ok && base != "index.md" && !strings.Contains(pages["docs/index.md"], "]("+base+")") {
			t.Errorf("docs/index.md does not link to %s", base)
		}
	}
}

// TestBlocks: blocks of Go and JSON are such, and nothing is called a language that they are not.
// (The programs of docs/examples are also run: jepsen, TestExamples.)
func TestBlocks(t *testing.T) {
	languages := map[string]int{}
	for name, text := range page.Pages(t, root) {
		for _, b := range page.Code(text) {
			languages[b.Language]++
			var err error
			switch b.Language {
			case "go":
				code := b.Text
				if !strings.HasPrefix(code, "//") && !strings.HasPrefix(code, "package") {
					code = "package p; func f() {\n" + code + "}"
				}
				_, err = parser.ParseFile(token.NewFileSet(), "", code, parser.SkipObjectResolution)
			case "json":
				if !json.Valid([]byte(b.Text)) {
					t.Errorf("%s:%d: no JSON", name, b.Line)
				}
			}
			if err != nil {
				t.Errorf("%s:%d: %v", name, b.Line, err)
			}
		}
	}
	if languages["go"] < 5 {
		t.Errorf("%v", languages)
	}
}

// TestMake: what pages make is a target of the Makefile.
func TestMake(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(string(makefile), -1) {
		known[m[1]] = true
	}
	for _, c := range page.Commands(t, root, "make") {
		for _, word := range c.Words {
			if regexp.MustCompile(`^[a-z-]+$`).MatchString(word) && !known[word] {
				t.Errorf("%s: there is no target %s", c.At, word)
			}
		}
	}
}

// TestAlerts: docs/alerts.md has a section for each alert rule that is delivered, and for no other.
func TestAlerts(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(root, "deploy", "prometheus", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	alerts, sections := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1) {
		alerts[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)\n+\S`).FindAllStringSubmatch(page.Pages(t, root)["docs/alerts.md"], -1) {
		sections[m[1]] = true
	}
	if len(alerts) < 15 || !maps.Equal(alerts, sections) {
		t.Errorf("the alerts are\n%q, and the sections\n%q", slices.Sorted(maps.Keys(alerts)), slices.Sorted(maps.Keys(sections)))
	}
}
