package group

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// leave tells the other members that a replica which leads is about to be closed.
func (e *elections) leave(g electable) {
	role, term := g.role()
	if role != raft.Leader {
		return
	}
	items := appendItem(nil, item{kind: itemAsk, group: g.Spec().Group, term: term, position: g.logEnd(), barred: true, learner: true})
	for _, n := range g.Voters() {
		if n != e.node {
			e.send(n, items)
		}
	}
}

// disowns reports whether the leader of a group, as far as is known here, says that it leads no more. One
// that must not lead and still does hands the leadership over.
func disowns(g electable, from string, it item) bool {
	role, term := g.role()
	return role != raft.Leader && g.Leader() == from && (!it.barred || it.learner || it.term > term)
}

// doubts reports whether this node looks for another leader than the one that raft knows, since that one has
// disowned the group, or was waited for in vain.
func (e *elections) doubts(id fsm.GroupID, leader string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.running[id]
	if v == nil || v.leader != leader {
		return false
	}
	_, said := v.positions[leader]
	_, led := v.led[leader]
	return !led && (said || !v.back.IsZero() && !v.awaitsLeader(e.now()))
}

// awaitsLeader reports whether the leader's node is back and has not said yet whether it still leads. On a
// machine that was too busy for pings that may take long.
func (v *election) awaitsLeader(now time.Time) bool {
	if v.back.IsZero() {
		return false
	}
	limit := deathPatience
	if v.urgent {
		limit = positionsEvery
	}
	_, said := v.positions[v.leader]
	return !said && now.Sub(v.back) < limit
}
