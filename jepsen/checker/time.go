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
