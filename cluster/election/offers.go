package election

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/worker"
)

// When one link of several is down, a leader may have a majority and yet be out of reach of a member:
// publishers and consumers at that node would wait for the link. So a member to which others report
// a leader that it does not reach asks them to take over, and one that reaches all members offers it
// to the leader, which cedes if it does not reach all. Where nobody waits, a link may come back as well as
// a node, see rests.
const (
	outOfReachAfter = time.Second // how long a member looks for a leader before it asks
	cedeAtOnce      = 32          // leaderships under way to another member
	maxCedeLag      = 128         // entries by which its log may lag
)

// cession is a leadership that another member offers to take over.
type cession struct {
	group Electable
	to    string
}

// outOfReach reports whether this member has looked for a leader for long, of which another one
// reports that it reaches it.
func (v *election) outOfReach(reporter string, now time.Time) bool {
	at, led := v.led[reporter]
	after := outOfReachAfter
	if !v.urgent && now.Before(v.due) {
		after = DeathPatience
	}
	return led && now.Sub(at) < ledValid && now.Sub(v.ready) >= after
}

// offer is what this node offers to the leader of a group, if it reaches all voters and may lead.
func (e *Elections) offer(g Electable) (leader string, it Item, ok bool) {
	leader = g.Leader()
	role, term := g.Role()
	if leader == "" || role != raft.Follower || g.Barred() || g.IsLearner() || e.Draining(e.node) || !e.reachesAll(g) {
		return "", Item{}, false
	}
	return leader, Item{Kind: ItemOffer, Group: g.ID(), Term: term, Position: g.LogEnd()}, true
}

// reachesAll reports whether this node reaches all members that vote.
func (e *Elections) reachesAll(g Electable) bool {
	for _, m := range g.Voters() {
		if m != e.node && !e.links.Alive(m) {
			return false
		}
	}
	return true
}

// mayCede reports whether the leader of a group should accept an offer.
func (e *Elections) mayCede(g Electable, it Item) bool {
	role, _ := g.Role()
	return role == raft.Leader && !g.Barred() && it.Position.Index+maxCedeLag >= g.LogEnd().Index && !e.reachesAll(g)
}

// cede hands leaderships over. While some are under way, nothing else is begun: the offers come again.
func (e *Elections) cede(list []cession) {
	if len(list) == 0 || !e.ceding.CompareAndSwap(false, true) {
		return
	}
	e.spawn(func() {
		defer e.ceding.Store(false)
		worker.Each(cedeAtOnce, list, func(_ int, c cession) { c.group.CedeTo(c.to) })
	})
}
