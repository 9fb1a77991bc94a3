package catalog

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// parts are the types that own what a View and a vhost hold.
var parts = []string{
	"clusterSettings", "nodes", "joinTokens", "lockKey", "globals", "users", "limits", "vhosts", "queueIndex", "placements", "proposals",
	"rights", "policies", "exchanges", "descriptions", "accessKeys", "wholes",
}

func mustParse(t *testing.T) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
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
	if id, ok := x.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// owners says of each field of a part whose it is. No other type has a field of
// the same name.
func owners(t *testing.T, files []*ast.File) map[string]string {
	t.Helper()
	found, of := map[string]bool{}, map[string]string{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok || !slices.Contains(parts, spec.Name.Name) {
				return true
			}
			found[spec.Name.Name] = true
			for _, field := range st.Fields.List {
				for _, name := range field.Names {
					if other := of[name.Name]; other != "" {
						t.Errorf("%s and %s both have a field %s", other, spec.Name.Name, name.Name)
					}
					of[name.Name] = spec.Name.Name
				}
			}
			return true
		})
	}
	for _, part := range parts {
		if !found[part] {
			t.Fatalf("there is no part %s", part)
		}
	}
	return of
}

// TestPartsOwnTheirState: only the methods of a part read or write its fields.
func TestPartsOwnTheirState(t *testing.T) {
	files := mustParse(t)
	of := owners(t, files)
	for _, f := range files {
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Body == nil {
				continue
			}
			ast.Inspect(d.Body, func(n ast.Node) bool {
				if x, ok := n.(*ast.SelectorExpr); ok && of[x.Sel.Name] != "" && of[x.Sel.Name] != receiver(d) {
					t.Errorf("%s.%s reaches into %s for %s", receiver(d), d.Name.Name, of[x.Sel.Name], x.Sel.Name)
				}
				return true
			})
		}
	}
}

// A part is a value: who changes a copy changes nobody else's.
func TestPartsAreValues(t *testing.T) {
	before := *mustFill(t, 3).View()
	text := before.String()
	d := draft{View: before}
	q, _ := d.Queue("/", "queue-1")
	x, _ := d.Exchange("/", "amq.direct")
	vh := d.open("/")
	vh.rights.forget("guest")
	vh.policies.put(newPolicy(&logpb.PutPolicy{Vhost: "/", Name: "p", ApplyTo: applyAll}))
	vh.exchanges.remove(x)
	vh.removeQueue(q)
	d.queueIndex.remove(q)
	d.queueIndex.newGroup()
	d.placements.recoverOn(q, 1, true)
	d.users.remove("guest")
	d.nodes.remove(&logpb.NodeState{Number: 1, Name: "n1"})
	d.nodes.newNumber()
	d.vhosts.remove("/")
	if before.String() != text {
		t.Errorf("the view is\n%s\nnot\n%s", &before, text)
	}
}

// Each part finds what is wrong with it, alone.
func TestPartsCheckThemselves(t *testing.T) {
	q := newQueue(&logpb.DeclareQueue{Vhost: "/", Name: "q", Members: []uint32{1}}, 1<<16, 1)
	var known nodes
	known.put(&logpb.NodeState{Number: known.newNumber(), Name: "n1"})
	for name, err := range map[string]error{
		"settings in disorder": (&clusterSettings{[]*logpb.PutSetting{{Name: VHostMax, Value: 1}, {Name: MaxBindings, Value: 1}}}).check(),
		"node of a later boot": func() error {
			var ns nodes
			ns.put(&logpb.NodeState{Number: ns.newNumber(), Name: "n1", Boot: 8})
			return ns.check(7)
		}(),
		"node without number": func() error {
			var ns nodes
			ns.put(&logpb.NodeState{Number: 3, Name: "n1"})
			return ns.check(7)
		}(),
		"short lock secret":    (&lockKey{make([]byte, 31)}).check(),
		"globals in disorder":  (&globals{[]*logpb.PutGlobalParameter{{Name: "b"}, {Name: "a"}}}).check(),
		"token without folder": (&joinTokens{[]*logpb.JoinToken{{Hash: make([]byte, JoinTokenHashSize), UsedBy: "n1"}}}).check(),
		"proposals of nobody": func() error {
			var ps proposals
			ps.restore(&logpb.CatalogSnapshot{Proposers: []*logpb.Proposer{{Node: 1, From: 1}}})
			return ps.check(&nodes{})
		}(),
		"limit of nobody": func() error {
			var ls limits
			ls.restore(&logpb.CatalogSnapshot{Limits: []*logpb.PutLimit{{Of: "/", Name: MaxQueues, Value: 1}}})
			return ls.check(func(bool, string) bool { return false })
		}(),
		"permission of nobody": func() error {
			var r rights
			r.put(newPermission(&logpb.PutPermission{User: "u", Vhost: "/"}))
			return r.check("/", &users{})
		}(),
		"queue not found": (&queueIndex{}).checkQueue(q, 9),
		"queue too many":  func() error { var qs queueIndex; qs.add(q); return qs.check(0, 0) }(),
		"queue not found at its node": func() error {
			var qs queueIndex
			local := newQueue(&logpb.DeclareQueue{Vhost: "/", Name: "q", Local: true, Members: []uint32{1}}, 1<<16, 1)
			qs.add(local)
			qs.byNode = qs.byNode.Without(1)
			return qs.checkQueue(local, 9)
		}(),
		"queue at a node that it does not need": func() error {
			var qs queueIndex
			qs.add(q)
			qs.byNode = qs.byNode.With(1, qs.byID)
			return qs.check(1, 0)
		}(),
		"member unknown": (&placements{}).checkQueue(q, &nodes{}),
		"members of no queue": func() error {
			var ps placements
			ps.recoverOn(q, 1, false)
			return ps.check(&queueIndex{})
		}(),
		"replicas of no queue": func() error { var ps placements; ps.add(q); return ps.check(&queueIndex{}) }(),
		"replicas not counted": func() error { var qs queueIndex; qs.add(q); return (&placements{}).check(&qs) }(),
		"founder with others": func() error {
			var ps placements
			ps.put(q, placement{members: []fsm.NodeID{1}, founder: 2})
			return ps.checkQueue(q, &known)
		}(),
		"policy of another vhost": func() error {
			var ps policies
			ps.put(newPolicy(&logpb.PutPolicy{Vhost: "other", Name: "p"}))
			return ps.check("/", vhost{}.queues, &exchanges{})
		}(),
		"binding to nothing": func() error {
			vh := &vhost{row: &logpb.PutVhost{Name: "/"}}
			vh.addExchange(predeclared[0])
			vh.exchanges.bind(newBinding("/", &logpb.Bind{Source: predeclared[0].Name, Destination: "q"}), destination{queue: q})
			return vh.exchanges.check("/", vh.lead)
		}(),
	} {
		if err == nil {
			t.Errorf("%s: not found", name)
		}
	}
	if err := (&placements{}).checkQueue(q, &known); err != nil {
		t.Error(err)
	}
}
