package group

import (
	"testing"

	"github.com/quorate/quorate/fsm"
)

// A node that submits more than is proposed is refused, others are not, and what
// no longer waits makes room.
func TestAdmission(t *testing.T) {
	a := newAdmission()
	a.limit = 100
	clients := []run{{session: fsm.SessionID{Node: 1}}}
	batch := func(from string, bytes int) Batch { return Batch{From: from, Bytes: bytes, Commands: make([]byte, 10)} }
	take := func(from string, bytes int, want bool) Batch {
		t.Helper()
		b := batch(from, bytes)
		if got := a.take(&b, clients); got != want {
			t.Errorf("%d bytes of %q: %v, %v wait", bytes, from, got, a.waiting)
		}
		return b
	}
	first := take("n1", 30, true)
	take("n1", 20, false) // 70 of 60 that are free
	last := take("n1", 5, true)
	take("n1", 1, false)
	second := take("n2", 25, true)
	take("n2", 1, false)
	local := take("", 30, true) // this node is one as well
	take("", 1, false)
	third := take("n3", 50, true) // it has nothing yet
	take("n4", 100, false)
	own := batch("", 1<<20)
	if !a.take(&own, []run{{}}) {
		t.Error("what a leader itself submits is refused")
	}
	a.release([]Batch{first, own, local})
	if a.waiting["n1"] != 15 || a.all != 15+35+60 {
		t.Errorf("%v wait, %d in all", a.waiting, a.all)
	}
	a.release([]Batch{last, second, third})
	if len(a.waiting) != 0 || a.all != 0 {
		t.Errorf("%v wait, %d in all", a.waiting, a.all)
	}
}
