package checker

import (
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	// slowFactor is how many times as long confirms may take while a part is slow.
	slowFactor = 2
	// fewestConfirms are how many confirms make a percentile.
	fewestConfirms = 20
)

// Slow finds that publishing slows down while a part that it does not need does: faults of a
// kind make that part answer later by so much. Nine of ten messages published then must be
// confirmed within twice the time, and a stall of the machine, that they take without any
// fault, or at least within half of what the part is late. tried is false if the machine is so
// busy that it hides a slow part, or if there were not enough confirms: nothing is proven.
func Slow(h *history.History, kind string, late time.Duration) (v Verdict, tried bool) {
	p := problems{name: "slow"}
	var slow, healthy []time.Duration
	for _, a := range h.Attempts {
		if a.Result != history.OK {
			continue
		}
		switch disturbed(h.Faults, kind, a) {
		case bySlowness:
			slow = append(slow, a.Return-a.Call)
		case byNothing:
			healthy = append(healthy, a.Return-a.Call)
		case otherwise:
		}
	}
	if len(slow) < fewestConfirms || len(healthy) < fewestConfirms {
		return p.found(), false
	}
	took, usual := ninth(slow), ninth(healthy)
	allowed := max(slowFactor*usual+h.Stall, late/2)
	if allowed >= late {
		return p.found(), false
	}
	if took > allowed {
		p.add("nine of ten confirms took up to %v during %s, and up to %v without it (allowed %v)", took, kind, usual, allowed)
	}
	return p.found(), true
}

// disturbance is what was wrong while a message was published.
type disturbance int

const (
	byNothing disturbance = iota
	bySlowness
	otherwise
)

// disturbed says what was wrong from a publish to its answer. What was published while a
// part was slow was disturbed by it, however late the answer came.
func disturbed(faults []history.Fault, kind string, a history.Attempt) disturbance {
	what := byNothing
	for _, f := range faults {
		ended := f.Healed != 0 && f.Healed < a.Call
		switch {
		case ended || f.At > a.Return:
		case f.Kind == kind && f.At <= a.Call && what != otherwise:
			what = bySlowness
		default:
			what = otherwise
		}
	}
	return what
}

// ninth returns the duration that nine of ten do not exceed.
func ninth(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[(len(all)-1)*9/10]
}
