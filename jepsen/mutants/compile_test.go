package mutants

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/quorate/quorate/jepsen/cluster"
)

// A bug that does not compile breaks no promise, and yet a test that builds servers would find it.
func TestListCompiles(t *testing.T) {
	all := mustLoad(t)
	programs := mustParse(t, all)
	for _, m := range all {
		if err := programs[path.Dir(m.Change.File)].compile(m.Change); err != nil {
			t.Errorf("%s: %v", m.ID, err)
		}
	}
}

func TestCompile(t *testing.T) {
	const file, body = "fsm/pattern/parse.go", "p.groups++"
	p := mustParse(t, []Mutant{{Change: cluster.Change{File: file}}})[path.Dir(file)]
	for _, c := range []struct{ from, to, want string }{
		{body, "p.groups += 2", ""},
		{body, "p.groups += ", "expected"},
		{body, `p.groups += "1"`, "mismatched types"},
		{body, "unused := p.groups", "declared and not used"},
		{`"strconv"`, "\"strconv\"\n\t_2 \"strconv\"", "imported"},
		{") group(at", ") another(at", "p.group undefined"},
		{"no such text", "", "0 times"},
	} {
		err := p.compile(cluster.Change{File: file, Old: c.from, New: c.to})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: %v, want %q", c.to, c.from, err, c.want)
		}
	}
	const of = "package pattern"
	if err := p.compile(cluster.Change{File: "fsm/pattern/pattern_test.go", Old: of, New: of + "\n"}); err == nil {
		t.Error("no build has the file")
	}
}

// program is a package that mutants change.
type program struct {
	*packages.Package
	heads []*ast.File // its files, without the bodies of functions
}

// mustParse returns the packages that mutants change, by folder.
func mustParse(t *testing.T, all []Mutant) map[string]*program {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]bool{}
	for _, m := range all {
		dirs["./"+path.Dir(m.Change.File)] = true
	}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedModule | packages.NeedSyntax | packages.NeedTypes |
			packages.NeedTypesSizes | packages.NeedImports,
		Dir: root, BuildFlags: []string{"-tags=invariants,testoptions"}, // make test has compiled so what is imported
	}, slices.Sorted(maps.Keys(dirs))...)
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string]*program{}
	for _, p := range loaded {
		dir, err := filepath.Rel(root, p.Dir)
		if err != nil || len(p.Errors) > 0 {
			t.Fatalf("%s: %v, %v", p.PkgPath, err, p.Errors)
		}
		x := &program{Package: p}
		for _, f := range p.Syntax {
			x.heads = append(x.heads, head(f))
		}
		programs[filepath.ToSlash(dir)] = x
	}
	return programs
}

// head returns a file without the bodies of its functions.
func head(f *ast.File) *ast.File {
	h := *f
	h.Decls = slices.Clone(f.Decls)
	for i, d := range h.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			h.Decls[i] = &ast.FuncDecl{Recv: f.Recv, Name: f.Name, Type: f.Type}
		}
	}
	return &h
}

// compile checks a change as the compiler does. One within a function concerns no other, and to check those as well
// takes ten times as long.
func (p *program) compile(c cluster.Change) error {
	name, text, err := c.Apply()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(p.Syntax, func(f *ast.File) bool { return p.Fset.File(f.FileStart).Name() == name })
	if i < 0 {
		return fmt.Errorf("no build has %s", c.File)
	}
	within, err := p.within(p.Syntax[i], c.Old)
	if err != nil {
		return err
	}
	files := slices.Clone(p.Syntax)
	if within {
		files = slices.Clone(p.heads)
	}
	if files[i], err = parser.ParseFile(p.Fset, name, text, parser.SkipObjectResolution); err != nil {
		return err
	}
	var found []error
	conf := types.Config{GoVersion: "go" + p.Module.GoVersion, Sizes: p.TypesSizes, Importer: p, Error: func(err error) {
		if e := new(types.Error); !errors.As(err, e) || !within || p.Fset.File(e.Pos).Name() == name {
			found = append(found, err)
		}
	}}
	_, _ = conf.Check(p.PkgPath, p.Fset, files, nil)
	return errors.Join(found...)
}

// within reports whether a text of a file is part of a function's body.
func (p *program) within(f *ast.File, text string) (bool, error) {
	at := p.Fset.File(f.FileStart)
	source, err := os.ReadFile(at.Name())
	begin := strings.Index(string(source), text)
	end := begin + len(text)
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && f.Body != nil && begin > at.Offset(f.Body.Lbrace) && end <= at.Offset(f.Body.Rbrace)
	}), err
}

// Import implements types.Importer.
func (p *program) Import(path string) (*types.Package, error) {
	if of := p.Imports[path]; of != nil {
		return of.Types, nil
	}
	return nil, errors.New("it is not imported without the change")
}
