package failure

import (
	"bytes"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// world is a node without links, in a time of its own.
type world struct {
	*grouptest.Catalog
	node     *self.Node
	detector *Detector
	blind    atomic.Bool // a look at the view panics
	timeless atomic.Bool // a look at the time does
}

func newWorld(t grouptest.Fatal) *world {
	w := &world{Catalog: grouptest.NewCatalog(t)}
	w.node = self.New(self.Config{
		Node: "n1", Mesh: &peer.Mesh{}, Catalog: w, Clock: w.Stamp, Stamp: w.Stamp, Logger: slog.New(slog.DiscardHandler),
	})
	w.node.Serve(1, 7)
	w.detector = New(w.node, 0)
	w.node.Groups = host.New(host.Config{Config: group.Config{
		Node: "n1", Logger: w.node.Logger, Outside: reports{w.detector}, Newest: 1,
		Clock: clock.New(clock.Config{
			Node: "n1", Nodes: []string{"n1"}, Wall: func() time.Time { return time.UnixMilli(w.Clock.Load()) }, Logger: w.node.Logger,
			Monotonic: func() time.Duration { return time.Duration(w.Clock.Load()) * time.Millisecond },
			MaxSkew:   func() fsm.Millis { return 1000 },
		}),
		LockCredit: func() fsm.Millis { return 0 }, Version: func() uint32 { return 1 },
		Late: func(queue.Due, fsm.Millis) {},
	}})
	return w
}

// Stamp panics if that is wanted.
func (w *world) Stamp() fsm.Time {
	if w.timeless.Load() {
		panic("injected")
	}
	return w.Catalog.Stamp()
}

// View panics if that is wanted.
func (w *world) View() *catalog.View {
	if w.blind.Load() {
		panic("injected")
	}
	return w.Catalog.View()
}

// reports is what groups have to say, as far as it is about nodes.
type reports struct{ *Detector }

func (r reports) Perform(g *group.Group, w *group.Work) {
	if w.SuspicionChanged {
		r.Report(g)
	}
}

func (r reports) Led(g *group.Group, term uint64) {
	if term != 0 {
		r.Report(g)
	}
}

func (reports) Undecided(*group.Group, string) {}

// What is known of boots of a node: which are over, and which may come back.
// No link says that one is over, only the catalog.
func TestStateOf(t *testing.T) {
	first, second := [16]byte{1}, [16]byte{2}
	down := func(incarnation [16]byte, reason string) peer.Event {
		return peer.Event{Node: "n2", Incarnation: incarnation, Reason: reason}
	}
	up := func(incarnation [16]byte) peer.Event {
		return peer.Event{Node: "n2", Up: true, Incarnation: incarnation}
	}
	for _, tc := range []struct {
		name   string
		events []peer.Event
		node   string
		dead   bool
		boot   uint64 // of the sessions; the node has registered 20 with its first incarnation
		want   nodeState
	}{
		{"this node", nil, "n1", false, 20, nodeHeard},
		{"this node, declared dead", nil, "n1", true, 20, nodeOver},
		{"this node's earlier boot", nil, "n1", false, 10, nodeOver},
		{"not heard of yet", nil, "n2", false, 20, nodeUnknown},
		{"an earlier boot", nil, "n2", false, 10, nodeOver},
		{"a boot that is not in the view yet", nil, "n2", true, 30, nodeUnknown},
		{"refused", []peer.Event{down(first, peer.Refused)}, "n2", false, 20, nodeSuspected},
		{"declared dead", []peer.Event{down(first, peer.Refused)}, "n2", true, 20, nodeOver},
		{"declared dead and back", []peer.Event{down(first, peer.Refused), up(first)}, "n2", true, 20, nodeOver},
		{"silent", []peer.Event{down(first, peer.Suspected)}, "n2", false, 20, nodeSuspected},
		{"silent and back", []peer.Event{down(first, peer.Suspected), up(first)}, "n2", false, 20, nodeUnknown},
		{"restarted, not registered yet", []peer.Event{down(first, peer.Restarted), up(second)}, "n2", false, 20, nodeSuspected},
		{"an earlier process is refused", []peer.Event{down(second, peer.Refused)}, "n2", false, 20, nodeUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.node.Refuse() // no goroutines
			for _, ev := range tc.events {
				w.detector.PeerChanged(ev)
			}
			n := &logpb.NodeState{Number: 2, Name: tc.node, Boot: 20, Dead: tc.dead, Incarnation: bytes.Clone(first[:])}
			if got := w.detector.stateOf(n, tc.boot); got != tc.want {
				t.Errorf("state %d, want %d", got, tc.want)
			}
		})
	}
}

// Suspects come, go and turn out to have ended.
func TestSuspects(t *testing.T) {
	first, second := [16]byte{1}, [16]byte{2}
	x := suspects{byName: map[string]suspect{}}
	x.up("a", first)
	x.absent("a", suspect{incarnation: first}, func() bool { return true })
	if x.count() != 0 {
		t.Error("a node that is heard is suspected")
	}
	x.absent("a", suspect{incarnation: first, since: 5}, func() bool { return false })
	x.absent("a", suspect{incarnation: second, since: 6}, func() bool { return false })
	if s, ok := x.get("a"); !ok || s.since != 5 || s.restarted {
		t.Errorf("absent: %+v", s)
	}
	if !x.try("a", 10) || x.try("a", 10+declareEvery-1) || !x.try("a", 10+declareEvery) || x.try("b", 10) {
		t.Error("tries do not keep their distance")
	}
	x.up("a", second)
	if s, _ := x.get("a"); !s.restarted || s.incarnation != first {
		t.Errorf("back under another incarnation: %+v", s)
	}
	x.forget("a", suspect{incarnation: second})
	if !slices.Equal(x.names(), []string{"a"}) {
		t.Error("another process is forgotten")
	}
	x.down("a", suspect{incarnation: second})
	x.up("a", second)
	if _, ok := x.get("a"); ok {
		t.Error("a node that is heard again is suspected")
	}
}

