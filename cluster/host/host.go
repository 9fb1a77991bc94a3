// Package host runs all queue groups of a node: it opens and drops them, finds leaders for those that sleep, has them
// woken for what is due, and shares among them what the node has once: slots for snapshots, what may be sent to members
// that lag, and the watch over their progress.
//
// It promises: of every queue with a replica here there is one group, awake or asleep; a group that sleeps is woken for what
// is due and for members that may lack something; a group without a leader gets one if a majority is up; a leader that
// makes no progress resigns where that helps. What happens in one queue is package group's, which does not know this one.
package host

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

// DefaultRetained is how many bytes a node keeps for lagging members unless configured otherwise:
// some seconds at the highest rate, and little compared to a disk.
const DefaultRetained = 256 << 20

// Config is what a Host needs.
type Config struct {
	group.Config
	// Drains reports whether a node is about to stop and should lead nothing; nil means that no
	// node is.
	Drains func(node string) bool
	// Progress is how long a leader with waiting work may make no progress before it resigns.
	// Awake is a time that does not pass while the process is kept from running. 0, nil: 2 s of
	// ordinary time.
	Progress time.Duration
	Awake    func() time.Duration
	// Reclaimable is how many bytes of dead payloads the node may keep before it writes snapshots
	// to free them.
	Reclaimable int64
	// Retained is how many bytes of queue logs the node may keep for lagging members of the groups
	// it leads; 0: DefaultRetained.
	Retained int64
	// KeepAwake is how many groups stay awake although nothing happens in them.
	KeepAwake int
	// KindElection is the message kind for elections, KindLearner that for learners.
	KindElection, KindLearner peer.Kind
}

// Host runs all queue groups of a node: it opens and closes them, and holds what they share.
type Host struct {
	config Config
	groups registry
	node   *group.Node

	ticker    *ticker
	elections *election.Elections
	learners  *election.Learners
	snapshots *snapshots
	watch     *watch
	sleepers  sleepers
	lag       *lagWatch
	boots     boots
	catchUp   catchUpBudget
	catalog   atomic.Pointer[replica.Learner] // nil: this host has no catalog
	observed  chan raft.Observation           // changes of state and leader, of all groups

	tasks *worker.Tasks // for groups; none starts once the host closes

	stop chan struct{}
	done sync.WaitGroup // the host's own goroutines: raft waits for who observes until its group has ended
}

// New returns a host without groups; Start starts it.
func New(c Config) *Host {
	if c.Retained == 0 {
		c.Retained = DefaultRetained
	}
	h := &Host{
		config: c, groups: newRegistry(), tasks: worker.NewTasks(nil), ticker: newTicker(c.Clock.Monotonic),
		observed: make(chan raft.Observation, 4096), stop: make(chan struct{}),
	}
	c.Clock.WhenAhead(h.ticker.wakeAll)
	h.catchUp.free = catchUpBytes
	links := election.Config{Node: c.Node, Links: c.Mesh, Kind: c.KindElection, Logger: c.Logger, Spawn: h.tasks.Go}
	h.elections = election.New(links, c.Drains, &h.sleepers, h.electable)
	links.Kind = c.KindLearner
	h.learners = election.NewLearners(links, h.learnerGroup)
	h.snapshots = newSnapshots(h)
	h.lag = newLagWatch(&h.config)
	h.watch = newWatch(h)
	h.sleepers.init(h)
	h.node = group.NewNode(c.Config, group.Hooks{
		Tasks: h.tasks, Elections: h.elections, Ticker: h.ticker, Awake: h.watch.now, Bound: h.watch.bound, Boots: h.boots.set,
		Attend: func(i *group.Instance) group.Attendant { return &awake{Instance: i, host: h} },
		Orphan: func(g *group.Group) { h.sleepers.adopt([]*group.Group{g}) },
		Process: func(node string) (of [16]byte, since time.Time) {
			p := h.sleepers.process(node)
			return p.of, p.since
		},
		Throttle: func(of *replica.Replica) group.Throttle { return newThrottle(&h.catchUp, of, h.stop) },
	})
	return h
}

// electable returns a replica that is awake. One that is being woken is not: its raft knows of no leader yet, be it that this
// replica is, and would say so. Its record answers for it.
func (h *Host) electable(id fsm.GroupID) election.Electable {
	if g := h.groups.replica(id); g != nil && !g.Shell().Asleep() {
		return g
	}
	return nil
}

// Start starts timers, elections and snapshots.
func (h *Host) Start() {
	h.elections.Listen()
	h.learners.Listen()
	h.config.Mesh.OnMissing(func(id fsm.GroupID) {
		if g := h.groups.sleeper(id); g != nil {
			g.Call()
		}
	})
	for _, run := range []func(stop <-chan struct{}){
		h.ticker.run, h.elections.Run, h.learners.Run, h.snapshots.run, h.watch.run, h.observe, h.sleepers.run,
		func(stop <-chan struct{}) { worker.Every(stop, lagEvery, h.checkLed) },
	} {
		h.done.Go(func() { run(h.stop) })
	}
}

