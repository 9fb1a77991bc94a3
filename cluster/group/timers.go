package group

import (
	"time"

	"github.com/hashicorp/raft"
)

// Raft's timers for queue groups. They are a safety net: failures are noticed
// per node, see elections. Above manyGroups the net is wider, for each
// heartbeat of an idle group costs as much as that of a busy one.
//
// A leader sends a heartbeat every 0.1 to 0.2 times its own HeartbeatTimeout;
// a follower waits for its own. The members of a group need not agree, since
// their nodes may have different numbers of groups; so even the slowest
// leader must be quicker than the most impatient follower, and than any
// leader's lease, which raft cannot change while it runs:
//
//	manyHeartbeat / 5 < fewHeartbeat, leaderLease ≤ fewHeartbeat
const (
	manyGroups    = 2000
	fewHeartbeat  = 30 * time.Second
	manyHeartbeat = 100 * time.Second
	leaderLease   = fewHeartbeat
	// commitTimeout is also when raft repeats a replication that failed without
	// a broken link.
	commitTimeout = time.Minute
	// promptHeartbeat is below which heartbeats cannot wait for company.
	promptHeartbeat = 5 * time.Second
)

// Expect says how many groups the node will have, while it starts; 0 when it
// has.
func (h *Host) Expect(groups int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expected = groups
	h.repace()
}

// repace sees whether the number of groups asks for other timers, and if so
// gives them to the groups that are open. h.mu is held.
func (h *Host) repace() {
	was, n := h.many, max(h.expected, len(h.groups))
	switch {
	case n > manyGroups:
		h.many = true
	case n < manyGroups/2: // not back and forth
		h.many = false
	}
	if h.many == was || h.closed {
		return
	}
	h.done.Go(func() {
		for _, g := range h.Groups() {
			g.repace()
		}
	})
}

// heartbeat is raft's HeartbeatTimeout at present.
func (h *Host) heartbeat() time.Duration {
	if h.config.Heartbeat > 0 {
		return h.config.Heartbeat
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.many {
		return manyHeartbeat
	}
	return fewHeartbeat
}

// setTimers gives a new raft its timers.
func (h *Host) setTimers(c *raft.Config) {
	c.HeartbeatTimeout = h.heartbeat()
	c.ElectionTimeout = c.HeartbeatTimeout
	if h.config.Heartbeat > 0 {
		c.LeaderLeaseTimeout = c.HeartbeatTimeout * 45 / 100
		c.CommitTimeout = min(c.HeartbeatTimeout, time.Second)
		return
	}
	c.LeaderLeaseTimeout = leaderLease
	c.CommitTimeout = commitTimeout
}

// repace gives a running group the node's present timers.
func (g *Group) repace() {
	err := g.reload(func(c *raft.ReloadableConfig) {
		c.HeartbeatTimeout = g.host.heartbeat()
		if g.trust.unproven() {
			c.HeartbeatTimeout = never // it does not stand
		}
		c.ElectionTimeout = c.HeartbeatTimeout
	})
	if err != nil {
		g.slog.Warn("raft timers not set", "error", err)
	}
}

// reload changes settings of the running raft.
func (g *Group) reload(change func(c *raft.ReloadableConfig)) error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	was := g.raft.ReloadableConfig()
	c := was
	if change(&c); c == was {
		return nil
	}
	return g.raft.ReloadConfig(c)
}
