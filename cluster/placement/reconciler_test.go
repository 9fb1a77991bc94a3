package placement

import (
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// TestOpenGroups: groups that have the members that they should are not checked again; those that lack some are when
// a node comes or goes, and those for which something is to be done in any case.
func TestOpenGroups(t *testing.T) {
	var o openGroups
	due := func(nodes bool, want ...fsm.GroupID) {
		t.Helper()
		got := o.due(nodes)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("nodes changed %v: due are %v, want %v", nodes, got, want)
		}
	}
	due(true)
	o.note(1, true, false)
	o.note(2, false, true)
	o.note(3, true, true)
	o.note(4, false, false)
	due(false, 2, 4)
	due(true, 2, 3, 4)
	o.note(2, true, true)
	o.note(4, true, false)
	due(false)
	due(true, 2, 3)
	o.note(3, false, true)
	due(false, 3)
}
