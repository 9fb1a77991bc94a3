package group

import (
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
)

// Pace of elections.
const (
	electionLook   = 50 * time.Millisecond  // how often vacancies are looked at
	electionPause  = 25 * time.Millisecond  // at least, between two looks: a node's failure is thousands of kicks
	maxCampaigns   = 256                    // under way at a time
	campaignTime   = 2 * time.Second        // after which one no longer counts as under way
	standingsWait  = 150 * time.Millisecond // how long to wait for others' standings
	standingsEvery = time.Second            // how often to ask again
	turnTime       = time.Second            // of a candidate, at first
	longestTurn    = 8 * time.Second        // later ones are longer
	crowd          = 1000                   // so many vacancies more make turns longer by turnTime
	ledPause       = 2 * time.Second        // how long it counts that a member has a leader
)

// elections fills vacancies. Raft's own timers are long, because thousands of
// groups share a node; a node notices failures itself, the members of a
// leaderless group compare their logs, and the one with the longest campaigns.
// Everything here only starts campaigns; who wins is raft's business.
type elections struct {
	node  string
	links links
	kind  peer.Kind                 // of its messages
	find  func(fsm.GroupID) replica // nil: there is none
	// drains reports whether a node is about to stop; nil: none is.
	drains func(node string) bool
	slog   *slog.Logger
	kick   kicks

	mu        sync.Mutex
	vacancies map[fsm.GroupID]*vacancy
}

// links is what elections need of the mesh.
type links interface {
	Handle(k peer.Kind, h func(from string, head, payload []byte))
	Send(node string, k peer.Kind, head []byte, payloads ...[]byte) error
	Alive(node string) bool
	Peers() []peer.PeerStatus
	Campaign(group fsm.GroupID)
	StepDown(group fsm.GroupID, term uint64, other string)
	Resign(group fsm.GroupID, term uint64, other string)
}

// replica is what elections need of a Group.
type replica interface {
	Spec() Spec
	Voters() []string   // the preferred leader first
	Leader() string     // empty: unknown
	standing() standing // how far the log reaches
	role() (role raft.RaftState, term uint64)
	isClosed() bool
	barred() bool    // it is quarantined
	unproven() bool  // it is a learner, see DESIGN.md
	reluctant() bool // it has resigned lately
	// asked is told that a member knows no leader, and where its log ends.
	asked(node string, end uint64)
	// yieldTo makes another member the leader, if raft leads here; wins: that one
	// can be elected as it is. It does not block.
	yieldTo(node string, wins bool)
}

type vacancy struct {
	group      replica
	leader     string   // who led when the vacancy was noted; empty: unknown
	since      uint64   // the term then
	term       uint64   // when last looked at
	voters     []string // members, as of counted
	counted    time.Time
	asked      time.Time // standings were last exchanged
	ready      time.Time // since when a majority of members is reachable
	turns      turns
	campaigned time.Time // last
	standings  map[string]standing
	led        map[string]time.Time // when a member said last that there is a leader
	barred     map[string]bool      // members that must not lead, see Quarantine
	unproven   map[string]bool      // members that neither lead nor vote, see trust
}

func newVacancy(g replica) *vacancy {
	_, term := g.role()
	return &vacancy{
		group: g, leader: g.Leader(), since: term, term: term,
		standings: map[string]standing{}, led: map[string]time.Time{}, barred: map[string]bool{}, unproven: map[string]bool{},
	}
}

// standing is how far a member's log reaches.
type standing struct{ term, index uint64 }

func (s standing) less(o standing) bool {
	return s.term < o.term || s.term == o.term && s.index < o.index
}

func newElections(h *Host) *elections {
	return &elections{
		node: h.config.Node, links: h.config.Mesh, kind: h.config.KindElection, slog: h.slog,
		find: func(id fsm.GroupID) replica {
			if g := h.Group(id); g != nil {
				return g
			}
			return nil
		},
		drains: h.config.Drains,
		kick:   newKicks(), vacancies: map[fsm.GroupID]*vacancy{},
	}
}

// listen registers for messages.
func (e *elections) listen() {
	e.links.Handle(e.kind, func(from string, head, _ []byte) { e.receive(from, head, time.Now()) })
}

// PeerChanged is told when a node came or went.
func (h *Host) PeerChanged(ev peer.Event) {
	if ev.Up {
		h.spawn(func() { h.trigger(ev.Node) })
	} else {
		for _, g := range h.Groups() {
			if g.Leader() == ev.Node {
				h.elections.vacant(g)
			}
		}
	}
	h.elections.wake()
}

