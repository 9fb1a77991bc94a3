package group

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// A machine is of the version that the leader stamps on entries. It is not
// taken back by a leader that knows less, nor by a restart.
func TestVersionOfEntries(t *testing.T) {
	dir := t.TempDir()
	n := mustHost(t, dir)
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	seq := uint64(0)
	for _, step := range []struct{ stamped, want uint32 }{{1, 1}, {2, 2}, {1, 2}} {
		n.raised.Store(step.stamped - 1)
		seq++
		mustSubmit(t, g, enqueues(seq, -1, "m"))
		n.outside.await(t, "the answer", func() bool { return answered(n.outside.outcomes) == seq })
		if got := versionOf(g); got != step.want {
			t.Errorf("after an entry of version %d the machine is of %d, want %d", step.stamped, got, step.want)
		}
	}
	n.shut(t)
	n = mustHost(t, dir)
	g = n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	if err := g.Barrier(patience); err != nil {
		t.Fatal(err)
	}
	if got := versionOf(g); got != 2 {
		t.Errorf("after a restart the machine is of version %d", got)
	}
}

func versionOf(g *Group) (v uint32) {
	g.View(func(m *queue.Machine) { v = m.Version() })
	return v
}

// A program that is too old for an entry, or for a snapshot, ends.
func TestTooOld(t *testing.T) {
	exits := make(chan int, 1)
	exit := func(code int) {
		exits <- code
		runtime.Goexit() // as the process would
	}
	logger := slog.New(slog.DiscardHandler)
	h := &Host{config: Config{Newest: 1, Exit: exit, Logger: logger}}
	a := &applier{node: &applierNode{newest: 1, fail: h.fail}, machine: h.newMachine(Spec{Name: "q", Queue: 1})}
	view := func(newest uint32) *catalogApplier {
		return &NewCatalog(CatalogConfig{Newest: newest, Exit: exit, Logger: logger, Changed: func(CatalogChange) {}}).applier
	}
	raise := func(version uint32) *raft.Log {
		return &raft.Log{Index: 2, Data: mustMarshal(t, &logpb.CatalogEntry{Version: version, Commands: []*logpb.CatalogCommand{
			{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n1", Incarnation: []byte("i"), NewestVersion: 2}}},
			{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: 2}}},
		}})}
	}
	newer := view(2)
	newer.Apply(raise(1))
	snapshot := newer.machine.Snapshot()
	for _, test := range []struct {
		what string
		do   func()
	}{
		{"an entry of a queue", func() {
			a.applyEntry(&raft.Log{Index: 1, Data: mustMarshal(t, &logpb.Entry{Version: 2, Commands: []*logpb.Command{{Kind: logpb.Command_TICK}}})}, false)
		}},
		{"an entry of the catalog", func() { view(1).Apply(raise(2)) }},
		{"an entry that raises the version", func() { view(1).Apply(raise(1)) }},
		{"a snapshot of the catalog", func() { _ = view(1).restore(snapshot) }},
	} {
		done := make(chan bool, 1)
		go func() {
			ended := true
			defer func() { done <- ended }()
			test.do()
			ended = false
		}()
		if !<-done {
			t.Errorf("%s of a newer version: the node goes on", test.what)
		} else if code := <-exits; code != replica.CodeTooOld {
			t.Errorf("%s: exit code %d", test.what, code)
		}
	}
	if a.machine.Index() != 0 {
		t.Errorf("the entry is applied: %v", a.machine)
	}
	if err := view(2).restore(snapshot); err != nil {
		t.Error(err)
	}
}

func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(fmt.Errorf("marshal: %w", err))
	}
	return b
}

// An entry of a later version is refused as one, whoever sends it: once it is committed, the node has to end.
func TestLaterVersionIsNamed(t *testing.T) {
	for what, test := range map[string]struct {
		admits func(*raft.Log, uint32) error
		entry  proto.Message
	}{
		"a queue's":     {admitEntry, &logpb.Entry{Version: 2, Commands: []*logpb.Command{{Kind: logpb.Command_TICK}}}},
		"the catalog's": {admitCatalogEntry, &logpb.CatalogEntry{Version: 2}},
	} {
		err := test.admits(&raft.Log{Index: 1, Data: mustMarshal(t, test.entry)}, 1)
		if later := new(replica.LaterVersion); !errors.As(err, &later) || later.Version != 2 || later.Newest != 1 {
			t.Errorf("%s: %v", what, err)
		}
		if later := new(replica.LaterVersion); errors.As(test.admits(&raft.Log{Index: 1, Data: []byte("no entry")}, 1), &later) {
			t.Errorf("%s: what is no entry is of version %d", what, later.Version)
		}
	}
}
