package election

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/replica"
)

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
					n.log.Index++
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
	p.nodes["a"].log.Index++
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

// Who loses its leader because another member stands for election gives that one a slot.
func TestElectDuringCampaign(t *testing.T) {
	for _, led := range []uint64{4, 5} {
		p := newPretend(t, "a", "b", "c")
		for _, n := range p.nodes {
			n.open, n.term, n.led = true, 5, led
		}
		p.nodes["c"].candidate = true // in term 5
		for _, n := range p.nodes {
			n.elections.Begin(n)
		}
		p.run(slotTime / 2)
		if stood := len(p.stories) > 0; stood != (led == 5) {
			t.Errorf("the last leader was one of term %d; campaigns: %q", led, p.stories)
		}
		p.run(2 * slotTime)
		if p.nodes["a"].leader == "" {
			t.Errorf("nobody leads in the end: %q", p.stories)
		}
	}
}

// The same holds for a member whose raft has not stored the term of that candidate yet.
func TestElectBeforeTheTermIsStored(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for _, n := range p.nodes {
		n.open, n.term, n.led = true, 4, 4
	}
	p.nodes["c"].candidate, p.nodes["c"].term = true, 5
	p.nodes["a"].elections.Begin(p.nodes["a"])
	p.run(slotTime / 2)
	p.mustCampaign()
}

// Members that open a group late do not miss their slot.
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
	for _, logs := range [][3]replica.Position{
		{position(1, 9), position(2, 3), position(2, 4)},
		{position(2, 3), position(2, 3), position(2, 4)},
		{position(2, 3), position(1, 8), position(3, 1)},
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
		n.open, n.leader, n.log = true, "a", position(1, uint64(20-i))
	}
	p.nodes["c"].log.Index = 50
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
		p.nodes["a"].log = position(9, 9) // it would win
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
		p.nodes["b"].elections.Begin(p.nodes["b"])
		p.run(300 * time.Millisecond) // c has not noticed
		p.mustCampaign()
		leader := "b"
		if back {
			p.nodes["a"].start()
			leader = "a"
		}
		p.nodes["c"].leader = ""
		p.nodes["c"].elections.Begin(p.nodes["c"])
		p.run(3 * time.Second)
		p.mustCampaign(leader)
		p.mustLead(leader)
	}
}

// A candidate that does not get through is followed by the next one, and has
// another slot later; all together they keep the peace.
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
			t.Fatalf("they do not keep to slots: %q", p.stories)
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

