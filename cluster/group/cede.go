package group

import (
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"
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
	group electable
	to    string
}

// outOfReach reports whether this member has looked for a leader for long, of which another one
// reports that it reaches it.
func (v *election) outOfReach(reporter string, now time.Time) bool {
	at, led := v.led[reporter]
	after := outOfReachAfter
	if !v.urgent && now.Before(v.due) {
		after = deathPatience
	}
	return led && now.Sub(at) < ledValid && now.Sub(v.ready) >= after
}

// offer is what this node offers to the leader of a group, if it reaches all voters and may lead.
func (e *elections) offer(g electable) (leader string, it item, ok bool) {
	leader = g.Leader()
	role, term := g.role()
	if leader == "" || role != raft.Follower || g.barred() || g.isLearner() || e.draining(e.node) || !e.reachesAll(g) {
		return "", item{}, false
	}
	return leader, item{kind: itemOffer, group: g.Spec().Group, term: term, position: g.logEnd()}, true
}

// reachesAll reports whether this node reaches all members that vote.
func (e *elections) reachesAll(g electable) bool {
	for _, m := range g.Voters() {
		if m != e.node && !e.links.Alive(m) {
			return false
		}
	}
	return true
}

// mayCede reports whether the leader of a group should accept an offer.
func (e *elections) mayCede(g electable, it item) bool {
	role, _ := g.role()
	return role == raft.Leader && !g.barred() && it.position.index+maxCedeLag >= g.logEnd().index && !e.reachesAll(g)
}

// cede hands leaderships over. While some are under way, nothing else is begun: the offers come again.
func (e *elections) cede(list []cession) {
	if len(list) == 0 || !e.ceding.CompareAndSwap(false, true) {
		return
	}
	e.spawn(func() {
		defer e.ceding.Store(false)
		var work errgroup.Group
		work.SetLimit(cedeAtOnce)
		for _, c := range list {
			work.Go(func() error { c.group.cedeTo(c.to); return nil })
		}
		_ = work.Wait() // there are no errors
	})
}
