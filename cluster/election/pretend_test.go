package election

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

// position is one in a log.
func position(term, index uint64) replica.Position { return replica.Position{Term: term, Index: index} }

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
	elections *Elections
	handler   func(from string, head, payload []byte)
	unreached map[string]bool
	known     map[string]bool // what was unreached in the last step
	slow      time.Duration   // how late what it sends arrives
	open      bool
	closed    bool
	leader    string
	term      uint64
	led       uint64 // term of the last leader
	log       replica.Position
	candidate bool

	due         time.Duration // nobody needs a leader for so long
	quarantined bool
	tired       bool // it has resigned lately
	learner     bool
	stubborn    bool // it does not give way
}

func newPretend(t *testing.T, members ...string) *pretend {
	p := &pretend{t: t, now: time.Unix(1000, 0), nodes: map[string]*pretendNode{}, order: members}
	p.campaign = p.win
	for _, name := range members {
		n := &pretendNode{p: p, name: name, unreached: map[string]bool{}, term: 1, log: position(1, 1)}
		n.elections = pretendElections(name, n, func() time.Time { return p.now }, func(fsm.GroupID) Electable {
			if n.open {
				return n
			}
			return nil
		})
		n.elections.Listen()
		p.nodes[name] = n
	}
	return p
}

// pretendElections are those of a node in virtual time.
func pretendElections(node string, l Links, now func() time.Time, find func(fsm.GroupID) Electable) *Elections {
	return &Elections{
		node: node, links: l, kind: 16, slog: slog.New(slog.DiscardHandler), find: find, now: now,
		worker: worker.New(worker.Options{}), spawn: func(f func()) { f() },
		running: map[fsm.GroupID]*election{}, agenda: newAgenda(), waiting: newWaiting(), window: newWindow(), wants: map[string][]byte{},
	}
}

func (n *pretendNode) Handle(_ peer.Kind, h func(from string, head, payload []byte)) { n.handler = h }
func (n *pretendNode) Alive(node string) bool                                        { return !n.unreached[node] }
func (n *pretendNode) Slack(...string) time.Duration                                 { return 0 }
func (n *pretendNode) ID() fsm.GroupID                                               { return 7 }
func (n *pretendNode) Voters() []string                                              { return n.p.order }
func (n *pretendNode) Leader() string                                                { return n.leader }
func (n *pretendNode) LogEnd() replica.Position                                      { return n.log }
func (n *pretendNode) IsClosed() bool                                                { return n.closed }
func (n *pretendNode) HasNoLeader(string, uint64)                                    {}
func (n *pretendNode) ResignedLately() bool                                          { return n.tired }
func (n *pretendNode) VotedFor(uint64) string                                        { return "" }
func (n *pretendNode) LastLed() uint64                                               { return n.led }
func (n *pretendNode) Want(now time.Time)                                            {}
func (n *pretendNode) Wanted(now time.Time) bool                                     { return false }
func (n *pretendNode) Patience() time.Duration                                       { return n.due }
func (n *pretendNode) Barred() bool                                                  { return n.quarantined }
func (n *pretendNode) IsLearner() bool                                               { return n.learner }

func (n *pretendNode) Role() (raft.RaftState, uint64) {
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
		n.elections.Begin(n)
	}
}

// TransferTo lets the other one campaign.
func (n *pretendNode) TransferTo(node string, _ bool) {
	n.p.stories = append(n.p.stories, fmt.Sprintf("%s %s yields to %s", n.p.now.Sub(time.Unix(1000, 0)), n.name, node))
	n.p.nodes[node].Campaign(7)
}

// CedeTo lets the other one campaign too.
func (n *pretendNode) CedeTo(node string) { n.TransferTo(node, true) }

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
	to.elections.Receive(from.name, head, p.now)
}

// Campaign is what raft does when it is told to stand; a candidate does nothing.
func (n *pretendNode) Campaign(fsm.GroupID) {
	if n.candidate {
		return
	}
	n.p.stories = append(n.p.stories, fmt.Sprintf("%s %s", n.p.now.Sub(time.Unix(1000, 0)), n.name))
	n.term++
	n.candidate = true
	n.elections.TermChanged(7)
	term := n.term
	n.p.sent = append(n.p.sent, func() { // requests for votes
		for _, o := range n.p.nodes {
			if o.open && !n.unreached[o.name] && o.term < term {
				o.term, o.leader, o.candidate = term, "", false
				o.elections.TermChanged(7)
			}
		}
		n.p.campaign(n)
	})
}

// win makes n the leader if its log is as long as that of a majority.
func (p *pretend) win(n *pretendNode) {
	votes := 0
	for _, o := range p.nodes {
		if !n.unreached[o.name] && !n.log.Less(o.log) {
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
	if leader == n.name && n.quarantined {
		n.elections.Begin(n)
	} else {
		n.elections.End(7)
	}
}

// start opens the replica on a node.
func (n *pretendNode) start() {
	n.open = true
	n.elections.Begin(n)
}

// lost is what a node does when a peer is down.
func (n *pretendNode) lost(node string) {
	n.unreached[node] = true
	if n.leader == node {
		n.elections.Begin(n)
	}
}

// find is what a node does when a peer is up again.
func (n *pretendNode) find(node string) { delete(n.unreached, node) }

// run lets time pass; each step all nodes look, and what was sent arrives.
func (p *pretend) run(d time.Duration) {
	const step = 10 * time.Millisecond
	for end := p.now.Add(d); p.now.Before(end); p.now = p.now.Add(step) {
		for _, name := range p.order {
			n := p.nodes[name]
			if !maps.Equal(n.unreached, n.known) {
				n.known = maps.Clone(n.unreached)
				n.elections.PeersChanged()
			}
			n.elections.advance(p.now)
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
		if !n.unreached[name] && len(n.elections.running) != 0 {
			p.t.Fatalf("%s still looks for a leader", n.name)
		}
	}
}

// mustElect fails unless one node campaigns at once and leads; empty: none does,
// ever.
func (p *pretend) mustElect(leader string) {
	p.t.Helper()
	p.run(time.Second / 2)
	if leader == "" {
		p.run(time.Minute)
		p.mustCampaign()
		return
	}
	p.mustCampaign(leader)
	p.mustLead(leader)
}
