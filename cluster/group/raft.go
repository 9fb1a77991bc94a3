package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
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
func (g *instance) openRaft() error {
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
	switch {
	case g.resumes != nil:
		o.resumes = &resumption{record: g.resumes, started: make(chan struct{})}
	case !g.spec.Joins && !g.isLearner():
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

func (g *instance) raftConfig() *raft.Config {
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
func (g *instance) standByTimers() {
	h := g.host.config.Heartbeat
	if h == 0 {
		return
	}
	if err := g.reload(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = h, h }); err != nil {
		g.slog.Warn("raft timers not set", "error", err)
	}
}

// linesPerSecond is how many of raft's lines a node logs at most. The failure of a node is thousands of
// elections, each with some lines that say so.
const linesPerSecond = 20

// logGate lets some of the lines through that the rafts of a node would log, and counts the others.
type logGate struct {
	now func() time.Time

	mu     sync.Mutex
	second int64
	lines  int
	left   int // out, since the last line that was logged
}

// pass reports whether a line may be logged, and how many have been left out before it.
func (g *logGate) pass() (left int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now().Unix(); now != g.second {
		g.second, g.lines = now, 0
	}
	if g.lines >= linesPerSecond {
		g.left++
		return 0, false
	}
	g.lines++
	left, g.left = g.left, 0
	return left, true
}

// raftLogger logs what a raft warns of, as far as its node's gate allows. What does not pass is not even
// formatted.
type raftLogger struct {
	hclog.Logger // that logs nothing
	gate         *logGate
	to           *slog.Logger
}

func newRaftLogger(gate *logGate, to *slog.Logger) hclog.Logger {
	return raftLogger{hclog.NewNullLogger(), gate, to}
}

// Warn implements hclog.Logger.
func (l raftLogger) Warn(line string, args ...any) {
	if isUsual(line) {
		l.to.Debug("raft", append([]any{"line", line}, args...)...)
		return
	}
	l.log(slog.LevelWarn, line, args)
}

// Error implements hclog.Logger.
func (l raftLogger) Error(line string, args ...any) { l.log(slog.LevelError, line, args) }

// IsWarn implements hclog.Logger.
func (l raftLogger) IsWarn() bool { return true }

// IsError implements hclog.Logger.
func (l raftLogger) IsError() bool { return true }

// isUsual reports whether a line is about what happens at every start and every
// join, although raft warns of it: a follower that hears of no leader yet stands
// for election, and a new one has no entries that could be compared.
func isUsual(line string) bool {
	return line == "heartbeat timeout reached, starting election" || line == "failed to get previous log"
}

func (l raftLogger) log(level slog.Level, line string, args []any) {
	for _, a := range args {
		if err, ok := a.(error); ok && errors.Is(err, errLags) {
			return // it is wanted
		}
	}
	if !l.to.Enabled(context.Background(), level) {
		return
	}
	left, ok := l.gate.pass()
	if !ok {
		return
	}
	to := l.to
	if left > 0 {
		to = to.With("left_out", left)
	}
	to.Log(context.Background(), level, "raft", append([]any{"line", line}, args...)...)
}

// gaugeOf is the function of raft that looks for the oldest entry of a leader's log, each ten seconds, for a
// gauge that nobody reads.
const gaugeOf = "github.com/hashicorp/raft.oldestLog"

// raftsLog is a log as raft gets it. It lets raft's gauge wait until the leadership is over, since thousands of
// groups would wake their nodes for it, and tells when there is more.
type raftsLog struct {
	raft.LogStore
	over   func() <-chan struct{} // closed when the replica leads no more
	ending <-chan struct{}
	grown  func() // nil: nobody wants to know
}

// StoreLogs implements raft.LogStore.
func (l raftsLog) StoreLogs(logs []*raft.Log) error {
	err := l.LogStore.StoreLogs(logs)
	if l.grown != nil {
		l.grown()
	}
	return err
}

// FirstIndex implements raft.LogStore.
func (l raftsLog) FirstIndex() (uint64, error) {
	var caller [1]uintptr
	runtime.Callers(2, caller[:])
	if frame, _ := runtime.CallersFrames(caller[:]).Next(); frame.Function != gaugeOf {
		return l.LogStore.FirstIndex()
	}
	select {
	case <-l.over():
	case <-l.ending:
	}
	return 0, nil
}

// tenure is a channel that is closed when a leadership ends.
type tenure struct {
	mu   sync.Mutex
	done chan struct{} // nil: nobody has asked for it
}

func (t *tenure) over() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
	}
	return t.done
}

// end ends it. The next one begins.
func (t *tenure) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done != nil {
		close(t.done)
		t.done = nil
	}
}