// A silence that commits after its reason has gone is taken back, by whoever
// leads then, with and without sessions on that node.
func TestLateSuspicionIsTakenBack(t *testing.T) {
	for _, sessions := range []bool{true, false} {
		w := newWorld(t)
		host := w.node.Groups
		q := w.MustQueue("q")
		g := host.OpenLocal(group.Spec{Group: q.Group, Queue: q.ID, VHost: "/", Name: "q", Local: true, Members: []string{"n1"}, Config: &logpb.QueueConfig{DeliveryLimit: -1}})
		here := queue.Boot{Node: 1, Boot: 1} // which the catalog has, and this node hears: it is it
		if sessions {
			must(t, g.Submit(group.BatchOf(&logpb.Command{
				Kind: logpb.Command_CONSUME, Session: fsm.SessionID{Node: 1, Boot: 1, Num: 1}.Proto(), Seq: 1, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1},
			})))
		}
		must(t, g.Barrier(time.Minute))
		before := g.AppliedIndex()
		must(t, g.Submit(group.BatchOf(suspicion(here, false))))
		silent := func() (of []queue.Boot) {
			g.View(func(m *queue.Machine) { of = m.SuspectedNodes() })
			return of
		}
		for end := time.Now().Add(time.Minute); g.AppliedIndex() < before+2 || len(silent()) > 0; {
			if time.Now().After(end) {
				t.Fatalf("sessions %v: after %d entries silent: %v", sessions, g.AppliedIndex()-before, silent())
			}
			<-time.After(time.Millisecond)
		}
		host.DropLocal(q.Group)
	}
}

// TestConcerned: what is known of nodes concerns only queues that know something else.
func TestConcerned(t *testing.T) {
	w := newWorld(t)
	w.node.Refuse() // only the test reports
	host := w.node.Groups
	open := func(name string, of queue.Boot) *group.Group {
		q := w.MustQueue(name)
		g := host.OpenLocal(group.Spec{Group: q.Group, Queue: q.ID, VHost: "/", Name: name, Local: true, Members: []string{"n1"}, Config: &logpb.QueueConfig{DeliveryLimit: -1}})
		must(t, g.Submit(group.BatchOf(&logpb.Command{
			Kind: logpb.Command_CONSUME, Session: fsm.SessionID{Node: of.Node, Boot: of.Boot, Num: 1}.Proto(), Seq: 1, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1},
		})))
		must(t, g.Barrier(time.Minute))
		return g
	}
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{
		Name: "n1", PeerAddress: "n1", Incarnation: []byte("fedcba9876543210"),
	}}})
	n, _ := w.View().Node(1)
	heard := open("heard", queue.Boot{Node: 1, Boot: n.Boot})
	concerned := func(of ...*group.Group) {
		t.Helper()
		grouptest.Eventually(t, func() bool { return slices.Equal(w.detector.concerned(), of) })
	}
	concerned()
	over := open("over", queue.Boot{Node: 1, Boot: n.Boot - 1})
	concerned(over)
	w.detector.reportAll()
	concerned()
	absent := open("absent", queue.Boot{Node: 2, Boot: 1})
	if _, is := w.View().Node(2); !is {
		concerned() // its registration is yet to come
	}
	for _, g := range []*group.Group{heard, over, absent} {
		host.DropLocal(g.Spec().Group)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Of a lost node's local queues nothing is looked for again before the catalog changes; and nothing of a view is kept.
func TestEmptied(t *testing.T) {
	w := newWorld(t)
	n, _ := w.View().Node(1)
	w.detector.removeLocal(n)
	at := weak.Make(w.View())
	if w.detector.emptied[1] != w.View().Index() {
		t.Errorf("emptied at %d", w.detector.emptied[1])
	}
	w.MustQueue("q")
	for range 9 {
		runtime.GC()
	}
	if at.Value() != nil {
		t.Error("an old view is kept")
	}
	runtime.KeepAlive(w)
}

// A panic in one thing that the detector does leaves the other alone.
func TestRoundPanics(t *testing.T) {
	w := newWorld(t)
	w.detector.pending.Store(true)
	w.blind.Store(true)
	w.detector.round() // suspects, and what queues know of nodes
	if n := w.node.Panics(); n != 2 {
		t.Errorf("%d panics", n)
	}
}

// The catalog is followed after a panic in what a change of it causes.
func TestFollowingCatalogPanics(t *testing.T) {
	w := newWorld(t)
	w.blind.Store(true)
	w.node.Loop("follow the catalog", w.detector.followCatalog)
	for n := range uint64(2) {
		w.detector.CatalogChanged()
		grouptest.Eventually(t, func() bool { return w.node.Panics() > n })
	}
	w.node.Stop()
}

// Nodes are watched after a panic in the watch itself.
func TestWatchOfNodesPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.detector.Serve()
		w.timeless.Store(true)
		time.Sleep(checkEvery)
		synctest.Wait()
		before, panics := w.detector.rounds, w.node.Panics()
		w.timeless.Store(false)
		time.Sleep(worker.PanicPause + 3*checkEvery)
		synctest.Wait()
		if after := w.detector.rounds; panics == 0 || after < before+3 {
			t.Errorf("%d rounds after %d panics", after-before, panics)
		}
		w.node.Stop()
	})
}
