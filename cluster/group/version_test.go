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

// A program that is too old for an entry ends.
func TestTooOld(t *testing.T) {
	exits := make(chan int, 1)
	exit := func(code int) {
		exits <- code
		runtime.Goexit() // as the process would
	}
	logger := slog.New(slog.DiscardHandler)
	h := &Node{config: Config{Newest: 1, Exit: exit, Logger: logger}}
	a := &applier{node: &applierNode{newest: 1, fail: h.fail}, machine: h.newMachine(Spec{Name: "q", Queue: 1})}
	done := make(chan bool, 1)
	go func() {
		ended := true
		defer func() { done <- ended }()
		a.applyEntry(&raft.Log{Index: 1, Data: mustMarshal(t, &logpb.Entry{Version: 2, Commands: []*logpb.Command{{Kind: logpb.Command_TICK}}})}, false)
		ended = false
	}()
	if !<-done {
		t.Error("an entry of a newer version: the node goes on")
	} else if code := <-exits; code != replica.CodeTooOld {
		t.Errorf("exit code %d", code)
	}
	if a.machine.Index() != 0 {
		t.Errorf("the entry is applied: %v", a.machine)
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

// An entry of a later version is refused as one: once it is committed, the node has to end.
func TestLaterVersionIsNamed(t *testing.T) {
	tick := &logpb.Entry{Version: 2, Commands: []*logpb.Command{{Kind: logpb.Command_TICK}}}
	err := admitEntry(&raft.Log{Index: 1, Data: mustMarshal(t, tick)}, 1)
	if later := new(replica.LaterVersion); !errors.As(err, &later) || later.Version != 2 || later.Newest != 1 {
		t.Error(err)
	}
	if later := new(replica.LaterVersion); errors.As(admitEntry(&raft.Log{Index: 1, Data: []byte("no entry")}, 1), &later) {
		t.Errorf("what is no entry is of version %d", later.Version)
	}
}
