package queue

import (
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestBootsChanged: whoever remembers BootsChanged misses no change of the boots that a queue knows, and messages are none.
func TestBootsChanged(t *testing.T) {
	m := New("q", 7)
	index := uint64(0)
	do := func(boot uint64, seq uint64, c *logpb.Command) (changed bool) {
		t.Helper()
		index++
		at := fsm.Meta{Index: index, Term: 1, Now: fsm.Time(1000 + index)}
		if c.Seq = seq; seq > 0 {
			at.Session = fsm.SessionID{Node: 2, Boot: boot, Num: 1}
		}
		sessions, suspected, before := m.SessionNodes(), m.SuspectedNodes(), DemandOf(m).BootsChanged
		if r := m.Apply(at, c, &fsm.Effects{}); r.Code != fsm.OK {
			t.Fatalf("%v: %v", c.Kind, r.Code)
		}
		changed = !slices.Equal(sessions, m.SessionNodes()) || !slices.Equal(suspected, m.SuspectedNodes())
		if changed && DemandOf(m).BootsChanged == before {
			t.Errorf("%v changed %v, %v to %v, %v", c, sessions, suspected, m.SessionNodes(), m.SuspectedNodes())
		}
		return DemandOf(m).BootsChanged != before
	}
	enqueue := func() *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 9}}
	}
	suspect := func(back bool) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: &logpb.NodeSuspected{Node: 2, Boot: 5, Back: back}}
	}
	if !do(5, 1, enqueue()) || do(5, 2, enqueue()) {
		t.Error("a session begins; a message comes")
	}
	for range 2 {
		if !do(0, 0, suspect(false)) || do(0, 0, suspect(false)) || !do(0, 0, suspect(true)) {
			t.Error("a suspicion begins, begins again, ends")
		}
	}
	if !do(6, 1, enqueue()) || !do(6, 2, &logpb.Command{Kind: logpb.Command_SESSION_DOWN}) {
		t.Error("a session ends")
	}
	do(0, 0, suspect(false))
	if !do(0, 0, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 2, Boot: 5}}) || len(m.SuspectedNodes()) > 0 {
		t.Error("a node is down")
	}
	if !do(7, 1, enqueue()) || !do(0, 0, &logpb.Command{Kind: logpb.Command_DELETE, Delete: &logpb.Delete{}}) || len(m.SessionNodes()) > 0 {
		t.Error("the queue is deleted")
	}
}
