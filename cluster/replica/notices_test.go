package replica

import "testing"

// Members that have left are forgotten when the next commit is announced.
func TestNoticesForget(t *testing.T) {
	n := NewNotices(mustKin(t).all[0])
	n.followers["gone"], n.followers["n3"] = &follower{}, &follower{busy: true}
	n.Send(Notice{Index: 1, Term: 1, Leads: 1})
	if n.followers["gone"] != nil || n.followers["n3"].newest.Index != 1 {
		t.Errorf("known are %v", n.followers)
	}
}
