package election

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// crowd is a cluster of three whose nodes share a processor, and many groups that node a leads. Time is
// virtual: a step is 10 ms, in which the processor does some pieces of raft's work, in the order in which
// they came up. What elections themselves do costs nothing.
type crowd struct {
	t     *testing.T
	now   time.Time
	nodes map[string]*crowdNode
	rate  int      // pieces per step
	work  []func() // for the processor
	sent  []func() // messages of elections
	late  []answer // on their way
	done  int      // pieces so far
}

// answer is a request or a vote that comes late.
type answer struct {
	at   time.Time
	take func()
}

// piecesOfElection is what an election of two costs that nobody disturbs: to stand, a vote, its answer, and
// the leader's first entry.
const piecesOfElection = 4

type crowdNode struct {
	c          *crowd
	name       string
	elections  *Elections
	handler    func(from string, head, payload []byte)
	groups     map[fsm.GroupID]*crowdMember
	cut        map[string]bool // nodes it does not reach
	late       time.Duration   // so much later its raft takes requests and votes
	slow       time.Duration   // so much later it stands
	far        time.Duration   // so much later what it sends arrives
	candidates int             // of groups
	peak       int             // of them at a time
}

// crowdMember is a node's member of a group.
type crowdMember struct {
	n         *crowdNode
	id        fsm.GroupID
	leader    string
	term      uint64
	led       uint64 // term of the last leader
	log       replica.Position
	candidate bool
	voted     string        // for whom in this term
	due       time.Duration // nobody needs a leader for so long
	wantedAt  time.Time
}

func newCrowd(t *testing.T, groups, rate int) *crowd {
	c := &crowd{t: t, now: time.Unix(1000, 0), nodes: map[string]*crowdNode{}, rate: rate}
	for _, name := range []string{"a", "b", "c"} {
		n := &crowdNode{c: c, name: name, groups: map[fsm.GroupID]*crowdMember{}, cut: map[string]bool{}}
		n.elections = pretendElections(name, n, func() time.Time { return c.now }, func(id fsm.GroupID) Electable { return n.groups[id] })
		n.elections.Listen()
		for id := range groups {
			n.groups[fsm.GroupID(id)] = &crowdMember{n: n, id: fsm.GroupID(id), leader: "a", term: 1, led: 1, log: position(1, 1), due: replica.Never}
		}
		c.nodes[name] = n
	}
	return c
}

func (n *crowdNode) Handle(_ peer.Kind, h func(from string, head, payload []byte)) { n.handler = h }
func (n *crowdNode) Alive(node string) bool                                        { return !n.cut[node] }

func (n *crowdNode) Peers() (all []peer.PeerStatus) {
	for name := range n.c.nodes {
		if name != n.name {
			all = append(all, peer.PeerStatus{Node: name, Alive: n.Alive(name)})
		}
	}
	return all
}

func (n *crowdNode) Send(to string, _ peer.Kind, head []byte, _ ...[]byte) error {
	if n.cut[to] {
		return peer.ErrDown
	}
	head = slices.Clone(head)
	take := func() { n.c.nodes[to].elections.Receive(n.name, head, n.c.now) }
	if n.far > 0 {
		n.c.late = append(n.c.late, answer{n.c.now.Add(n.far), take})
	} else {
		n.c.sent = append(n.c.sent, take)
	}
	return nil
}

func (n *crowdNode) Slack(...string) time.Duration { return n.far }

func (n *crowdNode) Resign(fsm.GroupID, uint64, string) {}

// StepDown is what raft does in a candidate that hears of a later term.
func (n *crowdNode) StepDown(id fsm.GroupID, term uint64, _ string) {
	m := n.groups[id]
	m.setCandidate(false)
	m.term, m.voted = max(m.term, term), ""
}

// Campaign is what raft does when it is told to stand.
func (n *crowdNode) Campaign(id fsm.GroupID) {
	m := n.groups[id]
	n.c.late = append(n.c.late, answer{n.c.now.Add(n.slow), func() {
		if m.candidate || m.leader == n.name {
			return
		}
		m.setCandidate(true)
		m.term, m.leader, m.voted = m.term+1, "", n.name
		n.elections.TermChanged(id)
		for name, o := range n.c.nodes {
			if name != n.name && !n.cut[name] {
				term := m.term
				n.c.late = append(n.c.late, answer{n.c.now.Add(o.late), func() { o.groups[id].vote(m, term) }})
			}
		}
	}})
}

