package group

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/worker"
)

// Times of a handover.
const (
	drainTime = time.Second // for what has been proposed, and for what the other one lacks; see patience
	// resignTime is how long a member may take to win the election it was told
	// to hold, which mostly takes a few milliseconds.
	resignTime = 2 * time.Second
	// takeoverEvery is how often it is checked whether another member has taken over.
	takeoverEvery = 5 * time.Millisecond
	// After a move that has failed the next one is refused for a pause that doubles each time.
	firstMovePause   = time.Second
	longestMovePause = 30 * time.Second
)

// handover gives the leadership of a replica to another member. Whoever wants that has a reason and somebody
// in mind; there is one way, and one attempt at a time:
//
//   - a move is wanted by somebody: a drain, a rebalance, an operator, a member that reaches more of the
//     others. The replica could go on, and does if nobody takes over.
//   - A replica that must not lead, because it is quarantined, has resigned, or its node has withdrawn, yields:
//     it steps down if nobody takes over.
//
// The other member is told to stand for election, which raft does at once and its voters accept. That works
// also if the raft of this replica hangs.
type handover struct {
	under  atomic.Bool // somebody has been told to stand
	moving atomic.Bool // a move is under way: nothing may be appended that the other member lacks

	mu    sync.Mutex
	pause time.Duration // the last one; 0: no move has failed
	again time.Time     // before then no move is tried
}

var errUnderWay = fmt.Errorf("%w: another attempt is under way", ErrNotHandedOver)

// rests says for how long no move will be tried.
func (h *handover) rests() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Until(h.again)
}

// MayMove reports whether a transfer is tried: for a while after one that has failed, none is.
func (r *replica) MayMove() bool { return r.handover.rests() <= 0 }

// ended records how a move has ended.
func (h *handover) ended(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.pause, h.again = 0, time.Time{}
		return
	}
	h.pause = min(max(2*h.pause, firstMovePause), longestMovePause)
	h.again = time.Now().Add(h.pause)
}

// refuses is why a move to a member is not even tried.
func (h *handover) refuses(r *replica, to string) error {
	switch wait := h.rests(); {
	case !slices.Contains(r.Voters(), to) || to == r.node:
		return fmt.Errorf("%w: %s is not another voter of the group", ErrNotHandedOver, to)
	case !r.mesh.Alive(to):
		return fmt.Errorf("%w: %s is down", ErrNotHandedOver, to)
	case wait > 0:
		return fmt.Errorf("%w: the last attempt failed; the next one is possible in %v", ErrNotHandedOver, wait.Round(time.Millisecond))
	}
	return nil
}

// move has a member take over that gets what it lacks before. It returns nil when this replica no longer
// leads in the term. Nothing is proposed meanwhile.
func (h *handover) move(r *replica, to string, term uint64) error {
	if !h.moving.CompareAndSwap(false, true) {
		return errUnderWay
	}
	defer h.moving.Store(false)
	if err := h.catchUp(r, to, term); err != nil {
		return err
	}
	return h.tell(r, to, term)
}

// patience is how long a step of a handover may take: longer where the other member, or a majority, is far.
func (*handover) patience(r *replica, near time.Duration, to string) time.Duration {
	return near + max(r.mesh.Slack(to), r.mesh.Slack(r.Voters()...))
}

// catchUp returns when a member has everything that is in the log, and nothing waits for raft any more: a
// candidate that lacks an entry loses.
func (h *handover) catchUp(r *replica, to string, term uint64) error {
	patience := h.patience(r, drainTime, to)
	limit, check := time.NewTimer(patience), time.NewTicker(takeoverEvery)
	defer limit.Stop()
	defer check.Stop()
	committed := make(chan error, 1)
	r.spawn(func() { committed <- r.barrier(patience) })
	for committed != nil || r.reached(to, term).Index < r.lastIndex() {
		select {
		case err := <-committed:
			if committed = nil; err != nil {
				return fmt.Errorf("%w: %w", ErrNotHandedOver, err)
			}
		case <-check.C:
		case <-limit.C:
			return fmt.Errorf("%w: %s lacks entries", ErrNotHandedOver, to)
		case <-r.ending:
			return ErrNotLeading
		}
	}
	return nil
}

// yield has a member take over from a replica that must not lead in a term. If it does not, the replica
// steps down, and whoever can is elected. hangs says that its raft may hang: the other one has to win with
// what it has.
func (h *handover) yield(r *replica, to string, term uint64, hangs bool) {
	give := h.move
	if hangs {
		give = h.tell
	}
	err := give(r, to, term)
	if err == nil || errors.Is(err, errUnderWay) || r.isClosed() {
		return
	}
	r.slog.Warn("no member has taken over from a leader that must not lead: it steps down", "to", to, "error", err)
	r.mesh.Resign(r.id, term+1, to)
}

// tell tells a member to stand for election at once. It returns nil when this node no longer leads in the
// term. It does not wait for an answer for longer than that member may take to win: its raft may hang, too.
func (h *handover) tell(r *replica, to string, term uint64) error {
	if !h.under.CompareAndSwap(false, true) {
		return errUnderWay
	}
	defer h.under.Store(false)
	answer, t := make(chan error, 1), r.transport
	r.spawn(func() {
		answer <- t.TimeoutNow(raft.ServerID(to), raft.ServerAddress(to), &raft.TimeoutNowRequest{RPCHeader: r.header()}, &raft.TimeoutNowResponse{})
	})
	limit, check := time.NewTimer(h.patience(r, resignTime, to)), time.NewTicker(takeoverEvery)
	defer limit.Stop()
	defer check.Stop()
	for {
		if now, leads := r.leadsIn(); !leads || now != term {
			return nil
		}
		select {
		case err := <-answer:
			if answer = nil; err != nil {
				return fmt.Errorf("%w: %w", ErrNotHandedOver, err)
			}
		case <-check.C:
		case <-limit.C:
			return fmt.Errorf("%w: %s did not win the election in time", ErrNotHandedOver, to)
		case <-r.ending:
			return nil
		}
	}
}

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
		worker.Each(cedeAtOnce, list, func(_ int, c cession) { c.group.cedeTo(c.to) })
	})
}

// ErrNotHandedOver is returned for a leadership that its holder still has, or
// has lost to nobody in particular, after the time for its transfer.
var ErrNotHandedOver = errors.New("the leadership was not handed over")

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
	if term == 0 || l.barred() || g.IsLocal() || g.isClosed() {
		return ErrNotLeading
	}
	if err := g.handover.refuses(&g.replica, to); err != nil {
		return err
	}
	g.proposer.transfer(true)
	defer g.proposer.transfer(false)
	err := fmt.Errorf("%w: entries are not being committed", ErrNotHandedOver)
	if g.proposer.drained(g.handover.patience(&g.replica, drainTime, to)) {
		err = g.handover.move(&g.replica, to, term)
	}
	g.handover.ended(err)
	if now, leads := g.leadsIn(); !leads || now != term {
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
	defer g.spawn(g.review) // what was seen of raft meanwhile
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

// stepDownAlone makes the replica step down if it has led without a majority for long: it commits nothing, and
// should not believe for ever that it leads.
func (r *replica) stepDownAlone(silent map[string]bool) {
	if other := outnumbered(r.Voters(), silent); other != "" {
		if role, term := r.role(); role == raft.Leader {
			r.slog.Warn("a leader without a majority steps down", "term", term)
			r.mesh.Resign(r.id, term+1, other)
		}
	}
}
