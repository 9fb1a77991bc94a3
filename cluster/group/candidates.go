package group

import (
	"slices"

	"github.com/hashicorp/raft"
)

// chooseTransferee handles a member that must not lead but that raft has made leader. The member
// transfers leadership to the one with the longest log among those that may lead; ties go to the
// first in member order, the preferred leader first. While there is no such member, the group has
// a leader in raft's eyes and nobody serves.
func (e *elections) chooseTransferee(v *election, alive []string, r *electionRound) {
	if !leads(v.group) || r.now.Sub(v.transferred) < transferTime {
		return
	}
	best := ""
	for _, n := range alive {
		s, known := v.positions[n]
		if n != e.node && known && !v.barred[n] && !v.learners[n] && (best == "" || v.positions[best].less(s)) {
			best = n
		}
	}
	if best != "" {
		v.transferred = r.now
		r.transfers = append(r.transfers, transfer{v.group, best, v.canWin(best, alive)})
	}
}

// chooseCandidates says who may stand. If those that may lead cannot win, since only the log of a member that
// must not lead is long enough, that one stands, gives the others what they lack, and hands over.
func (v *election) chooseCandidates(alive []string) {
	v.lends = false
	if v.eligible(alive) > 0 || !slices.ContainsFunc(alive, func(m string) bool { return !v.excluded(m) }) {
		return
	}
	v.lends = true
	v.lends = v.eligible(alive) > 0
}

// excluded reports whether a member does not stand.
func (v *election) excluded(node string) bool { return v.barred[node] != v.lends || v.learners[node] }

func leads(g electable) bool {
	role, _ := g.role()
	return role == raft.Leader
}

// eligible counts the candidates that can win, that is, whose log allows a majority of all members
// to vote for them. They rank first. A member whose log position is unknown can win and can vote.
func (v *election) eligible(alive []string) (n int) {
	for _, c := range alive {
		if v.canWin(c, alive) {
			n++
		}
	}
	return n
}

// proven counts the members that may vote.
func (v *election) proven(alive []string) (n int) {
	for _, m := range alive {
		if !v.learners[m] {
			n++
		}
	}
	return n
}

// canWin reports whether a majority of all members can vote for candidate.
func (v *election) canWin(candidate string, alive []string) bool {
	if v.excluded(candidate) {
		return false
	}
	mine, known := v.positions[candidate]
	votes := 0
	for _, m := range alive {
		if s, said := v.positions[m]; !v.learners[m] && (!known || !said || !mine.less(s)) {
			votes++
		}
	}
	return 2*votes > len(v.voters)
}

// decided reports whether enough is known for an election: the log positions of all live members
// or, after a while, of a majority of all members, none of which has a leader. A node that has
// just started and has heard nothing yet must not disturb a live leader.
func (v *election) decided(alive []string, next *soonest) bool {
	if v.awaitsLeader(next.now) {
		next.or(v.back.Add(positionsEvery))
		next.or(v.back.Add(deathPatience))
		return false
	}
	known := 0
	for _, n := range alive {
		if at, led := v.led[n]; led && next.now.Sub(at) < ledValid {
			next.or(at.Add(ledValid))
			return false
		}
		if _, ok := v.positions[n]; ok {
			known++
		}
	}
	next.or(v.ready.Add(positionsWait))
	return known == len(alive) || 2*known > len(v.voters) && next.now.Sub(v.ready) >= positionsWait
}

// rank is this node's place among the candidates. Candidates that can win precede those that
// cannot; among them, nodes that stay precede those about to stop; then the longest log comes
// first, then the order of the members, the preferred leader first.
func (e *elections) rank(v *election, alive []string) int {
	mine, rank, passed := v.positions[e.node], 0, false
	for _, n := range alive {
		if n == e.node {
			passed = true
			continue
		}
		s, known := v.positions[n]
		before := known && (mine.less(s) || !passed && !s.less(mine))
		if d := e.draining(e.node); d != e.draining(n) && v.canWin(n, alive) == v.canWin(e.node, alive) {
			before = d
		}
		if before && !v.excluded(n) {
			rank++
		}
	}
	return rank
}

func (e *elections) draining(node string) bool { return e.drains != nil && e.drains(node) }