func (m *crowdMember) setCandidate(yes bool) {
	if m.candidate != yes {
		m.candidate = yes
		m.n.candidates += map[bool]int{true: 1, false: -1}[yes]
		m.n.peak = max(m.n.peak, m.n.candidates)
	}
}

// vote is what raft does with a request for a vote, and the candidate with the answer.
func (m *crowdMember) vote(of *crowdMember, term uint64) {
	if m.term >= term {
		return
	}
	m.term, m.leader, m.voted = term, "", of.n.name
	m.setCandidate(false)
	m.n.elections.TermChanged(m.id)
	m.n.c.late = append(m.n.c.late, answer{m.n.c.now.Add(of.n.late), func() {
		if !of.candidate || of.term != term {
			return
		}
		of.follow(of.n.name)
		m.n.c.work = append(m.n.c.work, func() {
			if m.term == term {
				m.follow(of.n.name)
			}
		})
	}})
}

func (m *crowdMember) follow(leader string) {
	m.leader, m.led = leader, m.term
	m.log = position(m.term, m.log.Index+1) // the leader's first entry
	m.setCandidate(false)
	m.n.elections.End(m.id)
}

func (m *crowdMember) ID() fsm.GroupID            { return m.id }
func (m *crowdMember) Leader() string             { return m.leader }
func (m *crowdMember) LogEnd() replica.Position   { return m.log }
func (m *crowdMember) IsClosed() bool             { return false }
func (m *crowdMember) HasNoLeader(string, uint64) {}
func (m *crowdMember) ResignedLately() bool       { return false }
func (m *crowdMember) Barred() bool               { return false }
func (m *crowdMember) IsLearner() bool            { return false }
func (m *crowdMember) TransferTo(string, bool)    {}
func (m *crowdMember) VotedFor(term uint64) string {
	if m.term != term {
		return ""
	}
	return m.voted
}
func (m *crowdMember) CedeTo(string) {}

func (m *crowdMember) LastLed() uint64           { return m.led }
func (m *crowdMember) Want(now time.Time)        { m.wantedAt = now }
func (m *crowdMember) Wanted(now time.Time) bool { return now.Sub(m.wantedAt) < WantValid }
func (m *crowdMember) Patience() time.Duration   { return m.due }

// Voters prefers b and c in turn.
func (m *crowdMember) Voters() []string {
	if m.id%2 == 0 {
		return []string{"a", "b", "c"}
	}
	return []string{"a", "c", "b"}
}

func (m *crowdMember) Role() (raft.RaftState, uint64) {
	switch {
	case m.leader == m.n.name:
		return raft.Leader, m.term
	case m.candidate:
		return raft.Candidate, m.term
	}
	return raft.Follower, m.term
}

// lose cuts a off; heal brings it back.
func (c *crowd) lose() {
	for _, name := range []string{"b", "c"} {
		n := c.nodes[name]
		n.cut["a"], c.nodes["a"].cut[name] = true, true
		n.elections.PeersChanged()
		for _, m := range n.groups {
			if m.leader == "a" {
				n.elections.Begin(m)
			}
		}
	}
}

// need has somebody wait for a leader in each group.
func (c *crowd) need() {
	for _, n := range c.nodes {
		for _, m := range n.groups {
			m.due = 0
		}
	}
}

func (c *crowd) heal() {
	for _, n := range c.nodes {
		clear(n.cut)
		n.elections.PeersChanged()
	}
}

// run lets time pass until a condition holds, and fails if it does not within the limit.
func (c *crowd) run(limit time.Duration, until func() bool) {
	c.t.Helper()
	const step = 10 * time.Millisecond
	for end := c.now.Add(limit); !until(); c.now = c.now.Add(step) {
		if !c.now.Before(end) {
			c.t.Fatalf("not within %v: %d pieces of work are done, %d wait", limit, c.done, len(c.work))
		}
		for _, name := range []string{"a", "b", "c"} {
			c.nodes[name].elections.advance(c.now)
		}
		for range 3 {
			sent := c.sent
			c.sent = nil
			for _, f := range sent {
				f()
			}
		}
		c.late = slices.DeleteFunc(c.late, func(a answer) bool {
			here := !a.at.After(c.now)
			if here {
				c.work = append(c.work, a.take)
			}
			return here
		})
		for range min(c.rate, len(c.work)) {
			f := c.work[0]
			c.work = c.work[1:]
			c.done++
			f()
		}
	}
}

