package membership

import "testing"

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
