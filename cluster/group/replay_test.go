package group

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

// fullDisk is a sink that takes nothing.
type fullDisk struct{ raft.SnapshotSink }

var errFullDisk = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFullDisk }
func (fullDisk) Cancel() error             { return nil }
func (fullDisk) Close() error              { return errFullDisk }

// mustReplay checks what the next start applies again, of the group and of its
// host, which has no other.
func (n *lone) mustReplay(t *testing.T, when string, g *Group, want int64) {
	t.Helper()
	if got, all := g.in().usage.replay.Load(), g.node.replays.Load(); got != want || all != want {
		t.Errorf("%s: %d bytes are to be applied again, %d in all groups, want %d", when, got, all, want)
	}
}

// What the next start applies again is counted once, and for as long as a
// snapshot can spare it.
func TestReplay(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	mustSubmit(t, g, enqueues(1, -1, "a", "b", "c"))
	await(t, "messages", func() bool { return ready(g) == 3 })
	await(t, "they are counted", func() bool {
		return g.in().usage.replay.Load() > 0 && g.in().Raft().AppliedIndex() == g.in().LastIndex()
	})
	replay := g.in().usage.replay.Load()

	capture := func() *snapshot {
		t.Helper()
		s, err := g.in().applier.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		n.mustReplay(t, "captured", g, 0)
		return s.(*snapshot)
	}
	s := capture()
	if err := s.Persist(fullDisk{}); !errors.Is(err, errFullDisk) {
		t.Errorf("a snapshot on a full disk: %v", err)
	}
	s.Release()
	n.mustReplay(t, "not written", g, replay)

	capture().Release()
	n.mustReplay(t, "raft has changed its mind", g, replay)

	s = capture()
	g.in().applier.mu.Lock()
	g.in().applier.origin++
	g.in().applier.mu.Unlock()
	s.Release()
	n.mustReplay(t, "of a machine that was replaced", g, 0)
	g.in().applier.mu.Lock()
	g.in().applier.origin--
	g.in().applier.mu.Unlock()

	mustSubmit(t, g, enqueues(4, -1, "d"))
	await(t, "another one", func() bool { return ready(g) == 4 && g.in().usage.replay.Load() > 0 })
	if err := g.in().WriteSnapshot(); err != nil {
		t.Error(err)
	}
	n.mustReplay(t, "written", g, 0)

	mustSubmit(t, g, enqueues(5, -1, "e"))
	await(t, "another one", func() bool { return ready(g) == 5 && g.in().usage.replay.Load() > 0 })
	breakMachine(g)
	if err := g.in().WriteSnapshot(); err == nil {
		t.Error("a snapshot of a machine that has failed")
	}
	n.mustReplay(t, "of a machine that has failed", g, 0)
	if err := g.in().Raft().ApplyLog(raft.Log{Data: []byte{8, 1}}, 0).Error(); err != nil {
		t.Fatal(err)
	}
	n.mustReplay(t, "stored, and not applied", g, 0)
}

// A replica that was closed has nothing to apply again, also if entries were
// being applied.
func TestReplayOfClosedGroup(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	mustSubmit(t, g, enqueues(1, -1, "a"))
	await(t, "a message", func() bool { return ready(g) == 1 && g.in().usage.replay.Load() > 0 })
	g.in().applier.mu.Lock()
	mustSubmit(t, g, enqueues(2, -1, "b"))
	await(t, "an entry that is committed", func() bool {
		return g.in().Raft().CommitIndex() == g.in().LastIndex() && g.in().Raft().AppliedIndex() == g.in().LastIndex()
	})
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		g.Close()
	}()
	await(t, "raft ends", func() bool { return g.in().Raft().State() == raft.Shutdown })
	g.in().applier.mu.Unlock()
	<-closed
	n.mustReplay(t, "closed", g, 0)
}