// trigger has raft send to the members on a node that is back, in every group
// that this node leads: raft has given up sending to them, and would try again
// only after the commit timeout.
func (h *Host) trigger(node string) {
	for _, g := range h.leaders() {
		if g.has(node) {
			g.nudge()
		}
	}
}

// vacant notes that a group has no leader, as far as this node knows.
func (e *elections) vacant(g replica) {
	e.mu.Lock()
	if id := g.Spec().Group; e.vacancies[id] == nil {
		e.vacancies[id] = newVacancy(g)
	}
	e.mu.Unlock()
	e.wake()
}

// filled notes that a group has a leader, or is gone.
func (e *elections) filled(id fsm.GroupID) {
	e.mu.Lock()
	delete(e.vacancies, id)
	e.mu.Unlock()
}

func (e *elections) wake() { e.kick.wake() }

func (e *elections) run(stop <-chan struct{}) {
	e.kick.serve(stop, electionLook, electionPause, e.look)
}

// look advances every vacancy and reports whether there are any.
func (e *elections) look(now time.Time) bool {
	e.mu.Lock()
	l := look{now: now, ask: map[string][]byte{}, reached: reached(e.links, e.node), room: maxCampaigns}
	l.turn = turnTime + turnTime*time.Duration(len(e.vacancies))/crowd
	for id, v := range e.vacancies {
		switch {
		case v.group.isClosed(), v.filled(l.reached):
			delete(e.vacancies, id)
		case now.Sub(v.campaigned) < campaignTime:
			l.room--
		}
	}
	var campaign []replica
	for _, v := range e.vacancies {
		if e.advance(v, &l) {
			campaign = append(campaign, v.group)
		}
	}
	some := len(e.vacancies) > 0
	e.mu.Unlock()
	for node, items := range l.ask {
		e.send(node, items)
	}
	for _, g := range campaign {
		e.campaign(g)
	}
	for _, y := range l.yield {
		y.group.yieldTo(y.to, y.wins)
	}
	return some
}

// campaign makes raft stand for election. A candidate that has lost would sit
// until its timeout: it is made a follower first, by a request for a vote in
// the next term that no log is short enough to grant.
func (e *elections) campaign(g replica) {
	switch role, term := g.role(); role {
	case raft.Candidate:
		for _, m := range g.Voters() {
			if m != e.node {
				e.links.StepDown(g.Spec().Group, term+1, m)
				break
			}
		}
	case raft.Follower:
	default:
		return
	}
	e.links.Campaign(g.Spec().Group)
}

// look is one round over all vacancies.
type look struct {
	now     time.Time
	ask     map[string][]byte // items for other nodes
	reached map[string]bool
	room    int           // campaigns that may still begin
	turn    time.Duration // the shortest
	yield   []yield
}

// yield is a leadership, in raft's eyes only, that is to be handed over.
type yield struct {
	group replica
	to    string
	wins  bool
}

// filled reports whether the group has got a leader since the vacancy was
// noted: raft may know it before anybody has told. The leader of the same term
// who was lost then does not count, also if its node is back.
func (v *vacancy) filled(reached map[string]bool) bool {
	leader := v.group.Leader()
	role, term := v.group.role()
	if leader == "" || !reached[leader] || role == raft.Leader && v.group.barred() {
		return false
	}
	return leader != v.leader || term > v.since
}

// reached lists the nodes that can be reached, this one included.
func reached(l links, node string) map[string]bool {
	r := map[string]bool{node: true}
	for _, p := range l.Peers() {
		if p.Alive {
			r[p.Node] = true
		}
	}
	return r
}

