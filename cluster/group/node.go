package group

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// QueueConfig is a queue's effective settings.
type QueueConfig = logpb.QueueConfig

// Config is what the groups of a node are given.
type Config struct {
	Node    string
	Store   *raftlog.Store
	Mesh    *peer.Mesh
	Clock   *clock.Clock
	Exit    func(code int)
	Logger  *slog.Logger
	Outside Outside
	// LockCredit is how much of a leaderless period is given back to the holders of messages. See
	// host.Host.ReconfigureAll.
	LockCredit func() fsm.Millis
	// Settings returns the newest effective settings of a queue that this node
	// knows of; nil: those of the Spec. See host.Host.Reconfigure.
	Settings func(fsm.QueueID) *QueueConfig
	// Version returns the machine version that, to this node's knowledge, the cluster has; Newest
	// is the latest that this program supports.
	Version func() uint32
	Newest  uint32
	// Late is called with the lateness of a tick. It must not block.
	Late func(what queue.Due, late fsm.Millis)
	// Heartbeat is raft's heartbeat and election timeout for queue groups, and
	// up to 1 s its commit timeout. 0: raft has no timers, see DESIGN.md.
	Heartbeat time.Duration
	// IdleAfter is for how long nothing has to happen in a group before it sleeps; 0: none does.
	IdleAfter time.Duration
}

// Hooks are what groups call of the host that has all of a node (package host).
type Hooks struct {
	Tasks     *worker.Tasks // for groups; none starts once the host closes
	Elections *election.Elections
	Ticker    Ticker
	// Attend is called once for each instance, before that does anything.
	Attend func(i *Instance) Attendant
	// Orphan has a group looked at that sleeps and may be without a leader.
	Orphan func(g *Group)
	// Process is the newest process of a node that has been up, and since when it is known; zero: none has.
	Process func(node string) (of [16]byte, since time.Time)
	// Boots says of which boots of nodes a group that is led here has sessions, and which it suspects. One that is
	// led here no more has none.
	Boots func(g fsm.GroupID, sessions, suspected []queue.Boot)
	// Throttle slows down what a leader sends to members that lag.
	Throttle func(of *replica.Replica) Throttle
	// Awake is the time by which progress is counted, and Bound for how long a leader may make none.
	Awake func() time.Duration
	Bound time.Duration
}

// Attendant is what the host keeps of one instance, and does for it. Its methods do not wait, but for Snapshot.
type Attendant interface {
	// Opened is called when the replica has been opened, Resumed when it runs again after it has slept, before it
	// leads, Woken when it is as it was: record is what it slept with. Ended is called when it has ended.
	Opened()
	Resumed()
	Woken(record *Record)
	Ended()
	// Works is called when there may be something whose progress is to be watched, and Watched reports whether it is.
	Works()
	Watched() bool
	// Applied is called when entries have been applied, see Usage.
	Applied()
	// Unsettled is called when members may lack something.
	Unsettled()
	// Snapshot writes a snapshot when the node has a slot for one, and waits for it.
	Snapshot(ctx context.Context) error
}

// Throttle slows down what a leader sends to members of its group that lag much.
type Throttle interface {
	Pause(id raft.ServerID, took time.Duration, entries int)
	Reserve(id raft.ServerID, bytes int) (done func())
}

// Node is what the groups of a node share.
type Node struct {
	config Config
	Hooks

	lines     replica.LogGate // of raft
	admission *admission
	applying  applierNode
	shared    shared
	latency   latency
	wakes     wakes

	replays    atomic.Int64  // bytes that the next start applies again, of all groups
	localBytes atomic.Int64  // of the payloads of local queues
	withdrawn  atomic.Bool   // no replica leads here
	panics     atomic.Uint64 // in work for groups
}

