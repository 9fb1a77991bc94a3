package checker

import (
	"slices"
	"strings"

	"github.com/quorate/quorate/jepsen/history"
)

// Fanout checks each queue of messages that belong in several as if they had been
// published to it alone.
func Fanout(h *history.History) Verdict {
	p := problems{name: "fan-out"}
	for _, one := range perQueue(h) {
		for _, check := range []func(*history.History) Verdict{Lost, Ghosts, Doubled} {
			v := check(one)
			for _, text := range v.Problems {
				p.add("%s", text)
			}
		}
	}
	return p.found()
}

// perQueue returns a history for each queue, in the order of their names.
func perQueue(h *history.History) []*history.History {
	of := map[string][]history.Delivery{}
	for _, a := range h.Attempts {
		for q := range strings.SplitSeq(a.Queue, " ") {
			of[q] = nil
		}
	}
	for _, d := range h.Deliveries {
		of[d.Queue] = append(of[d.Queue], d)
	}
	var queues []string
	for q := range of {
		queues = append(queues, q)
	}
	slices.Sort(queues)
	var all []*history.History
	for _, q := range queues {
		one := &history.History{Attempts: slices.Clone(h.Attempts), Deliveries: of[q], Faults: h.Faults, Stall: h.Stall}
		for i, a := range one.Attempts {
			if slices.Contains(strings.Split(a.Queue, " "), q) {
				one.Attempts[i].Queue = q
			} else {
				one.Attempts[i].Result = history.No
			}
		}
		all = append(all, one)
	}
	return all
}
