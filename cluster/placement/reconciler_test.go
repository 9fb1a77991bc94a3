package placement

import (
	"testing"

	"github.com/quorate/quorate/fsm/catalog"
)

// Groups that have the members that they should are not compared again before the catalog or a node changes;
// others are.
func TestAgreement(t *testing.T) {
	var a agreement
	first, second := new(catalog.View), new(catalog.View)
	for i, step := range []struct {
		view        *catalog.View
		up          []string
		agree, want bool
	}{
		{first, []string{"n1", "n2"}, false, true},
		{first, []string{"n1", "n2"}, true, true},
		{first, []string{"n1", "n2"}, true, false},
		{second, []string{"n1", "n2"}, true, true},
		{second, []string{"n1"}, true, true},
		{second, []string{"n1"}, true, false},
		{second, []string{"n3"}, false, true},
		{second, []string{"n1"}, true, true},
	} {
		checked := false
		a.renew(step.view, step.up, func() bool { checked = true; return step.agree })
		if checked != step.want {
			t.Errorf("step %d: compared: %v", i, checked)
		}
	}
}
