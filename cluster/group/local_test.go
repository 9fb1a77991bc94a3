package group

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// bothKinds runs a test on a replica and on a local queue.
func bothKinds(t *testing.T, test func(t *testing.T, n *lone, g *Group)) {
	config := &QueueConfig{DeliveryLimit: 20}
	t.Run("replica", func(t *testing.T) {
		n := mustHost(t, t.TempDir())
		test(t, n, n.mustGroup(t, 1, config))
	})
	t.Run("local", func(t *testing.T) {
		n := mustHost(t, t.TempDir())
		test(t, n, n.OpenLocal(localSpec(1, config)))
	})
}

func localSpec(id fsm.GroupID, config *QueueConfig) Spec {
	return Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: "q", Members: []string{"n1"}, Config: config}
}

// Payloads of a local queue are freed as messages end, and with the queue.
// Nothing of it is on disk.
func TestLocalPayloads(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.OpenLocal(localSpec(7, &QueueConfig{DeliveryLimit: -1}))
	if n.Group(7) != g || n.OpenLocal(localSpec(7, nil)) != g || g.Leading() != LocalTerm || g.Leader() != "n1" {
		t.Fatal("the queue does not serve under its number")
	}
	mustSubmit(t, g, enqueues(1, -1, "12345"))
	n.outside.await(t, "an answer", func() bool { return answered(n.outside.outcomes) == 1 })
	mustSubmit(t, g, enqueues(2, -1, "67"))
	n.outside.await(t, "an answer", func() bool { return answered(n.outside.outcomes) == 2 })
	if g.node.localBytes.Load() != 7 {
		t.Fatalf("payloads take %d bytes, not 7", g.node.localBytes.Load())
	}
	mustSubmit(t, g, Batch{Count: 2, Commands: AppendCommand(AppendCommand(nil, &logpb.Command{
		Kind: logpb.Command_GET, Session: session.Proto(), Seq: 3, Get: &logpb.Get{NoAck: true},
	}), &logpb.Command{Kind: logpb.Command_GET, Session: session.Proto(), Seq: 4, Get: &logpb.Get{}})})
	n.outside.await(t, "two messages", func() bool { return len(n.outside.bodies) == 2 })
	if n.outside.bodies[0] != "12345" || n.outside.bodies[1] != "67" {
		t.Fatalf("delivered: %q", n.outside.bodies)
	}
	awaitBytes(t, g, 2)
	if !n.DropLocal(7) || n.Group(7) != nil || n.DropLocal(7) {
		t.Error("the queue is still there")
	}
	awaitBytes(t, g, 0)
	if err := g.Submit(enqueues(5, -1, "late")); err != replica.ErrNotLeading {
		t.Errorf("a queue that has ended answers %v", err)
	}
	if ids, err := n.store.GroupIDs(); err != nil || len(ids) != 0 {
		t.Errorf("on disk: %v, %v", ids, err)
	}
	if entries, err := os.ReadDir(filepath.Join(n.dir, "queues", "snapshots")); err == nil && len(entries) != 0 {
		t.Errorf("on disk: %v", entries)
	}
}

// awaitBytes waits until payloads are freed, which happens when what is done
// with them is done.
func awaitBytes(t *testing.T, g *Group, want int64) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for g.node.localBytes.Load() != want {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("payloads take %d bytes, not %d", g.node.localBytes.Load(), want)
		}
	}
}

// Figures count nothing that is due, whoever asks.
func TestLocalExpire(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.OpenLocal(localSpec(1, &QueueConfig{DeliveryLimit: -1}))
	seq := uint64(1)
	for range 50 {
		mustSubmit(t, g, enqueues(seq, 0, "now or never"))
		mustSubmit(t, g, enqueues(seq+1, 1, "soon gone"))
		seq += 2
		n.outside.await(t, "answers", func() bool { return answered(n.outside.outcomes) == seq-1 })
		due := g.in().applier.due()
		if err := g.Expire(patience); err != nil {
			t.Fatal(err)
		}
		if due && ready(g) != 0 {
			t.Fatal("something is due that was due before")
		}
	}
	expire(t, g)
	awaitBytes(t, g, 0)
}
