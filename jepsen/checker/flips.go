package checker

import (
	"math"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// Never is the TTL of an attempt whose message does not expire by itself.
const Never = time.Duration(math.MaxInt64 / 4)

// Flips finds messages that died before, or were delivered or died long after, each TTL
// that can have applied to them: their own, and what policies set when they were
// published. A message that died has a death.
func Flips(h *history.History, recovery time.Duration) Verdict {
	p := problems{name: "expired"}
	allowed, early := stall.Tolerance(h.Stall), grain(h)
	for _, d := range h.Deliveries {
		if d.Key == 0 || d.Key > uint64(len(h.Attempts)) {
			continue
		}
		a := h.Attempts[d.Key-1]
		least, longest := lifetimes(h, a, allowed, recovery)
		began := a.Return
		if a.Result != history.OK {
			began = a.Call + time.Minute // its client has given up by then
		}
		due := Never
		if longest < Never {
			due = excused(h.Faults, excused(h.Faults, began, allowed, recovery)+longest, allowed, recovery)
		}
		switch {
		case d.Death != nil && d.At < a.Call+least-early:
			p.add("key %d, published at %v, died by %v, and lives for %v at least", d.Key, a.Call, d.At, least)
		case d.Death != nil && !d.Redelivered && d.At > due+allowed:
			p.add("key %d, published at %v, arrived as a dead letter at %v, and was due at %v", d.Key, a.Call, d.At, due)
		case d.Death == nil && d.Call > due+allowed:
			p.add("key %d, published at %v, was delivered at %v, and had expired by %v", d.Key, a.Call, d.At, due)
		}
	}
	return p.found()
}

// lifetimes returns the shortest and the longest TTL that a message can have got. An
// attempt's TTL below a millisecond is 0.
func lifetimes(h *history.History, a history.Attempt, allowed, recovery time.Duration) (least, longest time.Duration) {
	own := a.TTL.Truncate(time.Millisecond)
	if a.TTL == 0 {
		own = Never
	}
	end := a.Return
	if a.Result != history.OK {
		end = Never
	}
	values := []time.Duration{0} // what was in effect before the first policy: none
	for _, o := range h.Ops {
		if o.Kind != history.Policy {
			continue
		}
		if o.Result == history.OK && excused(h.Faults, o.Return, allowed, recovery)+allowed < a.Call {
			values = values[:0]
		}
		if o.Call <= end {
			values = append(values, o.Due)
		}
	}
	least, longest = own, 0
	for _, v := range values {
		if v == 0 {
			v = Never
		}
		least, longest = min(least, v), max(longest, min(own, v))
	}
	return least, longest
}