// advance asks for standings where it is time to, and reports whether this
// node should campaign now.
func (e *elections) advance(v *vacancy, l *look) bool {
	now := l.now
	if now.Sub(v.counted) >= standingsEvery {
		v.voters, v.counted = v.group.Voters(), now
	}
	alive := l.alive(v)
	// A member without a vote, or one that does not know the others yet, waits
	// for a leader to tell it.
	if 2*len(alive) <= len(v.voters) || !slices.Contains(v.voters, e.node) {
		v.ready = time.Time{}
		return false
	}
	if v.ready.IsZero() {
		v.ready = now
	}
	v.barred[e.node], v.unproven[e.node] = v.group.barred(), v.group.unproven()
	if now.Sub(v.asked) >= standingsEvery {
		v.asked = now
		mine := v.group.standing()
		v.standings[e.node] = mine
		for _, n := range alive {
			if n != e.node {
				_, term := v.group.role()
				l.ask[n] = appendItem(l.ask[n], item{kind: itemAsk, group: v.group.Spec().Group, term: term, standing: mine, barred: v.barred[e.node], unproven: v.unproven[e.node]})
			}
		}
	}
	if !v.decided(alive, now) {
		v.turns = turns{failed: v.turns.failed}
		return false
	}
	switch {
	case v.barred[e.node]:
		e.yield(v, alive, l)
		return false
	case v.unproven[e.node], 2*v.proven(alive) <= len(v.voters): // a campaign would cost terms, and win nothing
		return false
	}
	p := pace{candidates: v.eligible(alive), shortest: l.turn, spread: rand.N[time.Duration]}
	if _, term := v.group.role(); term != v.term {
		v.term = term
		v.turns.taken(now, p)
	}
	if !v.turns.mine(now, e.rank(v, alive), p) || l.room <= 0 || p.candidates > 1 && v.group.reluctant() {
		return false
	}
	l.room--
	v.campaigned = now
	v.turns.taken(now, p)
	return true
}

// yield has a member that must not lead, and that raft makes lead all the same,
// hand over to the one with the longest log among those that may; the first of
// equals, the preferred leader first. As long as there is none the group has a
// leader in raft's eyes, and nobody serves.
func (e *elections) yield(v *vacancy, alive []string, l *look) {
	if role, _ := v.group.role(); role != raft.Leader || l.now.Sub(v.campaigned) < campaignTime {
		return
	}
	best := ""
	for _, n := range alive {
		s, known := v.standings[n]
		if n != e.node && known && !v.barred[n] && !v.unproven[n] && (best == "" || v.standings[best].less(s)) {
			best = n
		}
	}
	if best != "" {
		v.campaigned = l.now
		l.yield = append(l.yield, yield{v.group, best, v.canWin(best, alive)})
	}
}

// eligible counts the candidates that can win: those whose log a majority of
// all members can vote for. They come first by rank. A member whose standing
// is unknown can win, and can vote.
func (v *vacancy) eligible(alive []string) int {
	n := 0
	for _, c := range alive {
		if v.canWin(c, alive) {
			n++
		}
	}
	return max(n, 1)
}

// proven counts those who may vote.
func (v *vacancy) proven(alive []string) (n int) {
	for _, m := range alive {
		if !v.unproven[m] {
			n++
		}
	}
	return n
}

// canWin reports whether a majority of all members can vote for candidate.
func (v *vacancy) canWin(candidate string, alive []string) bool {
	if v.barred[candidate] || v.unproven[candidate] {
		return false
	}
	mine, known := v.standings[candidate]
	votes := 0
	for _, m := range alive {
		if s, told := v.standings[m]; !v.unproven[m] && (!known || !told || !mine.less(s)) {
			votes++
		}
	}
	return 2*votes > len(v.voters)
}

// decided reports whether enough is known for an election: the standings of
// those who are alive, or, after a while, of a majority of all members, none of
// whom has a leader. A node that has just started and has heard nothing yet
// must not disturb a leader that lives.
func (v *vacancy) decided(alive []string, now time.Time) bool {
	known := 0
	for _, n := range alive {
		if at, led := v.led[n]; led && now.Sub(at) < ledPause {
			return false
		}
		if _, ok := v.standings[n]; ok {
			known++
		}
	}
	return known == len(alive) || 2*known > len(v.voters) && now.Sub(v.ready) >= standingsWait
}

// alive lists the voters of a group that this node reaches.
func (l *look) alive(v *vacancy) []string {
	alive := make([]string, 0, 8)
	for _, m := range v.voters {
		if l.reached[m] {
			alive = append(alive, m)
		}
	}
	return alive
}

// rank is this node's place among the candidates: those that can win come
// before those that cannot, among them those that stay before those that are
// about to stop; then the longest log first, then in the order of the members,
// the preferred leader first.
func (e *elections) rank(v *vacancy, alive []string) int {
	mine, rank, passed := v.standings[e.node], 0, false
	for _, n := range alive {
		if n == e.node {
			passed = true
			continue
		}
		s, known := v.standings[n]
		before := known && (mine.less(s) || !passed && !s.less(mine))
		if d := e.draining(e.node); d != e.draining(n) && v.canWin(n, alive) == v.canWin(e.node, alive) {
			before = d
		}
		if before && !v.barred[n] && !v.unproven[n] {
			rank++
		}
	}
	return rank
}

func (e *elections) draining(node string) bool { return e.drains != nil && e.drains(node) }

// standing reads how far this replica's log reaches.
func (g *Group) standing() standing { return standingOf(g.raft, g.log, g.log.Snapshots()) }

