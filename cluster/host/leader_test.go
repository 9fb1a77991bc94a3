package host

import (
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// Raft may tell of a leader whose node has died since: the group is looked
// after as one without a leader.
func TestLeaderThatDiedBeforeItWasSeen(t *testing.T) {
	c := mustTrio(t)
	all := c.mustOpen(1)
	dead, g := c.host(all[0]), all[1]
	h := c.host(g)
	name := dead.config.Node
	dead.shut(t)
	await(t, "the node is dead", func() bool { return !h.mesh.Alive(name) })
	for _, other := range c.hosts { // nobody campaigns
		other.elections.End(1)
	}
	h.leaderSeen(in(g), name)
	if !h.elections.Runs(1) && h.Group(1).Leader() == name {
		t.Error("nobody looks for a leader")
	}
}

// A leadership that moves with its node's death costs the queue two entries: raft's own, and one that has all that has waited
// for a leader, be it a command, a deadline, or other settings.
func TestEntriesOfFailover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ttl      fsm.Millis
		settings *group.QueueConfig
		waits    bool
		entries  uint64
	}{
		"nothing":                         {-1, nil, false, 1},
		"deadline":                        {3_600_000, nil, false, 2},
		"command":                         {-1, nil, true, 2},
		"command and deadline":            {3_600_000, nil, true, 2},
		"command, deadline, new settings": {3_600_000, &group.QueueConfig{DeliveryLimit: 21, Revision: 5}, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var changed atomic.Pointer[group.QueueConfig]
			nodes := mustTrio(t, func(conf *Config) {
				conf.Heartbeat = 0 // followers hear of a commit after a minute
				conf.Settings = func(fsm.QueueID) *group.QueueConfig { return proto.CloneOf(changed.Load()) }
			})
			g := nodes.mustOpen(1)[0]
			mustSubmit(t, g, enqueues(1, c.ttl, "m"))
			await(t, "the message", func() bool { return ready(g) == 1 })
			last, dead := uint64(0), nodes.host(g)
			for _, r := range nodes.replicas(1) {
				await(t, "the entry everywhere", func() bool {
					last = in(g).LastIndex()
					return in(r).LastIndex() == last
				})
			}
			changed.Store(c.settings)
			dead.shut(t)
			for _, h := range nodes.hosts {
				if h == dead || !c.waits {
					continue
				}
				h.outside.mu.Lock()
				h.outside.led = func(r *group.Group) { mustSubmit(t, r, enqueues(2, c.ttl, "m")) }
				h.outside.mu.Unlock()
				h.Want(1, trioNames)
			}
			want := map[bool]uint64{false: 1, true: 2}[c.waits]
			var leads *group.Group
			await(t, "another leader, and the messages there", func() bool {
				for _, h := range nodes.hosts {
					if r := h.Group(1); h != dead && r.Leading() != 0 && ready(r) == want && in(r).LastIndex() >= last+c.entries {
						leads = r
					}
				}
				return leads != nil
			})
			began := time.Now()
			for _, h := range nodes.hosts {
				if h == dead || c.waits {
					continue // the last command there may wait for the next
				}
				await(t, "the messages everywhere", func() bool { return ready(h.Group(1)) == want })
				if took := time.Since(began); took > lagAgain/2 { // when the lag watch would tell it
					t.Errorf("a follower hears of the commit after %v", took)
				}
			}
			if n := in(leads).LastIndex() - last; n != c.entries {
				t.Errorf("the log has grown by %d entries, want %d", n, c.entries)
			}
		})
	}
}
