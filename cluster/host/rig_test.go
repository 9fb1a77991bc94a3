package host

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/logtest"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/peer/peertest"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// patience is how long a test waits for what must happen.
const patience = 4 * time.Minute

// outside records what groups do.
type outside struct {
	mu         sync.Mutex
	changed    chan struct{}
	outcomes   []group.Outcome
	deliveries []fsm.Delivery
	bodies     []string
	resyncs    []group.Resynced
	undecided  int
	outbox     int // how often letters were said to wait
	terms      []uint64
	performing int
	overlap    bool
	// poisoned: performing work of these groups panics.
	poisoned map[fsm.GroupID]bool
	hang     chan struct{}        // performing waits until it is closed; nil: it does not
	led      func(g *group.Group) // called for a new leader; nil: nothing is
}

func (o *outside) event(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() {
		close(o.changed)
		o.changed = make(chan struct{})
	}()
	f()
}

func (o *outside) Perform(g *group.Group, w *group.Work) {
	o.mu.Lock()
	o.performing++
	o.overlap = o.overlap || o.performing > 1
	hang := o.hang
	o.mu.Unlock()
	if hang != nil {
		<-hang
	}
	o.event(func() {
		if o.poisoned[g.Spec().Group] {
			o.performing--
			panic("poison")
		}
		o.outcomes = append(o.outcomes, w.Outcomes...)
		o.deliveries = append(o.deliveries, w.Deliveries...)
		for _, d := range w.Deliveries {
			p, err := g.Payload(d.Ref)
			if err != nil {
				p = []byte(err.Error())
			}
			o.bodies = append(o.bodies, string(p))
		}
		o.resyncs = append(o.resyncs, w.Resyncs...)
		if w.Outbox {
			o.outbox++
		}
		o.performing--
	})
}

func (o *outside) Undecided(*group.Group, string) { o.event(func() { o.undecided++ }) }

func (o *outside) Led(g *group.Group, term uint64) {
	var led func(g *group.Group)
	o.event(func() { o.terms, led = append(o.terms, term), o.led })
	if led != nil && term != 0 {
		led(g)
	}
}

