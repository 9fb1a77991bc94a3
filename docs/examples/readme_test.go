// Package examples holds the programs that the README quotes.
package examples

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// quote is an example in the README: its folder, and its code.
var quote = regexp.MustCompile("(?s)<!-- example: ([\\w/]+) -->\n```go\n(.*?)```")

// direct is a line of go.mod that requires a module for the project itself.
var direct = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`)

// Every direct dependency has its reason in docs/dependencies.md.
func TestDependenciesHaveReasons(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := os.ReadFile(filepath.Join("..", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := direct.FindAllSubmatch(mod, -1)
	if len(found) == 0 {
		t.Fatal("go.mod requires nothing")
	}
	for _, m := range found {
		if !bytes.Contains(reasons, m[1]) {
			t.Errorf("docs/dependencies.md gives no reason for %s", m[1])
		}
	}
}

// The README, or one of the pages of docs, quotes each example as it is.
func TestReadmeQuotesExamples(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join("..", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range pages {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		readme = append(readme, page...)
	}
	quoted := map[string]string{}
	for _, m := range quote.FindAllSubmatch(readme, -1) {
		name, code := string(m[1]), string(m[2])
		if before, ok := quoted[name]; ok && before != code {
			t.Errorf("%s is quoted twice, in different words", name)
		}
		quoted[name] = code
	}
	files, err := filepath.Glob(filepath.Join("*", "main.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	files = append(files, filepath.Join("amqp10", "hello", "main.go"))
	for _, path := range files {
		code, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.ToSlash(filepath.Dir(path))
		if quoted[name] != string(code) {
			t.Errorf("neither the README nor a page quotes %s as it is", path)
		}
		delete(quoted, name)
	}
	for name := range quoted {
		t.Errorf("the README quotes %s, which is no example", name)
	}
}

// Each example in AMQP 1.0 is linked from a page.
func TestPagesLinkExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("amqp10", "*", "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	pages, err := filepath.Glob(filepath.Join("..", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, path := range pages {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page...)
	}
	for _, path := range files {
		if !bytes.Contains(all, []byte("(examples/"+filepath.ToSlash(path)+")")) {
			t.Errorf("no page links %s", path)
		}
	}
}
