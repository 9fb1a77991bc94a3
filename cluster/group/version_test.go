package group

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

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
		} else if code := <-exits; code != CodeTooOld {
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

// A program that is too old for what the leader has committed ends. What is not committed is refused,
// and may yet be replaced.
func TestTooOldForTheLeader(t *testing.T) {
	tick := &logpb.Entry{Version: 2, Commands: []*logpb.Command{{Kind: logpb.Command_TICK}}}
	for _, test := range []struct {
		what   string
		admits func(*raft.Log, uint32) error
		entry  proto.Message
	}{
		{"an entry of a queue", admitEntry, tick},
		{"an entry of the catalog", admitCatalogEntry, &logpb.CatalogEntry{Version: 2}},
		{"no entry", admitEntry, nil},
	} {
		exits := make(chan int, 2)
		c := &entryCheck{newest: 1, admits: test.admits, fail: func(code int, _ string) { exits <- code }}
		l := &raft.Log{Index: 1, Data: []byte("no entry")}
		if test.entry != nil {
			l.Data = mustMarshal(t, test.entry)
		}
		for _, committed := range []bool{false, true, true} {
			if c.Entry(l, committed) == nil {
				t.Errorf("%s, committed %v: taken", test.what, committed)
			}
			ends := true
			c.tooOld.Do(func() { ends = false })
			if !committed || test.entry == nil {
				if c.tooOld = (sync.Once{}); ends {
					t.Errorf("%s, committed %v: the node ends", test.what, committed)
				}
			} else if !ends {
				t.Fatalf("%s: the node goes on", test.what)
			}
		}
		if test.entry != nil {
			if code := <-exits; code != CodeTooOld {
				t.Errorf("%s: exit code %d", test.what, code)
			}
		}
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
