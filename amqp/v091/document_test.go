package v091

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/cmd/tidy/page"
	"github.com/quorate/quorate/fsm"
)

// codes and kinds are the names of reply codes and of refusals in the source.
var (
	codes = map[string]uint16{
		"CodeNoRoute": wire.CodeNoRoute, "CodeConnectionForced": wire.CodeConnectionForced, "CodeAccessRefused": wire.CodeAccessRefused,
		"CodeNotFound": wire.CodeNotFound, "CodeResourceLocked": wire.CodeResourceLocked, "CodePreconditionFailed": wire.CodePreconditionFailed,
		"CodeFrameError": wire.CodeFrameError, "CodeSyntaxError": wire.CodeSyntaxError, "CodeCommandInvalid": wire.CodeCommandInvalid,
		"CodeChannelError": wire.CodeChannelError, "CodeUnexpectedFrame": wire.CodeUnexpectedFrame, "CodeNotAllowed": wire.CodeNotAllowed, "CodeResourceError": wire.CodeResourceError,
		"CodeNotImplemented": wire.CodeNotImplemented, "CodeInternalError": wire.CodeInternalError,
	}
	kinds = map[string]fsm.Kind{
		"Internal": fsm.Internal, "NotFoundKind": fsm.NotFoundKind, "AccessRefused": fsm.AccessRefused, "Locked": fsm.Locked,
		"Precondition": fsm.Precondition, "NotAllowed": fsm.NotAllowed, "NotImplemented": fsm.NotImplemented, "Unavailable": fsm.Unavailable, "Forced": fsm.Forced,
		"NoVHost": fsm.NoVHost, "NoAccess": fsm.NoAccess, "LimitReached": fsm.LimitReached,
	}
)

// sources are the files whose errors clients of AMQP see.
var sources = []string{
	"*.go", "wire/*.go", "../*.go", "../message/*.go", "../../cluster/session/*.go", "../../cluster/queues/*.go", "../../cluster/self/*.go", "../../fsm/catalog/arguments.go", "../../fsm/catalog/limits.go", "../../fsm/catalog/route.go",
	"../../fsm/catalog/equivalence.go", "../../fsm/catalog/exchanges.go", "../../fsm/catalog/permissions.go", "../../fsm/catalog/queues.go",
}

// TestErrorsDocument holds the documentation's list of errors against the source.
func TestErrorsDocument(t *testing.T) {
	trees := parsed(t)
	known := texts{}
	for _, tree := range trees {
		known.collect(tree)
	}
	found := map[uint16]map[string]bool{}
	for _, code := range codes {
		found[code] = map[string]bool{}
	}
	for _, tree := range trees {
		ast.Inspect(tree, func(n ast.Node) bool {
			if code, text := known.errorAt(n); code != 0 && text != "" {
				found[code][text] = true
			}
			return true
		})
	}
	var b strings.Builder
	count := 0
	for _, code := range slices.Sorted(maps.Keys(found)) {
		closes := "channel"
		switch {
		case code == wire.CodeNoRoute:
			closes = "nothing: the message is returned"
		case endsConnection(code):
			closes = "connection"
		}
		fmt.Fprintf(&b, "\n## %d %s\n\nCloses: %s.\n\n", code, wire.ReplyName(code), closes)
		for _, text := range slices.Sorted(maps.Keys(found[code])) {
			count++
			fmt.Fprintf(&b, "- `%s`\n", text)
		}
	}
	if count < 100 {
		t.Errorf("%d texts only", count)
	}
	page.Hold(t, "../../docs/errors.md", "errors", strings.ReplaceAll(b.String(), "\n\n\n", "\n\n")+"\n")
}

// parsed are the sources, without tests and generated code.
func parsed(t *testing.T) (trees []*ast.File) {
	t.Helper()
	for _, pattern := range sources {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "_gen.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			trees = append(trees, tree)
		}
	}
	return trees
}

// texts are expressions for texts, by the names of constants and functions that stand for them.
type texts map[string]ast.Expr

// collect takes up the constants of a file, and its functions that only return a text.
func (x texts) collect(tree *ast.File) {
	for _, decl := range tree.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv != nil || len(decl.Body.List) != 1 || decl.Type.Results == nil || lastName(decl.Type.Results.List[0].Type) != "string" {
				continue
			}
			if r, ok := decl.Body.List[0].(*ast.ReturnStmt); ok && len(r.Results) == 1 {
				x[decl.Name.Name] = r.Results[0]
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if c, ok := spec.(*ast.ValueSpec); ok && decl.Tok == token.CONST && len(c.Values) == len(c.Names) {
					for i, name := range c.Names {
						x[name.Name] = c.Values[i]
					}
				}
			}
		}
	}
}

// errorAt returns the code and the text of the error that an expression makes; 0: it makes none
// with a code that the source names.
func (x texts) errorAt(n ast.Node) (code uint16, text string) {
	switch n := n.(type) {
	case *ast.CallExpr:
		switch name := lastName(n.Fun); {
		case name == "fault" && len(n.Args) > 2:
			return codes[lastName(n.Args[1])], x.render(n.Args[2])
		case (name == "Refuse" || name == "refuse") && len(n.Args) > 1:
			if kind := lastName(n.Args[0]); kind != "Internal" { // those are mistakes of the cluster's own
				return refusalCodes[kinds[kind]], x.render(n.Args[1])
			}
		}
	case *ast.CompositeLit:
		if lastName(n.Type) != "Error" {
			return 0, ""
		}
		for _, e := range n.Elts {
			if pair, ok := e.(*ast.KeyValueExpr); ok && lastName(pair.Key) == "Code" {
				code = codes[lastName(pair.Value)]
			} else if ok && lastName(pair.Key) == "Text" {
				text = x.render(pair.Value)
			}
		}
	}
	return code, text
}

// lastName is the name of an identifier, or what is selected from it.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// verb is a place for an argument in a format.
var verb = regexp.MustCompile(`%[.0-9]*[a-z]`)

// render is a text as far as the source has it, with an ellipsis for what is known later; empty if
// nothing of it is known.
func (x texts) render(e ast.Expr) string {
	text := ""
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		if err != nil {
			return ""
		}
		text = verb.ReplaceAllString(s, "…")
	case *ast.BinaryExpr:
		left, right := x.render(e.X), x.render(e.Y)
		if left == "" && right == "" {
			return ""
		}
		text = or(left) + or(right)
	case *ast.CallExpr:
		if name := lastName(e.Fun); name == "Sprintf" {
			text = x.render(e.Args[0])
		} else if x[name] != nil {
			text = x.render(x[name])
		}
	case *ast.Ident, *ast.SelectorExpr:
		if x[lastName(e)] != nil {
			text = x.render(x[lastName(e)])
		}
	}
	if strings.Trim(text, "…: ") == "" {
		return ""
	}
	return text
}

func or(text string) string {
	if text == "" {
		return "…"
	}
	return text
}
