package group

import (
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
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
	role, term := g.Role()
	if leader == "" || role != raft.Follower || g.barred() || g.IsLearner() || e.draining(e.node) || !e.reachesAll(g) {
		return "", item{}, false
	}
	return leader, item{kind: itemOffer, group: g.Spec().Group, term: term, position: g.LogEnd()}, true
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
	role, _ := g.Role()
	return role == raft.Leader && !g.barred() && it.position.Index+maxCedeLag >= g.LogEnd().Index && !e.reachesAll(g)
}

// cede hands leaderships over. While some are under way, nothing else is begun: the offers come again.
func (e *elections) cede(list []cession) {
	if len(list) == 0 || !e.ceding.CompareAndSwap(false, true) {
		return
	}
	e.spawn(func() {
		defer e.ceding.Store(false)
		worker.Each(cedeAtOnce, list, func(_ int, c cession) { c.group.cedeTo(c.to) })
	})
}

// Transfer makes another member the leader and returns when this replica no
// longer leads. First the entries that raft has taken are committed, maxPending
// and a few more if members are far. What is queued is kept: it goes on if the transfer fails, and back
// to the submitters if it succeeds. What comes meanwhile they keep.
//
// to must be up, and is given a second, and a round trip, to get what its log lacks. If it does not
// win in time, this replica goes on, and refuses the next attempts for a while:
// each of them stops the queue for a moment.
func (g *instance) Transfer(to string) error {
	l := &g.leadership
	l.changing.Lock()
	defer l.changing.Unlock()
	term := l.term.Load()
	if term == 0 || l.barred() || g.IsLocal() || g.IsClosed() {
		return replica.ErrNotLeading
	}
	if err := g.RefusesMove(to); err != nil {
		return err
	}
	g.proposer.transfer(true)
	defer g.proposer.transfer(false)
	err := fmt.Errorf("%w: entries are not being committed", replica.ErrNotHandedOver)
	if g.proposer.drained(g.MovePatience(to)) {
		err = g.Move(to, term)
	}
	g.MoveEnded(err)
	if now, leads := g.LeadsIn(); !leads || now != term {
		g.leave()
		return err
	}
	g.announceAgain(term)
	return err
}

// cedeTo hands the leadership to a member that reaches more of the others.
func (g *instance) cedeTo(node string) {
	defer g.guard.contain("hand the leadership over")
	err := g.Transfer(node)
	g.slog.Info("handing the leadership over to a member that reaches all others", "to", node, "error", err)
}

// announceAgain goes on with a leadership that was not handed over. Nothing was
// proposed meanwhile: neither the ticks that were due nor settings that have
// changed. Everybody is told that this replica leads after all: those whose
// commands it has refused wait for that.
func (g *instance) announceAgain(term uint64) {
	g.proposer.transfer(false)
	defer g.host.tasks.Go(g.review) // what was seen of raft meanwhile
	if g.barred() {
		return
	}
	g.applier.rearm()
	g.settings.propose(true)
	g.announce(term)
}

// majorityWait is how long a leader goes on without a majority of its voters in reach.
const majorityWait = 30 * time.Second

// silences are the nodes that cannot be reached, and since when. It is a leader's lease, for all groups of the
// node at once.
type silences struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// long takes up which nodes can be reached, and returns those that could not be for majorityWait.
func (s *silences) long(peers []peer.PeerStatus, now time.Time) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.since
	s.since = nil
	var long map[string]bool
	for _, p := range peers {
		if p.Alive {
			continue
		}
		since, known := was[p.Node]
		if !known {
			since = now
		}
		if s.since == nil {
			s.since = map[string]time.Time{}
		}
		if s.since[p.Node] = since; now.Sub(since) >= majorityWait {
			if long == nil {
				long = map[string]bool{}
			}
			long[p.Node] = true
		}
	}
	return long
}

// outnumbered returns a voter that a leader steps down for: so many cannot be reached that the rest is no
// majority. Empty: there is none.
func outnumbered(voters []string, silent map[string]bool) (other string) {
	n := 0
	for _, v := range voters {
		if silent[v] {
			n, other = n+1, v
		}
	}
	if 2*(len(voters)-n) > len(voters) {
		return ""
	}
	return other
}

// stepDownAlone makes a replica step down if it has led without a majority for long: it commits nothing, and
// should not believe for ever that it leads.
func (h *Host) stepDownAlone(g *instance, silent map[string]bool) {
	if other := outnumbered(g.Voters(), silent); other != "" {
		if role, term := g.Role(); role == raft.Leader {
			g.slog.Warn("a leader without a majority steps down", "term", term)
			h.config.Mesh.Resign(g.spec.Group, term+1, other)
		}
	}
}
