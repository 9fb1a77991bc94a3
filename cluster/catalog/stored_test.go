package catalog

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// The catalog of a node at rest is read with its snapshot and what follows it.
func TestStoredCatalog(t *testing.T) {
	store, err := raftlog.OpenCatalog(filepath.Join(t.TempDir(), "catalog"), raftlog.CatalogOptions{Exit: func(int) { panic("exit") }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.StoreLog(threeVoters(1)); err != nil {
		t.Fatal(err)
	}
	c := &catalog.Catalog{}
	for index := uint64(2); index <= 4; index++ {
		e := &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutVhost{
			PutVhost: &logpb.PutVhost{Name: fmt.Sprint("v", index)}}}}}
		data, err := logpb.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.StoreLog(&raft.Log{Index: index, Term: 2, Type: raft.LogCommand, Data: data}); err != nil {
			t.Fatal(err)
		}
		c.Apply(index, e)
		if index != 3 {
			continue
		}
		sink, err := store.Snapshots().Create(1, 3, 2, raft.DecodeConfiguration(threeVoters(1).Data), 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := (catalogSnapshot{c.View()}).Persist(sink); err != nil {
			t.Fatal(err)
		}
		if err := store.DeleteRange(1, 3); err != nil {
			t.Fatal(err)
		}
	}
	s, view, err := Inspect(store)
	if err != nil || s.Last != 4 || len(s.Voters) != 3 || view.Index() != 4 {
		t.Fatalf("%+v, %v", s, err)
	}
	if len(view.VHosts()) != 3 {
		t.Errorf("%v", view.VHosts())
	}
}

// threeVoters is a configuration's entry.
func threeVoters(index uint64) *raft.Log {
	var c raft.Configuration
	for _, n := range trioNames {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(n), Address: raft.ServerAddress(n)})
	}
	return &raft.Log{Index: index, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)}
}

// The goroutine that applies the catalog's entries does not stand for a snapshot, however much is in that.
func TestCatalogSnapshotIsWrittenLater(t *testing.T) {
	a := catalogApplier{machine: &catalog.Catalog{}}
	e := &logpb.CatalogEntry{Version: 1}
	for i := range 100 {
		e.Commands = append(e.Commands, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: fmt.Sprint("v", i)}}})
	}
	a.machine.Apply(1, e)
	if n := testing.AllocsPerRun(10, func() {
		if _, err := a.Snapshot(); err != nil {
			t.Error(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}
