package group

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/replica"
)

// Settings of queue groups that are not a matter of taste; the reasons are in
// DESIGN.md.
const (
	TrailingLogs = 128 // at first; see setTrailing
	// promptHeartbeat is below which heartbeats cannot wait for company.
	promptHeartbeat = 10 * time.Second
)

// openRaft starts the group's raft.
func (g *instance) openRaft() error {
	g.Trusted().Open(g.store, g.host.config.Clock.Now())
	c := g.raftConfig()
	o := replica.Opening{
		Config: c, Machine: &g.applier, Newest: g.host.config.Newest, Admits: admitEntry, Fail: g.host.fail, Prompt: c.HeartbeatTimeout < promptHeartbeat,
		Transport: func(t replica.Transport) raft.Transport {
			t.Exchange(&snapshotOffers{g: g})
			return replica.BoundedTransport{
				Transport: replica.AbstainingTransport{Transport: refusals{t, &g.host.applying.meters.refused}, Refuses: g.Trusted().Refuses},
				Log:       g.Replica, Sections: g.store, Throttle: &g.throttle,
			}
		},
	}
	switch {
	case g.resumes != nil:
		o.Resumes = g.resumes.resumption()
	case !g.spec.Joins && !g.IsLearner():
		if g.host.config.Version() < timerless {
			o.Founders = g.spec.Members
		} else {
			g.store.Found(founding(&g.spec))
		}
	}
	if err := g.Replica.Start(o); err != nil {
		return fmt.Errorf("group %d: %w", g.spec.Group, err)
	}
	g.applier.start()
	return nil
}

func (g *instance) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(g.Node())
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout = replica.Never, replica.Never, replica.Never, replica.Never
	if h := g.host.config.Heartbeat; h > 0 {
		c.LeaderLeaseTimeout, c.CommitTimeout = h*45/100, min(h, time.Second)
		if !g.IsLearner() { // which does not stand
			c.HeartbeatTimeout, c.ElectionTimeout = h, h
		}
	}
	c.MaxAppendEntries = replica.MaxAppendEntries
	// Entries are batches already. And a future that waits in the channel
	// when raft shuts down is never answered; without a buffer none waits.
	c.BatchApplyCh = false
	c.SnapshotInterval = replica.Never
	c.SnapshotThreshold = 1 << 62
	c.TrailingLogs = TrailingLogs
	c.NoLegacyTelemetry = true
	c.ShutdownOnRemove = false
	c.Logger = replica.NewLogger(&g.host.lines, g.slog)
	return c
}

// standByTimers gives a replica that is no longer a learner the timers of raft that are configured.
func (g *instance) standByTimers() {
	h := g.host.config.Heartbeat
	if h == 0 {
		return
	}
	if err := g.Reload(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = h, h }); err != nil {
		g.slog.Warn("raft timers not set", "error", err)
	}
}
