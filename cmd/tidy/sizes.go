package tidy

import (
	"fmt"
	"go/ast"
)

// Limits of files and functions, in lines.
const (
	maxFile     = 1000
	maxFunction = 70
)

// oversize lists exceptions from the limits, with their greatest permitted length and
// the reason. Lengths may only decrease.
//
//	"path.go"       the file
//	"path.go#name"  a function or Type.method in it
var oversize = map[string]struct {
	lines  int
	reason string
}{}

// checkSizes finds files and functions that are too long. Generated code is
// exempt; so are functions of test files, which are mostly tables. allowed is
// oversize.
func checkSizes(files []*source, allowed map[string]int) []breach {
	var found []breach
	check := func(name, at string, lines, limit int) {
		limit = max(limit, allowed[name])
		if lines > limit {
			found = append(found, breach{at, fmt.Sprintf("%d lines, %d allowed", lines, limit)})
		}
	}
	for _, s := range files {
		if s.generated {
			continue
		}
		check(s.path, s.path, s.lines, maxFile)
		if s.test {
			continue
		}
		for _, decl := range s.ast.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				lines := s.lineCount(f)
				check(s.path+"#"+functionName(f), s.at(f.Pos())+" "+functionName(f), lines, maxFunction)
			}
		}
	}
	return found
}

// functionName returns the name of a function, or Type.name of a method.
func functionName(f *ast.FuncDecl) string {
	if r := receiver(f); r != "" {
		return r + "." + f.Name.Name
	}
	return f.Name.Name
}

// receiver returns the name of the type of which f is a method; empty if f is a
// function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return ""
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return "?"
		}
	}
}
