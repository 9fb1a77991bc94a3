package group

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

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
		asleep += h.TakeUp(func(id fsm.GroupID) (Spec, bool) { return specOf(id), slices.Contains(open, id) })
		for _, id := range open {
			if h.Group(id) == nil {
				c.mustOpenAt(h, id)
			}
		}
	}
	return asleep
}

// stateOf is a hash of what a machine is.
func stateOf(t *testing.T, g *Group) (hash string) {
	t.Helper()
	g.View(func(m *queue.Machine) {
		a := &applier{machine: m}
		hash, _ = a.freeze()()
	})
	return hash
}

// Groups that sleep do so after a restart of all nodes: none is opened, nobody leads, and what their records say is as it was.
// Each goes on when it is needed, with the machine that it had, however that is kept.
func TestSleepersSleepOn(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	ids := []fsm.GroupID{1, 2, 3}
	for _, id := range ids { // 1: empty, 2: with a message, 3: with a consumer
		g, ttl := c.mustOpen(id)[0], fsm.Millis(-1)
		if id == 1 {
			ttl = 1
		}
		mustSubmit(t, g, enqueues(1, ttl, "a"))
		o := c.host(g).outside
		taken := 0
		o.await(t, "the message is taken", func() bool {
			taken = len(o.outcomes)
			return taken > 0
		})
		if id == 1 {
			await(t, "it expires", func() bool { return ready(g) == 0 })
		}
		if id == 3 {
			mustSubmit(t, g, Batch{Count: 1, Commands: AppendCommand(nil, &logpb.Command{
				Kind: logpb.Command_CONSUME, Session: session.Proto(), Seq: 2, Consume: &logpb.Consume{Consumer: 1},
			})})
			o.await(t, "it is consumed", func() bool { return len(o.outcomes) > taken })
		}
	}
	type state struct {
		stats Stats
		hash  string
		term  uint64
	}
	was := map[fsm.GroupID]state{}
	for _, id := range ids {
		g := c.mustSleep(id)[0]
		was[id] = state{g.Stats(), stateOf(t, g), g.Term()}
	}
	if n := c.restart([]int{0, 1, 2}, ids, sleepy); n != 9 {
		t.Fatalf("%d replicas sleep on\n%s", n, c.log)
	}
	for _, h := range c.hosts {
		if n := h.store.Metrics().Groups; n > 0 {
			t.Errorf("%d groups were read", n)
		}
	}
	for _, id := range ids {
		for _, h := range c.hosts {
			g := h.Group(id)
			if s := g.Stats(); s.Use != nil { // how well consumers were served is not kept
				s.Use.Capacity = was[id].stats.Use.Capacity
			} else if !reflect.DeepEqual(s, was[id].stats) {
				t.Errorf("group %d: %+v has become %+v", id, was[id].stats, s)
			}
			if g.Leader() == g.node.config.Node && g.Leading() == 0 {
				t.Errorf("group %d is said to be led by who does not", id)
			}
			if hash := stateOf(t, g); hash != was[id].hash {
				t.Errorf("group %d has another state at %s", id, g.node.config.Node)
			}
		}
	}
	for _, id := range ids {
		c.mustLeadSoon(id)
		c.mustTake(id, enqueues(map[fsm.GroupID]uint64{1: 2, 2: 2, 3: 3}[id], -1, "b"), 2)
		c.mustAgree(c.replicas(id), c.mustLead(id).AppliedIndex())
	}
}

// mustLeadSoon waits until a group has a leader that somebody waits for.
func (c *trio) mustLeadSoon(id fsm.GroupID) {
	c.t.Helper()
	await(c.t, "one leads", func() bool {
		c.hosts[0].Want(id, trioNames)
		return c.leads(id)
	})
}

// What is due is met though all nodes are restarted, twice, and though the leader's node does not come back.
func TestDeadlineAcrossRestarts(t *testing.T) {
	t.Parallel()
	for _, back := range [][]int{{0, 1, 2}, {1, 2}} {
		c := mustTrio(t, sleepy)
		g := c.mustOpen(1)[0]
		mustSubmit(t, g, enqueues(1, 12_000, "a"))
		await(t, "the message is taken", func() bool { return ready(g) == 1 })
		if all := c.mustSleep(1); all[0].node.config.Node != trioNames[0] {
			t.Fatalf("it is led by %s", all[0].node.config.Node)
		}
		c.restart([]int{0, 1, 2}, []fsm.GroupID{1}, sleepy)
		c.hosts[0].shut(t)
		c.restart(back, []fsm.GroupID{1}, sleepy)
		await(t, "it expires", func() bool {
			for _, g := range c.left(1) {
				if g.Stats().Ready.Messages == 0 {
					return true
				}
			}
			return false
		})
	}
}

