package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A policy that would make more exchanges delay than an entry has numbers for
// is refused, and so is the removal of one that keeps them from it.
func TestStoresOfOneEntryAreBounded(t *testing.T) {
	c := small(t, nil)
	apply := func(commands ...*logpb.CatalogCommand) (last error) {
		t.Helper()
		for _, r := range c.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: commands}) {
			last = Refused(r)
		}
		return last
	}
	policy := func(name string, priority int64, pattern string, delays bool) *logpb.CatalogCommand {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: &logpb.PutPolicy{
			Vhost: "/", Name: name, Pattern: pattern, ApplyTo: applyExchanges, Priority: priority,
			Definition: &fsm.Table{Fields: []*logpb.Field{{Name: "delayed-message", Value: &logpb.Value{Tag: 't', Int: map[bool]int64{true: 1}[delays]}}}},
		}}}
	}
	const many = maxCommands + 10
	var declares []*logpb.CatalogCommand
	for i := range many {
		if declares = append(declares, declareExchangeCommand(fmt.Sprintf("x%d", i), nil)); len(declares) == maxCommands/2 || i == many-1 {
			if err := apply(declares...); err != nil {
				t.Fatal(err)
			}
			declares = nil
		}
	}
	refused := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "would begin to delay messages") {
			t.Errorf("answered %v", err)
		}
		if err := c.View().Check(); err != nil {
			t.Error(err)
		}
	}
	refused(apply(policy("all", 0, "^x", true)))
	if err := apply(policy("none", 1, "^x", false)); err != nil {
		t.Fatal(err)
	}
	if err := apply(policy("all", 0, "^x", true)); err != nil {
		t.Fatal(err)
	}
	refused(apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeletePolicy{DeletePolicy: &logpb.DeletePolicy{Vhost: "/", Name: "none"}}}))
}
