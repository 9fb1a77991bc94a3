package tidy

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// deterministic are the folders whose code must have the same results on every
// replica. Their test files are exempt.
var deterministic = []string{"fsm", "fsm/..."}

// notDeterministic are exceptions from deterministic.
var notDeterministic = []string{"fsm/fsmtest/..."}

func mustBeDeterministic(dir string) bool {
	return matchesAny(deterministic, dir) && !matchesAny(notDeterministic, dir)
}

// checkDeterminism finds in one type-checked file what can make replicas differ:
// goroutines, select, channels, floats in state, and the iteration order of maps. An
// iteration whose order has no effect needs a comment "det: reason" on its line or on
// the line above.
//
// Forbidden imports are covered by importRules.
func checkDeterminism(s *source, info *types.Info) []breach {
	d := &determinism{s: s, info: info, excused: map[int]bool{}, sorted: map[ast.Node]bool{}}
	for _, group := range s.ast.Comments {
		for _, c := range group.List {
			if reason, ok := strings.CutPrefix(c.Text, "// det:"); ok && strings.TrimSpace(reason) != "" {
				line := s.fset.Position(c.Pos()).Line
				d.excused[line], d.excused[line+1] = true, true
			}
		}
	}
	ast.Inspect(s.ast, d.visit)
	return d.found
}

type determinism struct {
	s       *source
	info    *types.Info
	excused map[int]bool      // lines with a reason, and those below them
	sorted  map[ast.Node]bool // calls whose result is sorted at once
	found   []breach
}

func (d *determinism) add(n ast.Node, text string) {
	d.found = append(d.found, breach{d.s.at(n.Pos()), text})
}

func (d *determinism) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		d.add(n, "go statement in a deterministic package")
	case *ast.SelectStmt:
		d.add(n, "select in a deterministic package")
	case *ast.ChanType:
		d.add(n, "channel in a deterministic package")
	case *ast.SendStmt:
		d.add(n, "send on a channel in a deterministic package")
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			d.add(n, "receive from a channel in a deterministic package")
		}
	case *ast.RangeStmt:
		d.rangeStmt(n)
	case *ast.CallExpr:
		d.call(n)
	case *ast.StructType:
		for _, f := range n.Fields.List {
			if holdsFloat(d.info.TypeOf(f.Type)) {
				d.add(f, "float in the state of a deterministic package")
			}
		}
	case *ast.GenDecl:
		d.variables(n)
	}
	return true
}

// variables finds floats among the package's variables; those inside functions are not
// state.
func (d *determinism) variables(n *ast.GenDecl) {
	if n.Tok != token.VAR {
		return
	}
	for _, spec := range n.Specs {
		for _, name := range spec.(*ast.ValueSpec).Names {
			v, ok := d.info.Defs[name].(*types.Var)
			if ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() && holdsFloat(v.Type()) {
				d.add(name, "float in the state of a deterministic package")
			}
		}
	}
}

func (d *determinism) rangeStmt(n *ast.RangeStmt) {
	t := d.info.TypeOf(n.X)
	if t == nil {
		d.add(n, "range over something without a known type")
		return
	}
	if isMap(t) && !d.excused[d.s.fset.Position(n.Pos()).Line] {
		d.add(n, "range over a map without a // det: reason")
	}
	if _, ok := t.Underlying().(*types.Chan); ok {
		d.add(n, "range over a channel in a deterministic package")
	}
}

// call finds the iterators of packages maps and reflect. They are permitted as an
// argument of slices.Sorted and the like.
func (d *determinism) call(n *ast.CallExpr) {
	pkg, name := d.callee(n)
	if pkg == "slices" && strings.HasPrefix(name, "Sorted") {
		for _, arg := range n.Args {
			d.sorted[arg] = true
		}
	}
	walks := pkg == "maps" && (name == "Keys" || name == "Values" || name == "All") ||
		pkg == "reflect" && (name == "MapKeys" || name == "MapRange" || name == "Seq" || name == "Seq2")
	if walks && !d.sorted[n] && !d.excused[d.s.fset.Position(n.Pos()).Line] {
		d.add(n, "unsorted "+pkg+"."+name+" without a // det: reason")
	}
}

// callee returns the package and the function or method that n calls.
func (d *determinism) callee(n *ast.CallExpr) (pkg, name string) {
	sel, ok := ast.Unparen(n.Fun).(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	fn, ok := d.info.Uses[sel.Sel].(*types.Func)
	if !ok || fn.Pkg() == nil {
		return "", ""
	}
	return fn.Pkg().Path(), fn.Name()
}

// isMap reports whether ranging over t iterates over a map. A type parameter counts if
// one of its types is a map.
func isMap(t types.Type) bool {
	if p, ok := t.(*types.TypeParam); ok {
		i := p.Constraint().Underlying().(*types.Interface)
		for e := range i.EmbeddedTypes() {
			u, ok := e.(*types.Union)
			if !ok {
				if _, ok := e.Underlying().(*types.Map); ok {
					return true
				}
				continue
			}
			for term := range u.Terms() {
				if _, ok := term.Type().Underlying().(*types.Map); ok {
					return true
				}
			}
		}
		return false
	}
	_, ok := t.Underlying().(*types.Map)
	return ok
}

// holdsFloat reports whether a value of type t contains a float directly. Named structs
// are checked where they are declared.
func holdsFloat(t types.Type) bool {
	switch t := types.Unalias(t).(type) {
	case *types.Basic:
		return t.Info()&(types.IsFloat|types.IsComplex) != 0
	case *types.Named:
		if _, ok := t.Underlying().(*types.Struct); ok {
			return false
		}
		return holdsFloat(t.Underlying())
	case *types.Pointer:
		return holdsFloat(t.Elem())
	case *types.Slice:
		return holdsFloat(t.Elem())
	case *types.Array:
		return holdsFloat(t.Elem())
	case *types.Map:
		return holdsFloat(t.Key()) || holdsFloat(t.Elem())
	}
	return false
}
