package group

import (
	"fmt"
	"sync/atomic"
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
	// Timerless is the cluster's version from which on raft has no timers at any node.
	Timerless = 3
)

// openRaft starts the group's raft.
func (g *Instance) openRaft() error {
	g.Trusted().Open(g.store, g.node.config.Clock.Now())
	c := g.raftConfig()
	o := replica.Opening{
		Config: c, Machine: &g.applier, Newest: g.node.config.Newest, Admits: admitEntry, Fail: g.node.fail, Prompt: c.HeartbeatTimeout < promptHeartbeat,
		Transport: func(t replica.Transport) raft.Transport {
			t.Exchange(&snapshotOffers{g: g})
			return replica.BoundedTransport{
				Transport: replica.AbstainingTransport{Transport: refusals{t, &g.node.applying.meters.refused}, Refuses: g.Trusted().Refuses},
				Log:       g.Replica, Sections: g.store, Throttle: g.node.Throttle(g.Replica),
			}
		},
	}
	switch {
	case g.resumes != nil:
		o.Resumes = g.resumes.resumption()
	case !g.spec.Joins && !g.IsLearner():
		if g.node.config.Version() < Timerless {
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

func (g *Instance) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(g.Node())
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout = replica.Never, replica.Never, replica.Never, replica.Never
	if h := g.node.config.Heartbeat; h > 0 {
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
	c.Logger = replica.NewLogger(&g.node.lines, g.slog)
	return c
}

// standByTimers gives a replica that is no longer a learner the timers of raft that are configured.
func (g *Instance) standByTimers() {
	h := g.node.config.Heartbeat
	if h == 0 {
		return
	}
	if err := g.Reload(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = h, h }); err != nil {
		g.slog.Warn("raft timers not set", "error", err)
	}
}

// refusals is a transport that counts the requests to append that other members refuse. Behind a
// refusal in a pipeline raft sends the request again without one.
type refusals struct {
	replica.Transport
	count *atomic.Uint64
}

// AppendEntries implements raft.Transport.
func (r refusals) AppendEntries(id raft.ServerID, addr raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := r.Transport.AppendEntries(id, addr, args, resp)
	if err == nil && !resp.Success {
		r.count.Add(1)
	}
	return err
}
