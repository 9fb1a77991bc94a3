package checker

import (
	"math"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

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
