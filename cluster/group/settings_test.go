package group

import (
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// catalogOf is what a node's catalog says of every queue.
type catalogOf struct {
	mu     sync.Mutex
	config *QueueConfig
}

func (c *catalogOf) set(revision, ttl uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config = &QueueConfig{Revision: revision, TtlPlusOne: ttl, DeliveryLimit: 20}
}

func (c *catalogOf) get(fsm.QueueID) *QueueConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	return proto.Clone(c.config).(*QueueConfig)
}

// awaitSettings waits until a queue's settings are of a revision.
func awaitSettings(t *testing.T, g *Group, revision uint64) *QueueConfig {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		var have *QueueConfig
		g.View(func(m *queue.Machine) { have = m.Config() })
		if have.Revision == revision {
			return have
		}
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not in time: settings of revision %d, they are %v", revision, have)
		}
	}
}

// A leader brings its queue in line with the catalog, also with changes that
// follow each other faster than they are committed and end where they began.
// It leaves the settings alone while its catalog is behind them.
func TestSettingsFollowTheCatalog(t *testing.T) {
	c := &catalogOf{}
	n := mustHost(t, t.TempDir(), func(h *HostConfig) { h.Settings = c.get })
	c.set(1, 7)
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	ids := []fsm.GroupID{1}
	barrier := func() {
		t.Helper()
		if err := g.Barrier(patience); err != nil {
			t.Fatal(err)
		}
	}
	if have := awaitSettings(t, g, 1); have.TtlPlusOne != 7 {
		t.Fatalf("a new leader leaves the settings at %v", have)
	}
	for revision := uint64(2); revision <= 51; revision++ {
		c.set(revision, 7+revision%2)
		n.Reconfigure(ids)
	}
	if have := awaitSettings(t, g, 51); have.TtlPlusOne != 8 {
		t.Errorf("in the end the settings are %v", have)
	}
	barrier()
	at := g.Progress().Last
	n.Reconfigure(ids)
	g.in().settings.propose(true)
	c.set(50, 99) // a view of the past
	g.in().settings.propose(false)
	g.in().settings.propose(true)
	barrier()
	if have := awaitSettings(t, g, 51); have.TtlPlusOne != 8 || g.Progress().Last > at+1 {
		t.Errorf("settings %v at index %d, want no entry but a barrier after %d", have, g.Progress().Last, at)
	}
	// An entry that was under way when a newer one overtook it.
	old := &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &QueueConfig{Revision: 50, TtlPlusOne: 99}}}
	mustSubmit(t, g, Batch{Commands: AppendCommand(nil, old), Count: 1})
	barrier()
	if have := awaitSettings(t, g, 51); have.TtlPlusOne != 8 {
		t.Errorf("older settings have replaced newer ones: %v", have)
	}
}

// Settings whose entry is lost are proposed again.
func TestLostSettings(t *testing.T) {
	c := &catalogOf{}
	n := mustHost(t, t.TempDir(), func(h *HostConfig) { h.Settings = c.get })
	c.set(1, 7)
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	awaitSettings(t, g, 1)
	c.set(2, 9)
	g.in().settings.mu.Lock()
	g.in().settings.proposed = c.get(0) // as if it were in an entry that never came
	g.in().settings.mu.Unlock()
	g.in().settings.propose(false)
	g.in().settings.lost()
	g.in().settings.lost()
	if have := awaitSettings(t, g, 2); have.TtlPlusOne != 9 {
		t.Errorf("the settings are %v", have)
	}
}
