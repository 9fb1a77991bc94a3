package host

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
)

// A leader steps down when a majority of its voters has been out of reach for long.
func TestOutnumbered(t *testing.T) {
	s, now := &silences{}, time.Unix(1000, 0)
	peers := []peer.PeerStatus{{Node: "n2"}, {Node: "n3", Alive: true}}
	voters := []string{"n1", "n2", "n3"}
	step := func(d time.Duration, want int, other string) {
		t.Helper()
		now = now.Add(d)
		long := s.long(peers, now)
		if got := outnumbered(voters, long); len(long) != want || got != other {
			t.Errorf("%v are silent, it steps down for %q; want %d and %q", long, got, want, other)
		}
	}
	step(0, 0, "")
	step(majorityWait-1, 0, "")
	step(1, 1, "") // one of two
	peers[1].Alive = false
	step(1, 1, "")
	step(majorityWait, 2, "n3")
	peers[0].Alive = true
	step(1, 1, "")
	peers[0].Alive = false
	step(1, 1, "") // from anew
	step(majorityWait, 2, "n3")
	voters = []string{"n1", "n4", "n5"}
	step(0, 2, "")
	voters = []string{"n1", "n2"}
	step(0, 2, "n2")
}

// The same on a host.
func TestLeaderAloneStepsDown(t *testing.T) {
	t.Parallel()
	c, _ := mustCut(t)
	g := c.mustOpen(1)[0]
	term := g.Term()
	c.host(g).stepDownAlone(in(g), map[string]bool{c.other(g).config.Node: true})
	if role, now := in(g).Role(); role != raft.Leader || now != term {
		t.Fatalf("a leader with a majority is a %v of term %d", role, now)
	}
	silent := map[string]bool{"n1": true, "n2": true, "n3": true}
	delete(silent, in(g).Node())
	c.host(g).stepDownAlone(in(g), silent)
	await(t, "it has stepped down", func() bool { return g.Term() > term })
	c.mustLead(1)
}
