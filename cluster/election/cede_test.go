package election

import (
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/replica"
)

// A link that is down for a moment moves no leadership that nobody waits for. The member finds its leader
// again, late because the leader's side of the link is down for longer.
func TestLeaderOutOfReachAtRest(t *testing.T) {
	p := newPretend(t, "a", "b", "c")
	for _, n := range p.nodes {
		n.open, n.leader, n.due = true, "a", replica.Never
	}
	p.nodes["a"].lost("c")
	p.nodes["c"].lost("a")
	p.run(time.Second)
	delete(p.nodes["c"].unreached, "a")
	p.run(DeathPatience - outOfReachAfter)
	p.mustCampaign()
	delete(p.nodes["a"].unreached, "c")
	p.run(time.Minute)
	p.mustCampaign()
	p.nodes["a"].lost("c")
	p.nodes["c"].lost("a")
	p.run(3 * DeathPatience)
	p.mustCampaign("b", "b") // the link does not come back
}
