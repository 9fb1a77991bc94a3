package group

import (
	"encoding/binary"
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
	electionPause  = 10 * time.Millisecond  // at least, between two looks
	maxCampaigns   = 256                    // under way at a time
	campaignTime   = time.Second            // after which one no longer counts as under way
	standingsWait  = 150 * time.Millisecond // how long to wait for others' standings
	standingsEvery = 400 * time.Millisecond // how often to ask again
	rankDelay      = time.Second            // between the first and the second candidate
	longestPause   = 10 * time.Second
	ledPause       = 2 * time.Second // how long it counts that a member has a leader
)

// elections fills vacancies. Raft's own timers are long, because thousands of
// groups share a node; a node notices failures itself, the members of a
// leaderless group compare their logs, and the one with the longest campaigns.
// Everything here only starts campaigns; who wins is raft's business.
type elections struct {
	host *Host
	kick chan struct{}

	mu        sync.Mutex
	vacancies map[fsm.GroupID]*vacancy
}

type vacancy struct {
	group      *Group
	asked      time.Time // standings were last exchanged
	ready      time.Time // since when a majority of members is reachable
	notBefore  time.Time
	campaigned time.Time // last
	attempts   int
	standings  map[string]standing
	led        map[string]time.Time // when a member said last that there is a leader
}

func newVacancy(g *Group) *vacancy {
	return &vacancy{group: g, standings: map[string]standing{}, led: map[string]time.Time{}}
}

// standing is how far a member's log reaches.
type standing struct{ term, index uint64 }

func (s standing) less(o standing) bool {
	return s.term < o.term || s.term == o.term && s.index < o.index
}

func newElections(h *Host) *elections {
	return &elections{host: h, kick: make(chan struct{}, 1), vacancies: map[fsm.GroupID]*vacancy{}}
}

// listen registers for messages and for changes of peers.
func (e *elections) listen() {
	e.host.config.Mesh.Handle(e.host.config.KindStanding, func(from string, head, _ []byte) {
		e.receive(from, head)
	})
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

// triggers is how many groups are triggered at a time.
const triggers = 8

// trigger commits an empty entry in every group that this node leads and that
// has a member on a node that is back: raft has given up sending to it, and
// would try again only after the commit timeout.
func (h *Host) trigger(node string) {
	slots := make(chan struct{}, triggers)
	for _, g := range h.Groups() {
		if g.Leading() == 0 || !slices.Contains(g.spec.Members, node) {
			continue
		}
		slots <- struct{}{}
		h.done.Go(func() {
			_ = g.raft.Barrier(0).Error() // a group that no longer leads needs none
			<-slots
		})
	}
}

// vacant notes that a group has no leader, as far as this node knows.
func (e *elections) vacant(g *Group) {
	e.mu.Lock()
	if e.vacancies[g.spec.Group] == nil {
		e.vacancies[g.spec.Group] = newVacancy(g)
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

func (e *elections) wake() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

func (e *elections) run(stop <-chan struct{}) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-e.kick:
		case <-t.C:
		}
		if e.look(time.Now()) {
			t.Reset(electionLook)
		}
		select { // a node's failure is thousands of kicks
		case <-stop:
			return
		case <-time.After(electionPause):
		}
	}
}

// look advances every vacancy and reports whether there are any.
func (e *elections) look(now time.Time) bool {
	e.mu.Lock()
	l := look{now: now, ask: map[string][]byte{}, reached: e.reached(), room: maxCampaigns}
	for id, v := range e.vacancies {
		switch {
		case v.group.closed.Load():
			delete(e.vacancies, id)
		case now.Sub(v.campaigned) < campaignTime:
			l.room--
		}
	}
	var campaign []*Group
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
		if g.raft.State() == raft.Follower {
			e.host.config.Mesh.Campaign(g.spec.Group)
		}
	}
	return some
}

// look is one round over all vacancies.
type look struct {
	now     time.Time
	ask     map[string][]byte // items for other nodes
	reached map[string]bool
	room    int // campaigns that may still begin
}

// reached lists the nodes that can be reached, this one included.
func (e *elections) reached() map[string]bool {
	r := map[string]bool{e.host.config.Node: true}
	for _, p := range e.host.config.Mesh.Peers() {
		if p.Alive {
			r[p.Node] = true
		}
	}
	return r
}

