package tidy

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
)

// How large a type may be. What is larger is several types.
const (
	maxMethods = 60
	maxFields  = 20
	maxFiles   = 8 // that hold its methods
)

// typeSize is how large one type is.
type typeSize struct {
	at      string // where it is declared
	methods int
	fields  int
	files   map[string]bool
}

func (s typeSize) String() string {
	return fmt.Sprintf("%d methods in %d files, %d fields; allowed are %d, %d and %d",
		s.methods, len(s.files), s.fields, maxMethods, maxFiles, maxFields)
}

// record reports whether the type has fields and no behaviour to speak of: a
// flat list of settings, columns or members of a JSON object.
func (s typeSize) record() bool { return s.methods <= 4 }

// checkTypeSizes finds types that are too large. Generated code and tests are
// exempt, and so are the fields of records.
func checkTypeSizes(files []*source) []breach {
	var found []breach
	sizes := typeSizes(files)
	for _, of := range slices.SortedFunc(maps.Keys(sizes), func(a, b typeName) int {
		return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.name, b.name))
	}) {
		s := sizes[of]
		if s.methods > maxMethods || len(s.files) > maxFiles || s.fields > maxFields && !s.record() {
			found = append(found, breach{s.at, of.dir + "." + of.name + " has " + s.String()})
		}
	}
	return found
}

// typeName is the folder of a type, and its name there.
type typeName struct{ dir, name string }

// typeSizes measures the types that files declare.
func typeSizes(files []*source) map[typeName]*typeSize {
	sizes := map[typeName]*typeSize{}
	of := func(s *source, name string) *typeSize {
		key := typeName{s.dir, name}
		if sizes[key] == nil {
			sizes[key] = &typeSize{at: s.path, files: map[string]bool{}}
		}
		return sizes[key]
	}
	for _, s := range files {
		if s.generated || s.test {
			continue
		}
		for _, decl := range s.ast.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if r := receiver(decl); r != "" {
					size := of(s, r)
					size.methods++
					size.files[s.path] = true
				}
			case *ast.GenDecl:
				if decl.Tok != token.TYPE {
					continue
				}
				for _, spec := range decl.Specs {
					spec := spec.(*ast.TypeSpec)
					size := of(s, spec.Name.Name)
					size.at = s.at(spec.Pos())
					if st, ok := spec.Type.(*ast.StructType); ok {
						size.fields = fieldCount(st)
					}
				}
			}
		}
	}
	return sizes
}

// fieldCount counts the fields of a struct; an embedded type is one.
func fieldCount(st *ast.StructType) int {
	n := 0
	for _, f := range st.Fields.List {
		n += max(1, len(f.Names))
	}
	return n
}
