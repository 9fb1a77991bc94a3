package group

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// QueueConfig is a queue's effective settings.
type QueueConfig = logpb.QueueConfig

// Exit codes of a node that must not go on.
const (
	codeDamaged = 75 // what is on disk cannot be understood
	codeTooOld  = 76 // an entry needs a newer version
)

// DefaultRetained is how much a node keeps for members that lag unless it is
// told otherwise: some seconds of the highest rate, little beside a disk.
const DefaultRetained = 256 << 20

// Config is what a Host needs.
type Config struct {
	Node    string
	Store   *raftlog.Store
	Mesh    *peer.Mesh
	Clock   *clock.Clock
	Exit    func(code int)
	Logger  *slog.Logger
	Outside Outside
	// LockCredit is how much of a time without a leader is given back to those
	// who hold messages. See ReconfigureAll.
	LockCredit func() fsm.Millis
	// Settings returns the newest effective settings of a queue that this node
	// knows of; nil: those of the Spec. See Reconfigure.
	Settings func(fsm.QueueID) *QueueConfig
	// Version returns the version of the machines that this node knows the
	// cluster to have; Newest is the last one that this program supports.
	Version func() uint32
	Newest  uint32
	// Drains reports whether a node is about to stop and should lead nothing;
	// nil: none is.
	Drains func(node string) bool
	// Late is told how late a tick was for what was due. It must not block.
	Late func(what queue.Due, late fsm.Millis)
	// Heartbeat is raft's heartbeat and election timeout for queue groups, and
	// up to 1 s its commit timeout. It is a safety net: failures are noticed per
	// node, see elections. 0: by the number of groups, see fewHeartbeat.
	Heartbeat time.Duration
	// Progress is how long a leader with work waiting may stand still before it
	// gives way, and Awake a time that does not pass while the process is kept
	// from running. 0, nil: 2 s of any time.
	Progress time.Duration
	Awake    func() time.Duration
	// Reclaimable is how many bytes of dead payloads the node may keep before
	// it writes snapshots to be rid of them.
	Reclaimable int64
	// Retained is how many bytes of queue logs the node may keep for members of
	// the groups it leads that lag; 0: DefaultRetained.
	Retained int64
	// KindElection is the message kind elections may use, KindLearner that of
	// learners.
	KindElection, KindLearner peer.Kind
}

// Host runs all queue groups of a node.
type Host struct {
	config    Config
	outside   Outside
	clock     *clock.Clock
	slog      *slog.Logger
	ticker    *ticker
	elections *elections
	lessons   *lessons
	snapshots *snapshots
	watch     *watch
	catalog   atomic.Pointer[Catalog] // nil: this host has nothing to do with it
	laggards  *laggards
	intake    *intake
	pursued   allowance
	seen      chan raft.Observation

	mu       sync.RWMutex
	closed   bool
	groups   map[fsm.GroupID]*Group // replicas
	locals   map[fsm.GroupID]*Group // local queues
	byRaft   map[*raft.Raft]*Group
	expected int  // groups
	many     bool // there are, or will be, see repace

	localBytes atomic.Int64  // of the payloads of local queues
	withdrawn  atomic.Bool   // no replica leads here, see Withdraw
	panics     atomic.Uint64 // in work for groups
	dead       deaths

	stop chan struct{}
	done sync.WaitGroup
}

// NewHost returns a host without groups; Start makes it work.
func NewHost(c Config) *Host {
	if c.Retained == 0 {
		c.Retained = DefaultRetained
	}
	h := &Host{
		config: c, outside: c.Outside, clock: c.Clock, slog: c.Logger,
		ticker: newTicker(c.Clock.Monotonic),
		seen:   make(chan raft.Observation, 4096),
		groups: map[fsm.GroupID]*Group{},
		locals: map[fsm.GroupID]*Group{},
		byRaft: map[*raft.Raft]*Group{},
		stop:   make(chan struct{}),
	}
	c.Clock.WhenAhead(h.ticker.hurry)
	h.elections = newElections(h)
	h.lessons = newLessons(h)
	h.snapshots = newSnapshots(h)
	h.laggards = newLaggards(h)
	h.watch = newWatch(h)
	h.intake = newIntake()
	h.pursued.free = pursuitBytes
	return h
}

// Start begins to serve timers, elections and snapshots.
func (h *Host) Start() {
	h.elections.listen()
	h.lessons.listen()
	for _, run := range []func(){
		func() { h.ticker.run(h.stop) },
		func() { h.elections.run(h.stop) },
		func() { h.lessons.run(h.stop) },
		func() { h.snapshots.run(h.stop) },
		h.watchLaggards,
		func() { h.watch.run(h.stop) },
		h.observe,
	} {
		h.done.Go(run)
	}
}

// Close ends all groups and waits for everything the host started.
func (h *Host) Close() {
	h.mu.Lock()
	h.closed = true
	groups := h.groups
	maps.Copy(groups, h.locals)
	h.groups, h.locals = map[fsm.GroupID]*Group{}, map[fsm.GroupID]*Group{}
	h.mu.Unlock()
	inParallel(groups, (*Group).close)
	close(h.stop)
	h.done.Wait()
}

// spawn runs f on a goroutine that Close waits for; not any more once the host
// closes. Goroutines of the host itself use done.
func (h *Host) spawn(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.done.Go(f)
	}
}

// inParallel runs f on each group, a few at a time.
func inParallel(groups map[fsm.GroupID]*Group, f func(*Group)) {
	var work errgroup.Group
	work.SetLimit(8)
	for _, g := range groups {
		work.Go(func() error {
			f(g)
			return nil
		})
	}
	_ = work.Wait() // f has no errors
}

