package session

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

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
			w.mustHost()
			w.broker.closed = true // no goroutines
			for _, ev := range tc.events {
				w.broker.PeerChanged(ev)
			}
			n := &logpb.NodeState{Number: 2, Name: tc.node, Boot: 20, Dead: tc.dead, Incarnation: bytes.Clone(first[:])}
			if got := w.broker.detector.stateOf(n, tc.boot); got != tc.want {
				t.Errorf("state %d, want %d", got, tc.want)
			}
		})
	}
}

// mustHost gives the broker a host for groups, and links to nobody.
func (w *world) mustHost() *group.Host {
	w.broker.mesh = &peer.Mesh{}
	w.broker.groups = group.NewHost(group.Config{
		Node: "n1", Clock: w.hostClock(), Logger: w.broker.slog, Outside: w.broker, Newest: 1,
		LockCredit: func() fsm.Millis { return 0 }, Version: func() uint32 { return 1 },
		Late: func(queue.Due, fsm.Millis) {},
	})
	return w.broker.groups
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
		host := w.mustHost()
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// With a new boot number all sessions of the one before end at once, and new
// ones are served.
func TestRenewEndsSessions(t *testing.T) {
	w, c, s, l := mustStream(t)
	w.submits(l.Queue(), func(string, group.Batch) error { return nil })
	publish(s, l, 1, "m")
	k := request(s, l, &logpb.Command{Kind: logpb.Command_PURGE})
	take(l)
	w.broker.Renew(9)
	w.broker.Renew(9)
	if len(c.lost) != 1 || !isKind(c.lost[0], fsm.Forced) {
		t.Errorf("told %v", c.lost)
	}
	if !isDone(k) || k.Result.Code != fsm.NoSession || len(l.Route().Streams()) != 0 {
		t.Error("its stream goes on")
	}
	w.broker.routes.Answer("n1", l.Queue(), s.id, []group.Outcome{grouptest.OK(1, 1)})
	if c.settled[1] != 0 {
		t.Error("a publish of a boot that is over is confirmed")
	}
	other := w.MustQueue("other")
	s.route = []*catalog.Queue{other}
	s.enqueue(&fsm.Publish{Number: 2, Payload: grouptest.Payload("m"), TTL: -1, Priority: -1}, catalog.Ceilings{})
	if len(w.broker.routes.Route(other).Streams()) != 0 || len(c.settled) != 0 {
		t.Error("it begins new streams")
	}
	began := time.Now()
	s.Close(context.Background())
	if time.Since(began) >= closeWait {
		t.Error("its end waits for queues")
	}

	next := &recorder{}
	if s := w.mustSession(next); s.id.Boot != 9 || w.broker.clients.session(s.id.Num) != s {
		t.Errorf("a new session is %+v", s.id)
	}
	if len(next.lost) != 0 {
		t.Error("a new session is lost")
	}
}

// What is sent at most once begins anew with the boot.
func TestRenewRestartsLetters(t *testing.T) {
	w := newWorld(t)
	w.MustQueue("to")
	from := grouptest.NewQueue(t, w.Catalog, w.MustQueue("from"))
	from.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{
		DeadLetter: true, DeadLetterRoutingKey: "to", HasDeadLetterRoutingKey: true, DeadLetterStrategy: logpb.QueueConfig_AT_MOST_ONCE,
	}}}))
	p := grouptest.Payload("m")
	from.Apply(t, grouptest.Enqueue(p))
	w.broker.letters.SendOnce(from, []fsm.DeadLetter{{Reason: logpb.Death_EXPIRED, Ref: fsm.Ref{Index: from.Index(), Size: uint32(len(p))}}})
	if n := w.broker.LostOnce(); n != 0 {
		t.Fatalf("%d letters are lost before", n)
	}
	w.broker.Renew(9)
	if n := w.broker.LostOnce(); n != 1 {
		t.Errorf("%d letters are lost with the boot", n)
	}
}
