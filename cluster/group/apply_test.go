package group

import (
	"bytes"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// A replica that does not serve applies entries, and says nothing of them.
func TestFollowersAreQuiet(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	serving := g.in().applier.serves
	set := func(serves func() bool) {
		g.in().applier.mu.Lock()
		defer g.in().applier.mu.Unlock()
		g.in().applier.serves = serves
	}
	set(func() bool { return false })
	mustSubmit(t, g, enqueues(1, -1, "a", "b"))
	mustSubmit(t, g, Batch{Count: 1, Commands: AppendCommand(nil, &logpb.Command{
		Kind: logpb.Command_CONSUME, Session: session.Proto(), Seq: 3, Consume: &logpb.Consume{Consumer: 1},
	})})
	await(t, "both are handed out", func() bool {
		held := uint64(0)
		g.View(func(m *queue.Machine) { held = m.Stats().Unacknowledged.Messages })
		return held == 2
	})
	set(serving)
	mustSubmit(t, g, enqueues(4, -1, "c"))
	n.outside.await(t, "the answer to the last one", func() bool { return len(n.outside.outcomes) > 0 && len(n.outside.bodies) > 0 })
	if o := n.outside; o.outcomes[0].First != 4 || !slices.Equal(o.bodies, []string{"c"}) {
		t.Errorf("answers %+v, deliveries %q", o.outcomes, o.bodies)
	}
}

// written is a sink that keeps what it is told.
type written struct {
	bytes.Buffer
	live   []uint64
	origin uint64
	closed bool
}

func (w *written) ID() string               { return "" }
func (w *written) Cancel() error            { return nil }
func (w *written) Close() error             { w.closed = true; return nil }
func (w *written) SetLive(indexes []uint64) { w.live = indexes }
func (w *written) SetOrigin(origin uint64)  { w.origin = origin }

// A snapshot names the entries that still have messages, and no others, and of which machine it is,
// although another one has replaced that meanwhile.
func TestSnapshotNamesLiveEntries(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	for i, body := range []string{"a", "b", "c"} {
		mustSubmit(t, g, enqueues(uint64(i+1), -1, body))
		n.outside.await(t, "an answer", func() bool { return answered(n.outside.outcomes) == uint64(i+1) })
	}
	mustTakeOne(t, n, g, 4)
	var want []uint64
	g.View(func(m *queue.Machine) {
		for index := range m.Index() + 1 {
			if m.Live(index) {
				want = append(want, index)
			}
		}
	})
	origin := func(no uint64) {
		g.in().applier.mu.Lock()
		defer g.in().applier.mu.Unlock()
		g.in().applier.origin = no
	}
	origin(7)
	s, err := g.in().applier.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	origin(0)
	var to written
	if err := s.Persist(&to); err != nil || !to.closed {
		t.Fatalf("closed: %t, %v", to.closed, err)
	}
	if slices.Sort(to.live); len(want) != 2 || !slices.Equal(to.live, want) {
		t.Errorf("entries %v are live, the snapshot names %v", want, to.live)
	}
	if to.origin != 7 {
		t.Errorf("it is of machine %d", to.origin)
	}
}

// What came with a snapshot, or was there before, and has no message in its state is freed.
func TestRestoreFreesTheRest(t *testing.T) {
	const size = 1000
	open := func() (*lone, *Group) {
		n := mustHost(t, t.TempDir())
		g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
		mustSubmit(t, g, enqueues(1, -1, string(make([]byte, size))))
		n.outside.await(t, "an answer", func() bool { return answered(n.outside.outcomes) == 1 })
		return n, g
	}
	_, g := open()
	n, later := open()
	mustTakeOne(t, n, later, 2)
	if err := later.in().WriteSnapshot(); err != nil {
		t.Fatal(err)
	}
	list, err := later.in().store.Snapshots().List()
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	_, state, err := later.in().store.Snapshots().Open(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if have := g.in().store.LiveBytes(); have != size {
		t.Fatalf("%d bytes are live before", have)
	}
	if err := g.in().applier.Restore(state); err != nil {
		t.Fatal(err)
	}
	if have := g.in().store.LiveBytes(); have != 0 {
		t.Errorf("%d bytes are live, the state has no message", have)
	}
}

// mustTakeOne gets a message that needs no ack.
func mustTakeOne(t *testing.T, n *lone, g *Group, seq uint64) {
	t.Helper()
	mustSubmit(t, g, Batch{Count: 1, Commands: AppendCommand(nil, &logpb.Command{
		Kind: logpb.Command_GET, Session: session.Proto(), Seq: seq, Get: &logpb.Get{NoAck: true},
	})})
	n.outside.await(t, "a message", func() bool { return len(n.outside.bodies) == 1 && answered(n.outside.outcomes) == seq })
}