// Group returns a group that is open on this node, or nil.
func (h *Host) Group(id fsm.GroupID) *Group {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if g := h.groups[id]; g != nil {
		return g
	}
	return h.locals[id]
}

// Groups returns all open groups in order of their numbers.
func (h *Host) Groups() []*Group {
	h.mu.RLock()
	all := slices.AppendSeq(make([]*Group, 0, len(h.groups)+len(h.locals)), maps.Values(h.groups))
	all = slices.AppendSeq(all, maps.Values(h.locals))
	h.mu.RUnlock()
	slices.SortFunc(all, func(a, b *Group) int { return int(a.spec.Group) - int(b.spec.Group) })
	return all
}

// Open starts this node's replica of a group, for the first time or again.
func (h *Host) Open(spec Spec) (*Group, error) {
	log, err := h.config.Store.Group(spec.Group)
	if err != nil {
		return nil, fmt.Errorf("open log of group %d: %w", spec.Group, err)
	}
	g := &Group{
		spec: spec, host: h, log: log, started: make(chan struct{}), ending: make(chan struct{}),
		machine: h.newMachine(spec),
		slog:    h.slog.With("queue", spec.Name, "vhost", spec.VHost, "group", spec.Group),
	}
	g.order = replicated{g}
	g.proposer.room.L = &g.proposer.mu
	if err := g.openRaft(); err != nil {
		h.config.Mesh.DropGroup(spec.Group)
		return nil, err
	}
	h.mu.Lock()
	h.groups[spec.Group] = g
	h.byRaft[g.raft] = g
	h.repace()
	h.mu.Unlock()
	g.repace() // they may have changed while it was not yet in the list
	g.raft.RegisterObserver(raft.NewObserver(h.seen, true, wanted))
	if g.trust.unproven() {
		h.lessons.begin(spec.Group, g)
	}
	h.elections.vacant(g)
	g.review()
	return g, nil
}

// newMachine returns the machine of a new queue.
func (h *Host) newMachine(spec Spec) *queue.Machine {
	m := queue.New(spec.Name, spec.Queue)
	m.Supports(h.config.Newest)
	return m
}

// Drop ends a group and deletes its data.
func (h *Host) Drop(id fsm.GroupID) error {
	h.mu.Lock()
	g := h.groups[id]
	delete(h.groups, id)
	h.repace()
	h.mu.Unlock()
	if g != nil {
		g.close()
		h.elections.filled(id)
		h.mu.Lock()
		delete(h.byRaft, g.raft)
		h.mu.Unlock()
	}
	return h.config.Store.DropGroup(id)
}

// Reconfigure makes those groups that this node leads take up settings that
// have changed.
func (h *Host) Reconfigure(ids []fsm.GroupID) {
	h.spawn(func() {
		for _, id := range ids {
			if g := h.Group(id); g != nil && g.leading.Load() != 0 {
				g.reconfigure()
			}
		}
	})
}

// ReconfigureAll is Reconfigure for all groups.
func (h *Host) ReconfigureAll() {
	h.spawn(func() {
		for _, g := range h.Groups() {
			if g.leading.Load() != 0 {
				g.reconfigure()
			}
		}
	})
}

// Withdraw ends the office of every replica that leads here, and lets none begin,
// until Return: the node cannot store what they would have to. It does not wait
// for the disk. Local queues go on.
func (h *Host) Withdraw() { h.setWithdrawn(true) }

// Return ends what Withdraw has begun. Replicas that raft still has lead begin
// their offices anew.
func (h *Host) Return() { h.setWithdrawn(false) }

func (h *Host) setWithdrawn(yes bool) {
	if h.withdrawn.Swap(yes) == yes {
		return
	}
	led := uint64(0)
	for _, g := range h.Groups() {
		if !g.IsLocal() && g.order.opened() && (g.leading.Load() != 0 || g.order.leads()) {
			led++
			h.spawn(g.review)
		}
	}
	if yes {
		h.watch.count(StuckDisk, led)
	}
}

// wanted keeps the observations the host acts on.
func wanted(o *raft.Observation) bool {
	switch o.Data.(type) {
	case raft.RaftState, raft.LeaderObservation:
		return true
	}
	return false
}

// observe acts on changes of state and leader of all groups.
func (h *Host) observe() {
	for {
		select {
		case <-h.stop:
			return
		case o := <-h.seen:
			h.mu.RLock()
			g := h.byRaft[o.Raft]
			h.mu.RUnlock()
			if g == nil || g.closed.Load() {
				continue
			}
			switch data := o.Data.(type) {
			case raft.RaftState:
				h.done.Go(g.review)
			case raft.LeaderObservation:
				h.leaderSeen(g, string(data.LeaderID))
			}
		}
	}
}

func (h *Host) leaderSeen(g *Group, leader string) {
	if g.trust.unproven() && leader != "" {
		h.lessons.hasten(g.spec.Group)
	}
	switch {
	case leader == "", leader == h.config.Node && g.barred(), !h.config.Mesh.Alive(leader):
		h.elections.vacant(g) // raft may tell of a leader late, whose node has died since
	default:
		h.elections.filled(g.spec.Group)
	}
}

// fail ends the process: the node must not answer for what it cannot read.
func (h *Host) fail(code int, why string) {
	h.slog.Error("node must stop", "code", code, "reason", why)
	h.config.Exit(code)
	select {}
}