// NewNode returns what the groups of a node share, of which there are none yet.
func NewNode(c Config, hooks Hooks) *Node {
	n := &Node{config: c, Hooks: hooks, admission: newAdmission(), wakes: newWakes()}
	n.lines.Now = time.Now
	n.applying = applierNode{newest: c.Newest, late: c.Late, fail: n.fail, boots: hooks.Boots}
	return n
}

// newMachine returns the machine of a new queue.
func (n *Node) newMachine(spec Spec) *queue.Machine {
	m := queue.New(spec.Name, spec.Queue)
	m.Supports(n.config.Newest)
	return m
}

// fail ends the process: the node must not serve data it cannot read.
func (n *Node) fail(code int, why string) {
	n.config.Logger.Error("node must stop", "code", code, "reason", why)
	n.config.Exit(code)
	select {}
}

// wantedSettings returns the settings that a queue should have. The caller owns the result.
func (n *Node) wantedSettings(spec *Spec) *QueueConfig {
	var want *QueueConfig
	if newest := n.config.Settings; newest != nil {
		want = newest(spec.Queue)
	}
	if want == nil {
		want = proto.Clone(spec.Config).(*QueueConfig)
	}
	want.LockCredit = uint64(n.config.LockCredit())
	return want
}

// Withdraw says whether replicas of this node must not lead, and reports whether that is new. Those that do have to be
// reviewed.
func (n *Node) Withdraw(yes bool) (changed bool) { return n.withdrawn.Swap(yes) != yes }

// Withdrawn reports whether replicas of this node must not lead.
func (n *Node) Withdrawn() bool { return n.withdrawn.Load() }

// Replays is how many bytes of entries the next start applies again, of all groups.
func (n *Node) Replays() int64 { return n.replays.Load() }

// Panics returns the number of panics in work for groups.
func (n *Node) Panics() uint64 { return n.panics.Load() }

// CommitLatency is how long entries of queues that this node leads have taken of late from their
// proposal until they were applied; 0: there were none.
func (n *Node) CommitLatency() time.Duration { return n.latency.mean() }

// Deaths returns what has died in queues that this node led.
func (n *Node) Deaths() Deaths { return n.applying.deaths.all() }

// TakeDeaths returns what has died in queues that this node led since the last call. There is one
// caller.
func (n *Node) TakeDeaths() map[fsm.QueueID]Died { return n.applying.deaths.take() }

// TakeLengths returns the queues whose length or leadership has changed here since the last call, and their groups.
// There is one caller.
func (n *Node) TakeLengths() map[fsm.QueueID]fsm.GroupID { return n.applying.lengths.take() }

// Meters returns what the replicas of queues have done.
func (n *Node) Meters() Meters {
	m := &n.applying.meters
	return Meters{
		Applies: m.applies.Read(), Snapshots: m.snapshots.Read(), Led: m.led.Load(), Refused: m.refused.Load(),
		Copies: m.copies.Load(), Early: m.early.Load(),
	}
}

// Alive reports whether a node is up, this one or another.
func (n *Node) Alive(node string) bool { return node == n.config.Node || n.config.Mesh.Alive(node) }

// unreachable returns those members whose nodes are down.
func (n *Node) unreachable(members []replica.Member) (nodes []string) {
	for _, m := range members {
		if !n.Alive(m.Node) {
			nodes = append(nodes, m.Node)
		}
	}
	return nodes
}

// Restarted reports whether the node of a sleeper's leader has been restarted since: it leads no more (R4). One that was
// not up yet may be the same as ever.
func (n *Node) Restarted(r *Record) bool {
	if r == nil || r.leads || r.leader == "" {
		return false
	}
	of, since := n.Process(r.leader)
	return r.leader == n.config.Node || of != r.process && !since.IsZero()
}

// Orphaned reports whether a group that sleeps has no leader as far as is known here.
func (n *Node) Orphaned(r *Record) bool { return !r.leads && r.leader == "" || n.Restarted(r) }

// sign notes which process of its node leads a group.
func (n *Node) sign(r *Record) {
	r.process, _ = n.Process(r.leader)
	r.noted = time.Now()
}
