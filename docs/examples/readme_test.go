// Package examples holds the programs that the README quotes.
package examples

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// quote is an example in the README: its folder, and its code.
var quote = regexp.MustCompile("(?s)<!-- example: (\\w+) -->\n```go\n(.*?)```")

// The README quotes each example as it is.
func TestReadmeQuotesExamples(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	quoted := map[string]string{}
	for _, m := range quote.FindAllSubmatch(readme, -1) {
		quoted[string(m[1])] = string(m[2])
	}
	files, err := filepath.Glob(filepath.Join("*", "main.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, path := range files {
		code, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Dir(path)
		if quoted[name] != string(code) {
			t.Errorf("the README does not quote %s as it is", path)
		}
		delete(quoted, name)
	}
	for name := range quoted {
		t.Errorf("the README quotes %s, which is no example", name)
	}
}
