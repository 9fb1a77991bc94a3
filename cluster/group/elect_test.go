package group

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
)

// pretend is a cluster whose nodes run elections for one group, in a time of
// its own. Messages arrive at the end of the step in which they were sent.
type pretend struct {
	t       *testing.T
	now     time.Time
	nodes   map[string]*pretendNode
	order   []string
	sent    []func()
	stories []string // campaigns: time and node
	// campaign is what a campaign does.
	campaign func(n *pretendNode)
}

// pretendNode is one node, its links and its replica.
type pretendNode struct {
	p         *pretend
	name      string
	elections *elections
	handler   func(from string, head, payload []byte)
	unreached map[string]bool
	slow      time.Duration // how late what it sends arrives
	open      bool
	closed    bool
	leader    string
	term      uint64
	log       standing
	candidate bool

	quarantined bool
	stubborn    bool // it does not give way
}

func newPretend(t *testing.T, members ...string) *pretend {
	p := &pretend{t: t, now: time.Unix(1000, 0), nodes: map[string]*pretendNode{}, order: members}
	p.campaign = p.win
	for _, name := range members {
		n := &pretendNode{p: p, name: name, unreached: map[string]bool{}, term: 1, log: standing{1, 1}}
		n.elections = &elections{
			node: name, links: n, kind: 16, slog: slog.New(slog.DiscardHandler),
			find: func(fsm.GroupID) replica {
				if n.open {
					return n
				}
				return nil
			},
			kick: make(chan struct{}, 1), vacancies: map[fsm.GroupID]*vacancy{},
		}
		n.elections.listen()
		p.nodes[name] = n
	}
	return p
}

func (n *pretendNode) Handle(_ peer.Kind, h func(from string, head, payload []byte)) { n.handler = h }
func (n *pretendNode) Alive(node string) bool                                        { return !n.unreached[node] }
func (n *pretendNode) Spec() Spec                                                    { return Spec{Group: 7, Members: n.p.order} }
func (n *pretendNode) Voters() []string                                              { return n.p.order }
func (n *pretendNode) Leader() string                                                { return n.leader }
func (n *pretendNode) standing() standing                                            { return n.log }
func (n *pretendNode) isClosed() bool                                                { return n.closed }
func (n *pretendNode) barred() bool                                                  { return n.quarantined }

func (n *pretendNode) role() (raft.RaftState, uint64) {
	switch {
	case n.leader == n.name:
		return raft.Leader, n.term
	case n.candidate:
		return raft.Candidate, n.term
	}
	return raft.Follower, n.term
}

func (n *pretendNode) StepDown(fsm.GroupID, uint64, string) { n.candidate = false }

// Resign is what raft does in a leader that hears of a later term.
func (n *pretendNode) Resign(_ fsm.GroupID, term uint64, _ string) {
	if n.leader == n.name && n.term < term && !n.stubborn {
		n.leader, n.term = "", term
		n.elections.vacant(n)
	}
}

// yieldTo lets the other one campaign.
func (n *pretendNode) yieldTo(node string) {
	n.p.stories = append(n.p.stories, fmt.Sprintf("%s %s yields to %s", n.p.now.Sub(time.Unix(1000, 0)), n.name, node))
	n.p.nodes[node].Campaign(7)
}

func (n *pretendNode) Peers() (all []peer.PeerStatus) {
	for _, name := range n.p.order {
		if name != n.name {
			all = append(all, peer.PeerStatus{Node: name, Alive: n.Alive(name)})
		}
	}
	return all
}

func (n *pretendNode) Send(to string, _ peer.Kind, head []byte, _ ...[]byte) error {
	if n.unreached[to] {
		return peer.ErrDown
	}
	due, head := n.p.now.Add(n.slow), slices.Clone(head)
	n.p.sent = append(n.p.sent, func() { n.p.arrive(n, n.p.nodes[to], head, due) })
	return nil
}

func (p *pretend) arrive(from, to *pretendNode, head []byte, due time.Time) {
	if p.now.Before(due) {
		p.sent = append(p.sent, func() { p.arrive(from, to, head, due) })
		return
	}
	to.elections.receive(from.name, head, p.now)
}