// Close closes all groups and waits for everything the host started.
func (h *Host) Close() {
	h.tasks.Refuse()
	worker.Each(closeAtOnce, h.groups.close(), func(_ int, g *group.Group) { g.Close() })
	close(h.stop)
	h.done.Wait()
	h.tasks.Wait()
}

// closeAtOnce is how many groups are closed at a time.
const closeAtOnce = 8

// Group returns a group that is open on this node, or nil.
func (h *Host) Group(id fsm.GroupID) *group.Group { return h.groups.get(id) }

// Groups returns all open groups, ordered by number.
func (h *Host) Groups() []*group.Group { return h.groups.all() }

// Led returns the groups that this node leads and serves, in any order.
func (h *Host) Led() []*group.Group { return h.groups.led() }

// Leave tells the other members of a group, which go on, that its replica here is about to be dropped.
func (h *Host) Leave(id fsm.GroupID) {
	if g := h.groups.replica(id); g != nil {
		h.elections.Leave(g)
	}
}

// Drop closes a group and deletes its data.
func (h *Host) Drop(id fsm.GroupID) error {
	h.shut(id)
	return h.config.Store.DropGroup(id)
}

// shut closes a group.
func (h *Host) shut(id fsm.GroupID) {
	g := h.groups.remove(id)
	if g != nil {
		g.Close()
		h.elections.End(id)
	}
}

// DropLocal ends a local queue. It returns false if there is none with this number.
func (h *Host) DropLocal(id fsm.GroupID) bool {
	g := h.groups.removeLocal(id)
	if g != nil {
		g.End()
	}
	return g != nil
}

// Reconfigure makes the given groups, if this node leads them, take up changed settings.
func (h *Host) Reconfigure(ids []fsm.GroupID) {
	h.tasks.Go(func() {
		for _, id := range ids {
			if g := h.Group(id); g != nil {
				g.Reconfigure()
			}
		}
	})
}

// ReconfigureAll is Reconfigure for all groups.
func (h *Host) ReconfigureAll() {
	h.tasks.Go(func() {
		for _, g := range h.Groups() {
			g.Reconfigure()
		}
	})
}

// Withdraw ends the leadership of every replica on this node, and lets none begin until Return,
// because the node cannot store what they would have to. It does not wait for the disk. Local
// queues continue.
func (h *Host) Withdraw() { h.setWithdrawn(true) }

// Return ends a Withdraw. Replicas that are still raft's leaders begin to serve again.
func (h *Host) Return() { h.setWithdrawn(false) }

func (h *Host) setWithdrawn(yes bool) {
	if !h.node.Withdraw(yes) {
		return
	}
	led := uint64(0)
	for _, g := range h.groups.replicas((*awake).ServesOrLeads) {
		led++
		h.tasks.Go(g.Review)
	}
	if yes {
		h.watch.count(replica.StuckDisk, led)
	}
}

// PeerChanged is called when a node has come up or gone down.
func (h *Host) PeerChanged(ev peer.Event) {
	if ev.Up {
		h.tasks.Go(func() { h.back(ev.Node) })
	} else {
		for _, g := range h.groups.replicas(func(g *awake) bool { return g.Leader() == ev.Node }) {
			h.elections.Begin(g)
		}
	}
	h.elections.PeersChanged()
	h.sleepers.peerChanged(ev)
}

// Want says that somebody at this node waits for a group to have a leader. Members are its nodes; this one
// need not be among them. Who goes on waiting says so again: a member may not have noticed yet that the
// leader is gone.
func (h *Host) Want(id fsm.GroupID, members []string) {
	h.elections.Want(id, members)
	wish := election.Item{Kind: election.ItemWant, Group: id}
	if h.groups.sleeper(id) == nil {
		return
	}
	if _, wakes := h.sleepers.Heard(h.config.Node, wish); wakes {
		h.sleepers.Disturbed(h.config.Node, election.AppendItem(nil, wish))
	}
}

// back has the members on a node that is back hear of this one, in every group that it leads.
func (h *Host) back(node string) {
	for _, g := range h.leaders() {
		if g.Has(node) {
			g.Back(node)
		}
	}
}

// leaders returns the groups in which raft has made this node the leader.
func (h *Host) leaders() []*awake {
	return h.groups.replicas(func(g *awake) bool { return !g.IsClosed() && g.IsLeader() })
}

// checkLed checks the members of the groups that this node leads.
func (h *Host) checkLed() {
	now := time.Now()
	if silent := h.lag.silences.long(h.config.Mesh.Peers(), now); len(silent) > 0 {
		for _, g := range h.leaders() {
			h.stepDownAlone(g, silent)
		}
	}
	h.lag.round(now)
}

