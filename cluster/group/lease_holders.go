package group

import (
	"slices"
	"time"

	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// LeaseTime is how long a node routes by its view of the catalog after it
	// has asked whether that is up to date.
	LeaseTime = time.Second
	// leaseDrift is by how much a leader waits longer than that: clocks do not
	// run alike.
	leaseDrift = LeaseTime / 20
	// leaseLag bounds for how long a node's lease is renewed while the node
	// does not apply what the leader has applied.
	leaseLag = LeaseTime / 2
	// leaseSlack is by how many entries a node without a lease may lag to get one.
	leaseSlack = 64
)

// holders is what a leader of the catalog knows of the nodes that may route. A
// node that has applied an entry, or has no lease, need not be waited for.
//
//	until(n) ≥ the end of any lease that n may have, whoever granted it
//	applied  ≤ what the node has applied in this incarnation
type holders struct {
	term  uint64    // in which this node leads, or has led last; 0: it never has
	since time.Time // it leads, or later
	open  bool      // the entries of earlier terms are applied
	last  uint64    // newest entry applied of those and of this term
	all   map[string]*holder
}

// holder is one node.
type holder struct {
	incarnation string
	granted     time.Time // last; zero: not by this leader
	over        bool      // it has given its lease back, or its process has ended
	applied     uint64
	target      uint64    // an index above applied; 0: none
	lagging     time.Time // since when target has been waited for
}

// newHolders begins a term: before, anybody may have had a lease.
func newHolders(term uint64, now time.Time) holders {
	return holders{term: term, since: now, all: map[string]*holder{}}
}

// until is when a node's lease has ended at the latest.
func (h *holders) until(node string) time.Time {
	from := h.since
	if x := h.all[node]; x != nil {
		if x.over {
			return time.Time{}
		}
		if x.granted.After(from) {
			from = x.granted
		}
	}
	return from.Add(LeaseTime + leaseDrift)
}

// grant answers a node that asks for a lease; applied is what this node, the
// leader, has applied.
func (h *holders) grant(l *peerpb.Lease, applied uint64, now time.Time) bool {
	x := h.holder(l.Node, string(l.Incarnation))
	if x == nil {
		x = &holder{incarnation: string(l.Incarnation)}
		h.all[l.Node] = x
	}
	if l.Over {
		x.over = true
		return false
	}
	x.reached(l.Applied)
	held := now.Before(h.until(l.Node)) && !x.over
	switch {
	case !held && x.applied+leaseSlack < applied:
		return false // it has to catch up first
	case x.target == 0 && x.applied < applied:
		x.target, x.lagging = applied, now
	case x.target != 0 && now.Sub(x.lagging) > leaseLag:
		return false // nobody waits for it much longer
	}
	x.granted, x.over = now, false
	return true
}

// holder finds a node's record, if it is about this incarnation.
func (h *holders) holder(node, incarnation string) *holder {
	if x := h.all[node]; x != nil && x.incarnation == incarnation {
		return x
	}
	return nil
}

func (x *holder) reached(applied uint64) {
	x.applied = max(x.applied, applied)
	if x.applied >= x.target {
		x.target = 0
	}
}

// reached takes a node's word on what it has applied.
func (h *holders) reached(node, incarnation string, applied uint64) {
	if h.all[node] == nil {
		h.all[node] = &holder{incarnation: incarnation}
	}
	if x := h.holder(node, incarnation); x != nil {
		x.reached(applied)
	}
}

// ended notes that a process is known to have ended.
func (h *holders) ended(node, incarnation string) {
	if x := h.holder(node, incarnation); x != nil {
		x.over = true
	}
}

// held returns up to which index every node that may route has applied the
// entries of this term and of those before, and when that may change by time
// alone; zero: never. self is this node, which has applied up to last.
func (h *holders) held(nodes []string, self string, now time.Time) (index uint64, again time.Time) {
	index = h.last
	for node := range h.all {
		if !slices.Contains(nodes, node) {
			nodes = append(nodes[:len(nodes):len(nodes)], node)
		}
	}
	for _, node := range nodes {
		x, until := h.all[node], h.until(node)
		if node == self || !now.Before(until) {
			continue
		}
		applied := uint64(0)
		if x != nil {
			applied = x.applied
		}
		if applied < h.last && (again.IsZero() || until.Before(again)) {
			again = until
		}
		index = min(index, applied)
	}
	return index, again
}