// pass lets time pass.
func (c *crowd) pass(d time.Duration) {
	end := c.now.Add(d)
	c.run(2*d, func() bool { return !c.now.Before(end) })
}

// led reports whether the surviving members of a group agree on a leader other than a.
func (c *crowd) led(id fsm.GroupID) bool {
	b, d := c.nodes["b"].groups[id], c.nodes["c"].groups[id]
	return b.leader != "" && b.leader != "a" && b.leader == d.leader
}

// allLed counts the groups that have another leader than a.
func (c *crowd) allLed() (n int) {
	for id := range c.nodes["b"].groups {
		if c.led(id) {
			n++
		}
	}
	return n
}

// terms counts the groups by how often their term has grown.
func (c *crowd) terms() map[uint64]int {
	count := map[uint64]int{}
	for id, m := range c.nodes["b"].groups {
		count[max(m.term, c.nodes["c"].groups[id].term)-1]++
	}
	return count
}

// However little of a processor there is, the groups that a node's death leaves without a leader cost one
// election each.
func TestElectStarved(t *testing.T) {
	const orphans = 300
	for _, rate := range []int{200, 20, 2, 1} { // the slowest takes 12 s at best
		c := newCrowd(t, orphans, rate)
		c.need()
		c.lose()
		c.run(2*time.Minute, func() bool { return c.allLed() == orphans })
		if terms := c.terms(); terms[1] != orphans {
			t.Errorf("%d pieces a step: groups by growth of their term: %v", rate, terms)
		}
		if c.done > orphans*piecesOfElection*3/2 {
			t.Errorf("%d pieces a step: %d pieces of work, want %d", rate, c.done, orphans*piecesOfElection)
		}
		if took, best := c.now.Sub(time.Unix(1000, 0)), time.Duration(orphans*piecesOfElection/rate)*10*time.Millisecond; took > 2*best+time.Second {
			t.Errorf("%d pieces a step: it took %v, %v at best", rate, took, best)
		}
		t.Logf("%d pieces a step: %d pieces, %v, up to %d and %d candidates", rate, c.done, c.now.Sub(time.Unix(1000, 0)), c.nodes["b"].peak, c.nodes["c"].peak)
	}
}

// A node that has little of a processor takes the votes for its candidates late, and those of others. Neither is a
// failed campaign: who has voted for a candidate waits, and so does who has heard of it.
func TestElectLate(t *testing.T) {
	const groups = 6 // with room in the windows
	for _, late := range []time.Duration{slotTime * 3 / 2, votesTime - 200*time.Millisecond} {
		c := newCrowd(t, groups, 200)
		c.nodes["c"].late = late
		c.need()
		c.lose()
		c.run(late+slotTime, func() bool { return c.allLed() == groups })
		if terms := c.terms(); terms[1] != groups {
			t.Errorf("%v late: groups by growth of their term: %v", late, terms)
		}
	}
}

// Where nodes are far from each other, or get a processor late, a candidate is heard of late, which they know: none
// stands because it has not heard of another one yet.
func TestElectFar(t *testing.T) {
	const groups = 6
	for _, far := range []time.Duration{slotTime / 2, slotTime * 6 / 5, 2 * slotTime} {
		c := newCrowd(t, groups, 200)
		for _, n := range c.nodes {
			n.far, n.late = far, far
		}
		c.need()
		c.lose()
		c.run(6*far+slotTime, func() bool { return c.allLed() == groups })
		if terms := c.terms(); terms[1] != groups {
			t.Errorf("%v apart: groups by growth of their term: %v", far, terms)
		}
	}
}

// What a candidate has asked before it won may come after raft's news that it leads, and is no farewell.
func TestElectOldQuestion(t *testing.T) {
	const groups = 6
	for _, far := range []time.Duration{positionsEvery * 6 / 5, 2 * positionsEvery} {
		c := newCrowd(t, groups, 200)
		for _, n := range c.nodes {
			n.far = far
		}
		c.need()
		c.lose()
		c.pass(4 * far)
		if terms := c.terms(); terms[1] != groups || c.allLed() != groups {
			t.Errorf("asked %v before: groups by growth of their term: %v", far, terms)
		}
	}
}

