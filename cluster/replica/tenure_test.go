package replica

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// countedLog counts who asks for its first entry.
type countedLog struct {
	raft.LogStore
	requests int
}

func (l *countedLog) FirstIndex() (uint64, error) {
	l.requests++
	return l.LogStore.FirstIndex()
}

// Raft's gauge of a leader's oldest entry reads nothing, wakes nobody, and ends with the leadership.
func TestGaugeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := raft.DefaultConfig()
		c.LocalID, c.LogOutput = "n1", io.Discard
		var over tenure
		store, ending := raft.NewInmemStore(), make(chan struct{})
		log := &countedLog{LogStore: store}
		snapshots, addr := raft.NewInmemSnapshotStore(), raft.ServerAddress("n1")
		_, link := raft.NewInmemTransport(addr)
		members := raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: addr}}}
		if err := raft.BootstrapCluster(c, log, store, snapshots, link, members); err != nil {
			t.Fatal(err)
		}
		r, err := raft.NewRaft(c, &raft.MockFSM{}, raftsLog{LogStore: log, over: over.over, ending: ending}, store, snapshots, link)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if r.State() != raft.Leader {
			t.Fatal("it does not lead")
		}
		over.mu.Lock()
		waits := over.done != nil
		over.mu.Unlock()
		if !waits {
			t.Error("the gauge does not wait: has raft another name for it?")
		}
		if log.requests > 0 {
			t.Errorf("it was read %d times", log.requests)
		}
		if err := r.Shutdown().Error(); err != nil {
			t.Fatal(err)
		}
		over.end() // else it would not end
	})
}