func (n *pretendNode) Campaign(fsm.GroupID) {
	n.p.stories = append(n.p.stories, fmt.Sprintf("%s %s", n.p.now.Sub(time.Unix(1000, 0)), n.name))
	n.term++
	n.candidate = true
	term := n.term
	n.p.sent = append(n.p.sent, func() { // requests for votes
		for _, o := range n.p.nodes {
			if o.open && !n.unreached[o.name] && o.term < term {
				o.term, o.leader, o.candidate = term, "", false
			}
		}
		n.p.campaign(n)
	})
}

// win makes n the leader if its log is as long as that of a majority.
func (p *pretend) win(n *pretendNode) {
	votes := 0
	for _, o := range p.nodes {
		if !n.unreached[o.name] && !n.log.less(o.log) {
			votes++
		}
	}
	if 2*votes <= len(p.nodes) {
		n.candidate = true // and stays it for long
		return
	}
	for _, o := range p.nodes {
		if !n.unreached[o.name] {
			o.follow(n.name)
		}
	}
}

// follow is what raft does when it hears of a leader, and tells.
func (n *pretendNode) follow(leader string) {
	n.leader, n.candidate = leader, false
	n.elections.filled(7)
}

// start opens the replica on a node.
func (n *pretendNode) start() {
	n.open = true
	n.elections.vacant(n)
}

// lost is what a node does when a peer is down.
func (n *pretendNode) lost(node string) {
	n.unreached[node] = true
	if n.leader == node {
		n.elections.vacant(n)
	}
}

// run lets time pass; each step all nodes look, and what was sent arrives.
func (p *pretend) run(d time.Duration) {
	const step = 10 * time.Millisecond
	for end := p.now.Add(d); p.now.Before(end); p.now = p.now.Add(step) {
		for _, name := range p.order {
			p.nodes[name].elections.look(p.now)
		}
		for range 3 { // questions, answers, and what follows
			sent := p.sent
			p.sent = nil
			for _, f := range sent {
				f()
			}
		}
	}
}

// campaigners lists who has campaigned, in order.
func (p *pretend) campaigners() (all []string) {
	for _, s := range p.stories {
		all = append(all, s[strings.LastIndex(s, " ")+1:])
	}
	return all
}

func (p *pretend) mustCampaign(want ...string) {
	p.t.Helper()
	if got := p.campaigners(); !slices.Equal(got, want) {
		p.t.Fatalf("campaigns: %q, want those of %q", p.stories, want)
	}
}

func (p *pretend) mustLead(name string) {
	p.t.Helper()
	for _, n := range p.nodes {
		if !n.unreached[name] && n.leader != name {
			p.t.Fatalf("%s follows %q, want %s; campaigns %q", n.name, n.leader, name, p.stories)
		}
		if !n.unreached[name] && len(n.elections.vacancies) != 0 {
			p.t.Fatalf("%s still looks for a leader", n.name)
		}
	}
}

// A new group is led by its first member, as soon as all have it open.
func TestElectNewGroup(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for _, name := range []string{"c", "b", "a"} {
		p.nodes[name].start()
		p.run(20 * time.Millisecond)
	}
	p.mustCampaign("a")
	p.run(10 * time.Second)
	p.mustCampaign("a")
	p.mustLead("a")
}

// A member that is about to stop does not stand, unless nobody else can win.
func TestElectDraining(t *testing.T) {
	for _, tc := range []struct {
		name   string
		drains string
		longer []string // members with the longest log
		leader string
	}{
		{"the first", "a", nil, "b"},
		{"another", "b", nil, "a"},
		{"with the longest log", "a", []string{"a"}, "b"},
		{"who alone can win", "a", []string{"a", "c"}, "c"},
		{"all", "abc", nil, "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPretend(t, "a", "b", "c")
			for _, n := range p.nodes {
				n.elections.drains = func(node string) bool { return strings.Contains(tc.drains, node) }
				if slices.Contains(tc.longer, n.name) {
					n.log.index++
				}
			}
			for _, name := range p.order {
				p.nodes[name].start()
			}
			p.run(time.Second / 2)
			p.mustCampaign(tc.leader)
			p.mustLead(tc.leader)
		})
	}
}

