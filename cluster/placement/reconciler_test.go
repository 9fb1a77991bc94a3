package placement

import (
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
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

// TestKnownOf: a node that comes, goes or comes back is another one, also between two looks.
func TestKnownOf(t *testing.T) {
	up := true
	known := func(n *logpb.NodeState) string {
		n.Name = "n1"
		return knownOf([]*logpb.NodeState{n}, func(string) bool { return up })[0]
	}
	was := known(&logpb.NodeState{Number: 1, Boot: 1 << 16})
	if same := known(&logpb.NodeState{Number: 1, Boot: 1 << 16}); same != was {
		t.Errorf("%s is not %s", same, was)
	}
	for _, other := range []*logpb.NodeState{
		{Number: 1}, {Number: 1, Boot: 2 << 16}, {Number: 2, Boot: 1 << 16}, {Number: 1, Boot: 1 << 16, Draining: true},
	} {
		if known(other) == was {
			t.Errorf("%v is not another one", other)
		}
	}
	if up = false; known(&logpb.NodeState{Number: 1, Boot: 1 << 16}) == was {
		t.Error("it is down")
	}
}