// stepDownAlone makes a replica step down if it has led without a majority for long: it commits nothing, and
// should not believe for ever that it leads.
func (h *Host) stepDownAlone(g *awake, silent map[string]bool) {
	if other := outnumbered(g.Voters(), silent); other != "" {
		if role, term := g.Role(); role == raft.Leader {
			g.Logger().Warn("a leader without a majority steps down", "term", term)
			h.config.Mesh.Resign(g.ID(), term+1, other)
		}
	}
}

// Learn brings the catalog's replica on this node up to date if it is a learner, and has it answer the catalog's
// learners on other nodes.
func (h *Host) Learn(k replica.Learner) {
	h.catalog.Store(&k)
	if k.Trusted().IsLearner() {
		h.learners.Begin(replica.CatalogGroup, k)
	}
}

// learnerGroup returns a replica on this node, or the catalog's, or nil.
func (h *Host) learnerGroup(id fsm.GroupID) replica.Learner {
	if id == replica.CatalogGroup {
		if k := h.catalog.Load(); k != nil {
			return *k
		}
		return nil
	}
	if g := h.groups.replica(id); g != nil {
		return g
	}
	return nil
}

// Learners returns the groups whose replicas on this node do not vote, ordered by number.
func (h *Host) Learners() []*group.Group {
	return sorted(h.Those(func(g *group.Group) bool { return g.Doubt() != nil }))
}

// Quarantined returns the groups that do not lead on this node because their work has panicked,
// ordered by number.
func (h *Host) Quarantined() []*group.Group {
	return sorted(h.Those(func(g *group.Group) bool { return g.Quarantined() != nil }))
}

// Panics returns the number of panics in work for groups since the node started.
func (h *Host) Panics() uint64 { return h.node.Panics() }

// CommitLatency is how long entries of queues that this node leads have taken of late from their
// proposal until they were applied; 0: there were none.
func (h *Host) CommitLatency() time.Duration { return h.node.CommitLatency() }

// Deaths returns what has died in queues that this node led, since it started.
func (h *Host) Deaths() group.Deaths { return h.node.Deaths() }

// TakeDeaths returns what has died in queues that this node led since the last call. There is one
// caller.
func (h *Host) TakeDeaths() map[fsm.QueueID]group.Died { return h.node.TakeDeaths() }

// Length is how many messages a queue has; of one that this node does not lead, none.
type Length struct{ Ready, Unacknowledged uint64 }

// TakeLengths returns the lengths of the queues whose length or leadership has changed here since the last
// call. There is one caller.
func (h *Host) TakeLengths() map[fsm.QueueID]Length {
	all := map[fsm.QueueID]Length{}
	for id, of := range h.node.TakeLengths() {
		l := Length{}
		if g := h.Group(of); g != nil && g.Spec().Queue == id {
			l.Ready, l.Unacknowledged = g.Length()
		}
		all[id] = l
	}
	return all
}

// Meters returns what the replicas of queues have done.
func (h *Host) Meters() group.Meters { return h.node.Meters() }

// Open starts this node's replica of a group, for the first time or again.
func (h *Host) Open(spec group.Spec) (*group.Group, error) {
	store, err := h.storeOf(&spec)
	if err != nil {
		return nil, err
	}
	return group.Open(h.node, spec, store)
}

// OpenLocal starts a local queue on this node, or returns the running one. It serves when OpenLocal returns.
func (h *Host) OpenLocal(spec group.Spec) *group.Group {
	return group.OpenLocal(h.node, spec, h.groups.addLocal)
}

// wanted filters the observations that the host acts on.
func wanted(o *raft.Observation) bool {
	switch o.Data.(type) {
	case raft.RaftState, raft.LeaderObservation:
		return true
	}
	return false
}

// observe acts on changes of state and leader of all groups, until stop is closed.
func (h *Host) observe(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case o := <-h.observed:
			g := h.groups.ofRaft(o.Raft)
			if g == nil || g.IsClosed() {
				continue
			}
			switch data := o.Data.(type) {
			case raft.RaftState:
				g.TenureEnded()
				h.done.Go(g.Review)
			case raft.LeaderObservation:
				h.leaderSeen(g, string(data.LeaderID))
			}
		}
	}
}

func (h *Host) leaderSeen(g *awake, leader string) {
	if leader != "" {
		g.LeaderSeen()
	}
	if g.IsLearner() && leader != "" {
		h.learners.Hasten(g.ID())
	}
	switch {
	case leader == "", leader == h.config.Node && g.Barred(), !h.config.Mesh.Alive(leader):
		h.elections.Begin(g) // raft may report a leader late, when its node has already died
	default:
		h.elections.End(g.ID())
	}
}
