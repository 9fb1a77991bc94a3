package fsm

import (
	"math"
	"testing"
)

func TestOptional(t *testing.T) {
	var none Optional[Millis]
	for stored, want := range map[uint64]Optional[Millis]{
		0: none, 1: Some[Millis](0), 2: Some[Millis](1), 1 << 63: Some[Millis](math.MaxInt64), math.MaxUint64: Some[Millis](math.MaxInt64),
	} {
		got := OptionalFrom[Millis](stored)
		if got != want {
			t.Errorf("%d is %v, not %v", stored, got, want)
		}
		if back := got.Stored(); back != stored && stored <= 1<<63 {
			t.Errorf("%d is stored as %d", stored, back)
		}
	}
	if none.Or(7) != 7 || Some[Millis](3).Or(7) != 3 {
		t.Error("Or")
	}
	if !none.Allows(math.MaxInt64) || Some[Millis](3).Allows(4) || !Some[Millis](3).Allows(3) {
		t.Error("Allows")
	}
	three, four := Some[Millis](3), Some[Millis](4)
	if three.Least(four) != three || four.Least(three) != three || none.Least(four) != four || four.Least(none) != four || none.Least(none) != none {
		t.Error("Least")
	}
}