// await waits for a condition that is read under the lock.
func (o *outside) await(t testing.TB, what string, f func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		o.mu.Lock()
		done, changed := f(), o.changed
		o.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// lone is a host and what it stands on.
type lone struct {
	*Host
	outside *outside
	store   *raftlog.Store
	mesh    *peer.Mesh
	dir     string
	closed  bool
	raised  atomic.Uint32 // fsm_version - 1
}

// mustHost opens the host of a node that is alone.
func mustHost(t testing.TB, dir string, tune ...any) *lone {
	t.Helper()
	return mustHostOf(t, dir, "n1", map[string]net.Listener{"n1": mustListen(t)}, slog.New(slog.DiscardHandler), tune...)
}

func mustListen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// processes counts hosts: each is another incarnation of its node.
var processes atomic.Uint32

// mustHostOf opens the host of one of these nodes. tune may change its settings,
// a func(*Config), those of its mesh, a func(*peer.Config), or of its store.
func mustHostOf(t testing.TB, dir, node string, nodes map[string]net.Listener, logger *slog.Logger, tune ...any) *lone {
	t.Helper()
	names, others := slices.Sorted(maps.Keys(nodes)), map[string]string{}
	for name, l := range nodes {
		if name != node {
			others[name] = l.Addr().String()
		}
	}
	links := peer.Config{
		Node: node, Cluster: "test", Listener: nodes[node], Peers: others, Timing: peer.Timing{SuspectAfter: 10 * time.Second},
		Incarnation: [16]byte{1 + byte(slices.Index(names, node)), byte(processes.Add(1))},
	}
	for _, f := range tune {
		if f, ok := f.(func(*peer.Config)); ok {
			f(&links)
		}
	}
	mesh, err := peer.New(links)
	if err != nil {
		t.Fatal(err)
	}
	disk := raftlog.Options{TrailingLogs: group.TrailingLogs}
	for _, f := range tune {
		if f, ok := f.(func(node string, o *raftlog.Options)); ok {
			f(node, &disk)
		}
	}
	store, err := raftlog.Open(filepath.Join(dir, "queues"), disk)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	n := &lone{outside: &outside{changed: make(chan struct{})}, store: store, mesh: mesh, dir: dir}
	c := Config{Config: group.Config{
		Node: node, Store: store, Mesh: mesh, Logger: logger, Outside: n.outside,
		Clock: clock.New(clock.Config{
			Node: node, Nodes: []string{node}, Logger: logger,
			Wall:      time.Now,
			Monotonic: func() time.Duration { return time.Since(began) },
			MaxSkew:   func() fsm.Millis { return 1000 },
		}),
		Exit:    func(code int) { panic(fmt.Sprint("exit ", code)) },
		Version: func() uint32 { return 1 + n.raised.Load() }, Newest: 2,
		LockCredit: func() fsm.Millis { return 0 }, Late: func(queue.Due, fsm.Millis) {},
		Heartbeat: 30 * time.Second, // no leader gives up because the machine is busy
	},
		Reclaimable: 32 << 20, Retained: 64 << 20, KindElection: 16, KindLearner: 18,
	}
	for _, f := range tune {
		if f, ok := f.(func(*Config)); ok {
			f(&c)
		}
	}
	n.Host = New(c)
	n.Start()
	mesh.Watch(n.PeerChanged)
	mesh.Start()
	t.Cleanup(func() { n.shut(t) })
	return n
}

// shut closes the host and what it stands on.
func (n *lone) shut(t testing.TB) {
	if n.closed {
		return
	}
	n.closed = true
	n.Close()
	if err := n.mesh.Close(); err != nil {
		t.Error(err)
	}
	if err := n.store.Close(); err != nil {
		t.Error(err)
	}
}

// mustGroup opens a group and waits until it leads.
func (n *lone) mustGroup(t testing.TB, id fsm.GroupID, config *group.QueueConfig) *group.Group {
	t.Helper()
	g, err := n.Open(group.Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: fmt.Sprint("q", id), Members: []string{"n1"}, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	n.outside.await(t, "the group leads", func() bool { return g.Leading() != 0 })
	return g
}

var session = fsm.SessionID{Node: 1, Boot: 5, Num: 9}

// enqueues is a batch of messages of a session's stream.
func enqueues(first uint64, ttl fsm.Millis, bodies ...string) group.Batch {
	var b group.Batch
	for i, body := range bodies {
		b.Commands = group.AppendCommand(b.Commands, &logpb.Command{
			Kind: logpb.Command_ENQUEUE, Session: session.Proto(), Seq: first + uint64(i),
			Enqueue: &logpb.Enqueue{Size: uint32(len(body)), TtlPlusOne: uint64(ttl + 1)},
		})
		b.Count++
		b.Payloads = append(b.Payloads, []byte(body))
		b.Bytes += len(body)
	}
	return b
}

func mustSubmit(t testing.TB, g *group.Group, b group.Batch) {
	t.Helper()
	if err := g.Submit(b); err != nil {
		t.Fatal(err)
	}
}

func answered(outcomes []group.Outcome) (last uint64) {
	for _, o := range outcomes {
		if o.First != last+1 {
			return 0
		}
		last += o.Run
	}
	return last
}

func ready(g *group.Group) (n uint64) {
	g.View(func(m *queue.Machine) { n = m.Stats().Ready.Messages })
	return n
}

// expire waits until no message is left.
func expire(t *testing.T, g *group.Group) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ready(g) > 0 {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("%d messages never expire", ready(g))
		}
	}
}

// trio is three hosts that know each other.
type trio struct {
	t     testing.TB
	hosts []*lone
	log   *logtest.Lines
	nodes map[string]net.Listener
}

var trioNames = []string{"n1", "n2", "n3"}

func mustTrio(t testing.TB, tune ...any) *trio {
	t.Helper()
	c := &trio{t: t, log: &logtest.Lines{}}
	c.nodes = map[string]net.Listener{}
	for _, name := range trioNames {
		c.nodes[name] = mustListen(t)
	}
	dir := t.TempDir()
	for _, name := range trioNames {
		c.hosts = append(c.hosts, mustHostOf(t, filepath.Join(dir, name), name, c.nodes, slog.New(slog.NewTextHandler(c.log, nil)), tune...))
	}
	return c
}

// mustOpen opens a group on all hosts, waits until its leader has begun its term
// and said so, and returns the replicas, the leader first.
func (c *trio) mustOpen(id fsm.GroupID) []*group.Group {
	c.t.Helper()
	for _, h := range c.hosts {
		c.mustOpenAt(h, id)
	}
	await(c.t, "a leader has begun its term", func() bool {
		g := c.mustLead(id)
		o := c.host(g).outside
		o.mu.Lock()
		defer o.mu.Unlock()
		return slices.Contains(o.terms, g.Leading())
	})
	return c.replicas(id)
}

func specOf(id fsm.GroupID) group.Spec {
	return group.Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: "q", Members: trioNames, Config: &group.QueueConfig{DeliveryLimit: 20}}
}

