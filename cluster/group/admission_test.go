package group

import "testing"

// A node that submits more than is proposed is refused, others are not, and what
// no longer waits makes room.
func TestAdmission(t *testing.T) {
	a := newAdmission()
	a.limit = 100
	batch := func(from string, bytes int) Batch { return Batch{From: from, Bytes: bytes, Commands: make([]byte, 10)} }
	take := func(from string, bytes int, want bool) Batch {
		t.Helper()
		b := batch(from, bytes)
		if got := a.take(&b); got != want {
			t.Errorf("%d bytes of %q: %v, %v wait", bytes, from, got, a.waiting)
		}
		return b
	}
	first := take("n1", 30, true)
	take("n1", 20, false) // 70 of 60 that are free
	take("n1", 5, true)
	take("n1", 1, false)
	take("n2", 25, true)
	take("n2", 1, false)
	take("n3", 100, true) // it has nothing yet
	take("n4", 100, false)
	take("", 1<<20, true)
	a.release([]Batch{first, batch("", 1<<20)})
	if a.waiting["n1"] != 15 || a.all != 15+35+110 {
		t.Errorf("%v wait, %d in all", a.waiting, a.all)
	}
	a.release([]Batch{batch("n1", 5), batch("n2", 25), batch("n3", 100)})
	if len(a.waiting) != 0 || a.all != 0 {
		t.Errorf("%v wait, %d in all", a.waiting, a.all)
	}
}
