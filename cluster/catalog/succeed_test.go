package catalog

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
)

// mustWait makes raft's own timers too long for a test, all but the one given.
func mustWait(t *testing.T, k *Catalog, heartbeat time.Duration) {
	t.Helper()
	err := k.Reload(func(r *raft.ReloadableConfig) { r.HeartbeatTimeout, r.ElectionTimeout = heartbeat, replica.Never })
	if err != nil {
		t.Fatal(err)
	}
}

// A node stands for election when the catalog's leader is down, even if raft's own timer was first and
// the other voter, which had heard of no failure yet, did not let it stand. Nobody waits for raft's next
// attempt.
func TestCatalogCandidateSucceeds(t *testing.T) {
	t.Parallel()
	c := mustCatalogs(t)
	mustDefine(t, c.all[0], "first")
	at := c.mustLead()
	leader := c.all[at].Node()
	next, other := c.all[(at+1)%3], c.all[(at+2)%3]
	mustDefine(t, next, "second")
	mustDefine(t, other, "third") // they have heard of the leader
	mustWait(t, other, replica.Never)
	mustWait(t, next, catalogLease)
	if err := c.hosts[at].mesh.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "it is a candidate", func() bool { return next.Raft().State() != raft.Follower })
	await(t, "the leader is down", func() bool { return !next.config.Mesh.Alive(leader) })
	next.PeerChanged(peer.Event{Node: leader, Reason: peer.Refused})
	await(t, "it leads", next.IsLeader)
	await(t, "the other one follows", func() bool { return other.Leader() == next.Node() })
}

// A node stands in the place of the catalog's leader and of no other node. While it has a lease it leaves
// a silent leader in office: that has granted the lease through another voter, and only the link between
// the two is broken.
func TestCatalogNeedsLeader(t *testing.T) {
	for name, c := range map[string]struct {
		leader, reason string
		lease, needs   bool
	}{
		"a silent leader":                   {leader: "n1", reason: peer.Suspected, needs: true},
		"behind a broken link":              {leader: "n1", reason: peer.Suspected, lease: true},
		"a dead leader":                     {leader: "n1", reason: peer.Refused, lease: true, needs: true},
		"a leader that restarts":            {leader: "n1", reason: peer.Restarted, lease: true, needs: true},
		"a silent node while another leads": {leader: "n3", reason: peer.Suspected},
		"a dead node while another leads":   {leader: "n3", reason: peer.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			a := mustAsk(t, c.leader)
			if c.lease {
				a.lease.extend(time.Now().Add(time.Hour))
			}
			if got := a.needsLeader(peer.Event{Node: "n1", Reason: c.reason}); got != c.needs {
				t.Errorf("%v", got)
			}
		})
	}
}
