package group

import (
	"sync"
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
	promptHeartbeat = 10 * time.Second
)

// groupTimers is what the rafts of a node's queue groups share: their timers, chosen by their number, and
// how much they may log.
type groupTimers struct {
	config *Config
	lines  logGate

	mu       sync.Mutex
	expected int  // groups, while the node starts
	many     bool // there are, or will be, or were and have not become few
}

// update takes the number of groups, and reports whether it asks for other timers
// than before. expected is that of the time after the start; negative: as it was.
func (t *groupTimers) update(groups func() int, expected int) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if expected >= 0 {
		t.expected = expected
	}
	was, n := t.many, max(t.expected, groups())
	switch {
	case n > manyGroups:
		t.many = true
	case n < manyGroups/2: // not back and forth
		t.many = false
	}
	return t.many != was
}

// heartbeat is raft's HeartbeatTimeout at present.
func (t *groupTimers) heartbeat() time.Duration {
	if t.config.Heartbeat > 0 {
		return t.config.Heartbeat
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.many {
		return manyHeartbeat
	}
	return fewHeartbeat
}

// set gives a new raft its timers.
func (t *groupTimers) set(c *raft.Config) {
	c.HeartbeatTimeout = t.heartbeat()
	c.ElectionTimeout = c.HeartbeatTimeout
	if t.config.Heartbeat > 0 {
		c.LeaderLeaseTimeout = c.HeartbeatTimeout * 45 / 100
		c.CommitTimeout = min(c.HeartbeatTimeout, time.Second)
		return
	}
	c.LeaderLeaseTimeout = leaderLease
	c.CommitTimeout = commitTimeout
}