// A member with the longest log is elected although it is about to stop, if
// those that stay cannot win.
func TestElectDrainingAlone(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for _, name := range []string{"a", "b"} {
		n := p.nodes[name]
		n.elections.drains = func(node string) bool { return node == "a" }
		n.unreached["c"], p.nodes["c"].unreached[name] = true, true
	}
	p.nodes["a"].log.index++
	p.nodes["a"].start()
	p.nodes["b"].start()
	p.run(time.Second / 2)
	p.mustCampaign("a")
	p.mustLead("a")
}

// A new group with a member that is down is led by one of the others.
func TestElectWithoutMember(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for _, name := range []string{"b", "c"} {
		p.nodes[name].unreached["a"], p.nodes["a"].unreached[name] = true, true
		p.nodes[name].start()
	}
	p.run(time.Second / 2)
	p.mustCampaign("b")
	p.mustLead("b")
}

// Members that open a group late do not miss their turn.
func TestElectLateMembers(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	p.nodes["a"].start()
	p.run(1700 * time.Millisecond)
	p.mustCampaign()
	p.nodes["b"].start()
	p.nodes["c"].start()
	p.run(300 * time.Millisecond)
	p.mustCampaign("a")
	p.mustLead("a")
}

// The longest log campaigns, whatever the order of the members.
func TestElectLongestLog(t *testing.T) {
	for _, logs := range [][3]standing{
		{{1, 9}, {2, 3}, {2, 4}},
		{{2, 3}, {2, 3}, {2, 4}},
		{{2, 3}, {1, 8}, {3, 1}},
	} {
		p := newPretend(t, "a", "b", "c")
		for i, name := range p.order {
			p.nodes[name].log = logs[i]
			p.nodes[name].start()
		}
		p.run(time.Second / 2)
		p.mustCampaign("c")
		p.mustLead("c")
	}
}

// When a leader dies, the survivor with the longer log follows it quickly.
func TestElectAfterDeath(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for i, name := range p.order {
		n := p.nodes[name]
		n.open, n.leader, n.log = true, "a", standing{1, uint64(20 - i)}
	}
	p.nodes["c"].log.index = 50
	p.nodes["a"].unreached["b"], p.nodes["a"].unreached["c"] = true, true
	p.nodes["b"].lost("a")
	p.run(30 * time.Millisecond) // c hears of it later
	p.nodes["c"].lost("a")
	p.run(time.Second / 2)
	p.mustCampaign("c")
	p.mustLead("c")
}

// A node that starts while a leader lives disturbs nobody, also if the answers
// of the others take their time.
func TestElectRestartedNode(t *testing.T) {
	for _, slow := range []time.Duration{0, 100 * time.Millisecond, time.Second} {
		p := newPretend(t, "a", "b", "c")
		for _, name := range []string{"b", "c"} {
			p.nodes[name].open, p.nodes[name].leader, p.nodes[name].slow = true, "b", slow
		}
		p.nodes["a"].log = standing{9, 9} // it would win
		p.nodes["a"].start()
		p.run(20 * time.Second)
		p.mustCampaign()
		p.nodes["a"].leader = "b" // a heartbeat; nothing tells of it
		p.run(5 * time.Second)
		p.mustCampaign()
		p.mustLead("b")
	}
}

// A peer that was taken for dead, and was not, goes on leading; nobody keeps
// on asking.
func TestElectFalseAlarm(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for _, n := range p.nodes {
		n.open, n.leader = true, "a"
	}
	p.nodes["b"].lost("a")
	p.run(10 * time.Millisecond)
	delete(p.nodes["b"].unreached, "a")
	p.run(time.Second)
	p.mustCampaign()
	p.mustLead("a")
}

