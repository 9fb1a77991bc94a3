package tidy

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
)

// longFunction is from how many lines on a function counts as long.
const longFunction = 50

// packageSize is how large one package is.
type packageSize struct {
	dir                   string
	files                 int
	own, tests, generated int // lines
	comments              int // lines of own that are comment only
	long                  int // functions of more than longFunction lines
	uses                  int // packages of the project that it imports
	methods, fields       int // of the type that has most
	largest, widest       string
}

// measure sizes every package.
func measure(files []*source) []packageSize {
	sizes := map[string]*packageSize{}
	uses := map[string]map[string]bool{}
	for _, s := range files {
		p := sizes[s.dir]
		if p == nil {
			p = &packageSize{dir: s.dir}
			sizes[s.dir], uses[s.dir] = p, map[string]bool{}
		}
		switch {
		case s.generated:
			p.generated += s.lines
		case s.test:
			p.tests += s.lines
		default:
			p.files++
			p.own += s.lines
			p.comments += commentLines(s)
			p.long += longFunctions(s)
		}
		if s.test {
			continue
		}
		for _, spec := range s.ast.Imports {
			if dir, ok := strings.CutPrefix(importPath(spec), module+"/"); ok {
				uses[s.dir][dir] = true
			}
		}
	}
	for of, size := range typeShapes(files) {
		p, kind := sizes[of.dir], of.name
		if size.methods > p.methods || size.methods == p.methods && kind < p.largest {
			p.methods, p.largest = size.methods, kind
		}
		if !size.record() && (size.fields > p.fields || size.fields == p.fields && kind < p.widest) {
			p.fields, p.widest = size.fields, kind
		}
	}
	for dir, p := range sizes {
		p.uses = len(uses[dir])
	}
	var list []packageSize
	for _, dir := range slices.Sorted(maps.Keys(sizes)) {
		list = append(list, *sizes[dir])
	}
	return list
}

// commentLines counts the lines of a file that hold nothing but a comment.
func commentLines(s *source) int {
	code := map[int]bool{} // lines on which something ends that is no comment
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n.(type) {
		case nil, *ast.CommentGroup, *ast.Comment, *ast.File:
		default:
			code[s.fset.Position(n.Pos()).Line] = true
			code[s.fset.Position(n.End()).Line] = true
		}
		return true
	})
	n := 0
	for _, group := range s.ast.Comments {
		for _, c := range group.List {
			from := s.fset.Position(c.Pos()).Line
			if !code[from] {
				n += s.lineCount(c)
			}
		}
	}
	return n
}

func longFunctions(s *source) int {
	n := 0
	for _, decl := range s.ast.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && s.lineCount(f) > longFunction {
			n++
		}
	}
	return n
}

// table prints sizes as a table for a page, packages without code of their own
// left out, and a sum below.
func table(sizes []packageSize) string {
	var b strings.Builder
	b.WriteString("| package | files | own lines | comments | tests | generated | functions > 50 lines | most methods | most fields | imports |\n|---|---|---|---|---|---|---|---|---|---|\n")
	var sum packageSize
	for _, p := range sizes {
		fmt.Fprintf(&b, "| `%s` | %d | %d | %d %% | %d | %d | %d | %d `%s` | %d `%s` | %d |\n",
			p.dir, p.files, p.own, 100*p.comments/max(p.own, 1), p.tests, p.generated, p.long, p.methods, p.largest, p.fields, p.widest, p.uses)
		sum.files += p.files
		sum.own += p.own
		sum.comments += p.comments
		sum.tests += p.tests
		sum.generated += p.generated
		sum.long += p.long
		sum.uses += p.uses
	}
	fmt.Fprintf(&b, "| all | %d | %d | %d %% | %d | %d | %d | | | %d |\n",
		sum.files, sum.own, 100*sum.comments/max(sum.own, 1), sum.tests, sum.generated, sum.long, sum.uses)
	return b.String()
}
