// Package election has the members of groups find each other: elections give leaderless groups a leader, and learners
// what they lack. Both exchange log positions, in one message of a node for all its groups. It decides among groups, and
// knows of each only what its interfaces say.
package election

import (
	"encoding/binary"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

// Times of elections.
const (
	electionPause  = time.Millisecond       // minimum between two rounds: positions of several groups share a message
	electionShare  = 4                      // a pause is this many times as long as the round before took, up to longestRest
	longestRest    = 25 * time.Millisecond  // between two rounds: a node's failure causes thousands of wakeups
	transferTime   = 2 * time.Second        // between two transfers of the same leadership
	positionsWait  = 150 * time.Millisecond // how long to wait for others' log positions
	positionsEvery = time.Second            // how often to ask again
	slotTime       = time.Second            // a candidate's initial slot
	votesTime      = 3 * time.Second        // how long votes for a candidate may be on their way before who has given one stands
	longestSlot    = 8 * time.Second        // upper limit as slots grow; an undecided campaign no longer counts as under way
	ledValid       = 2 * time.Second        // how long a report that a member has a leader, or waits to stand, stays valid
	DeathPatience  = 5 * time.Second        // how long a dead leader's node may come back to a group that nobody waits for
	WantValid      = time.Second            // how long somebody waits who has said so; who goes on waiting repeats it
)

// Elections finds leaders for leaderless groups. Raft's own timers are long because thousands of
// groups share a node. Instead, a node detects failures itself, the members of a leaderless group
// compare their logs, and the member with the longest log campaigns. Code here only starts
// campaigns; raft decides who wins.
type Elections struct {
	node  string
	links Links
	kind  peer.Kind                   // of its messages
	find  func(fsm.GroupID) Electable // nil if there is none
	sleep Sleeping
	// drains reports whether a node is about to stop; nil means that no node is.
	drains func(node string) bool
	slog   *slog.Logger
	worker *worker.Worker
	spawn  func(f func())
	now    func() time.Time
	ceding atomic.Bool

	mu      sync.Mutex
	running map[fsm.GroupID]*election
	agenda  agenda
	window  window
	waiting electionHeap      // those that wait for a place in the window
	wants   map[string][]byte // items for other nodes, from routes here
}

// Sleeping is what elections need of groups that sleep, or are to.
type Sleeping interface {
	// Heard returns the answer for an item, or that the group which it concerns has to wake for it.
	Heard(from string, it Item) (answer []byte, wakes bool)
	// Disturbed wakes the groups that items concern and then has them received. It does not wait.
	Disturbed(from string, items []byte)
	// Receive takes items of a kind that concerns groups that sleep, or are to.
	Receive(kind byte, from string, items []Item)
}

// Links is what elections needs from the mesh.
type Links interface {
	Handle(k peer.Kind, h func(from string, head, payload []byte))
	Send(node string, k peer.Kind, head []byte, payloads ...[]byte) error
	Alive(node string) bool
	Peers() []peer.PeerStatus
	Slack(of ...string) time.Duration
	Campaign(group fsm.GroupID)
	StepDown(group fsm.GroupID, term uint64, other string)
	Resign(group fsm.GroupID, term uint64, other string)
}

// Electable is what elections needs from a Group.
type Electable interface {
	ID() fsm.GroupID
	Voters() []string         // the preferred leader first
	Leader() string           // empty: unknown
	LogEnd() replica.Position // how far the log reaches
	Role() (role raft.RaftState, term uint64)
	LastLed() uint64 // term of the last leader that was seen; 0: none was
	// VotedFor is whom this replica has given its vote in a term; empty: nobody.
	VotedFor(term uint64) string
	IsClosed() bool
	Barred() bool    // whether it must not lead
	IsLearner() bool // whether it neither leads nor votes
	ResignedLately() bool
	// Want records that somebody waits for a leader, and wanted reports whether that is so. patience is
	// for how long nobody needs one, as far as the replica knows.
	Want(now time.Time)
	Wanted(now time.Time) bool
	Patience() time.Duration
	// HasNoLeader is called when another member reports that it knows no leader and where its log
	// ends.
	HasNoLeader(node string, end uint64)
	// TransferTo makes another member the leader if raft leads here. wins says that the member can
	// be elected as it is. It does not block.
	TransferTo(node string, wins bool)
	// CedeTo hands the leadership over and returns when that has been done, or has failed.
	CedeTo(node string)
}

// election is the search for a leader of one group, as this member sees it.
type election struct {
	group  Electable
	leader string // who led when the election began; empty: unknown
	since  uint64 // the term at that time

	urgency
	scheduled
	attempt
	term        uint64   // the highest one, in the last round; before it, that of the last leader
	heard       uint64   // the highest term of another member
	voters      []string // members, as of counted
	counted     time.Time
	queried     time.Time // positions were last exchanged
	ready       time.Time // when a majority of members became reachable
	backoff     electionBackoff
	end         replica.Position // of this member's log, when it was last told
	transferred time.Time        // last
	positions   map[string]replica.Position
	led         map[string]time.Time // when a member last reported a leader
	barred      map[string]bool      // members that must not lead, see Quarantine
	lends       bool                 // those stand, and nobody else
	learners    map[string]bool      // members that neither lead nor vote, see trust
}

func newElection(g Electable) *election {
	_, term := g.Role()
	led := g.LastLed()
	if led == 0 {
		led = term
	}
	return &election{
		group: g, leader: g.Leader(), since: term, term: min(term, led), scheduled: scheduled{place: -1, waitPlace: -1},
		positions: map[string]replica.Position{}, led: map[string]time.Time{}, barred: map[string]bool{}, learners: map[string]bool{},
	}
}

// Config is what the elections of a node need, and so do its learners.
type Config struct {
	Node   string
	Links  Links
	Kind   peer.Kind // of the messages
	Logger *slog.Logger
	Spawn  func(f func())
}

// New returns elections without any that runs. drains reports whether a node is about to stop; nil: none is.
func New(c Config, drains func(node string) bool, sleep Sleeping, find func(fsm.GroupID) Electable) *Elections {
	return &Elections{
		node: c.Node, links: c.Links, kind: c.Kind, slog: c.Logger, find: find, sleep: sleep, drains: drains, spawn: c.Spawn,
		now: time.Now, worker: worker.New(worker.Options{Pause: electionPause, Share: electionShare, Longest: longestRest}), running: map[fsm.GroupID]*election{},
		agenda: newAgenda(), waiting: newWaiting(), window: newWindow(), wants: map[string][]byte{},
	}
}

// Listen registers the handler for messages.
func (e *Elections) Listen() {
	e.links.Handle(e.kind, func(from string, head, _ []byte) { e.Receive(from, head, time.Now()) })
}

// Begin records that a group has no leader, as far as this node knows.
func (e *Elections) Begin(g Electable) {
	if id := g.ID(); !e.Runs(id) {
		v := newElection(g)
		if v.leader != "" && !e.links.Alive(v.leader) {
			v.due = e.now().Add(g.Patience()) // without the lock: it may read the log
		}
		e.mu.Lock()
		if e.runsNow(id) == nil {
			e.drop(id, e.now())
			e.running[id] = v
		}
		e.mu.Unlock()
	}
	e.touch(g.ID(), time.Time{})
}

// Runs reports whether a leader of the group is looked for here.
func (e *Elections) Runs(id fsm.GroupID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runsNow(id) != nil
}

// runsNow returns the election of a group, unless it is that of a replica that has ended. The lock is held.
func (e *Elections) runsNow(id fsm.GroupID) *election {
	if v := e.running[id]; v != nil && !v.group.IsClosed() {
		return v
	}
	return nil
}

// End records that a group has a leader or is gone.
func (e *Elections) End(id fsm.GroupID) {
	e.mu.Lock()
	e.drop(id, e.now())
	others := e.waiting.Len() > 0
	e.mu.Unlock()
	if others {
		e.worker.Wake()
	}
}

// drop ends an election. The lock is held.
func (e *Elections) drop(id fsm.GroupID, now time.Time) {
	if v := e.running[id]; v != nil {
		if v.under != nil {
			e.window.decided(now, v.under)
		}
		delete(e.running, id)
		e.agenda.byTime.remove(v)
		e.waiting.remove(v)
	}
}

// Run holds elections until stop is closed.
func (e *Elections) Run(stop <-chan struct{}) {
	e.worker.Run(stop, e.advance)
}

// electionRound is one round over the elections that are due.
type electionRound struct {
	now       time.Time
	ask       map[string][]byte // items for other nodes
	reached   map[string]bool
	slack     time.Duration // see peer.Mesh.Slack
	transfers []transfer
}

// transfer is a pending handover of a leadership that exists in raft's eyes only.
type transfer struct {
	group Electable
	to    string
	wins  bool
}

// advance looks at the elections that are due, and returns how long it takes until others are; 0: none is.
func (e *Elections) advance(now time.Time) time.Duration {
	e.mu.Lock()
	r := electionRound{now: now, ask: e.wants, reached: reached(e.links, e.node)}
	r.slack = e.links.Slack(slices.Collect(maps.Keys(r.reached))...)
	e.wants = map[string][]byte{}
	due := slices.DeleteFunc(e.agenda.take(now), func(v *election) bool { return e.passesOver(v, &r) })
	e.mu.Unlock()
	for _, v := range due {
		if v.asks(now) {
			v.end = v.group.LogEnd() // without the lock: it reads the log
		}
	}
	e.mu.Lock()
	for _, v := range due {
		if id := v.group.ID(); e.running[id] == v {
			e.agenda.add(v, e.check(v, &r))
		}
	}
	campaign := e.admit(&r)
	e.tellWaiting(due, &r)
	next := e.agenda.next()
	e.mu.Unlock()
	for node, items := range r.ask {
		e.Send(node, items)
	}
	for _, g := range campaign {
		e.campaign(g)
	}
	for _, t := range r.transfers {
		t.group.TransferTo(t.to, t.wins)
	}
	return next
}

// passesOver reports whether there is nothing to do in an election that is due: it rests, or is over.
func (e *Elections) passesOver(v *election, r *electionRound) bool {
	e.waiting.remove(v) // what it is ordered by may change
	switch {
	case v.rests(r.now, r.reached):
		e.agenda.add(v, v.restsUntil())
		return true
	case v.group.IsClosed(), v.hasLeader(r.reached):
		e.drop(v.group.ID(), r.now)
		return true
	}
	return false
}

// asks reports whether it is time to tell the others how far the log reaches, and to ask them.
func (v *election) asks(now time.Time) bool { return now.Sub(v.queried) >= positionsEvery }

// standsIn is the term in which a candidate stands next, see stand.
func standsIn(c replica.Candidate) uint64 {
	role, term := c.Role()
	if role == raft.Candidate {
		term++
	}
	return term + 1
}

func (e *Elections) campaign(g Electable) { replica.Stand(e.links, g.ID(), e.node, g) }

// hasLeader reports whether the group has gained a leader since the election began: raft may know
// of it before any member reports it. The lost leader does not count for the same term, even if
// its node is back.
func (v *election) hasLeader(reached map[string]bool) bool {
	leader := v.group.Leader()
	role, term := v.group.Role()
	if leader == "" || !reached[leader] || role == raft.Leader && v.group.Barred() {
		return false
	}
	return leader != v.leader || term > v.since
}

// reached returns the nodes that can be reached, including this one.
func reached(l Links, node string) map[string]bool {
	r := map[string]bool{node: true}
	for _, p := range l.Peers() {
		if p.Alive {
			r[p.Node] = true
		}
	}
	return r
}

// check asks for log positions when that is due, notes if it is this node's turn to campaign, and returns when
// to look again if nothing changes.
func (e *Elections) check(v *election, r *electionRound) time.Time {
	now := r.now
	e.checkCampaign(v, now)
	if now.Sub(v.counted) >= positionsEvery {
		v.voters, v.counted = v.group.Voters(), now
	}
	if len(v.voters) == 0 && v.asks(now) {
		// It has been added, or has lost its data and does not know the other members: a leader that sleeps does not
		// know that it lacks anything, and is woken.
		v.queried, v.barred[e.node], v.learners[e.node] = now, v.group.Barred(), v.group.IsLearner()
		_, term := v.group.Role()
		e.tell(v, ItemAsk, term, slices.Collect(maps.Keys(r.reached)), r)
	}
	alive := r.alive(v)
	// A member that has no vote, or does not know the other members yet, waits to hear from a
	// leader.
	if 2*len(alive) <= len(v.voters) || !slices.Contains(v.voters, e.node) {
		v.ready, v.waits = time.Time{}, time.Time{}
		return now.Add(positionsEvery)
	}
	if v.ready.IsZero() {
		v.ready = now
	}
	v.barred[e.node], v.learners[e.node] = v.group.Barred(), v.group.IsLearner()
	if v.asks(now) {
		v.queried, v.positions[e.node] = now, v.end
		_, term := v.group.Role()
		e.tell(v, ItemAsk, term, alive, r)
	}
	v.chooseCandidates(alive)
	v.backoff.slack = r.slack
	next := soonest{now, v.queried.Add(positionsEvery)}
	switch {
	case !v.decided(alive, &next):
		v.backoff = electionBackoff{failed: v.backoff.failed}
	case v.barred[e.node] && (v.excluded(e.node) || leads(v.group)):
		e.chooseTransferee(v, alive, r)
	case v.excluded(e.node):
	case 2*v.proven(alive) <= len(v.voters): // a campaign would cost terms, and win nothing
	default:
		e.takeTurn(v, alive, &next)
	}
	if v.waitPlace < 0 {
		v.waits = time.Time{}
	}
	if v.under != nil {
		next.or(v.under.began.Add(inTime))
		next.or(v.under.began.Add(longestSlot))
	}
	return next.at
}

// soonest is the first of several moments after now.
type soonest struct{ now, at time.Time }

func (s *soonest) or(at time.Time) {
	if at.After(s.now) && at.Before(s.at) {
		s.at = at
	}
}

// tell reports this node's log position to the other members, and asks for theirs or says that it waits.
func (e *Elections) tell(v *election, kind byte, term uint64, alive []string, r *electionRound) {
	it := Item{Group: v.group.ID(), Term: term, Position: v.positions[e.node], Barred: v.barred[e.node], Learner: v.learners[e.node]}
	for _, n := range alive {
		if n == e.node {
			continue
		}
		it.Kind = kind
		r.ask[n] = AppendItem(r.ask[n], it)
		if kind == ItemAsk && !v.dead.IsZero() {
			r.ask[n] = AppendItem(r.ask[n], Item{Kind: ItemWant, Group: it.Group}) // it may rest there
		}
		if kind == ItemAsk && v.outOfReach(n, r.now) {
			it.Kind = ItemOutOfReach
			r.ask[n] = AppendItem(r.ask[n], it)
		}
	}
}

// takeTurn adds this node to those that may campaign if it is its turn.
func (e *Elections) takeTurn(v *election, alive []string, next *soonest) {
	s := slots{candidates: max(1, v.eligible(alive)), spread: rand.N[time.Duration]}
	_, stored := v.group.Role()
	term := stored
	if v.group.LastLed() != 0 {
		// Whoever took the leader away campaigns. Raft forgets the leader before it stores the term.
		term = max(term, v.heard)
	}
	if term != v.term {
		v.term = term
		v.backoff.taken(next.now, s)
	}
	voted := v.group.VotedFor(term)
	v.backoff.open = v.under != nil || slices.Contains(alive, voted) && !v.excluded(voted)
	other := v.other.term > stored && next.now.Sub(v.other.said) < ledValid && slices.Contains(alive, v.other.node)
	if !v.waits.IsZero() || other {
		v.backoff.hold(next.now)
	}
	rank := e.rank(v, alive)
	switch {
	case other && v.other.stands, !v.backoff.mine(next.now, rank, s):
		next.or(v.other.said.Add(ledValid))
		next.or(v.backoff.next(rank, s))
	case s.candidates == 1 || !v.group.ResignedLately():
		v.candidacy = candidacy{alive, s}
		e.waiting.put(v)
	}
}

// alive returns the voters of a group that this node can reach.
func (r *electionRound) alive(v *election) []string {
	alive := make([]string, 0, 8)
	for _, m := range v.voters {
		if r.reached[m] {
			alive = append(alive, m)
		}
	}
	return alive
}

// Receive processes positions from another member and answers those that ask.
func (e *Elections) Receive(from string, items []byte, now time.Time) {
	var answer, disturbs []byte
	offers := map[string][]byte{}
	var cessions []cession
	asleep := map[byte][]Item{}
	for len(items) >= ItemSize {
		it := ParseItem(items)
		items = items[ItemSize:]
		switch {
		case !it.sound():
			continue
		case it.Kind == ItemRest, it.Kind == ItemRests, it.Kind == ItemVote, it.Kind == ItemVoted, it.Kind == ItemWon:
			asleep[it.Kind] = append(asleep[it.Kind], it)
			continue
		}
		g := e.find(it.Group)
		if g == nil && e.sleep != nil {
			of, wakes := e.sleep.Heard(from, it)
			if answer = append(answer, of...); wakes {
				disturbs = AppendItem(disturbs, it)
			}
		}
		if g == nil || it.Kind == ItemIdle {
			continue // a leader that is awake asks
		}
		// A leader whose raft does not know yet that others have moved on to a later term steps
		// down: they accept nothing from it.
		if role, term := g.Role(); role == raft.Leader && term < it.Term && it.Kind != itemStands {
			e.links.Resign(it.Group, it.Term, from)
		}
		switch it.Kind {
		case ItemWant:
			g.Want(now)
			e.touch(it.Group, time.Time{})
			continue
		case ItemAsk:
			g.HasNoLeader(from, it.Position.Index)
			if disowns(g, from, it) {
				e.Begin(g)
			}
			answer = AppendItem(answer, e.answer(g, from))
		case ItemOutOfReach:
			if leader, o, ok := e.offer(g); ok {
				offers[leader] = AppendItem(offers[leader], o)
			}
			continue
		case ItemOffer:
			if e.mayCede(g, it) {
				cessions = append(cessions, cession{g, from})
			}
			continue
		}
		e.note(from, it, now)
	}
	if e.sleep != nil {
		for kind, items := range asleep {
			e.sleep.Receive(kind, from, items)
		}
		if len(disturbs) > 0 {
			e.sleep.Disturbed(from, disturbs)
		}
	}
	for leader, items := range offers {
		e.Send(leader, items)
	}
	e.cede(cessions)
	if len(answer) > 0 {
		e.Send(from, answer)
	}
}

// answer reports where the log of this replica ends, or that the group has a leader, or that raft here is about to
// stand.
func (e *Elections) answer(g Electable, from string) Item {
	_, term := g.Role()
	it := Item{Kind: itemPosition, Group: g.ID(), Term: term, Position: g.LogEnd(), Barred: g.Barred(), Learner: g.IsLearner()}
	leader := g.Leader()
	switch {
	case leader == "", leader == from, leader == e.node && it.Barred, leader != e.node && e.doubts(it.Group, leader):
	case leader == e.node || e.links.Alive(leader):
		it.Kind = itemLed
		return it
	}
	if in := e.stands(it.Group); in > term {
		it.Kind, it.Term = itemStands, in
	}
	return it
}

// stands is the term in which this node stands for election; 0: it does not.
func (e *Elections) stands(id fsm.GroupID) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if v := e.running[id]; v != nil && v.under != nil {
		return v.under.term
	}
	return 0
}

