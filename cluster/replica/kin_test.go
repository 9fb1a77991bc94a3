package replica

import (
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
)

// patience is how long a test waits for what must happen.
const patience = 4 * time.Minute

// await waits for a state.
func await(t *testing.T, what string, f func() bool) {
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

// memory is a log that lasts as long as the test.
type memory struct {
	*raft.InmemStore
	snapshots *raft.InmemSnapshotStore
}

func (m memory) Snapshots() raft.SnapshotStore { return m.snapshots }
func (memory) Doubt() string                   { return "" }
func (memory) Prove() error                    { return nil }

var kinNames = []string{"n1", "n2", "n3"}

// kin are the replicas of group 1 on three nodes that reach each other. Raft has no timers there, and the first
// one leads.
type kin struct {
	all       []*Replica
	meshes    []*peer.Mesh
	unsettled []atomic.Int32 // how often members may lack something, as each of them says
}

func mustKin(t *testing.T) *kin {
	t.Helper()
	k := &kin{unsettled: make([]atomic.Int32, len(kinNames))}
	listeners, addresses := map[string]net.Listener{}, map[string]string{}
	for _, name := range kinNames {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[name], addresses[name] = l, l.Addr().String()
	}
	for i, name := range kinNames {
		others := maps.Clone(addresses)
		delete(others, name)
		mesh, err := peer.New(peer.Config{
			Node: name, Cluster: "test", Listener: listeners[name], Peers: others, Incarnation: [16]byte{1 + byte(i)},
			Timing: peer.Timing{SuspectAfter: 10 * time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		k.meshes = append(k.meshes, mesh)
		k.mustStart(t, i)
	}
	for _, m := range k.meshes {
		m.Start()
	}
	r := k.all[0]
	await(t, "n1 leads", func() bool {
		if !k.meshes[0].Alive("n2") || !k.meshes[0].Alive("n3") {
			return false
		}
		if r.Leader() == "" {
			k.meshes[0].Campaign(1)
		}
		return r.IsLeader()
	})
	return k
}

// mustStart starts the replica of a node.
func (k *kin) mustStart(t *testing.T, i int) {
	t.Helper()
	var running sync.WaitGroup
	mesh, log := k.meshes[i], slog.New(slog.DiscardHandler)
	r := New(Config{
		Group: 1, Node: kinNames[i], Mesh: mesh, Log: memory{raft.NewInmemStore(), raft.NewInmemSnapshotStore()}, Logger: log,
		Spawn: func(f func()) { running.Go(f) }, Unsettled: func() { k.unsettled[i].Add(1) },
	})
	c := raft.DefaultConfig()
	c.LocalID, c.Logger = raft.ServerID(kinNames[i]), NewLogger(&LogGate{Now: time.Now}, log)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout = Never, Never, Never, Never
	err := r.Start(Opening{
		Config: c, Machine: &raft.MockFSM{}, Founders: slices.Clone(kinNames), Newest: 1,
		Transport: func(t Transport) raft.Transport { return t }, Admits: func(*raft.Log, uint32) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	k.all = append(k.all, r)
	t.Cleanup(func() {
		r.End()
		f := r.Raft().Shutdown()
		mesh.DropGroup(1)
		if err := f.Error(); err != nil {
			t.Error(err)
		}
		running.Wait()
		if err := mesh.Close(); err != nil {
			t.Error(err)
		}
	})
}