// A member that was down while a message came gets it though all nodes were restarted in the meantime.
func TestLackingMemberAcrossRestart(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	g := c.mustOpen(1)[0]
	mustSubmit(t, g, enqueues(1, -1, "a"))
	await(t, "the message is taken", func() bool { return ready(g) == 1 })
	all := c.mustSleep(1)
	down := slices.Index(trioNames, all[1].node.config.Node)
	c.hosts[down].shut(t)
	for _, g := range []*Group{all[0], all[2]} {
		await(t, "it is down", func() bool { return !g.node.config.Mesh.Alive(trioNames[down]) })
	}
	mustSubmit(t, g, enqueues(2, -1, "b"))
	await(t, "both sleep with it", func() bool {
		for _, g := range []*Group{all[0], all[2]} {
			if !g.Asleep() || g.Stats().Ready.Messages != 2 {
				return false
			}
		}
		return true
	})
	var others []int
	for i := range trioNames {
		if i != down {
			others = append(others, i)
		}
	}
	c.restart(others, []fsm.GroupID{1}, sleepy)
	if n := c.restart([]int{down}, []fsm.GroupID{1}, sleepy); n != 1 {
		t.Error("it is opened")
	}
	await(t, "it gets the message", func() bool { return c.hosts[down].Group(1).Stats().Ready.Messages == 2 })
	c.mustTake(1, enqueues(3, -1, "c"), 3)
	c.mustAgree(c.replicas(1), c.mustLead(1).AppliedIndex())
}

// A group whose record is not true, or of another queue, is opened.
func TestVoidRecordsAreOpened(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	g := c.mustOpen(1)[0]
	mustSubmit(t, g, enqueues(1, -1, "a"))
	await(t, "the message is taken", func() bool { return ready(g) == 1 })
	c.mustSleep(1)
	for _, h := range c.hosts {
		h.shut(t)
	}
	h := mustHostOf(t, c.hosts[0].dir, trioNames[0], map[string]net.Listener{trioNames[0]: mustListen(t)}, slog.New(slog.DiscardHandler), sleepy)
	other := specOf(1)
	other.Queue++
	if n := h.TakeUp(func(fsm.GroupID) (Spec, bool) { return other, true }); n != 0 || h.Group(1) != nil {
		t.Error("another queue's group sleeps")
	}
	h.shut(t)
	h = mustHostOf(t, c.hosts[0].dir, trioNames[0], map[string]net.Listener{trioNames[0]: mustListen(t)}, slog.New(slog.DiscardHandler))
	if n := h.TakeUp(func(id fsm.GroupID) (Spec, bool) { return specOf(id), true }); n != 0 {
		t.Error("groups sleep where none is to")
	}
	h.shut(t)
}

// Whatever a record may say, what is read of it is what was written, and what was cut short or changed is no record.
func TestStoredRecord(t *testing.T) {
	var s storedRecord
	r := rand.New(rand.NewPCG(1, 0))
	fill(r, reflect.ValueOf(&s).Elem())
	b := appendFields(nil, reflect.ValueOf(&s).Elem())
	var is storedRecord
	f := fieldReader{b: b}
	f.read(reflect.ValueOf(&is).Elem())
	if err := f.end(); err != nil || !reflect.DeepEqual(is, s) {
		t.Errorf("%+v has become %+v: %v", s, is, err)
	}
	for n := range b {
		f := fieldReader{b: b[:n]}
		f.read(reflect.ValueOf(&storedRecord{}).Elem())
		if f.end() == nil {
			t.Fatalf("%d bytes of %d are a record", n, len(b))
		}
	}
	if f := (fieldReader{b: append(b, 0)}); f.end() == nil {
		t.Error("what is too long is a record")
	}
	type a struct{ A, B uint64 }
	type other struct{ A, C uint64 }
	if layout(reflect.TypeFor[a]()) == layout(reflect.TypeFor[other]()) {
		t.Error("two types have one layout")
	}
}