// A leader that has started anew leads nothing: the others do not believe each
// other for long that it does. It may lead again.
func TestElectRestartedLeader(t *testing.T) {
	for _, back := range []bool{false, true} {
		p := newPretend(t, "a", "b", "c")
		for _, n := range p.nodes {
			n.open, n.leader = true, "a"
		}
		p.nodes["a"].open, p.nodes["a"].leader = false, ""
		p.nodes["b"].elections.vacant(p.nodes["b"])
		p.run(300 * time.Millisecond) // c has not noticed
		p.mustCampaign()
		leader := "b"
		if back {
			p.nodes["a"].start()
			leader = "a"
		}
		p.nodes["c"].leader = ""
		p.nodes["c"].elections.vacant(p.nodes["c"])
		p.run(3 * time.Second)
		p.mustCampaign(leader)
		p.mustLead(leader)
	}
}

// A candidate that does not get through is followed by the next one, and has
// another turn later; all together they keep the peace.
func TestElectStuckCandidates(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	p.campaign = func(n *pretendNode) { n.candidate = true }
	for _, name := range p.order {
		p.nodes[name].start()
	}
	p.run(5 * time.Second)
	p.mustCampaign("a", "b", "c")
	p.run(time.Minute)
	if n := len(p.stories); n < 7 || n > 11 {
		t.Errorf("%d campaigns in a minute without success: %q", n, p.stories)
	}
	for i, name := range p.campaigners() {
		if name != p.order[i%3] {
			t.Fatalf("they do not take turns: %q", p.stories)
		}
	}
	p.campaign = p.win
	p.run(30 * time.Second)
	if p.nodes["a"].leader == "" {
		t.Error("nobody leads in the end")
	}
}

// Votes that take long are waited for: a busy machine does not get more
// elections than it can carry through.
func TestElectSlowMachine(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	type election struct {
		of   *pretendNode
		term uint64
		ends time.Time
	}
	var last election
	p.campaign = func(n *pretendNode) { last = election{n, n.term, p.now.Add(5 * time.Second)} }
	for _, name := range p.order {
		p.nodes[name].start()
	}
	for range 400 {
		p.run(50 * time.Millisecond)
		if last.of != nil && last.of.term == last.term && !p.now.Before(last.ends) {
			p.win(last.of)
			last.of = nil
		}
	}
	if n := len(p.stories); n > 4 {
		t.Errorf("%d campaigns: %q", n, p.stories)
	}
	p.mustLead(p.nodes["a"].leader)
	if p.nodes["a"].leader == "" {
		t.Errorf("nobody leads: %q", p.stories)
	}
}

// Members that count turns differently, because they have seen different
// things, do not stand at once for ever. If one of two that reach each other
// has the longer log, the other one does not stand in its way.
func TestElectOutOfStep(t *testing.T) {
	for offset := range 8 {
		p := newPretend(t, "a", "b", "c")
		for i, name := range p.order[:2] {
			n := p.nodes[name]
			n.unreached["c"], p.nodes["c"].unreached[name] = true, true
			n.log = standing{2, uint64(11 + i*(offset/4))}
			n.start()
		}
		p.run(10 * time.Millisecond) // they hear of each other
		for i, name := range p.order[:2] {
			p.nodes[name].elections.vacancies[7].turns = turns{began: p.now, number: i * offset, used: true}
		}
		p.campaign = func(n *pretendNode) {
			for _, o := range p.nodes {
				if o != n && !n.unreached[o.name] && o.candidate && o.term >= n.term {
					return // it has voted for itself
				}
			}
			p.win(n)
		}
		p.run(time.Minute)
		p.mustLead(p.nodes["a"].leader)
		if leader := p.nodes["a"].leader; leader == "" || offset >= 4 && leader != "b" {
			t.Errorf("%q leads; campaigns %q", leader, p.stories)
		}
		if offset >= 4 && slices.Contains(p.campaigners(), "a") {
			t.Errorf("a cannot win and campaigns: %q", p.stories)
		}
	}
}

// A member that still believes in the dead leader when it is asked holds up the
// election only until it asks itself.
func TestElectNoticedLater(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for i, name := range p.order {
		n := p.nodes[name]
		n.open, n.leader, n.log = true, "a", standing{1, uint64(20 - i)}
	}
	p.nodes["a"].unreached["b"], p.nodes["a"].unreached["c"] = true, true
	p.nodes["b"].lost("a")
	p.run(100 * time.Millisecond)
	p.mustCampaign()
	p.nodes["c"].lost("a")
	p.run(300 * time.Millisecond)
	p.mustCampaign("b")
}

