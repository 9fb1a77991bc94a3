// Package checker checks histories. Every checker is a pure function from a
// history to a verdict.
package checker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// limit bounds how many problems one checker describes; it counts the rest.
const limit = 10

// problems collects the findings of a checker.
type problems struct {
	name string
	list []string
	more int
}

func (p *problems) add(format string, args ...any) {
	if len(p.list) == limit {
		p.more++
		return
	}
	p.list = append(p.list, p.name+": "+fmt.Sprintf(format, args...))
}

func (p *problems) found() Verdict {
	v := Verdict{Checker: p.name, Problems: p.list, Count: len(p.list) + p.more}
	if p.more > 0 {
		v.Problems = append(v.Problems, fmt.Sprintf("%s: and %d more", p.name, p.more))
	}
	return v
}

// Verdict is what a checker says about a run. It has the checker's name even if nothing
// was found: what nobody has checked has no verdict.
type Verdict struct {
	Checker  string   `json:"checker"`
	Count    int      `json:"count"`              // of problems; 0: what is checked held
	Problems []string `json:"problems,omitempty"` // the first of them, each beginning with the checker's name
}

// Held reports whether nothing was found.
func (v Verdict) Held() bool { return v.Count == 0 }

// byKey groups the deliveries by attempt, each in order of time.
func byKey(h *history.History) map[uint64][]history.Delivery {
	all := make(map[uint64][]history.Delivery, len(h.Attempts))
	for _, d := range h.Deliveries {
		all[d.Key] = append(all[d.Key], d)
	}
	for _, list := range all {
		slices.SortStableFunc(list, func(a, b history.Delivery) int { return int(a.At - b.At) })
	}
	return all
}

// Lost finds confirmed messages that were never delivered where they belong.
func Lost(h *history.History) Verdict {
	p := problems{name: "lost"}
	seen := map[string]map[uint64]bool{}
	for _, d := range h.Deliveries {
		if seen[d.Queue] == nil {
			seen[d.Queue] = map[uint64]bool{}
		}
		seen[d.Queue][d.Key] = true
	}
	for _, a := range h.Attempts {
		if a.Result == history.OK && !seen[a.Queue][a.Key] {
			p.add("message %d (key %d) was confirmed at %v and never reached queue %s", a.Message, a.Key, a.Return, a.Queue)
		}
	}
	return p.found()
}

// Unanswered finds messages of which no attempt was confirmed.
func Unanswered(h *history.History) Verdict {
	p := problems{name: "unanswered"}
	last := map[uint64]history.Attempt{}
	confirmed := map[uint64]bool{}
	for _, a := range h.Attempts {
		last[a.Message] = a
		confirmed[a.Message] = confirmed[a.Message] || a.Result == history.OK
	}
	for _, a := range h.Attempts {
		if a.Key == last[a.Message].Key && !confirmed[a.Message] {
			p.add("message %d: last attempt (key %d) at %v ended %s", a.Message, a.Key, a.Call, a.Result)
		}
	}
	return p.found()
}

// Ghosts finds deliveries that should not exist: damaged, unknown, refused, or in
// a queue to which they were not routed.
func Ghosts(h *history.History) Verdict {
	p := problems{name: "ghost"}
	for _, d := range h.Deliveries {
		switch {
		case d.Key == 0:
			p.add("a damaged body from queue %s at %v", d.Queue, d.At)
		case d.Key > uint64(len(h.Attempts)):
			p.add("key %d from queue %s was never published", d.Key, d.Queue)
		case h.Attempts[d.Key-1].Result == history.No:
			p.add("key %d was refused and came from queue %s at %v", d.Key, d.Queue, d.At)
		case h.Attempts[d.Key-1].Queue != d.Queue:
			p.add("key %d belongs to queue %s and came from %s", d.Key, h.Attempts[d.Key-1].Queue, d.Queue)
		}
	}
	return p.found()
}

// Redelivered finds attempts that were delivered more than once, for any reason.
// It is for runs in which no consumer was lost and nothing was returned.
func Redelivered(h *history.History) Verdict {
	p := problems{name: "redelivered"}
	for key, list := range sorted(byKey(h)) {
		if len(list) > 1 {
			p.add("key %d came %d times, first at %v, again at %v (redelivered=%t)", key, len(list), list[0].At, list[1].At, list[1].Redelivered)
		} else if list[0].Redelivered {
			p.add("key %d came once, at %v, and marked as redelivered", key, list[0].At)
		}
	}
	return p.found()
}

