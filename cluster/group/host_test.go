package group

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
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
	outcomes   []Outcome
	deliveries []fsm.Delivery
	bodies     []string
	resyncs    []Resynced
	undecided  int
	outbox     int // how often letters were said to wait
	terms      []uint64
	performing int
	overlap    bool
	// poisoned: performing work of these groups panics.
	poisoned map[fsm.GroupID]bool
	hang     chan struct{}  // performing waits until it is closed; nil: it does not
	led      func(g *Group) // called for a new leader; nil: nothing is
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

func (o *outside) Perform(g *Group, w *Work) {
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

func (o *outside) Undecided(*Group, string) { o.event(func() { o.undecided++ }) }

func (o *outside) Led(g *Group, term uint64) {
	var led func(g *Group)
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
	NodeHost
	config  HostConfig
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
// a func(*HostConfig), those of its mesh, a func(*peer.Config), or of its store.
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
	disk := raftlog.Options{TrailingLogs: TrailingLogs}
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
	c := HostConfig{Config: Config{
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
	}, Retained: 64 << 20}
	for _, f := range tune {
		if f, ok := f.(func(*HostConfig)); ok {
			f(&c)
		}
	}
	n.config = c
	n.NodeHost = NewHost(c)
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
func (n *lone) mustGroup(t testing.TB, id fsm.GroupID, config *QueueConfig) *Group {
	t.Helper()
	g, err := n.Open(Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: fmt.Sprint("q", id), Members: []string{"n1"}, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	n.outside.await(t, "the group leads", func() bool { return g.Leading() != 0 })
	return g
}

var session = fsm.SessionID{Node: 1, Boot: 5, Num: 9}

// enqueues is a batch of messages of a session's stream.
func enqueues(first uint64, ttl fsm.Millis, bodies ...string) Batch {
	var b Batch
	for i, body := range bodies {
		b.Commands = AppendCommand(b.Commands, &logpb.Command{
			Kind: logpb.Command_ENQUEUE, Session: session.Proto(), Seq: first + uint64(i),
			Enqueue: &logpb.Enqueue{Size: uint32(len(body)), TtlPlusOne: uint64(ttl + 1)},
		})
		b.Count++
		b.Payloads = append(b.Payloads, []byte(body))
		b.Bytes += len(body)
	}
	return b
}

func mustSubmit(t testing.TB, g *Group, b Batch) {
	t.Helper()
	if err := g.Submit(b); err != nil {
		t.Fatal(err)
	}
}

func answered(outcomes []Outcome) (last uint64) {
	for _, o := range outcomes {
		if o.First != last+1 {
			return 0
		}
		last += o.Run
	}
	return last
}

func ready(g *Group) (n uint64) {
	g.View(func(m *queue.Machine) { n = m.Stats().Ready.Messages })
	return n
}

// Commands are answered in order, once, by a single goroutine at a time, and
// deliveries bring the bytes that were submitted, however they were joined.
func TestSubmitAndPerform(t *testing.T) { bothKinds(t, submitAndPerform) }

func submitAndPerform(t *testing.T, n *lone, g *Group) {
	const batches, each = 100, 20
	var want []string
	seq := uint64(1)
	for i := range batches {
		var bodies []string
		for k := range each {
			bodies = append(bodies, fmt.Sprintf("%d/%d %s", i, k, strings.Repeat("x", i*k)))
		}
		want = append(want, bodies...)
		mustSubmit(t, g, enqueues(seq, -1, bodies...))
		seq += each
	}
	n.outside.await(t, "all answers", func() bool { return answered(n.outside.outcomes) == batches*each })
	mustSubmit(t, g, Batch{Count: 1, Commands: AppendCommand(nil, &logpb.Command{
		Kind: logpb.Command_CONSUME, Session: session.Proto(), Seq: seq, Consume: &logpb.Consume{Consumer: 1},
	})})
	n.outside.await(t, "all deliveries", func() bool { return len(n.outside.bodies) == len(want) })
	if !slices.Equal(n.outside.bodies, want) || n.outside.overlap || n.outside.undecided != 0 {
		t.Errorf("overlap %v, %d undecided, or other bodies", n.outside.overlap, n.outside.undecided)
	}
	for i, d := range n.outside.deliveries {
		if d.ID != uint64(i+1) {
			t.Fatalf("delivery %d has the number %d", i+1, d.ID)
		}
	}
	g.Resync(fsm.ConsumerID{Session: session, Number: 1}, batches*each-3)
	n.outside.await(t, "the answer to a resync", func() bool { return len(n.outside.resyncs) == 1 })
	r := n.outside.resyncs[0]
	if r.Last != batches*each || len(r.Held) != 3 || r.More != 0 {
		t.Fatalf("resync answers %d held up to %d, then %d", len(r.Held), r.Last, r.More)
	}
	if p, err := g.Payload(r.Held[2].Ref); err != nil || string(p) != want[len(want)-1] {
		t.Errorf("the last one held is %.20q, %v", p, err)
	}
	g.Resync(fsm.ConsumerID{Session: session, Number: 1}, 0)
	n.outside.await(t, "the answer to a resync", func() bool { return len(n.outside.resyncs) == 2 })
	r = n.outside.resyncs[1]
	weight := 0
	for _, d := range r.Held {
		weight += int(d.Ref.Size) + DeliveryWeight
	}
	if last := uint64(len(r.Held)); last == 0 || last == batches*each || r.Last != last || r.More != last+1 || weight > maxResync {
		t.Errorf("resync answers %d held of %d bytes up to %d, then %d", last, weight, r.Last, r.More)
	}
}

// expire waits until no message is left.
func expire(t *testing.T, g *Group) {
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

// The settings in the log follow those that a group is opened with.
func TestConfigureOnOpen(t *testing.T) {
	dir := t.TempDir()
	limits := func(g *Group) (limit int64) {
		g.View(func(m *queue.Machine) { limit = m.Config().DeliveryLimit })
		return limit
	}
	for i, limit := range []int64{5, 5, 7} {
		n := mustHost(t, dir)
		g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: limit})
		if err := g.Barrier(patience); err != nil {
			t.Fatal(err)
		}
		mustSubmit(t, g, Batch{Count: 1, Commands: AppendCommand(nil, &logpb.Command{Kind: logpb.Command_TOUCH, Session: session.Proto(), Seq: uint64(i + 1)})})
		n.outside.await(t, "an answer", func() bool { return len(n.outside.outcomes) > 0 })
		if got := limits(g); got != limit {
			t.Errorf("the limit is %d, want %d", got, limit)
		}
		n.shut(t)
	}
}

// Raft's futures end with the group, also those that raft never answers.
func TestFuturesEnd(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	g.in().applier.mu.Lock() // nothing is applied
	futures := []raft.Future{
		replica.EndingWith(g.in().Replica, g.in().Raft().ApplyLog(raft.Log{Data: []byte{8, 1}}, 0)),
		replica.EndingWith(g.in().Replica, g.in().Raft().Barrier(0)),
	}
	ended := replica.New(replica.Config{})
	other := replica.EndingWith(ended, g.in().Raft().Barrier(0))
	ended.End()
	if err := other.Error(); err != raft.ErrRaftShutdown {
		t.Errorf("a future answers %v", err)
	}
	g.in().applier.mu.Unlock()
	n.shut(t)
	for _, f := range futures {
		_ = f.Error() // whatever it is
	}
}