// fill sets everything in a value that can be set.
func fill(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(r.Int64N(100) - 50)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64N(200))
	case reflect.String:
		v.SetString("text")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(r, v.Field(i))
			}
		}
	}
}

// BenchmarkTakeUp is what a start does with 100,000 groups that sleep, and what is left of each in memory, its place in the
// ledger included.
func BenchmarkTakeUp(b *testing.B) {
	const groups = 100_000
	fs := vfs.NewMem()
	open := func() *raftlog.Store {
		s, err := raftlog.Open("queues", raftlog.Options{FS: fs, TrailingLogs: TrailingLogs})
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	store := open()
	fillAsleep(b, store, groups)
	if err := store.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		store = open()
		h := mustHostOf(b, b.TempDir(), "n1", map[string]net.Listener{"n1": mustListen(b)}, slog.New(slog.DiscardHandler), sleepy, func(c *HostConfig) {
			c.Store, c.KeepAwake = store, groups
		})
		before := liveHeap()
		names := make([]string, groups)
		for i := range names {
			names[i] = fmt.Sprintf("queue-%d", i)
		}
		config := &QueueConfig{DeliveryLimit: 20}
		b.StartTimer()
		n := h.TakeUp(func(id fsm.GroupID) (Spec, bool) {
			s := specOf(id)
			s.Name, s.Config = names[id-1], config
			return s, true
		})
		b.StopTimer()
		if n != groups {
			b.Fatalf("%d sleep on", n)
		}
		b.ReportMetric(float64(liveHeap()-before)/groups, "B/sleeper")
		h.shut(b)
		if err := store.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// fillAsleep stores groups of empty queues that sleep.
func fillAsleep(b *testing.B, store *raftlog.Store, groups int) {
	b.Helper()
	m := queue.New("q", 1)
	servers := []raft.Server{}
	for _, name := range trioNames {
		servers = append(servers, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)})
	}
	for id := fsm.GroupID(1); int(id) <= groups; id++ {
		log, err := store.Group(id)
		if err != nil {
			b.Fatal(err)
		}
		logs := []*raft.Log{{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{Servers: servers})}}
		for i := uint64(2); i < 6; i++ {
			logs = append(logs, &raft.Log{Index: i, Term: 2, Type: raft.LogNoop, Data: make([]byte, 40)})
		}
		if err := log.StoreLogs(logs); err != nil {
			b.Fatal(err)
		}
		r := &Record{
			level: true, at: RecordedAt{replica.Position{Term: 2, Index: 5}, 2}, leader: trioNames[int(id)%3],
			config: raft.Configuration{Servers: servers}, configAt: 1, snapshot: -1,
		}
		r.keep(m)
		r.store(log, &Spec{Group: id, Queue: fsm.QueueID(id) << 16})
		if !store.Unload(id) {
			b.Fatal("it stays")
		}
	}
}

// A replica that has slept and has applied nothing since writes a snapshot of what it has, from which it starts again.
func TestSnapshotOfSleeper(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a", "b"), 2)
	for _, g := range c.mustSleep(1) {
		if err := g.Snapshot(t.Context()); err != nil || g.SnapshotIndex() < 1 || uint64(g.SnapshotIndex()) > g.AppliedIndex() {
			t.Errorf("%s: a snapshot at %d of %d, %v", g.node.config.Node, g.SnapshotIndex(), g.AppliedIndex(), err)
		}
	}
	all := c.mustSleep(1)
	at := all[0].SnapshotIndex()
	if err := all[0].Snapshot(t.Context()); err != nil || all[0].SnapshotIndex() < at {
		t.Errorf("another one at %d after %d, %v", all[0].SnapshotIndex(), at, err)
	}
	c.restart([]int{0, 1, 2}, []fsm.GroupID{1}, sleepy, func(c *HostConfig) { c.IdleAfter = 0 }) // nothing sleeps on
	c.mustTake(1, enqueues(3, -1, "c"), 3)
	c.mustAgree(c.replicas(1), c.mustLead(1).AppliedIndex())
	for _, g := range c.replicas(1) {
		if ready(g) != 3 {
			t.Errorf("%s has %d messages", g.node.config.Node, ready(g))
		}
	}
}
