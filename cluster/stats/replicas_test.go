package stats

import (
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

const testGroup = fsm.GroupID(7)

func statusOf(replicas map[string]*peerpb.Replica) ReplicaStatus {
	s := ReplicaStatus{}
	for node, r := range replicas {
		s[node] = map[fsm.GroupID]*peerpb.Replica{testGroup: r}
	}
	return s
}

// TestLeader: several may say that they lead, and a quarantined one serves nobody.
func TestLeader(t *testing.T) {
	leader := func(term uint64, quarantined bool) *peerpb.Replica {
		return &peerpb.Replica{Role: "leader", Term: term, Quarantined: quarantined}
	}
	for name, c := range map[string]struct {
		replicas map[string]*peerpb.Replica
		want     string
	}{
		"none":            {map[string]*peerpb.Replica{"a": {Role: "follower", Term: 9}}, ""},
		"one":             {map[string]*peerpb.Replica{"a": leader(2, false), "b": {Role: "follower", Term: 2}}, "a"},
		"a former one":    {map[string]*peerpb.Replica{"a": leader(2, false), "b": leader(3, false)}, "b"},
		"quarantined":     {map[string]*peerpb.Replica{"a": leader(2, false), "b": leader(3, true)}, ""},
		"of other groups": {nil, ""},
	} {
		if got, _ := statusOf(c.replicas).Leader(testGroup); got != c.want {
			t.Errorf("%s: %q leads, want %q", name, got, c.want)
		}
	}
}

// TestCurrent: a replica counts that votes, also in its leader's eyes, in the leader's term and is near
// enough to the longest log, whoever has that.
func TestCurrent(t *testing.T) {
	s := statusOf(map[string]*peerpb.Replica{
		"leader":    {Role: "leader", Term: 4, Last: 90, Voter: true, Voters: []string{"leader", "longest", "near", "far", "learner", "last term"}},
		"longest":   {Role: "candidate", Term: 4, Last: 100, Voter: true},
		"near":      {Role: "follower", Term: 4, Last: 95, Voter: true},
		"far":       {Role: "follower", Term: 4, Last: 94, Voter: true},
		"learner":   {Role: "follower", Term: 4, Last: 100},
		"removed":   {Role: "follower", Term: 4, Last: 100, Voter: true}, // it was not told
		"last term": {Role: "follower", Term: 3, Last: 100, Voter: true},
	})
	for node, want := range map[string]bool{
		"leader": false, "longest": true, "near": true, "far": false, "learner": false, "removed": false, "last term": false, "unknown": false,
	} {
		if got := s.Current(node, testGroup, 5); got != want {
			t.Errorf("%s is current: %v", node, got)
		}
	}
	if !s.Current("leader", testGroup, 10) {
		t.Error("the leader is not current with more lag allowed")
	}
	if statusOf(map[string]*peerpb.Replica{"a": {Role: "follower", Term: 4, Last: 100, Voter: true}}).Current("a", testGroup, 5) {
		t.Error("a replica without a leader is current")
	}
}