// Who hears that another one stands does not stand beside it: not when its own turn has come and its window gets
// room, nor when it notices late that the leader is gone and is the first of the candidates, however long its raft
// takes to hear of the other one.
func TestElectBesideAnother(t *testing.T) {
	for name, story := range map[string]func(c *crowd, first, second *crowdNode){
		"it has waited": func(c *crowd, first, second *crowdNode) {
			second.elections.window.under = second.elections.window.size
			second.elections.Begin(second.groups[0])
			c.pass(slotTime + slotTime/10)
			first.elections.Begin(first.groups[0])
			c.pass(slotTime / 10)
			second.elections.window.under = 0
		},
		"it comes late": func(c *crowd, first, second *crowdNode) {
			second.elections.Begin(second.groups[0])
			c.pass(slotTime + slotTime/10)
			first.elections.Begin(first.groups[0])
		},
	} {
		c := newCrowd(t, 1, 200)
		first, second := c.nodes["b"], c.nodes["c"]
		for _, n := range []*crowdNode{first, second} {
			n.late, n.slow, n.cut["a"] = slotTime, slotTime/4, true
		}
		c.need()
		story(c, first, second)
		c.run(4*slotTime, func() bool { return c.led(0) })
		if terms := c.terms(); terms[1] != 1 {
			t.Errorf("%s: growth of the term: %v", name, terms)
		}
	}
}

// Who says that it stands, and does not, is waited for no longer than others are; if its node dies, not at all.
func TestElectAnnounced(t *testing.T) {
	for _, dies := range []bool{false, true} {
		c := newCrowd(t, 1, 200)
		first, second := c.nodes["b"], c.nodes["c"]
		first.slow = time.Hour
		c.need()
		c.lose()
		c.pass(50 * time.Millisecond)
		limit := ledValid + 3*slotTime
		if dies {
			c.nodes["a"].groups[0].leader = "" // it is back, and does not lead
			clear(c.nodes["a"].cut)
			delete(second.cut, "a")
			second.cut["b"], c.nodes["a"].cut["b"] = true, true
			second.elections.PeersChanged()
			limit = 2 * slotTime
		}
		c.run(limit, func() bool { return second.groups[0].leader == "c" })
	}
	p := newPretend(t, "a", "b")
	a := p.nodes["a"]
	a.open, a.leader = true, "a"
	it := Item{Kind: itemStands, Group: 7, Term: a.term + 1, Position: a.log}
	if a.elections.Receive("b", AppendItem(nil, it), p.now); a.leader != "a" {
		t.Error("a leader steps down before raft at another member is in the later term")
	}
	it.Kind = itemPosition
	if a.elections.Receive("b", AppendItem(nil, it), p.now); a.leader == "a" {
		t.Error("a leader does not step down when it is")
	}
}

// The only candidate that can win does not stand again while its votes may be on their way, also if its raft has not
// even stood.
func TestElectAlone(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	p.campaign = func(*pretendNode) {}
	p.nodes["a"].log = position(2, 2)
	p.nodes["a"].lost("c")
	p.nodes["b"].lost("c")
	p.nodes["a"].start()
	p.nodes["b"].start()
	p.run(votesTime)
	p.mustCampaign("a")
	p.run(slotTime)
	p.mustCampaign("a", "a")
}

// What is lost is waited for no longer.
func TestElectLost(t *testing.T) {
	const groups = 6
	c := newCrowd(t, groups, 200)
	c.nodes["c"].late = time.Hour
	c.need()
	c.lose()
	c.pass(200 * time.Millisecond)
	c.nodes["c"].late = 0
	c.run(2*votesTime+2*slotTime, func() bool { return c.allLed() == groups })
}

// Nobody waits for a candidate whose node has died.
func TestElectLostOfTheDead(t *testing.T) {
	c := newCrowd(t, 2, 200)
	c.nodes["c"].late = time.Hour
	c.need()
	c.lose()
	c.pass(200 * time.Millisecond)
	a, b := c.nodes["a"], c.nodes["b"]
	if voted := b.groups[1].voted; voted != "c" {
		t.Fatalf("b has voted for %q", voted)
	}
	a.groups[1].leader = "" // it is back, and does not lead
	clear(a.cut)
	a.cut["c"], b.cut["c"] = true, true
	delete(b.cut, "a")
	a.elections.Begin(a.groups[1])
	for _, n := range []*crowdNode{a, b} {
		n.elections.PeersChanged()
	}
	c.run(2*slotTime, func() bool { return a.groups[1].leader != "" && a.groups[1].leader == b.groups[1].leader })
}

