package group

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
)

// The members of a group may live on nodes with different numbers of groups:
// the slowest leader is quicker than the most impatient follower, and than any
// lease.
func TestTimersFitTogether(t *testing.T) {
	const slowest = manyHeartbeat / 5 // raft: a tenth, and at random as much again
	const reserve = 5 * time.Second   // for a heartbeat's way and a busy machine
	if slowest+reserve > fewHeartbeat || slowest+reserve > leaderLease {
		t.Errorf("heartbeats come every %v, followers wait %v, the lease is %v", slowest, fewHeartbeat, leaderLease)
	}
	if leaderLease > fewHeartbeat {
		t.Error("raft refuses such a lease")
	}
}

// Groups get the timers that fit the number of groups, whether they are opened
// before or after it is known; all of them, in the end.
func TestTimersFollowTheNumberOfGroups(t *testing.T) {
	n := mustHost(t, t.TempDir())
	n.config.Heartbeat = 0
	var groups []*Group
	open := func() {
		t.Helper()
		id := fsm.GroupID(len(groups) + 1)
		g, err := n.Open(Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: fmt.Sprint("q", id), Members: []string{"n1"}, Config: &QueueConfig{}})
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	await := func(want time.Duration) {
		t.Helper()
		limit := time.NewTimer(patience)
		defer limit.Stop()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for _, g := range groups {
			for c := g.raft.Load().ReloadableConfig(); c.HeartbeatTimeout != want || c.ElectionTimeout != want; c = g.raft.Load().ReloadableConfig() {
				select {
				case <-tick.C:
				case <-limit.C:
					t.Fatalf("group %d has %v and %v, want %v", g.spec.Group, c.HeartbeatTimeout, c.ElectionTimeout, want)
				}
			}
		}
	}
	open()
	await(fewHeartbeat)
	n.Expect(manyGroups)
	open()
	await(fewHeartbeat)
	n.Expect(manyGroups + 1)
	open()
	await(manyHeartbeat)
	n.Expect(manyGroups / 2)
	open()
	await(manyHeartbeat)
	n.Expect(0)
	await(fewHeartbeat)
}
