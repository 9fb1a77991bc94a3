package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
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
	names := make([]string, 0, len(sizes))
	for name := range sizes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		s := sizes[name]
		if s.methods > maxMethods || len(s.files) > maxFiles || s.fields > maxFields && !s.record() {
			found = append(found, breach{s.at, name + " has " + s.String()})
		}
	}
	return found
}

// typeSizes measures the types that files declare, by "folder.Type".
func typeSizes(files []*source) map[string]*typeSize {
	sizes := map[string]*typeSize{}
	of := func(s *source, name string) *typeSize {
		name = s.dir + "." + name
		if sizes[name] == nil {
			sizes[name] = &typeSize{at: s.path, files: map[string]bool{}}
		}
		return sizes[name]
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
