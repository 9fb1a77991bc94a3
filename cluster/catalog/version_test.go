package catalog

import (
	"bytes"
	"errors"
	"log/slog"
	"runtime"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A program that is too old for an entry, or for a snapshot, ends.
func TestTooOld(t *testing.T) {
	exits := make(chan int, 1)
	exit := func(code int) {
		exits <- code
		runtime.Goexit() // as the process would
	}
	logger := slog.New(slog.DiscardHandler)
	view := func(newest uint32) *catalogApplier {
		return &New(Config{Newest: newest, Exit: exit, Logger: logger, Changed: func(Change) {}}).applier
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
		{"an entry", func() { view(1).Apply(raise(2)) }},
		{"an entry that raises the version", func() { view(1).Apply(raise(1)) }},
		{"a snapshot", func() { _ = view(1).restore(snapshot) }},
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
	if err := view(2).restore(snapshot); err != nil {
		t.Error(err)
	}
}

// An entry of a later version is refused as one: once it is committed, the node has to end.
func TestLaterVersionIsNamed(t *testing.T) {
	err := admitCatalogEntry(&raft.Log{Index: 1, Data: mustMarshal(t, &logpb.CatalogEntry{Version: 2})}, 1)
	if later := new(replica.LaterVersion); !errors.As(err, &later) || later.Version != 2 || later.Newest != 1 {
		t.Error(err)
	}
	if later := new(replica.LaterVersion); errors.As(admitCatalogEntry(&raft.Log{Index: 1, Data: []byte("no entry")}, 1), &later) {
		t.Errorf("what is no entry is of version %d", later.Version)
	}
}

// An entry that another node sends is refused where it would end the replica that
// applies it, or take many times its length.
func TestEntriesOfALeader(t *testing.T) {
	entry := func(version uint32, commands ...*logpb.CatalogCommand) []byte {
		return mustMarshal(t, &logpb.CatalogEntry{Version: version, Commands: commands})
	}
	raise := func(to int64) *logpb.CatalogCommand {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: to}}}
	}
	for name, c := range map[string]struct {
		data []byte
		ok   bool
	}{
		"a setting":             {entry(1, raise(1)), true},
		"no commands":           {entry(1), true},
		"garbage":               {[]byte("garbage"), false},
		"of a later version":    {entry(2, raise(1)), false},
		"to a later version":    {entry(1, raise(2)), true},
		"an empty command":      {entry(1, &logpb.CatalogCommand{}), false},
		"many commands":         {bytes.Repeat([]byte{3<<3 | 2, 0}, maxCatalogCommands+1), false},
		"a long entry":          {make([]byte, MaxEntry+1), false},
		"a recovered cluster's": {entry(1, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_RecoverCluster{RecoverCluster: &logpb.RecoverCluster{}}}), true},
	} {
		if err := admitCatalogEntry(&raft.Log{Data: c.data}, 1); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if admitCatalogEntry(&raft.Log{Data: entry(1), Extensions: []byte("x")}, 1) == nil {
		t.Error("a payload")
	}
}
