package tidy

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
)

// What a type may be. One that has more methods is several types, or is in the list with a reason. One that has more
// pointers to siblings is a hub that knows everybody.
const (
	maxMethods  = 60
	maxSiblings = 4
)

// large lists the types that may have more methods, with their greatest permitted number and the reason. The numbers
// may only decrease.
var large = map[string]struct {
	methods int
	reason  string
}{
	"cluster/group.Group": {61, "one queue's replica: what its parts do for others"},
	"cmd/quoratectl.call": {150, "each verb is a method, and a row of one table"},
	"fsm/queue.Machine":   {204, "the coordinator: commands and what connects messages, consumers and groups, over parts that own their state"},
	"fsm/queue.consumers": {61, "who may be served is one question, whatever a consumer takes"},
	"fsm/queue.groups":    {74, "eight ordered tables of one feature, with its rules about time"},
	"fsm/queue.messages":  {69, "every place that a message can be in is kept by it"},
}

// shape is what the rules look at in one type.
type shape struct {
	at       string // where it is declared
	methods  int    // functions whose first parameter points to it included
	fields   int
	siblings int // fields that are pointers to structs of the package
}

// record reports whether the type has fields and no behaviour to speak of: a flat list of settings, columns or
// members of a JSON object.
func (s shape) record() bool { return s.methods <= 4 }

// stateless reports whether it has methods and owns nothing: all its fields point to siblings, whose methods these
// should be.
func (s shape) stateless() bool { return s.methods > 0 && s.fields > 0 && s.fields == s.siblings }

// checkMethods finds types that have too many methods. Generated code and tests are exempt. allowed is large.
func checkMethods(files []*source, allowed map[string]int) []breach {
	var found []breach
	for _, x := range shapesOf(files) {
		if limit := max(maxMethods, allowed[x.name]); x.methods > limit {
			found = append(found, breach{x.at, fmt.Sprintf("%s has %d methods, %d allowed", x.name, x.methods, limit)})
		}
	}
	return found
}

// hubs returns the types that own nothing or point to too many siblings, a line for each, sorted.
func hubs(files []*source) []string {
	var list []string
	for _, x := range shapesOf(files) {
		switch {
		case x.stateless():
			list = append(list, fmt.Sprintf("%s owns nothing", x.name))
		case x.siblings > maxSiblings && !x.record():
			list = append(list, fmt.Sprintf("%s points to %d siblings", x.name, x.siblings))
		}
	}
	return list
}

// checkHubs holds the types that break the rule against those that are known to, so that there are never more, and
// none gets worse.
func checkHubs(files []*source, known []string) []breach {
	var found []breach
	is := hubs(files)
	for _, line := range is {
		if !slices.Contains(known, line) {
			found = append(found, breach{line, "at most " + fmt.Sprint(maxSiblings) + " pointers to siblings, and something of its own"})
		}
	}
	for _, line := range known {
		if !slices.Contains(is, line) {
			found = append(found, breach{line, "it is in the list and does not any more"})
		}
	}
	return found
}

// worse returns the lines of is that are new, or have a larger number than in was.
func worse(was, is []string) []string {
	before := map[string]int{}
	number := func(line string) (name string, n int) {
		name, rest, _ := strings.Cut(line, " ")
		if _, err := fmt.Sscanf(rest, "points to %d", &n); err != nil {
			n = 0
		}
		return name, n
	}
	for _, line := range was {
		name, n := number(line)
		before[name] = n
	}
	return slices.DeleteFunc(slices.Clone(is), func(line string) bool {
		name, n := number(line)
		old, there := before[name]
		return there && n <= old
	})
}

// typeName is the folder of a type, and its name there.
type typeName struct{ dir, name string }

// named is a type with its name.
type named struct {
	shape
	name string // with its folder
}

// shapesOf returns the types that files declare, sorted.
func shapesOf(files []*source) []named {
	shapes := typeShapes(files)
	var list []named
	for _, of := range slices.SortedFunc(maps.Keys(shapes), func(a, b typeName) int {
		return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.name, b.name))
	}) {
		list = append(list, named{*shapes[of], of.dir + "." + of.name})
	}
	return list
}

// typeShapes measures the types that files declare.
func typeShapes(files []*source) map[typeName]*shape {
	shapes, structs := map[typeName]*shape{}, map[typeName]*ast.StructType{}
	each(files, func(s *source, spec *ast.TypeSpec) {
		of := typeName{s.dir, spec.Name.Name}
		shapes[of] = &shape{at: s.at(spec.Pos())}
		if st, ok := spec.Type.(*ast.StructType); ok {
			structs[of] = st
		}
	})
	for of, st := range structs {
		for _, f := range st.Fields.List {
			n := max(1, len(f.Names)) // an embedded type is one
			shapes[of].fields += n
			if to := pointee(f.Type); structs[typeName{of.dir, to}] != nil {
				shapes[of].siblings += n
			}
		}
	}
	for _, s := range files {
		if s.generated || s.test {
			continue
		}
		for _, decl := range s.ast.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			of := receiver(f)
			if of == "" && f.Type.Params.NumFields() > 0 {
				of = pointee(f.Type.Params.List[0].Type)
			}
			if x := shapes[typeName{s.dir, of}]; x != nil {
				x.methods++
			}
		}
	}
	return shapes
}

// each visits the declarations of types, but for those of generated code and tests.
func each(files []*source, visit func(*source, *ast.TypeSpec)) {
	for _, s := range files {
		if s.generated || s.test {
			continue
		}
		for _, decl := range s.ast.Decls {
			if decl, ok := decl.(*ast.GenDecl); ok && decl.Tok == token.TYPE {
				for _, spec := range decl.Specs {
					visit(s, spec.(*ast.TypeSpec))
				}
			}
		}
	}
}

// pointee returns the name of the type of the package that an expression points to; empty: it is no such pointer.
func pointee(t ast.Expr) string {
	star, ok := t.(*ast.StarExpr)
	if !ok {
		return ""
	}
	switch x := star.X.(type) {
	case *ast.IndexExpr:
		t = x.X
	case *ast.IndexListExpr:
		t = x.X
	default:
		t = x
	}
	if name, ok := t.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}