// Doubled finds attempts that were delivered twice without being marked as
// redelivered, and deliveries after an ack that was known to hold. A message may come
// once before its death and once after it.
func Doubled(h *history.History) Verdict {
	p := problems{name: "doubled"}
	for key, list := range sorted(byKey(h)) {
		fresh := map[bool]int{} // before and after death
		for i, d := range list {
			if !d.Redelivered {
				fresh[d.Death != nil]++
			}
			if fresh[d.Death != nil] > 1 && !d.Redelivered {
				p.add("key %d came at %v and, not marked as redelivered, again at %v", key, list[0].At, d.At)
				break
			}
			if s := settled(list[:i]); s != 0 && d.At > s {
				p.add("key %d was acked for certain by %v and came again at %v", key, s, d.At)
				break
			}
		}
	}
	return p.found()
}

// Returned finds deliveries of messages that had been acked long enough before a
// fault, and after the cluster had recovered from the previous one. An ack is sent
// when its delivery is recorded, and holds after stall.Tolerance.
func Returned(h *history.History, recovery time.Duration) Verdict {
	p := problems{name: "returned"}
	allowed := stall.Tolerance(h.Stall)
	for key, list := range sorted(byKey(h)) {
		for i, d := range list[1:] {
			if before := list[i]; before.Acked && !lost(h.Faults, before.At, d.At, allowed, recovery) {
				p.add("key %d was acked at %v, far from any fault, and came again at %v", key, before.At, d.At)
				break
			}
		}
	}
	return p.found()
}

// lost reports whether an ack may have been lost in a fault that began before its
// message was delivered again.
func lost(faults []history.Fault, acked, again, allowed, recovery time.Duration) bool {
	for _, f := range faults {
		if f.At < again && f.At <= acked+allowed && (f.Healed == 0 || acked <= f.Healed+recovery) {
			return true
		}
	}
	return false
}

// settled returns when the first ack of deliveries was known to hold; 0: none was.
func settled(deliveries []history.Delivery) time.Duration {
	var first time.Duration
	for _, d := range deliveries {
		if d.Settled != 0 && (first == 0 || d.Settled < first) {
			first = d.Settled
		}
	}
	return first
}

// Disorder finds first deliveries in another order than that in which one
// connection published the messages. It is for queues with one consumer at a time.
func Disorder(h *history.History) Verdict {
	type stream struct {
		publisher string
		epoch     int
		queue     string
	}
	p := problems{name: "disorder"}
	last := map[stream]history.Delivery{}
	for _, d := range h.Deliveries {
		if d.Redelivered || d.Key == 0 || d.Key > uint64(len(h.Attempts)) {
			continue
		}
		a := h.Attempts[d.Key-1]
		s := stream{a.Publisher, a.Epoch, d.Queue}
		if before := last[s]; before.Key > d.Key {
			p.add("key %d came at %v behind key %d of the same channel at %v", d.Key, d.At, before.Key, before.At)
		}
		last[s] = d
	}
	return p.found()
}

// sorted iterates over a map of deliveries in the order of its keys.
func sorted(m map[uint64][]history.Delivery) func(func(uint64, []history.Delivery) bool) {
	keys := make([]uint64, 0, len(m))
	for k := range m {
		if k != 0 {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return func(yield func(uint64, []history.Delivery) bool) {
		for _, k := range keys {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

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

// Replica is the state of a queue's replica at some moment.
type Replica struct {
	Queue   string // vhost and name
	ID      uint64 // distinguishes a queue from an earlier one of the same name
	Node    string
	Leader  bool
	Applied uint64
	Hash    string
}

// Disagreement finds queues that lack replicas, or whose replicas are not on
// distinct nodes, led by exactly one, and at the same index with the same state.
func Disagreement(replicas []Replica, members int) Verdict {
	p := problems{name: "replicas"}
	slices.SortFunc(replicas, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Node, b.Node))
	})
	for len(replicas) > 0 {
		n := 1
		for n < len(replicas) && replicas[n].Queue == replicas[0].Queue && replicas[n].ID == replicas[0].ID {
			n++
		}
		disagreement(&p, replicas[:n], members)
		replicas = replicas[n:]
	}
	return p.found()
}

func disagreement(p *problems, of []Replica, members int) {
	first := of[0]
	if len(of) != members {
		p.add("queue %s (id %d) has %d replicas, not %d", first.Queue, first.ID, len(of), members)
	}
	leaders := 0
	for i, r := range of {
		if r.Leader {
			leaders++
		}
		if i > 0 && r.Node == of[i-1].Node {
			p.add("queue %s (id %d) has two replicas on node %s", first.Queue, first.ID, r.Node)
		}
		if r.Applied != first.Applied {
			p.add("queue %s (id %d): node %s has applied %d, node %s %d", first.Queue, first.ID, r.Node, r.Applied, first.Node, first.Applied)
		} else if r.Hash != first.Hash || r.Hash == "" {
			p.add("queue %s (id %d) at index %d: state %q on node %s, %q on node %s", first.Queue, first.ID, r.Applied, r.Hash, r.Node, first.Hash, first.Node)
		}
	}
	if leaders != 1 {
		p.add("queue %s (id %d) has %d leaders", first.Queue, first.ID, leaders)
	}
}