// The votes that a candidate has taken with it are waited for no longer than any campaign.
func TestElectVotesOfTheDead(t *testing.T) {
	c := newCrowd(t, 1, 200)
	a, b, d := c.nodes["a"], c.nodes["b"], c.nodes["c"]
	a.late = time.Hour
	for _, n := range []*crowdNode{a, b, d} {
		n.groups[0].leader, n.groups[0].due = "", 0
		n.elections.Begin(n.groups[0])
	}
	voted := func() bool { return b.groups[0].voted == "a" && d.groups[0].voted == "a" }
	c.run(slotTime/2, voted)
	c.lose()
	c.run(votesTime-slotTime, func() bool { return c.led(0) })
}

// A node that is taken for dead, and comes back before five seconds have passed, costs no group a term in
// which nobody waits; those in which somebody does have another leader at once.
func TestElectPatience(t *testing.T) {
	const groups, urgent = 60, 7
	for _, away := range []time.Duration{time.Second, DeathPatience - 100*time.Millisecond} {
		c := newCrowd(t, groups, 100)
		for id := range urgent {
			c.nodes["b"].groups[fsm.GroupID(id)].due = 0 // the other one learns of it by being asked
		}
		c.lose()
		c.pass(300 * time.Millisecond)
		if n := c.allLed(); n != urgent {
			t.Errorf("%d groups have another leader, %d need one", n, urgent)
		}
		c.pass(away - 300*time.Millisecond)
		c.heal()
		c.pass(10 * time.Second)
		if terms := c.terms(); terms[0] != groups-urgent || terms[1] != urgent {
			t.Errorf("away for %v: groups by growth of their term: %v", away, terms)
		}
		for _, name := range []string{"b", "c"} {
			if n := len(c.nodes[name].elections.running); n != 0 {
				t.Errorf("%s still looks for %d leaders", name, n)
			}
		}
	}
}

// A node that stays away for five seconds, however often it was away before, is followed in every group.
func TestElectAfterPatience(t *testing.T) {
	const groups = 60
	c := newCrowd(t, groups, 100)
	for range 3 {
		c.lose()
		c.pass(DeathPatience - 100*time.Millisecond)
		c.heal()
		c.pass(10 * time.Millisecond)
	}
	c.lose()
	c.pass(DeathPatience - 100*time.Millisecond)
	if terms := c.terms(); terms[0] != groups {
		t.Errorf("too early: groups by growth of their term: %v", terms)
	}
	c.pass(time.Second)
	if n := c.allLed(); n != groups {
		t.Errorf("%d groups have another leader", n)
	}
}

// What is due ends the patience when it is due, and so does who waits when he says so, wherever he is.
func TestElectWanted(t *testing.T) {
	c := newCrowd(t, 4, 100)
	c.nodes["b"].groups[1].due = 2 * time.Second
	c.lose()
	c.pass(time.Second)
	if n := c.allLed(); n != 0 {
		t.Fatalf("%d groups have another leader although nobody waits", n)
	}
	c.nodes["c"].elections.Want(2, []string{"a", "b", "c"})
	c.pass(100 * time.Millisecond)
	if n := c.allLed(); n != 1 || !c.led(2) {
		t.Errorf("%d groups have another leader; the one that is waited for: %v", n, c.led(2))
	}
	c.pass(800 * time.Millisecond)
	if c.led(1) {
		t.Error("what is due later is taken for due")
	}
	c.pass(300 * time.Millisecond)
	if n := c.allLed(); n != 2 || !c.led(1) {
		t.Errorf("%d groups have another leader; the one with something due: %v", n, c.led(1))
	}
}

// Who says that a leader is needed before a member knows that the leader is gone is remembered for a while.
func TestElectWantedEarly(t *testing.T) {
	c := newCrowd(t, 2, 100)
	for _, name := range []string{"b", "c"} {
		c.nodes[name].elections.Want(0, []string{"b", "c"})
	}
	c.pass(WantValid / 2)
	c.lose()
	c.pass(200 * time.Millisecond)
	if n := c.allLed(); n != 1 || !c.led(0) {
		t.Errorf("%d groups have another leader; the one that was waited for: %v", n, c.led(0))
	}
}