// advance asks for standings where it is time to, and reports whether this
// node should campaign now.
func (e *elections) advance(v *vacancy, l *look) bool {
	now, alive := l.now, l.alive(v.group)
	if 2*len(alive) <= len(v.group.spec.Members) {
		v.ready = time.Time{}
		return false
	}
	if v.ready.IsZero() {
		v.ready = now
	}
	if now.Sub(v.asked) >= standingsEvery {
		v.asked = now
		mine := v.group.standing()
		v.standings[e.host.config.Node] = mine
		for _, n := range alive {
			if n != e.host.config.Node {
				l.ask[n] = appendItem(l.ask[n], item{kind: itemAsk, group: v.group.spec.Group, standing: mine})
			}
		}
	}
	if !v.decided(alive, now) || now.Before(v.notBefore) {
		return false
	}
	if now.Sub(v.ready) < time.Duration(e.rank(v, alive))*rankDelay {
		return false
	}
	if l.room <= 0 {
		return false
	}
	l.room--
	v.campaigned = now
	v.attempts++
	pause := min(rankDelay<<min(v.attempts, 4)*time.Duration(len(v.group.spec.Members)), longestPause)
	v.notBefore = now.Add(pause)
	return true
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
	return known == len(alive) || 2*known > len(v.group.spec.Members) && now.Sub(v.ready) >= standingsWait
}

// alive lists the members of a group that this node reaches.
func (l *look) alive(g *Group) []string {
	alive := make([]string, 0, 8)
	for _, m := range g.spec.Members {
		if l.reached[m] {
			alive = append(alive, m)
		}
	}
	return alive
}

// rank is this node's place among the candidates: longest log first, then in
// the order of the members, the preferred leader first.
func (e *elections) rank(v *vacancy, alive []string) int {
	mine, rank, passed := v.standings[e.host.config.Node], 0, false
	for _, n := range alive {
		if n == e.host.config.Node {
			passed = true
			continue
		}
		s, known := v.standings[n]
		if known && (mine.less(s) || !passed && !s.less(mine)) {
			rank++
		}
	}
	return rank
}

// standing reads how far this replica's log reaches.
func (g *Group) standing() standing {
	s := standing{index: g.raft.LastIndex()}
	var l raft.Log
	if g.log.GetLog(s.index, &l) == nil {
		s.term = l.Term
		return s
	}
	// Nothing follows the snapshot.
	if list, err := g.log.Snapshots().List(); err == nil && len(list) > 0 && list[0].Index == s.index {
		s.term = list[0].Term
	}
	return s
}

// receive takes standings from another member, and answers those that ask.
func (e *elections) receive(from string, items []byte) {
	var answer []byte
	for len(items) >= itemSize {
		it := parseItem(items)
		items = items[itemSize:]
		g := e.host.Group(it.group)
		if g == nil {
			continue
		}
		if it.kind == itemAsk {
			answer = appendItem(answer, e.answer(g, from))
		}
		e.note(from, it)
	}
	if len(answer) > 0 {
		e.send(from, answer)
	}
}

// answer says where this replica stands, or that the group has a leader.
func (e *elections) answer(g *Group, from string) item {
	it := item{kind: itemStanding, group: g.spec.Group, standing: g.standing()}
	leader := g.Leader()
	if leader != "" && leader != from && (leader == e.host.config.Node || e.host.config.Mesh.Alive(leader)) {
		it.kind = itemLed
	}
	return it
}

func (e *elections) note(from string, it item) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.vacancies[it.group]
	if v == nil {
		return
	}
	v.standings[from] = it.standing
	switch it.kind {
	case itemStanding:
		delete(v.led, from)
	case itemLed:
		v.led[from] = time.Now()
		if v.group.Leader() == from {
			delete(e.vacancies, it.group) // the leader itself says so
		}
	}
	e.wake()
}

func (e *elections) send(node string, items []byte) {
	if err := e.host.config.Mesh.Send(node, e.host.config.KindStanding, items); err != nil {
		e.host.slog.Debug("standings not sent", "node", node, "error", err)
	}
}

// item is one group's line in an exchange of standings.
type item struct {
	kind     byte
	group    fsm.GroupID
	standing standing
}

const (
	itemAsk      = 1 // this is where I stand, what about you?
	itemStanding = 2
	itemLed      = 3 // the group has a leader that I reach
	itemSize     = 1 + 4 + 8 + 8
)

func appendItem(dst []byte, it item) []byte {
	dst = append(dst, it.kind)
	dst = binary.BigEndian.AppendUint32(dst, uint32(it.group))
	dst = binary.BigEndian.AppendUint64(dst, it.standing.term)
	return binary.BigEndian.AppendUint64(dst, it.standing.index)
}

func parseItem(b []byte) item {
	return item{
		kind: b[0], group: fsm.GroupID(binary.BigEndian.Uint32(b[1:])),
		standing: standing{binary.BigEndian.Uint64(b[5:]), binary.BigEndian.Uint64(b[13:])},
	}
}
