package group

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

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

// DefaultRetained is how many bytes a node keeps for lagging members unless configured otherwise:
// some seconds at the highest rate, and little compared to a disk.
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
	// LockCredit is how much of a leaderless period is given back to the holders of messages. See
	// ReconfigureAll.
	LockCredit func() fsm.Millis
	// Settings returns the newest effective settings of a queue that this node
	// knows of; nil: those of the Spec. See Reconfigure.
	Settings func(fsm.QueueID) *QueueConfig
	// Version returns the machine version that, to this node's knowledge, the cluster has; Newest
	// is the latest that this program supports.
	Version func() uint32
	Newest  uint32
	// Drains reports whether a node is about to stop and should lead nothing; nil means that no
	// node is.
	Drains func(node string) bool
	// Late is called with the lateness of a tick. It must not block.
	Late func(what queue.Due, late fsm.Millis)
	// Heartbeat is raft's heartbeat and election timeout for queue groups, and
	// up to 1 s its commit timeout. 0: raft has no timers, see DESIGN.md.
	Heartbeat time.Duration
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
	// IdleAfter is for how long nothing has to happen in a group before it sleeps; 0: none does. KeepAwake is how
	// many groups stay awake all the same.
	IdleAfter time.Duration
	KeepAwake int
	// KindElection is the message kind for elections, KindLearner that for learners.
	KindElection, KindLearner peer.Kind
}

// Host runs all queue groups of a node: it opens and closes them, and holds what they share.
type Host struct {
	config Config
	groups registry
	lines  replica.LogGate // of raft

	ticker    *ticker
	elections *election.Elections
	learners  *election.Learners
	snapshots *snapshots
	watch     *watch
	sleepers  sleepers
	lag       *lagWatch
	admission *admission
	catchUp   catchUpBudget
	applying  applierNode
	catalog   atomic.Pointer[replica.Learner] // nil: this host has no catalog
	observed  chan raft.Observation           // changes of state and leader, of all groups

	localBytes atomic.Int64  // of the payloads of local queues
	withdrawn  atomic.Bool   // no replica leads here, see Withdraw
	panics     atomic.Uint64 // in work for groups
	latency    latency

	tasks *worker.Tasks // for groups; none starts once the host closes

	stop chan struct{}
	done sync.WaitGroup // the host's own goroutines: raft waits for who observes until its group has ended
}

// NewHost returns a host without groups; Start starts it.
func NewHost(c Config) *Host {
	if c.Retained == 0 {
		c.Retained = DefaultRetained
	}
	h := &Host{
		config: c, groups: newRegistry(), tasks: worker.NewTasks(nil), ticker: newTicker(c.Clock.Monotonic), admission: newAdmission(),
		observed: make(chan raft.Observation, 4096), stop: make(chan struct{}),
	}
	c.Clock.WhenAhead(h.ticker.wakeAll)
	h.lines.Now = time.Now
	h.catchUp.free = catchUpBytes
	h.applying = applierNode{newest: c.Newest, late: c.Late, fail: h.fail}
	links := election.Config{Node: c.Node, Links: c.Mesh, Kind: c.KindElection, Logger: c.Logger, Spawn: h.tasks.Go}
	h.elections = election.New(links, c.Drains, &h.sleepers, func(id fsm.GroupID) election.Electable {
		if g := h.groups.replica(id); g != nil {
			return g
		}
		return nil
	})
	links.Kind = c.KindLearner
	h.learners = election.NewLearners(links, h.learnerGroup)
	h.snapshots = newSnapshots(h)
	h.lag = newLagWatch(&h.config)
	h.watch = newWatch(h)
	h.sleepers.init(h)
	return h
}

