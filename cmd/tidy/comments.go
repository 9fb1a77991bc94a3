package tidy

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"
)

// documented are the trees whose every exported identifier has a comment.
var documented = []string{"fsm/...", "amqp/...", "cluster/..."}

// wellKnown are methods with the same meaning everywhere, which need no comment.
var wellKnown = map[string]bool{"Error": true, "String": true, "Unwrap": true, "Is": true, "GoString": true}

// checkPackageComments finds packages without a doc comment.
func checkPackageComments(files []*source) []breach {
	var found []breach
	has := map[string]bool{}
	for _, s := range files {
		if !s.test && s.ast.Doc != nil {
			has[s.dir] = true
		}
	}
	seen := map[string]bool{}
	for _, s := range files {
		if s.test || has[s.dir] || seen[s.dir] {
			continue
		}
		seen[s.dir] = true
		found = append(found, breach{s.dir, "package " + s.ast.Name.Name + " has no doc comment"})
	}
	return found
}

// checkDocs finds exported identifiers without a comment. Constants and
// variables may be described by their group, by a comment on their line, or by
// the documented type right above them.
func checkDocs(files []*source) []breach {
	var found []breach
	for _, s := range files {
		if s.test || s.generated || !matchesAny(documented, s.dir) {
			continue
		}
		var above *ast.GenDecl // the previous declaration, if it is of documented types
		for _, decl := range s.ast.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				above = nil
				if missesDoc(decl) {
					found = append(found, breach{s.at(decl.Pos()), "exported " + functionName(decl) + " has no comment"})
				}
			case *ast.GenDecl:
				for _, name := range undocumented(decl, above != nil) {
					found = append(found, breach{s.at(name.Pos()), "exported " + name.Name + " has no comment"})
				}
				if decl.Tok == token.TYPE && decl.Doc != nil {
					above = decl
				} else if decl.Tok != token.CONST {
					above = nil
				}
			}
		}
	}
	return found
}

func missesDoc(f *ast.FuncDecl) bool {
	if f.Doc != nil || !f.Name.IsExported() {
		return false
	}
	r := receiver(f)
	return r == "" || ast.IsExported(r) && !wellKnown[f.Name.Name]
}

// undocumented returns the exported names of a declaration that have no
// comment. belowType: constants are described by the type above.
func undocumented(decl *ast.GenDecl, belowType bool) []*ast.Ident {
	if decl.Doc != nil && (decl.Tok != token.TYPE || len(decl.Specs) == 1) {
		return nil
	}
	if belowType && decl.Tok == token.CONST {
		return nil
	}
	var names []*ast.Ident
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Doc == nil && spec.Comment == nil && spec.Name.IsExported() {
				names = append(names, spec.Name)
			}
		case *ast.ValueSpec:
			if spec.Doc != nil || spec.Comment != nil {
				continue
			}
			for _, name := range spec.Names {
				if name.IsExported() {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

var (
	// promise matches words that postpone work.
	promise = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)
	// promiseWithIssue is their only permitted form.
	promiseWithIssue = regexp.MustCompile(`\bTODO\(#[0-9]+\)`)
)

// checkPromises finds comments that postpone work without naming an issue.
func checkPromises(files []*source) []breach {
	var found []breach
	for _, s := range files {
		if s.generated {
			continue
		}
		for _, group := range s.ast.Comments {
			for _, c := range group.List {
				if promise.MatchString(promiseWithIssue.ReplaceAllString(c.Text, "")) {
					found = append(found, breach{s.at(c.Pos()), "work put off without an issue number, as in " + "TODO" + "(#12)"})
				}
			}
		}
	}
	return found
}

// checkSleeps finds time.Sleep in tests. In a file that runs in the virtual time of
// testing/synctest it is a step of the clock, and permitted.
func checkSleeps(files []*source) []breach {
	var found []breach
	for _, s := range files {
		if !s.test || imports(s, "testing/synctest") != "" {
			continue
		}
		name := imports(s, "time")
		if name == "" {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == name && n.Sel.Name == "Sleep" {
					found = append(found, breach{s.at(n.Pos()), "time.Sleep in a test: wait for a state or an event"})
				}
			case *ast.Ident:
				if name == "." && n.Name == "Sleep" {
					found = append(found, breach{s.at(n.Pos()), "time.Sleep in a test: wait for a state or an event"})
				}
			}
			return true
		})
	}
	return found
}

// imports returns the name under which s imports a package; empty if it does not.
func imports(s *source, pkg string) string {
	for _, spec := range s.ast.Imports {
		if importPath(spec) != pkg {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return pkg[strings.LastIndex(pkg, "/")+1:]
	}
	return ""
}
