package group

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
)

// Settings of queue groups that are not a matter of taste; the reasons are in
// DESIGN.md.
const (
	maxAppendEntries = 32
	TrailingLogs     = 128 // at first; see setTrailing
	never            = 24 * time.Hour
)

// openRaft starts the group's raft, creating its first configuration if the
// group has no past on this node.
func (g *Group) openRaft() error {
	g.trust.open(g.log, g.host.clock.Now())
	c := g.raftConfig()
	judge := newJudge(g.log, g.host.config.Newest, admitEntry)
	g.transport = g.host.config.Mesh.TransportFor(g.spec.Group, judge).(transport)
	g.transport.Exchange(exchange{g})
	transport := bounded{modest{g.transport, g.trust.refuses}, g}
	g.host.config.Mesh.Withhold(g.spec.Group, g.trust.unproven)
	ballots := ballots{g.log, &g.trust}
	if c.HeartbeatTimeout < promptHeartbeat {
		g.host.config.Mesh.Prompt(g.spec.Group)
	}
	snapshots := g.log.Snapshots()
	past, err := raft.HasExistingState(g.log, g.log, snapshots)
	if err != nil {
		return fmt.Errorf("group %d: look for existing state: %w", g.spec.Group, err)
	}
	if !past && !g.spec.Joins && !g.trust.unproven() {
		var members raft.Configuration
		for _, m := range g.spec.Members {
			members.Servers = append(members.Servers, raft.Server{
				Suffrage: raft.Voter, ID: raft.ServerID(m), Address: raft.ServerAddress(m),
			})
		}
		if err := raft.BootstrapCluster(c, g.log, g.log, snapshots, transport, members); err != nil {
			return fmt.Errorf("group %d: bootstrap: %w", g.spec.Group, err)
		}
	}
	r, err := raft.NewRaft(c, applier{g}, g.log, ballots, snapshots, transport)
	if err != nil {
		return fmt.Errorf("group %d: start raft: %w", g.spec.Group, err)
	}
	g.raft = r
	judge.raft.Store(r)
	g.mu.Lock()
	if !g.stopped { // else nothing is known of what lives
		g.log.Started(g.machine.Live, g.machine.Index())
	}
	g.mu.Unlock()
	close(g.started)
	return nil
}

// transport is what the mesh gives a group.
type transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
	Reached(node string, term uint64) peer.Reached
	Lacks(node string, term, index uint64)
	Exchange(peer.Snapshots)
}

// bounded is a transport whose requests fit into a message of the mesh. Raft
// bounds a request by the number of its entries only; it goes on behind the
// last one that the request has in the end. Only a follower that lags gets
// more than fits: a pipeline that refuses a request makes raft come here.
type bounded struct {
	transport
	g interface {
		last() uint64
		nudgeSoon()
		share(id raft.ServerID, bytes int) (done func())
		pace(id raft.ServerID, took time.Duration, entries int)
	}
}

// maxRequestBytes is little beside what fits into a message: entries of other
// groups wait behind it.
const maxRequestBytes = 4 << 20

// AppendEntries implements raft.Transport.
func (b bounded) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	size := 0
	for i, l := range args.Entries {
		size += len(l.Data) + len(l.Extensions)
		if i > 0 && size > maxRequestBytes {
			args.Entries = args.Entries[:i]
			size -= len(l.Data) + len(l.Extensions)
			break
		}
	}
	n := len(args.Entries)
	if n > 0 && b.g.last() > args.Entries[n-1].Index+lagging {
		defer b.g.share(id, size)()
	}
	began := time.Now()
	err := b.transport.AppendEntries(id, target, args, resp)
	if err == nil && n > 0 && b.g.last() > args.Entries[n-1].Index+lagging {
		b.g.pace(id, time.Since(began), n)
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport.
func (b bounded) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := b.transport.AppendEntriesPipeline(id, target)
	return upToDate{p, b}, err
}

// upToDate is a pipeline to a follower that does not lag much. Each time raft is
// triggered it sends one request through a pipeline, of maxAppendEntries at
// most: in a queue in which nothing happens any more nothing would trigger the
// next one. Without a pipeline raft sends one request after the other, up to the
// last entry, and waits for each answer.
type upToDate struct {
	raft.AppendPipeline
	b bounded
}

// lagging is how many entries behind a follower lags much.
const lagging = 8 * maxAppendEntries

// errLags makes raft give the pipeline up.
var errLags = errors.New("the follower lags: it gets its entries without a pipeline")

// AppendEntries implements raft.AppendPipeline. If entries are left behind a full
// request, raft is triggered again.
func (p upToDate) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if n := len(args.Entries); n == maxAppendEntries {
		sent, last := args.Entries[n-1].Index, p.b.g.last()
		if last > sent {
			p.b.g.nudgeSoon()
		}
		if last > sent+lagging {
			return nil, errLags
		}
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}

func (g *Group) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(g.host.config.Node)
	g.host.setTimers(c)
	if g.trust.unproven() {
		c.HeartbeatTimeout, c.ElectionTimeout = never, never
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
	c.Logger = newRaftLogger(g.slog)
	return c
}

// newRaftLogger gives raft a logger that passes warnings on to slog, at most a
// few a second: the failure of a node is thousands of elections.
func newRaftLogger(to *slog.Logger) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Level: hclog.Warn, Output: &lineLogger{to: to}, DisableTime: true,
	})
}

const linesPerSecond = 5

// lineLogger turns hclog's lines into slog records.
type lineLogger struct {
	to     *slog.Logger
	mu     sync.Mutex
	second int64
	lines  int
}

// usual reports whether a line is about what happens at every start and every
// join, although raft warns of it: a follower that hears of no leader yet stands
// for election, and a new one has no entries that could be compared.
func usual(line string) bool {
	return strings.Contains(line, "heartbeat timeout reached, starting election") || strings.Contains(line, "failed to get previous log")
}

func (l *lineLogger) Write(line []byte) (int, error) {
	if strings.Contains(string(line), errLags.Error()) {
		return len(line), nil // it is wanted
	}
	l.mu.Lock()
	now := time.Now().Unix()
	if now != l.second {
		l.second, l.lines = now, 0
	}
	l.lines++
	drop := l.lines > linesPerSecond
	l.mu.Unlock()
	if !drop {
		text := strings.TrimSpace(string(line))
		if usual(text) {
			l.to.Debug("raft", "line", text)
		} else if rest, ok := strings.CutPrefix(text, "[ERROR]"); ok {
			l.to.Error("raft", "line", strings.TrimSpace(rest))
		} else {
			l.to.Warn("raft", "line", strings.TrimSpace(strings.TrimPrefix(text, "[WARN]")))
		}
	}
	return len(line), nil
}
