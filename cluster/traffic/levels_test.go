package traffic

import "testing"

// TestLevelRates: a rate is the change in a second since the samples before, up or down, and the first
// samples and a second look at a slot give none.
func TestLevelRates(t *testing.T) {
	var r LevelRates
	check := func(when string, want, switches float64) {
		t.Helper()
		if got := r.Rates(); got[MemoryUsed] != want || got[ContextSwitches] != switches {
			t.Errorf("%s: memory %v, switches %v", when, got[MemoryUsed], got[ContextSwitches])
		}
	}
	r.Sample(slotTime(7), Levels{MemoryUsed: 1000, ContextSwitches: 50})
	check("first", 0, 0)
	r.Sample(slotTime(8), Levels{MemoryUsed: 400, ContextSwitches: 60})
	check("second", -120, 2)
	r.Sample(slotTime(8), Levels{})
	check("the same slot", -120, 2)
	r.Sample(slotTime(10), Levels{MemoryUsed: 500, ContextSwitches: 60})
	check("after two slots", 10, 0)
	r.Forget()
	check("forgotten", 0, 0)
	r.Sample(slotTime(11), Levels{MemoryUsed: 550, ContextSwitches: 60})
	check("after that", 10, 0)
}