// mustOpenAt opens one replica of a
func (c *trio) mustOpenAt(h *lone, id fsm.GroupID) *group.Group {
	c.t.Helper()
	g, err := h.Open(specOf(id))
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

// replicas returns a group's replicas, the one that leads first.
func (c *trio) replicas(id fsm.GroupID) (all []*group.Group) {
	for _, h := range c.hosts {
		g := h.Group(id)
		if all = append(all, g); g.Leading() != 0 {
			all[0], all[len(all)-1] = all[len(all)-1], all[0]
		}
	}
	return all
}

// host finds the host of a replica.
func (c *trio) host(g *group.Group) *lone {
	for _, h := range c.hosts {
		if h.Group(g.Spec().Group) == g {
			return h
		}
	}
	c.t.Fatal("a replica of no host")
	return nil
}

// await waits for a state.
func await(t testing.TB, what string, f func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// mustLead waits until exactly one replica leads, and returns it.
func (c *trio) mustLead(id fsm.GroupID) (leader *group.Group) {
	c.t.Helper()
	await(c.t, "a leader", func() bool {
		leader = nil
		for _, h := range c.hosts {
			if g := h.Group(id); g != nil && g.Leading() != 0 {
				leader = g
			}
		}
		return leader != nil
	})
	return leader
}

// mustServe has the group's leader, whoever that is, take a message.
func (c *trio) mustServe(id fsm.GroupID, seq uint64) *group.Group {
	c.t.Helper()
	var leader *group.Group
	await(c.t, "the group serves", func() bool {
		if leader = c.mustLead(id); leader.Submit(enqueues(seq, -1, "m")) != nil {
			return false
		}
		return leader.Barrier(patience) == nil && ready(leader) == seq
	})
	return leader
}

// mustTake gives a batch to each leader of a group, as publishers do, until one has taken it: there have been so many
// messages then. What a leader was given is lost if another follows it.
func (c *trio) mustTake(id fsm.GroupID, b group.Batch, enqueued uint64) {
	c.t.Helper()
	given := uint64(0)
	await(c.t, "the message is taken", func() (taken bool) {
		for _, h := range c.hosts {
			g := h.Group(id)
			if h.closed || g == nil {
				continue
			}
			term := g.Leading()
			if term == 0 {
				continue
			}
			if term > given && g.Submit(b) == nil {
				given = term
			}
			g.View(func(m *queue.Machine) { taken = taken || m.Stats().Counters.Enqueued == enqueued })
		}
		return taken
	})
}

// sleepy lets groups sleep that are idle for a moment.
func sleepy(c *Config) {
	c.Heartbeat, c.IdleAfter = 0, 20*time.Millisecond
	c.Version, c.Newest = func() uint32 { return 3 }, 3
}

// mustSleep waits until all replicas of a group sleep and one leads, and returns them, the leader first.
func (c *trio) mustSleep(id fsm.GroupID) (all []*group.Group) {
	c.t.Helper()
	await(c.t, "all replicas sleep", func() bool {
		all = nil
		for _, h := range c.hosts {
			if g := h.Group(id); !h.closed && g != nil {
				all = append(all, g)
			}
		}
		lead := slices.IndexFunc(all, func(g *group.Group) bool { return g.Leading() != 0 })
		if lead >= 0 {
			all[0], all[lead] = all[lead], all[0]
		}
		return lead >= 0 && !slices.ContainsFunc(all, func(g *group.Group) bool { return !g.Asleep() })
	})
	return all
}

// mustAgree compares the states of replicas at an entry.
func (c *trio) mustAgree(all []*group.Group, at uint64) {
	c.t.Helper()
	all[0].View(func(m *queue.Machine) { at = min(at, m.Index()) }) // behind it raft's own entries may be, which no machine gets
	var want string
	for _, g := range all {
		_, hash, err := g.HashAt(at, patience)
		if err != nil {
			c.t.Fatal(err)
		}
		if want == "" {
			want = hash
		}
		if hash != want {
			c.t.Fatalf("the replica at %s has another state", c.nodeOf(g))
		}
	}
}

// handClock is a time that only the test lets pass.
type handClock struct{ at atomic.Int64 }

func (c *handClock) now() time.Duration { return time.Duration(c.at.Load()) }

func (c *handClock) pass(d time.Duration) { c.at.Add(int64(d)) }

func (c *handClock) set(config *Config) { config.Awake = c.now }

// await waits for a state and lets time pass until then: nobody is blamed for
// what takes long before or after.
func (c *handClock) await(t testing.TB, what string, f func() bool) {
	t.Helper()
	await(t, what, func() bool {
		if f() {
			return true
		}
		c.pass(5 * time.Millisecond)
		return false
	})
}

func quickWatch(c *Config) { c.Progress = 300 * time.Millisecond }

func patientRaft(c *Config) { c.Heartbeat = time.Minute }

// start opens a host that was shut again, and its replica of a
func (c *trio) start(i int, id fsm.GroupID) *group.Group {
	c.t.Helper()
	name, dir := trioNames[i], c.hosts[i].dir
	l, err := net.Listen("tcp", c.nodes[name].Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = l
	c.hosts[i] = mustHostOf(c.t, dir, name, c.nodes, slog.New(slog.NewTextHandler(c.log, nil)))
	g, err := c.hosts[i].Open(group.Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: "q", Members: trioNames, Config: &group.QueueConfig{DeliveryLimit: 20}})
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

// linked reports whether a node can be sent to.
func (n *lone) linked(node string) bool {
	return slices.ContainsFunc(n.mesh.Peers(), func(p peer.PeerStatus) bool { return p.Node == node && p.Linked })
}

// restart ends some of the hosts and starts them again; open says which groups are open there if they do not sleep on.
func (c *trio) restart(which []int, open []fsm.GroupID, tune ...any) (asleep int) {
	c.t.Helper()
	for _, i := range which {
		c.hosts[i].shut(c.t)
	}
	for _, i := range which {
		l, err := net.Listen("tcp", c.nodes[trioNames[i]].Addr().String())
		if err != nil {
			c.t.Fatal(err)
		}
		c.nodes[trioNames[i]] = l
	}
	for _, i := range which {
		h := mustHostOf(c.t, c.hosts[i].dir, trioNames[i], c.nodes, slog.New(slog.NewTextHandler(c.log, nil)), tune...)
		c.hosts[i] = h
		asleep += h.TakeUp(func(id fsm.GroupID) (group.Spec, bool) { return specOf(id), slices.Contains(open, id) })
		for _, id := range open {
			if h.Group(id) == nil {
				c.mustOpenAt(h, id)
			}
		}
	}
	return asleep
}

// other returns a host that does not have this replica.
func (c *trio) other(g *group.Group) *lone {
	for _, h := range c.hosts {
		if h.Group(g.Spec().Group) != g {
			return h
		}
	}
	c.t.Fatal("no other host")
	return nil
}

// noTimers leaves raft without timers, as in production.
func noTimers(c *Config) { c.Heartbeat = 0 }

// mustCut returns three hosts without timers of raft, and what cuts them off.
func mustCut(t *testing.T) (*trio, *peertest.Valve) {
	t.Helper()
	v := peertest.NewValve()
	return mustTrio(t, v.Tune, noTimers), v
}

// bothKinds runs a test on a replica and on a local queue.
func bothKinds(t *testing.T, test func(t *testing.T, n *lone, g *group.Group)) {
	config := &group.QueueConfig{DeliveryLimit: 20}
	t.Run("replica", func(t *testing.T) {
		n := mustHost(t, t.TempDir())
		test(t, n, n.mustGroup(t, 1, config))
	})
	t.Run("local", func(t *testing.T) {
		n := mustHost(t, t.TempDir())
		test(t, n, n.OpenLocal(localSpec(1, config)))
	})
}

func localSpec(id fsm.GroupID, config *group.QueueConfig) group.Spec {
	return group.Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: "q", Members: []string{"n1"}, Config: config}
}

// leads reports whether a group has a leader that serves.
func (c *trio) leads(id fsm.GroupID) bool {
	for _, h := range c.hosts {
		if g := h.Group(id); !h.closed && g != nil && g.Leading() != 0 {
			return true
		}
	}
	return false
}

// mustAwaken opens a group, in which a message waits, on three hosts that put none to sleep by themselves.
func mustAwaken(t *testing.T) (c *trio, all []*group.Group) {
	t.Helper()
	c = mustTrio(t, sleepy, func(c *Config) { c.IdleAfter = 0 })
	all = c.mustOpen(1)
	c.mustServe(1, 1)
	return c, all
}

// in returns the instance of a group, which is woken for that.
func in(g *group.Group) *awake { return g.Wake().Attendant().(*awake) }

// nodeOf names the node of a replica.
func (c *trio) nodeOf(g *group.Group) string { return c.host(g).config.Node }

// mustRest puts a replica to sleep.
func mustRest(t *testing.T, g *group.Group) {
	t.Helper()
	await(t, "it sleeps", func() bool { return g.Sleep(func(*group.Instance) bool { return true }) })
}

// believe has a replica that sleeps, and does not lead, know another leader, or none.
func believe(g *group.Group, term uint64, leader string) {
	for { // it may just have been asked again whether it sleeps
		if r := g.Record(); r != nil && g.Lost(leader, election.Item{Kind: election.ItemWon, Group: g.ID(), Term: term, Position: r.At().Position}) {
			return
		}
		runtime.Gosched()
	}
}

// hang has the machine of a group hang until go on is called.
func hang(g *group.Group) (goOn func()) {
	hangs, end := make(chan struct{}), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		g.View(func(*queue.Machine) {
			close(hangs)
			<-end
		})
	})
	<-hangs
	return sync.OnceFunc(func() {
		close(end)
		reader.Wait()
	})
}