// A leader of an earlier term, which raft's heartbeats have not told, keeps nobody
// from an election: it hears of the later term and gives way.
func TestElectStaleLeader(t *testing.T) {
	for _, stubborn := range []bool{false, true} {
		p := newPretend(t, "a", "b", "c")
		for _, n := range p.nodes {
			n.open, n.term, n.log = true, 3, standing{2, 9}
		}
		a := p.nodes["a"]
		a.leader, a.term, a.stubborn = "a", 2, stubborn
		p.nodes["b"].elections.vacant(p.nodes["b"])
		p.nodes["c"].elections.vacant(p.nodes["c"])
		p.run(100 * time.Millisecond)
		if (a.leader == "a" && a.term == 2) != stubborn {
			t.Fatalf("stubborn %v: the leader of term 2 knows %q in term %d", stubborn, a.leader, a.term)
		}
		p.run(3 * time.Second)
		if len(p.campaigners()) == 0 {
			t.Fatal("nobody campaigns: a leader of an earlier term keeps them from it")
		}
		p.mustLead(p.nodes["b"].leader)
		if p.nodes["b"].leader == "" || p.nodes["b"].term < 4 {
			t.Errorf("%q leads in term %d", p.nodes["b"].leader, p.nodes["b"].term)
		}
	}
}

// A leader that raft knows of ends the search, also if nobody has told.
func TestElectUntold(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for i, name := range p.order {
		n := p.nodes[name]
		n.open, n.leader, n.log = true, "a", standing{1, uint64(20 - i)}
	}
	p.campaign = func(n *pretendNode) {
		for _, o := range []string{"b", "c"} {
			p.nodes[o].leader = n.name
		}
	}
	p.nodes["a"].unreached["b"], p.nodes["a"].unreached["c"] = true, true
	p.nodes["b"].lost("a")
	p.nodes["c"].lost("a")
	p.run(time.Second)
	// The former leader comes back, and has not yet heard of the new one.
	delete(p.nodes["b"].unreached, "a")
	delete(p.nodes["c"].unreached, "a")
	p.run(time.Minute)
	p.mustCampaign("b")
	for _, name := range []string{"b", "c"} {
		if len(p.nodes[name].elections.vacancies) != 0 {
			t.Errorf("%s still looks for a leader", name)
		}
	}
}

// Without a majority nobody campaigns; with it, somebody does.
func TestElectMinority(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for _, name := range []string{"b", "c"} {
		p.nodes["a"].unreached[name] = true
	}
	p.nodes["a"].start()
	p.run(time.Minute)
	p.mustCampaign()
	delete(p.nodes["a"].unreached, "c")
	p.nodes["c"].unreached["b"] = true
	p.nodes["c"].start()
	p.run(time.Second)
	p.mustCampaign("a")
}

// A group that was closed is not looked at any more.
func TestElectClosed(t *testing.T) {
	p := newPretend(t, "a")
	p.nodes["a"].closed = true
	p.nodes["a"].start()
	p.run(time.Second)
	p.mustCampaign()
	if len(p.nodes["a"].elections.vacancies) != 0 {
		t.Error("a closed group is still looked at")
	}
}

// Items survive the wire; what is cut short is left alone.
func TestElectionItems(t *testing.T) {
	items := []item{
		{itemAsk, 7, 5, standing{3, 4}, false}, {itemStanding, 7, 6, standing{3, 4}, true},
		{itemLed, 1<<32 - 1, 1<<64 - 2, standing{1 << 63, 1<<64 - 1}, false},
	}
	var b []byte
	for _, it := range items {
		b = appendItem(b, it)
	}
	for i, want := range items {
		if got := parseItem(b[i*itemSize:]); got != want {
			t.Errorf("item %+v comes back as %+v", want, got)
		}
	}
	p := newPretend(t, "a", "b")
	p.nodes["a"].open = true
	p.nodes["a"].elections.receive("b", b[:itemSize-1], p.now)
	if len(p.sent) != 0 {
		t.Error("half a question is answered")
	}
}
