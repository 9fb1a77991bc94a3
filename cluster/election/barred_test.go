package election

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A quarantined member does not stand, and has no slot that others wait for.
func TestElectQuarantined(t *testing.T) {
	for _, tc := range []struct {
		name   string
		barred string
		longer []string // members with the longest log
		leader string   // empty: nobody stands
	}{
		{"the first", "a", nil, "b"},
		{"two", "ab", nil, "c"},
		{"with the longest log", "a", []string{"a"}, "b"},
		{"all", "abc", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPretend(t, "a", "b", "c")
			for _, name := range p.order {
				n := p.nodes[name]
				n.quarantined = strings.Contains(tc.barred, name)
				if slices.Contains(tc.longer, name) {
					n.log.Index++
				}
				n.start()
			}
			p.mustElect(tc.leader)
		})
	}
}

// A leader in raft's eyes that is quarantined hands over at once to a member
// that is not, and if there is none, as soon as there is.
func TestElectInsteadOfQuarantined(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for _, name := range p.order {
		n := p.nodes[name]
		n.open, n.leader, n.quarantined = true, "a", name != "c"
	}
	p.nodes["c"].log.Index--
	p.nodes["c"].log.Term = 2
	p.nodes["a"].start()
	p.run(100 * time.Millisecond)
	if len(p.stories) != 2 || !strings.HasSuffix(p.stories[0], "a yields to c") {
		t.Fatalf("what happens: %q", p.stories)
	}
	p.mustLead("c")

	p.stories = nil
	p.nodes["c"].quarantined = true
	p.nodes["c"].start()
	p.run(10 * time.Second)
	p.mustCampaign()
	p.nodes["b"].quarantined = false
	p.nodes["b"].log = position(2, 9)
	p.run(2 * time.Second)
	if len(p.stories) != 2 || !strings.HasSuffix(p.stories[0], "c yields to b") {
		t.Fatalf("what happens: %q", p.stories)
	}
	p.mustLead("b")
}

// A member that has resigned lately does not stand, unless nobody else can win.
func TestElectResigned(t *testing.T) {
	for _, tc := range []struct {
		longer []string
		leader string
	}{{nil, "b"}, {[]string{"a"}, "b"}, {[]string{"a", "c"}, "c"}} {
		p := newPretend(t, "a", "b", "c")
		p.nodes["a"].tired = true
		for _, n := range p.nodes {
			if slices.Contains(tc.longer, n.name) {
				n.log.Index++
			}
		}
		for _, name := range p.order {
			p.nodes[name].start()
		}
		p.run(3 * time.Second)
		p.mustCampaign(tc.leader)
		p.mustLead(tc.leader)
	}
	p := newPretend(t, "a", "b", "c")
	for _, name := range []string{"a", "b"} {
		p.nodes[name].unreached["c"], p.nodes["c"].unreached[name] = true, true
		p.nodes[name].start()
	}
	p.nodes["a"].tired = true
	p.nodes["a"].log.Index++
	p.run(3 * time.Second)
	p.mustCampaign("a")
	p.mustLead("a")
}

// A learner never stands, has no slot, and its vote counts for nobody: who would
// need it does not stand either.
func TestElectWithLearners(t *testing.T) {
	for _, tc := range []struct {
		name     string
		learners string
		down     string
		leader   string // empty: nobody stands
	}{
		{"the first", "a", "", "b"},
		{"the last", "c", "", "a"},
		{"two", "ab", "", ""},
		{"one, and one is down", "a", "b", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPretend(t, "a", "b", "c")
			for _, name := range p.order {
				n := p.nodes[name]
				n.learner = strings.Contains(tc.learners, name)
				for _, other := range p.order {
					n.unreached[other] = strings.Contains(tc.down, other) != strings.Contains(tc.down, name)
				}
				if !strings.Contains(tc.down, name) {
					n.start()
				}
			}
			p.mustElect(tc.leader)
		})
	}
}
