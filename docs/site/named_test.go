package site

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNamedTests: the tests that the page about management names are there.
func TestNamedTests(t *testing.T) {
	text, err := os.ReadFile("../evidence/management-status.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, found := range regexp.MustCompile("`((?:cluster|cmd|jepsen)[a-z/]*)` (Test\\w+(?:, Test\\w+)*)").FindAllStringSubmatch(string(text), -1) {
		var all strings.Builder
		files, err := filepath.Glob(filepath.Join("../..", found[1], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(source)
		}
		for name := range strings.SplitSeq(found[2], ", ") {
			if named++; !strings.Contains(all.String(), "func "+name+"(") {
				t.Errorf("%s has no %s", found[1], name)
			}
		}
	}
	if named < 80 {
		t.Errorf("%d tests are named", named)
	}
}