func (e *Elections) note(from string, it Item, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.running[it.Group]
	if v == nil {
		return
	}
	e.agenda.add(v, time.Time{})
	v.positions[from], v.barred[from], v.learners[from] = it.Position, it.Barred, it.Learner
	_, term := v.group.Role()
	v.heard = max(v.heard, it.Term)
	switch o := &v.other; {
	case it.Kind == itemWaits:
		*o = rival{from, it.Term + 1, false, now}
	case it.Kind == itemStands && (o.node != from || o.term != it.Term || !o.stands): // to repeat it gives no more time
		*o = rival{from, it.Term, true, now}
	}
	switch {
	case it.Kind != itemLed: // who asks has no leader either, perhaps only since it last said so
		delete(v.led, from)
	case it.Term < term: // raft takes nothing from that leader here
		delete(v.led, from)
	default:
		v.led[from] = now
		if v.group.Leader() == from {
			e.drop(it.Group, now) // reported by the leader itself
		}
	}
	e.worker.Wake()
}

// Send sends items to a node. They may be lost.
func (e *Elections) Send(node string, items []byte) {
	if err := e.links.Send(node, e.kind, items); err != nil {
		e.slog.Debug("log positions not sent", "node", node, "error", err)
	}
}

// chooseTransferee handles a member that must not lead but that raft has made leader. The member
// transfers leadership to the one with the longest log among those that may lead; ties go to the
// first in member order, the preferred leader first. While there is no such member, the group has
// a leader in raft's eyes and nobody serves.
func (e *Elections) chooseTransferee(v *election, alive []string, r *electionRound) {
	if !leads(v.group) || r.now.Sub(v.transferred) < transferTime {
		return
	}
	best := ""
	for _, n := range alive {
		s, known := v.positions[n]
		if n != e.node && known && !v.barred[n] && !v.learners[n] && (best == "" || v.positions[best].Less(s)) {
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

func leads(g Electable) bool {
	role, _ := g.Role()
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
		if s, said := v.positions[m]; !v.learners[m] && (!known || !said || !mine.Less(s)) {
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
		next.or(v.back.Add(DeathPatience))
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
func (e *Elections) rank(v *election, alive []string) int {
	mine, rank, passed := v.positions[e.node], 0, false
	for _, n := range alive {
		if n == e.node {
			passed = true
			continue
		}
		s, known := v.positions[n]
		before := known && (mine.Less(s) || !passed && !s.Less(mine))
		if d := e.Draining(e.node); d != e.Draining(n) && v.canWin(n, alive) == v.canWin(e.node, alive) {
			before = d
		}
		if before && !v.excluded(n) {
			rank++
		}
	}
	return rank
}

// Draining reports whether a node is about to stop.
func (e *Elections) Draining(node string) bool { return e.drains != nil && e.drains(node) }

// Item is the entry of one group in an exchange of positions.
type Item struct {
	Kind     byte
	Group    fsm.GroupID
	Term     uint64 // raft's current term
	Position replica.Position
	Barred   bool // the sender must not lead
	Learner  bool // the sender neither leads nor votes
}

const (
	ItemAsk        = 1 // my log ends here; where does yours?
	itemPosition   = 2
	itemLed        = 3    // the group has a leader that I can reach
	ItemOutOfReach = 4    // I cannot reach the leader that you have reported
	ItemOffer      = 5    // I reach all members and would lead; my log ends here
	ItemWant       = 6    // somebody waits for a leader, perhaps at a node that is no member
	itemWaits      = 7    // it is my turn to stand when my node has got other elections over
	itemStands     = 8    // I stand in this term, which raft may not show yet
	ItemRest       = 9    // nothing happens in the group, which I lead; sleep if this is where your log ends
	ItemRests      = 10   // I do
	ItemIdle       = 11   // I follow you, my log ends here, and I do not sleep
	ItemVote       = 12   // vote for me in this term if you sleep; my log ends here
	ItemVoted      = 13   // I have
	ItemWon        = 14   // I lead in this term, and sleep
	itemBarred     = 0x80 // added to the kind
	itemLearner    = 0x40 // likewise
	ItemSize       = 1 + 4 + 8 + 8 + 8
)

// sound reports whether a log as described by the item is possible.
func (it Item) sound() bool {
	const limit = 1 << 62
	return it.Term < limit && it.Position.Term < limit && it.Position.Index < limit
}

// AppendItem appends an encoded item.
func AppendItem(dst []byte, it Item) []byte {
	kind := it.Kind
	if it.Barred {
		kind |= itemBarred
	}
	if it.Learner {
		kind |= itemLearner
	}
	dst = append(dst, kind)
	dst = binary.BigEndian.AppendUint32(dst, uint32(it.Group))
	dst = binary.BigEndian.AppendUint64(dst, it.Term)
	dst = binary.BigEndian.AppendUint64(dst, it.Position.Term)
	return binary.BigEndian.AppendUint64(dst, it.Position.Index)
}

// Led says that a group has a leader, which knows this term.
func Led(group fsm.GroupID, term uint64, at replica.Position) Item {
	return Item{Kind: itemLed, Group: group, Term: term, Position: at}
}

// ParseItem decodes the item at the beginning of b, of which there are ItemSize bytes.
func ParseItem(b []byte) Item {
	return Item{
		Kind: b[0] &^ (itemBarred | itemLearner), Barred: b[0]&itemBarred != 0, Learner: b[0]&itemLearner != 0, Group: fsm.GroupID(binary.BigEndian.Uint32(b[1:])),
		Term:     binary.BigEndian.Uint64(b[5:]),
		Position: replica.Position{Term: binary.BigEndian.Uint64(b[13:]), Index: binary.BigEndian.Uint64(b[21:])},
	}
}

// Leave tells the other members that a replica which leads is about to be closed.
func (e *Elections) Leave(g Electable) {
	role, term := g.Role()
	if role != raft.Leader {
		return
	}
	items := AppendItem(nil, Item{Kind: ItemAsk, Group: g.ID(), Term: term, Position: g.LogEnd(), Barred: true, Learner: true})
	for _, n := range g.Voters() {
		if n != e.node {
			e.Send(n, items)
		}
	}
}

// disowns reports whether the leader of a group, as far as is known here, says that it leads no more. One
// that must not lead and still does hands the leadership over. What it has asked before it won may come late:
// its log has no entry of its own term then. What a learner says is later than any victory of it.
func disowns(g Electable, from string, it Item) bool {
	role, term := g.Role()
	if role == raft.Leader || g.Leader() != from || it.Barred && !it.Learner && it.Term <= term {
		return false
	}
	return it.Learner || it.Term > term || it.Position.Term >= term
}

// doubts reports whether this node looks for another leader than the one that raft knows, since that one has
// disowned the group, or was waited for in vain.
func (e *Elections) doubts(id fsm.GroupID, leader string) bool {
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
	limit := DeathPatience
	if v.urgent {
		limit = positionsEvery
	}
	_, said := v.positions[v.leader]
	return !said && now.Sub(v.back) < limit
}
