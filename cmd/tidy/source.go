package tidy

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// module is the project's module path.
const module = "github.com/quorate/quorate"

// source is one parsed Go file of the project.
type source struct {
	path      string // from the root of the repository, with slashes
	dir       string // of path
	test      bool   // a _test.go file
	generated bool   // has the generated-code mark
	lines     int
	fset      *token.FileSet
	ast       *ast.File
}

// breach is a place that breaks a rule.
type breach struct {
	at   string // file:line, file or folder
	text string
}

func (b breach) String() string { return b.at + ": " + b.text }

// at returns the file and line of pos.
func (s *source) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(pos).Line)
}

// lineCount returns the number of lines that n takes.
func (s *source) lineCount(n ast.Node) int {
	return s.fset.Position(n.End()).Line - s.fset.Position(n.Pos()).Line + 1
}

// parse parses text into a source. name is its path from the root.
func parse(fset *token.FileSet, name string, text []byte) (*source, error) {
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{
		path: name, dir: path.Dir(name), fset: fset, ast: f,
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(f),
		lines:     bytes.Count(text, []byte("\n")),
	}, nil
}

// goFiles parses all Go files below tree, sorted by path. Like the go command it skips
// testdata, vendor and folders that begin with a dot or an underscore.
func goFiles(tree fs.FS) ([]*source, error) {
	var files []*source
	fset := token.NewFileSet()
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != "." && (base == "testdata" || base == "vendor" || base[0] == '.' || base[0] == '_') {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(base) != ".go" || base[0] == '.' || base[0] == '_' {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		s, err := parse(fset, name, text)
		if err != nil {
			return err
		}
		files = append(files, s)
		return nil
	})
	slices.SortFunc(files, func(a, b *source) int { return strings.Compare(a.path, b.path) })
	return files, err
}

// within reports whether the slash path name is tree or below it.
func within(name, tree string) bool {
	return name == tree || strings.HasPrefix(name, tree+"/")
}

// matches reports whether name matches pattern: a path, a path and "/..." for it and
// everything below it, or "..." for everything.
func matches(pattern, name string) bool {
	if pattern == "..." {
		return true
	}
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return within(name, tree)
	}
	return name == pattern
}

// matchesAny reports whether name matches one of the patterns.
func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}
