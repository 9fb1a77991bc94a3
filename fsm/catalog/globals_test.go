package catalog

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

// Global parameters are kept in order, bounded, and survive a snapshot; so does a vhost's protection.
func TestGlobals(t *testing.T) {
	var c Catalog
	index := uint64(0)
	do := func(m *logpb.CatalogCommand) *logpb.CatalogResult {
		t.Helper()
		index++
		return c.Apply(index, &logpb.CatalogEntry{Version: 1, Now: int64(index), Commands: []*logpb.CatalogCommand{m}})[0]
	}
	put := func(name, value string, unset bool) *logpb.CatalogResult {
		t.Helper()
		return do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutGlobalParameter{PutGlobalParameter: &logpb.PutGlobalParameter{Name: name, Value: []byte(value), Unset: unset}}})
	}
	for _, x := range []struct {
		name, value string
		unset       bool
		changed     bool
	}{
		{"b", "1", false, true}, {"a", `"x"`, false, true}, {"c", "2", false, true}, {"b", "1", false, false}, {"b", "3", false, true},
		{"c", "", true, true}, {"c", "", true, false}, {ClusterName, `"east"`, false, true},
	} {
		if r := put(x.name, x.value, x.unset); Refused(r) != nil || r.GetChanged() != x.changed {
			t.Errorf("%+v: %v, %v", x, r, Refused(r))
		}
	}
	if r := put("long", strings.Repeat("x", maxGlobalBytes+1), false); Refused(r) == nil {
		t.Error("a value has no bound")
	}
	do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "v", Protected: true}}})
	if r := do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteVhost{DeleteVhost: &logpb.DeleteVhost{Name: "v"}}}); Refused(r) == nil {
		t.Error("a protected vhost is deleted")
	}
	again, err := Restore(c.View().Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	want := "global-parameter a \"x\"\nglobal-parameter b 3\nglobal-parameter cluster_name \"east\"\n"
	for _, v := range []*View{c.View(), again.View()} {
		if text := v.String(); !strings.Contains(text, want) || !strings.Contains(text, "vhost v description=\"\" tags=[] protected\n") {
			t.Errorf("the catalog is\n%s", text)
		}
		if name, ok := v.ShownName(); !ok || name != "east" {
			t.Errorf("the cluster is called %q", name)
		}
	}
	for i := range maxGlobals {
		put("n"+strings.Repeat("i", i%100)+string(rune('a'+i/100)), "1", false)
	}
	if r := put("one more", "1", false); Refused(r) == nil || len(c.View().GlobalParameters()) != maxGlobals {
		t.Errorf("%d global parameters", len(c.View().GlobalParameters()))
	}
}
