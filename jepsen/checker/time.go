package checker

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// Grain is how much too early a timer may appear to fire: the broker counts whole
// milliseconds, and rounds its stamps down.
const Grain = time.Millisecond

// grain is Grain, or more if clocks were wrong.
func grain(h *history.History) time.Duration {
	for _, f := range h.Faults {
		if strings.Contains(f.Kind, "clock") {
			return ClockError
		}
	}
	return Grain
}

// Lateness returns, for each delivered attempt with a TTL, the time from its
// deadline to its first delivery. The deadline counts from the publish call, so a
// late publish counts as lateness too.
func Lateness(h *history.History) []time.Duration {
	first := firstDeliveries(h)
	var late []time.Duration
	for _, a := range h.Attempts {
		if d, ok := first[a.Key]; ok && a.TTL > 0 {
			late = append(late, d.At-a.Call-a.TTL)
		}
	}
	slices.Sort(late)
	return late
}

// Early finds messages that left a queue before their TTL had passed.
func Early(h *history.History) Verdict {
	p := problems{name: "early"}
	first, allowed := firstDeliveries(h), grain(h)
	for _, a := range h.Attempts {
		if d, ok := first[a.Key]; ok && a.TTL > 0 && d.At < a.Call+a.TTL-allowed {
			p.add("key %d, published at %v for %v, came %v too early", a.Key, a.Call, a.TTL, a.Call+a.TTL-d.At)
		}
	}
	return p.found()
}

// Late finds messages that left a queue too long after their deadline: a second
// and three times the machine's longest stall are allowed. A deadline during a
// fault, or within the recovery time after it, is moved to the end of the recovery
// time.
func Late(h *history.History, recovery time.Duration) Verdict {
	p := problems{name: "late"}
	first := firstDeliveries(h)
	allowed := stall.Tolerance(h.Stall)
	for _, a := range h.Attempts {
		d, ok := first[a.Key]
		if !ok || a.TTL == 0 {
			continue
		}
		began := a.Return // the TTL starts earlier
		if a.Result != history.OK {
			began = excused(h.Faults, a.Call, allowed, recovery)
		}
		due := excused(h.Faults, began+a.TTL, allowed, recovery)
		if d.At > due+allowed {
			p.add("key %d, published at %v for %v and due at %v, came %v late (allowed %v)", a.Key, a.Call, a.TTL, due, d.At-due, allowed)
		}
	}
	return p.found()
}

// excused moves a deadline to the end of the recovery from faults, which are in
// order. A fault that began when the deadline was already exceeded does not count.
func excused(faults []history.Fault, due, allowed, recovery time.Duration) time.Duration {
	for _, f := range faults {
		if f.At > due+allowed {
			break
		}
		if f.Healed == 0 {
			return math.MaxInt64 / 2
		}
		due = max(due, f.Healed+recovery)
	}
	return due
}

func firstDeliveries(h *history.History) map[uint64]history.Delivery {
	first := make(map[uint64]history.Delivery, len(h.Attempts))
	for _, d := range h.Deliveries {
		if old, ok := first[d.Key]; !ok || d.At < old.At {
			first[d.Key] = d
		}
	}
	return first
}

// Deaths finds dead letters whose newest death is not the expected one, or that
// still have an expiration.
func Deaths(h *history.History, want func(history.Attempt) history.Death) Verdict {
	p := problems{name: "death"}
	for _, d := range h.Deliveries {
		if d.Key == 0 || d.Key > uint64(len(h.Attempts)) {
			continue
		}
		want := want(h.Attempts[d.Key-1])
		switch {
		case d.Death == nil:
			p.add("key %d has no x-death", d.Key)
		case !sameDeath(*d.Death, want):
			p.add("key %d has x-death %+v, want %+v", d.Key, *d.Death, want)
		case d.Expiration != "":
			p.add("key %d still has expiration %q", d.Key, d.Expiration)
		}
	}
	return p.found()
}

// Expired returns the only death of a message that was published with its own TTL
// to queue source through the default exchange.
func Expired(source string) func(history.Attempt) history.Death {
	return func(a history.Attempt) history.Death {
		return history.Death{
			Queue: source, Reason: "expired", Exchange: "", RoutingKeys: []string{source}, Count: 1, Entries: 1,
			Expiration: strconv.FormatInt(a.TTL.Milliseconds(), 10),
		}
	}
}

func sameDeath(a, b history.Death) bool {
	return a.Queue == b.Queue && a.Reason == b.Reason && a.Exchange == b.Exchange && a.Count == b.Count &&
		a.Entries == b.Entries && a.Expiration == b.Expiration && slices.Equal(a.RoutingKeys, b.RoutingKeys)
}

// Percentiles formats ascending durations: count, p50, p90, p99, max.
func Percentiles(ascending []time.Duration) string {
	if len(ascending) == 0 {
		return "none"
	}
	at := func(p int) time.Duration {
		return ascending[(len(ascending)-1)*p/100].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("n=%d min=%v p50=%v p90=%v p99=%v max=%v", len(ascending), at(0), at(50), at(90), at(99), at(100))
}

// lostUse is how long after its call a use without an answer may still have an effect.
const lostUse = 30 * time.Second

// Leases finds queues that were gone while their lease lasted, or while a consumer used
// them and no fault did, and queues that were there too long after it. Each queue has a
// name of its own.
func Leases(h *history.History, recovery time.Duration) Verdict {
	p := problems{name: "lease"}
	queues := map[string][]history.Op{}
	var names []string
	for _, o := range h.Ops {
		if queues[o.Group] == nil {
			names = append(names, o.Group)
		}
		queues[o.Group] = append(queues[o.Group], o)
	}
	slices.Sort(names)
	allowed := stall.Tolerance(h.Stall)
	for _, name := range names {
		for _, o := range queues[name] {
			switch {
			case o.Kind == history.Gone && o.Result == history.OK:
				goneEarly(&p, h.Faults, queues[name], o)
			case o.Kind == history.There && o.Result == history.OK:
				if end := leaseEnd(queues[name]); end < math.MaxInt64/4 {
					if due := excused(h.Faults, end, allowed, recovery); o.Call > due+allowed {
						p.add("queue %s was there at %v, and its lease ended at %v", name, o.Call, due)
					}
				}
			}
		}
	}
	return p.found()
}

// goneEarly finds uses of a queue that should have kept it.
func goneEarly(p *problems, faults []history.Fault, ops []history.Op, gone history.Op) {
	for _, u := range ops {
		if u.Kind != history.Use || u.Call > gone.Call {
			continue
		}
		if end := u.Call + u.Lock; u.Result == history.OK && gone.Return < end-ClockError {
			p.add("queue %s was gone at %v, and used at %v, for %v", gone.Group, gone.Return, u.Call, u.Lock)
			return
		}
		if !u.Again || u.Return < gone.Return {
			continue
		}
		if _, ok := faultSince(faults, u.Call, gone.Return); !ok {
			p.add("queue %s was gone at %v, and consumed from %v to %v", gone.Group, gone.Return, u.Call, u.Return)
			return
		}
	}
}

// leaseEnd is when the lease of a queue ends at the latest, by all its uses.
func leaseEnd(ops []history.Op) (end time.Duration) {
	for _, u := range ops {
		switch {
		case u.Kind != history.Use:
		case u.Return == 0:
			end = max(end, u.Call+lostUse+u.Lock)
		default:
			end = max(end, u.Return+u.Lock)
		}
	}
	return end
}

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
