package queue

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// The parts of a machine, each the name of a type and of the fields that point
// to it.
var parts = []string{
	"clock", "timers", "deadlines", "entries", "groups", "cursors", "uniques", "messages", "aside", "seen", "ends", "outbox", "sessions", "detached", "consumers", "services", "service", "lease", "returnings",
}

// shape is what the source says of a type.
type shape struct {
	fields  map[string]bool
	methods map[string]bool
}

func mustParse(t *testing.T) []*ast.File {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// receiver names the type of which f is a method; empty: of none.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	x := f.Recv.List[0].Type
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	if generic, ok := x.(*ast.IndexExpr); ok {
		x = generic.X
	}
	return x.(*ast.Ident).Name
}

func shapes(files []*ast.File) map[string]*shape {
	all := map[string]*shape{}
	of := func(name string) *shape {
		if all[name] == nil {
			all[name] = &shape{map[string]bool{}, map[string]bool{}}
		}
		return all[name]
	}
	for _, f := range files {
		for _, decl := range f.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Recv != nil {
				s := of(receiver(d))
				s.methods[d.Name.Name] = true
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if st, ok := spec.Type.(*ast.StructType); ok {
					for _, field := range st.Fields.List {
						for _, name := range field.Names {
							of(spec.Name.Name).fields[name.Name] = true
						}
					}
				}
			}
			return true
		})
	}
	return all
}

// TestPartsOwnTheirState: no part reads or writes a field of another one.
func TestPartsOwnTheirState(t *testing.T) {
	files := mustParse(t)
	all := shapes(files)
	for _, name := range parts {
		if all[name] == nil || len(all[name].methods) == 0 {
			t.Fatalf("there is no part %s", name)
		}
	}
	for _, f := range files {
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Body == nil {
				continue
			}
			ast.Inspect(d.Body, func(n ast.Node) bool {
				outer, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				inner, ok := outer.X.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				for _, part := range parts {
					s := all[part]
					if inner.Sel.Name == part && s.fields[outer.Sel.Name] && !s.methods[outer.Sel.Name] && !foreign(d, inner) {
						t.Errorf("%s.%s reaches into %s for %s", receiver(d), d.Name.Name, part, outer.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

// foreign reports whether a selector that is called like a part is a field of
// something else: the consumers of a session and of a life are tables, and the
// lease of the settings is a duration.
func foreign(d *ast.FuncDecl, x *ast.SelectorExpr) bool {
	id, ok := x.X.(*ast.Ident)
	return ok && (id.Name == "s" || id.Name == "l") && (x.Sel.Name == "consumers" || x.Sel.Name == "sessions") ||
		receiver(d) == "Snapshot" || receiver(d) == "frozen"
}
