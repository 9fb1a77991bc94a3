package raftlog

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"
)

func TestCatalog(t *testing.T) {
	dir := t.TempDir()
	open := func() *Catalog {
		t.Helper()
		c, err := OpenCatalog(dir, CatalogOptions{Exit: func(int) { panic("exit") }})
		must(t, err)
		return c
	}
	c := open()
	if n, err := c.GetUint64([]byte("CurrentTerm")); n != 0 || err != nil {
		t.Errorf("missing number: %d, %v", n, err)
	}
	if v, err := c.Get([]byte("LastVoteCand")); len(v) != 0 || err != nil {
		t.Errorf("missing value: %q, %v", v, err)
	}
	if past, err := raft.HasExistingState(c, c, c.Snapshots()); past || err != nil {
		t.Errorf("an empty store has a past: %v, %v", past, err)
	}
	must(t, c.StoreLog(makeLog(1, 1)))
	must(t, c.StoreLogs(makeLogs(2, 9, 1)))
	must(t, c.DeleteRange(1, 3))
	must(t, c.SetUint64([]byte("CurrentTerm"), 5))
	must(t, c.Set([]byte("LastVoteCand"), []byte("b")))
	_, trans := raft.NewInmemTransport("")
	k, err := c.Snapshots().Create(1, 6, 1, testConfig, 1, trans)
	must(t, err)
	k.(*Sink).SetLive(nil)
	_, err = k.Write([]byte("state"))
	must(t, err)
	must(t, k.Close())
	must(t, k.Close())
	must(t, c.Close())

	c = open()
	defer c.Close()
	first, err := c.FirstIndex()
	must(t, err)
	last, err := c.LastIndex()
	must(t, err)
	if first != 4 || last != 9 {
		t.Errorf("log is %d to %d", first, last)
	}
	var l raft.Log
	must(t, c.GetLog(7, &l))
	if !bytes.Equal(l.Data, makeLog(7, 1).Data) || l.Term != 1 {
		t.Errorf("entry %+v", l)
	}
	if err := c.GetLog(3, &l); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("entry 3: %v", err)
	}
	if n, err := c.GetUint64([]byte("CurrentTerm")); n != 5 || err != nil {
		t.Errorf("number %d, %v", n, err)
	}
	list, err := c.Snapshots().List()
	must(t, err)
	if len(list) != 1 || list[0].Index != 6 {
		t.Fatalf("snapshots %v", list)
	}
	_, r, err := c.Snapshots().Open(list[0].ID)
	must(t, err)
	defer r.Close()
	state, err := ReadState(r)
	must(t, err)
	if b, err := io.ReadAll(state); string(b) != "state" || err != nil {
		t.Errorf("state %q, %v", b, err)
	}
}

func TestCatalogIsLocked(t *testing.T) {
	dir := t.TempDir()
	c, err := OpenCatalog(dir, CatalogOptions{})
	must(t, err)
	defer c.Close()
	if d, err := OpenCatalog(dir, CatalogOptions{}); err == nil {
		d.Close()
		t.Error("two processes share a catalog")
	}
}
