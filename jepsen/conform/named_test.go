package conform

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestNamedTestsExist: whatever a row names as its test is there.
func TestNamedTestsExist(t *testing.T) {
	for _, s := range suites {
		for _, r := range s.rows {
			if r.in != "" && !s.runs(r.in) {
				t.Errorf("row %s names row %s, which %s does not run", r.id, r.in, s.test)
			}
			for _, err := range misnamed(r.test) {
				t.Errorf("row %s: %v", r.id, err)
			}
		}
	}
}

// TestMisnamed: a name that is wrong in any part is found.
func TestMisnamed(t *testing.T) {
	for names, wrong := range map[string]int{
		"": 0, "jepsen: TestChaos": 0, "jepsen/conform: TestTTL/L01, TestLease": 0, "jepsen: TestRollingRestart/drain; cluster: TestMixedVersions": 0,
		"TestChaos": 1, "jepsen: TestNothing": 1, "nothing: TestChaos": 1, "jepsen/conform: TestTTL/E01": 1, "jepsen/conform: TestHold/T-7777": 1,
		"jepsen: TestRollingRestart/nothing": 1, "jepsen: TestChaos, TestNo; cluster: TestNothing": 2,
	} {
		if found := misnamed(names); len(found) != wrong {
			t.Errorf("%q: %v", names, found)
		}
	}
}

// misnamed returns what is wrong with the names of a row's tests.
func misnamed(names string) (wrong []error) {
	if names == "" {
		return nil
	}
	for part := range strings.SplitSeq(names, "; ") {
		folder, list, ok := strings.Cut(part, ": ")
		if !ok {
			wrong = append(wrong, fmt.Errorf("%q names no package", part))
			continue
		}
		for name := range strings.SplitSeq(list, ", ") {
			if err := named(folder, name); err != nil {
				wrong = append(wrong, err)
			}
		}
	}
	return wrong
}

// named finds a test, and what it calls a part of it.
func named(folder, name string) error {
	test, part, parted := strings.Cut(name, "/")
	tests, texts, err := testsOf(folder)
	if err != nil {
		return err
	}
	if !slices.Contains(tests, test) {
		return fmt.Errorf("%s has no %s", folder, test)
	}
	if !parted {
		return nil
	}
	found := slices.Contains(texts, part)
	for _, s := range suites {
		if s.test == test && folder == "jepsen/conform" {
			found = s.runs(part)
		}
	}
	if !found {
		return fmt.Errorf("%s: %s has no part %s", folder, test, part)
	}
	return nil
}

func (s *suite) runs(id string) bool {
	return slices.ContainsFunc(s.rows, func(r row) bool { return r.id == id && r.run != nil })
}

// testsOf returns the tests of a package, and all texts in their files.
func testsOf(folder string) (tests, texts []string, err error) {
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(folder), "*_test.go"))
	if err != nil || len(files) == 0 {
		return nil, nil, fmt.Errorf("no tests in %s: %w", folder, err)
	}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") {
					tests = append(tests, n.Name.Name)
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					texts = append(texts, text)
				}
			}
			return true
		})
	}
	return tests, texts, nil
}