func standingOf(r *raft.Raft, log raft.LogStore, snapshots raft.SnapshotStore) standing {
	s := standing{index: r.LastIndex()}
	var l raft.Log
	if log.GetLog(s.index, &l) == nil {
		s.term = l.Term
		return s
	}
	// Nothing follows the snapshot.
	if list, err := snapshots.List(); err == nil && len(list) > 0 && list[0].Index == s.index {
		s.term = list[0].Term
	}
	return s
}

// follows reports whether a campaign would have an effect.
func (g *Group) role() (raft.RaftState, uint64) { return g.raft.State(), g.raft.CurrentTerm() }

func (g *Group) isClosed() bool { return g.closed.Load() }

// receive takes standings from another member, and answers those that ask.
func (e *elections) receive(from string, items []byte, now time.Time) {
	var answer []byte
	for len(items) >= itemSize {
		it := parseItem(items)
		items = items[itemSize:]
		g := e.find(it.group)
		if g == nil || !it.sound() {
			continue
		}
		// A leader that raft has not told yet that others have gone on to a later
		// term gives way: they take nothing from it.
		if role, term := g.role(); role == raft.Leader && term < it.term {
			e.links.Resign(it.group, it.term, from)
		}
		if it.kind == itemAsk {
			g.asked(from, it.standing.index)
			answer = appendItem(answer, e.answer(g, from))
		}
		e.note(from, it, now)
	}
	if len(answer) > 0 {
		e.send(from, answer)
	}
}

// answer says where this replica stands, or that the group has a leader.
func (e *elections) answer(g replica, from string) item {
	_, term := g.role()
	it := item{kind: itemStanding, group: g.Spec().Group, term: term, standing: g.standing(), barred: g.barred(), unproven: g.unproven()}
	leader := g.Leader()
	switch {
	case leader == "", leader == from, leader == e.node && it.barred:
	case leader == e.node || e.links.Alive(leader):
		it.kind = itemLed
	}
	return it
}

func (e *elections) note(from string, it item, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.vacancies[it.group]
	if v == nil {
		return
	}
	v.standings[from], v.barred[from], v.unproven[from] = it.standing, it.barred, it.unproven
	_, term := v.group.role()
	switch {
	case it.kind != itemLed: // who asks has no leader either, perhaps only since it last said so
		delete(v.led, from)
	case it.term < term: // raft takes nothing from that leader here
		delete(v.led, from)
	default:
		v.led[from] = now
		if v.group.Leader() == from {
			delete(e.vacancies, it.group) // the leader itself says so
		}
	}
	e.wake()
}

func (e *elections) send(node string, items []byte) {
	if err := e.links.Send(node, e.kind, items); err != nil {
		e.slog.Debug("standings not sent", "node", node, "error", err)
	}
}

// item is one group's line in an exchange of standings.
type item struct {
	kind     byte
	group    fsm.GroupID
	term     uint64 // that raft is in
	standing standing
	barred   bool // who says so must not lead
	unproven bool // who says so neither leads nor votes
}

const (
	itemAsk      = 1 // this is where I stand, what about you?
	itemStanding = 2
	itemLed      = 3    // the group has a leader that I reach
	itemBarred   = 0x80 // added to the kind
	itemUnproven = 0x40 // likewise
	itemSize     = 1 + 4 + 8 + 8 + 8
)

// sound reports whether a log can be as the item says.
func (it item) sound() bool {
	const most = 1 << 62
	return it.term < most && it.standing.term < most && it.standing.index < most
}

func appendItem(dst []byte, it item) []byte {
	kind := it.kind
	if it.barred {
		kind |= itemBarred
	}
	if it.unproven {
		kind |= itemUnproven
	}
	dst = append(dst, kind)
	dst = binary.BigEndian.AppendUint32(dst, uint32(it.group))
	dst = binary.BigEndian.AppendUint64(dst, it.term)
	dst = binary.BigEndian.AppendUint64(dst, it.standing.term)
	return binary.BigEndian.AppendUint64(dst, it.standing.index)
}

func parseItem(b []byte) item {
	return item{
		kind: b[0] &^ (itemBarred | itemUnproven), barred: b[0]&itemBarred != 0, unproven: b[0]&itemUnproven != 0, group: fsm.GroupID(binary.BigEndian.Uint32(b[1:])),
		term:     binary.BigEndian.Uint64(b[5:]),
		standing: standing{binary.BigEndian.Uint64(b[13:]), binary.BigEndian.Uint64(b[21:])},
	}
}
