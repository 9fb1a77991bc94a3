package traffic

import (
	"testing"
	"time"
)

// TestFlows: the rates of a connection are those between the last two samples, also if slots are
// left out between them; one that is closed has none, nor another one that has its name.
func TestFlows(t *testing.T) {
	var f Flows
	a, b := FlowOf{"a", 1}, FlowOf{"b", 1}
	again := FlowOf{"a", 2}
	check := func(when string, of FlowOf, received, sent float64) {
		t.Helper()
		if got := f.Rate(of); got != (FlowRate{received, sent}) {
			t.Errorf("%s: %v has %+v, want %v and %v", when, of, got, received, sent)
		}
	}
	check("before any", a, 0, 0)
	f.Sample(slotTime(100), []Flow{{a, Octets{500, 50}}})
	check("first", a, 100, 10)
	f.Sample(slotTime(101), []Flow{{a, Octets{600, 50}}, {b, Octets{5, 10}}})
	check("second", a, 20, 0)
	check("second", b, 1, 2)
	f.Sample(slotTime(101), nil)
	check("the same slot", a, 20, 0)
	f.Sample(slotTime(103), []Flow{{a, Octets{1600, 150}}})
	check("two slots later", a, 100, 10)
	check("closed", b, 0, 0)
	f.Forget()
	check("forgotten", a, 0, 0)
	f.Sample(slotTime(104), []Flow{{a, Octets{1605, 150}}})
	check("after that", a, 1, 0)
	f.Sample(slotTime(105), []Flow{{again, Octets{10, 10}}})
	check("of the same name", again, 2, 2)
	check("and its predecessor", a, 0, 0)
	f.Sample(slotTime(106), []Flow{{again, Octets{5, 10}}})
	check("counted anew", again, 1, 2)
	f.Sample(slotTime(108).Add(-time.Millisecond), []Flow{{again, Octets{5 + 9999, 10}}})
	check("late", again, 1000, 0)
	f.Sample(slotTime(108), []Flow{{again, Octets{5 + 9999 + 7, 10}}})
	check("at once", again, 7, 0)
	f.Sample(slotTime(109), nil)
	if len(f.known) != 0 {
		t.Errorf("of closed connections is known %v", f.known)
	}
}