// Members that count slots differently, because they have seen different
// things, do not stand at once for ever. If one of two that reach each other
// has the longer log, the other one does not stand in its way.
func TestElectOutOfStep(t *testing.T) {
	for offset := range 8 {
		p := newPretend(t, "a", "b", "c")
		for i, name := range p.order[:2] {
			n := p.nodes[name]
			n.unreached["c"], p.nodes["c"].unreached[name] = true, true
			n.log = position(2, uint64(11+i*(offset/4)))
			n.start()
		}
		p.run(10 * time.Millisecond) // they hear of each other
		for i, name := range p.order[:2] {
			p.nodes[name].elections.running[7].backoff = electionBackoff{began: p.now, slot: i * offset, used: true}
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
		n.open, n.leader, n.log = true, "a", position(1, uint64(20-i))
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
			n.open, n.term, n.log = true, 3, position(2, 9)
		}
		a := p.nodes["a"]
		a.leader, a.term, a.stubborn = "a", 2, stubborn
		p.nodes["b"].elections.Begin(p.nodes["b"])
		p.nodes["c"].elections.Begin(p.nodes["c"])
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
		n.open, n.leader, n.log = true, "a", position(1, uint64(20-i))
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
		if len(p.nodes[name].elections.running) != 0 {
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
	if len(p.nodes["a"].elections.running) != 0 {
		t.Error("a closed group is still looked at")
	}
}

// Items survive the wire; what is cut short is left alone.
func TestElectionItems(t *testing.T) {
	items := []Item{
		{ItemAsk, 7, 5, position(3, 4), false, true}, {itemPosition, 7, 6, position(3, 4), true, false},
		{itemLed, 1<<32 - 1, 1<<64 - 2, position(1<<63, 1<<64-1), false, false},
	}
	var b []byte
	for _, it := range items {
		b = AppendItem(b, it)
	}
	for i, want := range items {
		if got := ParseItem(b[i*ItemSize:]); got != want {
			t.Errorf("item %+v comes back as %+v", want, got)
		}
	}
	p := newPretend(t, "a", "b")
	p.nodes["a"].open = true
	p.nodes["a"].elections.Receive("b", b[:ItemSize-1], p.now)
	if len(p.sent) != 0 {
		t.Error("half a question is answered")
	}
}

// What others say of their leader counts for a while: they may not have noticed
// yet that it is gone.
func TestElectionDecided(t *testing.T) {
	now := time.Unix(1000, 0)
	all := []string{"a", "b", "c"}
	v := &election{voters: all, positions: map[string]replica.Position{"a": {}, "b": {}, "c": {}}, led: map[string]time.Time{}}
	if !v.decided(all, &soonest{now, now.Add(time.Hour)}) {
		t.Error("nobody has a leader")
	}
	v.led["b"] = now.Add(-ledValid + 1)
	if v.decided(all, &soonest{now, now.Add(time.Hour)}) {
		t.Error("one has a leader")
	}
	if !v.decided(all, &soonest{now.Add(1), now.Add(time.Hour)}) {
		t.Error("one had a leader long ago")
	}
}

// An election ends with a leader that can be reached, and may lead, unless it is
// the one that was lost.
func TestElectionHasLeader(t *testing.T) {
	for _, tc := range []struct {
		leader  string
		reached bool
		term    uint64
		barred  bool
		want    bool
	}{
		{"b", true, 5, false, true},
		{"b", false, 5, false, false},
		{"", false, 5, false, false},
		{"c", true, 4, false, false}, // the one that was lost
		{"c", true, 5, false, true},
		{"a", true, 5, false, true},
		{"a", true, 5, true, false},
	} {
		n := newPretend(t, "a", "b", "c").nodes["a"]
		n.leader, n.term, n.quarantined = tc.leader, tc.term, tc.barred
		v := &election{group: n, leader: "c", since: 4}
		if got := v.hasLeader(map[string]bool{tc.leader: tc.reached}); got != tc.want {
			t.Errorf("%+v: filled %v", tc, got)
		}
	}
}

// Who cannot lead cannot win, and nobody has a learner's vote, or that of one
// whose log is longer.
func TestElectionCanWin(t *testing.T) {
	all := []string{"a", "b", "c"}
	for _, tc := range []struct {
		name             string
		barred, learners string
		longer           string
		want             bool
	}{
		{"equals", "", "", "", true},
		{"quarantined", "a", "", "", false},
		{"a learner", "", "a", "", false},
		{"one longer log", "", "", "b", true},
		{"a learner and a longer log", "", "b", "c", false},
		{"the vote of one that is quarantined", "b", "", "c", true},
	} {
		v := &election{voters: all, positions: map[string]replica.Position{}, barred: map[string]bool{tc.barred: true}, learners: map[string]bool{tc.learners: true}}
		for _, n := range all {
			v.positions[n] = position(1, 1)
		}
		v.positions[tc.longer] = position(1, 2)
		if got := v.canWin("a", all); got != tc.want {
			t.Errorf("%s: it can win: %v", tc.name, got)
		}
	}
}

// Without a majority nothing is counted: a majority that comes is given its time
// to speak. Half of the members are none.
func TestElectMinorityWaits(t *testing.T) {
	for _, names := range [][]string{{"a", "b", "c"}, {"a", "b", "c", "d"}} {
		p := newPretend(t, names...)
		n := p.nodes["a"]
		for _, name := range names[len(names)-2:] {
			n.unreached[name] = true
		}
		n.start()
		p.run(time.Second)
		if v := n.elections.running[7]; !v.ready.IsZero() || len(v.positions) != 0 {
			t.Errorf("some of %d are ready since %v, with %v", len(names), v.ready, v.positions)
		}
	}
}

// A candidate that has lost stands again: raft takes no notice of who tells a
// candidate to, so it is made a follower first.
func TestLostCandidateStandsAgain(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	n := p.nodes["a"]
	n.start()
	n.candidate = true
	n.elections.campaign(n)
	p.mustCampaign("a")
}

// A member that has lost its link to the leader, and only that, gets a leader that it reaches.
func TestLeaderOutOfReach(t *testing.T) {
	cut := func(p *pretend, a, b string) {
		p.nodes[a].lost(b)
		p.nodes[b].lost(a)
	}
	for _, tc := range []struct {
		name   string
		change func(p *pretend)
		leader string // empty: nothing changes
	}{
		{"one link", func(p *pretend) { cut(p, "a", "c") }, "b"},
		{"two links", func(p *pretend) { cut(p, "a", "c"); cut(p, "b", "c") }, ""},
		{"who reaches all is about to stop", func(p *pretend) {
			cut(p, "a", "c")
			p.nodes["b"].elections.drains = func(node string) bool { return node == "b" }
		}, ""},
		{"who reaches all may not lead", func(p *pretend) { cut(p, "a", "c"); p.nodes["b"].quarantined = true }, ""},
		{"who reaches all cannot prove its log", func(p *pretend) { cut(p, "a", "c"); p.nodes["b"].learner = true }, ""},
		{"who reaches all lags behind", func(p *pretend) { cut(p, "a", "c"); p.nodes["a"].log.Index += maxCedeLag + 1 }, ""},
		{"the leader reaches all", func(p *pretend) { p.nodes["c"].lost("a") }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPretend(t, "a", "b", "c")
			for _, n := range p.nodes {
				n.open, n.leader = true, "a"
			}
			tc.change(p)
			p.run(outOfReachAfter / 2)
			p.mustCampaign()
			p.run(5 * time.Second)
			if tc.leader == "" {
				p.mustCampaign()
				return
			}
			p.mustCampaign(tc.leader, tc.leader) // it is told once, and campaigns
			for _, n := range p.nodes {
				if n.leader != tc.leader {
					t.Errorf("%s follows %q", n.name, n.leader)
				}
			}
			p.run(time.Minute)
			p.mustCampaign(tc.leader, tc.leader)
		})
	}
}