// Start starts timers, elections and snapshots.
func (h *Host) Start() {
	h.elections.Listen()
	h.learners.Listen()
	h.config.Mesh.OnMissing(func(id fsm.GroupID) {
		if g := h.groups.sleeper(id); g != nil {
			g.call()
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
	worker.Each(closeAtOnce, h.groups.close(), func(_ int, g *Group) { g.close() })
	close(h.stop)
	h.done.Wait()
	h.tasks.Wait()
}

// closeAtOnce is how many groups are closed at a time.
const closeAtOnce = 8

// Group returns a group that is open on this node, or nil.
func (h *Host) Group(id fsm.GroupID) *Group { return h.groups.get(id) }

// Groups returns all open groups, ordered by number.
func (h *Host) Groups() []*Group { return h.groups.all() }

// Led returns the groups that this node leads and serves, in any order.
func (h *Host) Led() []*Group { return h.groups.led() }

// newMachine returns the machine of a new queue.
func (h *Host) newMachine(spec Spec) *queue.Machine {
	m := queue.New(spec.Name, spec.Queue)
	m.Supports(h.config.Newest)
	return m
}

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
		g.close()
		h.elections.End(id)
	}
}

// DropLocal ends a local queue. It returns false if there is none with this number.
func (h *Host) DropLocal(id fsm.GroupID) bool {
	g := h.groups.removeLocal(id)
	if g != nil {
		g.running.Load().order.end()
	}
	return g != nil
}

// Reconfigure makes the given groups, if this node leads them, take up changed settings.
func (h *Host) Reconfigure(ids []fsm.GroupID) {
	h.tasks.Go(func() {
		for _, id := range ids {
			if g := h.Group(id); g != nil {
				g.reconfigure()
			}
		}
	})
}

// ReconfigureAll is Reconfigure for all groups.
func (h *Host) ReconfigureAll() {
	h.tasks.Go(func() {
		for _, g := range h.Groups() {
			g.reconfigure()
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
	if h.withdrawn.Swap(yes) == yes {
		return
	}
	led := uint64(0)
	for _, g := range h.groups.replicas(func(g *instance) bool { return g.order.opened() }) {
		if g.leadership.term.Load() != 0 || g.order.leads() {
			led++
			h.tasks.Go(g.review)
		}
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
		for _, g := range h.groups.replicas(func(g *instance) bool { return g.Leader() == ev.Node }) {
			h.elections.Begin(g)
		}
	}
	h.elections.PeersChanged()
	h.sleepers.peerChanged(ev)
}

// Want says that somebody at this node waits for a group to have a leader. Members are its nodes; this one
// need not be among them. Who goes on waiting says so again: a member may not have noticed yet that the
// leader is gone.
func (h *Host) Want(group fsm.GroupID, members []string) {
	h.elections.Want(group, members)
	wish := election.Item{Kind: election.ItemWant, Group: group}
	if h.groups.sleeper(group) == nil {
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
func (h *Host) leaders() []*instance {
	return h.groups.replicas(func(g *instance) bool { return !g.IsClosed() && g.IsLeader() })
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
func (h *Host) stepDownAlone(g *instance, silent map[string]bool) {
	if other := outnumbered(g.Voters(), silent); other != "" {
		if role, term := g.Role(); role == raft.Leader {
			g.slog.Warn("a leader without a majority steps down", "term", term)
			h.config.Mesh.Resign(g.spec.Group, term+1, other)
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
func (h *Host) Learners() []*Group {
	return sorted(h.Those(func(g *Group) bool { return g.Doubt() != nil }))
}

// Quarantined returns the groups that do not lead on this node because their work has panicked,
// ordered by number.
func (h *Host) Quarantined() []*Group {
	return sorted(h.Those(func(g *Group) bool { return g.Quarantined() != nil }))
}

// Panics returns the number of panics in work for groups since the node started.
func (h *Host) Panics() uint64 { return h.panics.Load() }

// CommitLatency is how long entries of queues that this node leads have taken of late from their
// proposal until they were applied; 0: there were none.
func (h *Host) CommitLatency() time.Duration { return h.latency.mean() }

// Deaths returns what has died in queues that this node led, since it started.
func (h *Host) Deaths() Deaths { return h.applying.deaths.all() }

// TakeDeaths returns what has died in queues that this node led since the last call. There is one
// caller.
func (h *Host) TakeDeaths() map[fsm.QueueID]Died { return h.applying.deaths.take() }

// Length is how many messages a queue has; of one that this node does not lead, none.
type Length struct{ Ready, Unacknowledged uint64 }

// TakeLengths returns the lengths of the queues whose length or leadership has changed here since the last
// call. There is one caller.
func (h *Host) TakeLengths() map[fsm.QueueID]Length {
	all := map[fsm.QueueID]Length{}
	for id, of := range h.applying.lengths.take() {
		l := Length{}
		if g := h.Group(of); g != nil && g.spec.Queue == id {
			l.Ready, l.Unacknowledged = g.length()
		}
		all[id] = l
	}
	return all
}

// fail ends the process: the node must not serve data it cannot read.
func (h *Host) fail(code int, why string) {
	h.config.Logger.Error("node must stop", "code", code, "reason", why)
	h.config.Exit(code)
	select {}
}

// registry holds the groups that are open on a node, and those of them that are awake.
//
//	closed ⇒ replicated, awake and local are empty
type registry struct {
	mu         sync.RWMutex
	closed     bool
	replicated map[fsm.GroupID]*Group
	local      map[fsm.GroupID]*Group
	awake      map[fsm.GroupID]*instance // of replicated
	byRaft     map[*raft.Raft]*instance
}

func newRegistry() registry {
	return registry{
		replicated: map[fsm.GroupID]*Group{}, local: map[fsm.GroupID]*Group{},
		awake: map[fsm.GroupID]*instance{}, byRaft: map[*raft.Raft]*instance{},
	}
}

// close empties the registry and returns what was in it.
func (r *registry) close() []*Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Collect(maps.Values(r.replicated))
	all = slices.AppendSeq(all, maps.Values(r.local))
	r.closed = true
	r.replicated, r.local, r.awake = map[fsm.GroupID]*Group{}, map[fsm.GroupID]*Group{}, map[fsm.GroupID]*instance{}
	return all
}

func (r *registry) get(id fsm.GroupID) *Group {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if g := r.replicated[id]; g != nil {
		return g
	}
	return r.local[id]
}

// replica returns the instance of a replica that is awake, or nil.
func (r *registry) replica(id fsm.GroupID) *instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.awake[id]
}

// sleeper returns a replica that sleeps, or nil.
func (r *registry) sleeper(id fsm.GroupID) *Group {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if g := r.replicated[id]; g != nil && g.Asleep() {
		return g
	}
	return nil
}

func (r *registry) ofRaft(is *raft.Raft) *instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byRaft[is]
}

// all returns the groups, ordered by number.
func (r *registry) all() []*Group {
	r.mu.RLock()
	all := slices.AppendSeq(make([]*Group, 0, len(r.replicated)+len(r.local)), maps.Values(r.replicated))
	all = slices.AppendSeq(all, maps.Values(r.local))
	r.mu.RUnlock()
	return sorted(all)
}

// sorted sorts groups by number.
func sorted(all []*Group) []*Group {
	slices.SortFunc(all, func(a, b *Group) int { return int(a.spec.Group) - int(b.spec.Group) })
	return all
}

// led returns the groups that serve, in any order, sleepers the replicas that sleep and for which f is true, and
// replicas the instances of those that are awake.
func (r *registry) led() []*Group {
	r.mu.RLock()
	defer r.mu.RUnlock()
	serves := func(g *Group) bool { return g.Leading() != 0 }
	return appendThose(appendThose(nil, r.replicated, serves), r.local, serves)
}

func (r *registry) sleepers(f func(g *Group, asleep *record) bool) []*Group {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return appendThose(nil, r.replicated, func(g *Group) bool {
		asleep := g.asleep.Load()
		return asleep != nil && f(g, asleep)
	})
}

func (r *registry) replicas(f func(g *instance) bool) []*instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return appendThose(nil, r.awake, f)
}

func appendThose[T any](list []T, all map[fsm.GroupID]T, f func(g T) bool) []T {
	for _, g := range all {
		if f(g) {
			list = append(list, g)
		}
	}
	return list
}

// add adds a replica that is opened.
func (r *registry) add(g *instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.replicated[g.spec.Group], r.awake[g.spec.Group] = g.shell, g
	}
	r.byRaft[g.Raft()] = g
}

// woken notes that a replica is awake, unless it has been removed meanwhile.
func (r *registry) woken(g *instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replicated[g.spec.Group] == g.shell {
		r.awake[g.spec.Group] = g
	}
	r.byRaft[g.Raft()] = g
}

// addAsleep adds a replica that sleeps, and reports whether it has.
func (r *registry) addAsleep(g *Group) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.replicated[g.spec.Group] != nil {
		return false
	}
	r.replicated[g.spec.Group] = g
	return true
}

// addLocal adds a local queue, or returns the existing one; nil if the registry is closed.
func (r *registry) addLocal(g *Group) (have *Group, added bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if have = r.local[g.spec.Group]; have != nil || r.closed {
		return have, false
	}
	r.local[g.spec.Group] = g
	return g, true
}

// remove takes a replica out; raft's observations are still mapped to it.
func (r *registry) remove(id fsm.GroupID) *Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.replicated[id]
	delete(r.replicated, id)
	delete(r.awake, id)
	return g
}

// forget drops an instance whose raft has ended.
func (r *registry) forget(g *instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byRaft, g.Raft())
	if r.awake[g.spec.Group] == g {
		delete(r.awake, g.spec.Group)
	}
}

func (r *registry) removeLocal(id fsm.GroupID) *Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.local[id]
	delete(r.local, id)
	return g
}

// AsideTime is how long a node keeps the data of a queue that its catalog does not know, and that it has not
// seen deleted: the queue may have been deleted while the node was down, or the catalog may be older than the data,
// because most nodes were put back from older images.
const AsideTime = 24 * time.Hour

// ErrAside is returned for a group whose number belongs to data that is put aside.
var ErrAside = errors.New("the number of the group holds data of another queue")

// PutAside closes a group that the catalog does not know, and returns for how long its data is kept; 0: it is
// dropped, because it has been kept long enough, there is none, or scarce says that there is no space for it.
func (h *Host) PutAside(id fsm.GroupID, scarce bool) (left time.Duration, err error) {
	h.shut(id)
	store, err := h.config.Store.Group(id)
	if err != nil {
		return 0, fmt.Errorf("open log of group %d: %w", id, err)
	}
	left, owner, err := h.aside(store)
	if err != nil {
		return 0, err
	}
	past, err := hasEntries(store)
	if err != nil {
		return 0, err
	}
	switch {
	case !past || scarce || left < 0:
		h.config.Logger.Warn("dropping data of a queue that is not in the catalog", "group", id, "queue", owner, "scarce", scarce)
		return 0, h.config.Store.DropGroup(id)
	case left == 0:
		left = AsideTime
		h.config.Logger.Warn("setting data aside of a queue that is not in the catalog", "group", id, "queue", owner, "for", left)
		return left, store.SetUint64([]byte(raftlog.AsideKey), uint64(h.config.Clock.Now()))
	}
	return left, nil
}

// hasEntries reports whether anything was ever stored in a group's log.
func hasEntries(store *raftlog.Group) (bool, error) {
	last, err := store.LastIndex()
	if err != nil || last > 0 {
		return true, err
	}
	list, err := store.Snapshots().List()
	return len(list) > 0, err
}

// aside returns for how long a group's data is still put aside, and to which queue it belongs. left is 0 if it is
// not put aside, and negative if the time is over.
func (h *Host) aside(store *raftlog.Group) (left time.Duration, owner string, err error) {
	name, err := store.Get([]byte(raftlog.OwnerKey))
	if err != nil {
		return 0, "", err
	}
	since, err := store.GetUint64([]byte(raftlog.AsideKey))
	if err != nil || since == 0 {
		return 0, string(name), err
	}
	if left = AsideTime - time.Duration(h.config.Clock.Now()-fsm.Time(since))*time.Millisecond; left == 0 {
		left--
	}
	return min(left, AsideTime), string(name), nil
}
