package group

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Settings of queue groups that are not a matter of taste; the reasons are in
// DESIGN.md.
const (
	maxAppendEntries = 32
	TrailingLogs     = 128 // at first; see setTrailing
	never            = 24 * time.Hour
	// promptHeartbeat is below which heartbeats cannot wait for company.
	promptHeartbeat = 10 * time.Second
)

// openRaft starts the group's raft.
func (g *Group) openRaft() error {
	g.trust.open(g.store, g.host.config.Clock.Now())
	g.preferred = g.spec.Members
	c := g.raftConfig()
	o := opening{
		config: c, machine: &g.applier, newest: g.host.config.Newest, admits: admitEntry, fail: g.host.fail, prompt: c.HeartbeatTimeout < promptHeartbeat,
		transport: func(t transport) raft.Transport {
			t.Exchange(&snapshotOffers{g: g})
			return boundedTransport{abstaining{refusals{t, &g.host.applying.meters.refused}, g.trust.refuses}, &g.replica, g.store, &g.throttle}
		},
	}
	if !g.spec.Joins && !g.isLearner() {
		o.founders = g.spec.Members
	}
	if err := g.start(o); err != nil {
		return fmt.Errorf("group %d: %w", g.spec.Group, err)
	}
	g.applier.start()
	return nil
}

// boundedTransport is a transport whose requests fit into a message of the mesh. Raft
// bounds a request by the number of its entries only; it goes on behind the
// last one that the request has in the end. Only a follower that lags gets
// more than fits: a pipeline that refuses a request makes raft come here.
//
// It sends entries whole, although raft reads them without the payload sections
// that are not in memory.
type boundedTransport struct {
	transport
	log      boundedLog
	sections sections
	throttle requestThrottle
}

// boundedLog is what a bounded transport needs of a replica.
type boundedLog interface {
	lastIndex() uint64
	nudgeSoon()
}

// sections reads the payload section that an entry was read without, see raftlog.Group.Complete.
type sections interface{ Complete(l *raft.Log) error }

// requestThrottle holds requests to members that lag much back, see throttle.
type requestThrottle interface {
	reserve(id raft.ServerID, bytes int) (done func())
	pause(id raft.ServerID, took time.Duration, entries int)
}

// maxRequestBytes is little beside what fits into a message: entries of other
// groups wait behind it.
const maxRequestBytes = 4 << 20

// AppendEntries implements raft.Transport.
func (b boundedTransport) AppendEntries(id raft.ServerID, addr raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	size := 0
	for i, l := range args.Entries {
		if err := b.sections.Complete(l); err != nil {
			return err
		}
		size += len(l.Data) + len(l.Extensions)
		if i > 0 && size > maxRequestBytes {
			args.Entries = args.Entries[:i]
			size -= len(l.Data) + len(l.Extensions)
			break
		}
	}
	n := len(args.Entries)
	if n > 0 && b.log.lastIndex() > args.Entries[n-1].Index+lagsMuch {
		defer b.throttle.reserve(id, size)()
	}
	began := time.Now()
	err := b.transport.AppendEntries(id, addr, args, resp)
	if err == nil && n > 0 && b.log.lastIndex() > args.Entries[n-1].Index+lagsMuch {
		b.throttle.pause(id, time.Since(began), n)
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport.
func (b boundedTransport) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := b.transport.AppendEntriesPipeline(id, addr)
	return boundedPipeline{p, b.log, b.sections}, err
}

// boundedPipeline is a pipeline to a follower that does not lag much. Each time raft is
// triggered it sends one request through a pipeline, of maxAppendEntries at
// most: in a queue in which nothing happens any more nothing would trigger the
// next one. Without a pipeline raft sends one request after the other, up to the
// last entry, and waits for each answer.
type boundedPipeline struct {
	raft.AppendPipeline
	log      boundedLog
	sections sections
}

// lagsMuch is how many entries behind a follower lags much.
const lagsMuch = 8 * maxAppendEntries

// errLags makes raft give the pipeline up.
var errLags = errors.New("a follower lags: entries are sent to it without a pipeline")

// AppendEntries implements raft.AppendPipeline. If entries are left behind a full
// request, raft is triggered again.
func (p boundedPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if n := len(args.Entries); n == maxAppendEntries {
		sent, last := args.Entries[n-1].Index, p.log.lastIndex()
		if last > sent {
			p.log.nudgeSoon()
		}
		if last > sent+lagsMuch {
			return nil, errLags
		}
	}
	for _, l := range args.Entries {
		if err := p.sections.Complete(l); err != nil {
			return nil, err
		}
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}

func (g *Group) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(g.node)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout = never, never, never, never
	if h := g.host.config.Heartbeat; h > 0 {
		c.LeaderLeaseTimeout, c.CommitTimeout = h*45/100, min(h, time.Second)
		if !g.isLearner() { // which does not stand
			c.HeartbeatTimeout, c.ElectionTimeout = h, h
		}
	}
	c.MaxAppendEntries = maxAppendEntries
	// Entries are batches already. And a future that waits in the channel
	// when raft shuts down is never answered; without a buffer none waits.
	c.BatchApplyCh = false
	c.SnapshotInterval = never
	c.SnapshotThreshold = 1 << 62
	c.TrailingLogs = TrailingLogs
	c.NoLegacyTelemetry = true
	c.ShutdownOnRemove = false
	c.Logger = newRaftLogger(&g.host.lines, g.slog)
	return c
}

// standByTimers gives a replica that is no longer a learner the timers of raft that are configured.
func (g *Group) standByTimers() {
	h := g.host.config.Heartbeat
	if h == 0 {
		return
	}
	if err := g.reload(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = h, h }); err != nil {
		g.slog.Warn("raft timers not set", "error", err)
	}
}
