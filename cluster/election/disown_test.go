package election

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/replica"
)

// A leader whose node is back after a false alarm is waited for, as long as it takes on a machine that is too
// busy for pings, unless somebody waits for the queue.
func TestElectLeaderComesBack(t *testing.T) {
	for _, tc := range []struct {
		name  string
		slow  time.Duration
		due   time.Duration
		stays bool
	}{
		{"soon", 0, replica.Never, true},
		{"late", 2 * time.Second, replica.Never, true},
		{"never", time.Hour, replica.Never, false},
		{"late, and something is due", 2 * time.Second, 0, false},
	} {
		p := newPretend(t, "a", "b", "c")
		for _, n := range p.nodes {
			n.open, n.leader, n.due = true, "a", tc.due
		}
		for _, name := range []string{"b", "c"} {
			p.nodes[name].lost("a")
		}
		p.run(100 * time.Millisecond)
		p.nodes["a"].slow = tc.slow
		for _, name := range []string{"b", "c"} {
			p.nodes[name].find("a")
		}
		p.run(8 * time.Second)
		if stayed := len(p.stories) == 0; stayed != tc.stays {
			t.Errorf("%s: campaigns %q", tc.name, p.stories)
		}
		if tc.stays {
			p.mustLead("a")
		}
	}
}

// Who follows a leader that leads no more, without having noticed, hears it from that one, and elects another.
func TestElectDisowned(t *testing.T) {
	for name, disown := range map[string]func(n *pretendNode){
		"it has stepped down, and must not lead": func(n *pretendNode) {
			n.leader, n.quarantined = "", true
			n.term++
			n.elections.Begin(n)
		},
		"it has stepped down without a later term": func(n *pretendNode) {
			n.leader, n.learner = "", true
			n.elections.Begin(n)
		},
		"its replica is closed": func(n *pretendNode) {
			n.elections.Leave(n)
			n.open = false
		},
		"its replica is closed before its first entry": func(n *pretendNode) {
			for _, other := range n.p.nodes {
				other.term++
			}
			n.elections.Leave(n)
			n.open = false
		},
	} {
		for offset := range 3 {
			p := newPretend(t, "a", "b", "c")
			for _, n := range p.nodes {
				n.open, n.leader = true, "a"
			}
			p.nodes["b"].slow = time.Duration(10*offset) * time.Millisecond
			disown(p.nodes["a"])
			p.run(2 * time.Second)
			if got := p.nodes["b"].leader; got != "b" || p.nodes["c"].leader != "b" {
				t.Errorf("%s: b follows %q, campaigns %q", name, got, p.stories)
			}
		}
	}
}

// A leader that must not lead hands over; nobody takes its word that it looks for another one as a farewell.
func TestElectBarredLeaderIsFollowed(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for _, n := range p.nodes {
		n.open, n.leader = true, "a"
	}
	p.nodes["a"].quarantined = true
	p.nodes["a"].elections.Begin(p.nodes["a"])
	p.run(20 * time.Millisecond)
	for _, name := range []string{"b", "c"} {
		if len(p.nodes[name].elections.running) > 0 && len(p.stories) == 0 {
			t.Errorf("%s looks for a leader", name)
		}
	}
	p.run(time.Second)
	if len(p.stories) == 0 || !strings.Contains(p.stories[0], "a yields to b") {
		t.Errorf("it does not hand over first: %q", p.stories)
	}
}

// If only a member that must not lead can win, it does, and hands over to one that then has what it lacked.
func TestElectLendsItsLog(t *testing.T) {
	for _, tc := range []struct {
		name    string
		barred  []string
		learner string
		want    string
	}{
		{"one of two", []string{"b"}, "", "c"},
		{"all", []string{"b", "c"}, "", ""},
		{"a learner", []string{"b"}, "b", ""},
	} {
		p := newPretend(t, "a", "b", "c")
		p.campaign = func(n *pretendNode) {
			p.win(n)
			for _, o := range p.nodes {
				if n.leader == n.name && o.leader == n.name {
					o.log = n.log // what it replicates
				}
			}
		}
		for _, name := range []string{"b", "c"} {
			p.nodes[name].unreached["a"], p.nodes["a"].unreached[name] = true, true
			p.nodes[name].quarantined, p.nodes[name].learner = slices.Contains(tc.barred, name), tc.learner == name
		}
		p.nodes["b"].log.Index = 20
		p.nodes["b"].start()
		p.nodes["c"].start()
		p.run(4 * time.Second)
		if got := p.nodes["c"].leader; got != tc.want {
			t.Errorf("%s: c follows %q, want %q: %q", tc.name, got, tc.want, p.stories)
		}
		if n := len(p.stories); tc.want != "" && n > 3 {
			t.Errorf("%s: %q", tc.name, p.stories)
		}
	}
}
