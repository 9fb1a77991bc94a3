package checker

import (
	"cmp"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// Limit returns a checker that finds moments at which more than so many messages were
// certainly ready in a queue: confirmed, and not yet taken by a basic.get.
func Limit(most int) func(*history.History) Verdict {
	return func(h *history.History) Verdict {
		p := problems{name: "limit"}
		first := firstDeliveries(h)
		type step struct {
			at    time.Duration
			queue string
			by    int
		}
		var steps []step
		for _, a := range h.Attempts {
			d, ok := first[a.Key]
			// One that was taken before, for a client that never saw it, has come back
			// however long the queue was.
			if ok && !d.Redelivered && a.Result == history.OK && d.Call > a.Return {
				steps = append(steps, step{a.Return, a.Queue, 1}, step{d.Call, a.Queue, -1})
			}
		}
		slices.SortStableFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
		ready := map[string]int{}
		for _, s := range steps {
			if ready[s.queue] += s.by; s.by > 0 && ready[s.queue] > most {
				p.add("queue %s had %d messages at %v, and its limit is %d", s.queue, ready[s.queue], s.at, most)
			}
		}
		return p.found()
	}
}

// Dropped returns a checker for queues that drop their oldest messages above a limit: it
// finds confirmed messages that are missing though a later one was taken, or the run
// ended, before so many others can have come behind them.
func Dropped(most int) func(*history.History) Verdict {
	return func(h *history.History) Verdict {
		p := problems{name: "dropped"}
		first := firstDeliveries(h)
		taken := make([]history.Delivery, 0, len(first))
		for _, d := range first {
			if d.Key > 0 && d.Key <= uint64(len(h.Attempts)) {
				taken = append(taken, d)
			}
		}
		slices.SortFunc(taken, func(a, b history.Delivery) int { return cmp.Compare(a.At, b.At) })
		for _, a := range h.Attempts {
			if _, ok := first[a.Key]; ok || a.Result != history.OK {
				continue
			}
			full, behind := fullBehind(h, a, most)
			if behind < most {
				p.add("key %d was confirmed at %v and is missing, and only %d others can have come behind it", a.Key, a.Return, behind)
				continue
			}
			if _, ok := faultSince(h.Faults, a.Call-time.Minute, full+time.Minute); ok {
				continue // it may have been on its way to a client that was lost
			}
			from, _ := slices.BinarySearchFunc(taken, a.Return, func(d history.Delivery, at time.Duration) int { return cmp.Compare(d.At, at) })
			for _, d := range taken[from:] {
				if d.At >= full {
					break
				}
				if b := h.Attempts[d.Key-1]; b.Queue == a.Queue && b.Call > a.Return {
					p.add("key %d was confirmed at %v and is missing, and key %d behind it was taken at %v, before %d others came", a.Key, a.Return, d.Key, d.At, most)
					break
				}
			}
		}
		return p.found()
	}
}

// fullBehind returns when so many messages can have come behind one, and how many can,
// up to that number. Attempts are in the order of their calls.
func fullBehind(h *history.History, a history.Attempt, most int) (at time.Duration, behind int) {
	from := int(a.Key) - 1
	for from > 0 && a.Call-h.Attempts[from-1].Call < time.Minute { // an open one is not older
		from--
	}
	for _, b := range h.Attempts[from:] {
		if b.Key == a.Key || b.Queue != a.Queue || b.Result == history.No || b.Return != 0 && b.Return < a.Call {
			continue
		}
		if behind++; behind == most {
			return b.Call, behind
		}
	}
	return 0, behind
}
