package membership

import (
	"testing"

	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// The catalog has an odd number of voters, at most maxVoters, and never stops at
// an even number while a learner can become one.
func TestMoreVoters(t *testing.T) {
	for _, x := range []struct {
		voters, learners int
		want             bool
	}{
		{1, 0, false}, {1, 1, false}, {1, 2, true},
		{2, 0, false}, {2, 1, true},
		{3, 1, false}, {3, 2, true},
		{5, 2, true}, {6, 1, true},
		{7, 0, false}, {7, 9, false}, {8, 1, false},
	} {
		if got := moreVoters(x.voters, x.learners); got != x.want {
			t.Errorf("%d voters, %d learners: %v", x.voters, x.learners, got)
		}
	}
	for learners := range 12 { // one after the other
		voters, left := 1, learners
		for moreVoters(voters, left) {
			voters, left = voters+1, left-1
		}
		if voters%2 == 0 || voters > maxVoters || voters+2 <= min(maxVoters, learners+1) {
			t.Errorf("of %d nodes %d vote", learners+1, voters)
		}
	}
}

// A node leaves the catalog's group, and ends when it asks, when the catalog does not name it, and
// not because it has founded the cluster and has not registered yet, or is no founder any more in a
// record that knows more than the view.
func TestFounderStays(t *testing.T) {
	var c catalog.Catalog
	c.Apply(3, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_AdmitNode{
		AdmitNode: &logpb.AdmitNode{Name: "n1", Identity: []byte("1"), PeerAddress: "a:1"},
	}}}})
	v := c.View()
	for name, x := range map[string]struct {
		node string
		r    record
		want bool
	}{
		"registered":                   {"n1", record{Index: 3}, false},
		"a founder":                    {"n2", record{Index: 3, Founders: []string{"n2", "n3"}}, false},
		"registered since the view":    {"n2", record{Index: 4, Founders: []string{"n3"}}, false},
		"forgotten":                    {"n2", record{Index: 3, Founders: []string{"n3"}}, true},
		"forgotten, the record is old": {"n2", record{Index: 2}, true},
	} {
		if got := hasLeft(x.node, v, &x.r); got != x.want {
			t.Errorf("%s: has left: %v", name, got)
		}
		if got := isGone(&peerpb.IntroduceRequest{Node: x.node, Identity: []byte("1")}, v, &x.r); got != x.want {
			t.Errorf("%s: it is told that it is no member: %v", name, got)
		}
	}
}
