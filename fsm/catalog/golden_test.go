package catalog

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/fsmtest/golden"
	"github.com/quorate/quorate/proto/logpb"
)

const goldenFolder = "testdata/golden"

// TestGolden: logs and snapshots of all versions so far lead to the states
// that they led to when they were recorded. They are recorded from scripts.
func TestGolden(t *testing.T) {
	if golden.Adding() {
		paths, err := filepath.Glob("testdata/*.txt")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if r := recorded(t, path); r != nil {
				name := fmt.Sprintf("%d/%s.golden", fsm.NewestVersion, strings.TrimSuffix(filepath.Base(path), ".txt"))
				golden.Add(t, filepath.Join(goldenFolder, name), r)
			}
		}
	}
	golden.Each(t, goldenFolder, func(t *testing.T, r *golden.Record) {
		straight := &Catalog{}
		applyRecorded(t, straight, r.Before)
		if s := encoded(straight.Snapshot()); string(s) != string(r.Snapshot) {
			t.Errorf("the snapshot is another one:\n%s\nnot\n%s", straight, mustRestored(t, r))
		}
		for _, c := range []*Catalog{straight, mustRestored(t, r)} {
			applyRecorded(t, c, r.After)
			if hash := fmt.Sprintf("%x", c.Hash()); hash != r.Hash {
				t.Errorf("the state has the hash %s, not %s:\n%s", hash, r.Hash, c)
			}
		}
	})
}

func mustRestored(t *testing.T, r *golden.Record) *Catalog {
	t.Helper()
	var s logpb.CatalogSnapshot
	if err := logpb.Unmarshal(r.Snapshot, &s); err != nil {
		t.Fatal(err)
	}
	c, err := Restore(&s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// recorded makes a record of a script's entries; nil: there is none, or they
// do not lead to the newest version.
func recorded(t *testing.T, path string) *golden.Record {
	t.Helper()
	s := &script{t: t}
	var all []golden.Entry
	s.applied = func(index uint64, e *logpb.CatalogEntry) {
		all = append(all, golden.Entry{Index: index, Term: 1, Data: encoded(e)})
	}
	datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string { return s.run(d) })
	if len(all) == 0 || s.c.View().FSMVersion() != fsm.NewestVersion {
		return nil
	}
	half := &Catalog{}
	r := &golden.Record{Before: all[:(len(all)+1)/2], After: all[(len(all)+1)/2:], Hash: fmt.Sprintf("%x", s.c.Hash())}
	applyRecorded(t, half, r.Before)
	r.Snapshot = encoded(half.Snapshot())
	return r
}

func applyRecorded(t *testing.T, c *Catalog, entries []golden.Entry) {
	t.Helper()
	for _, x := range entries {
		var e logpb.CatalogEntry
		if err := logpb.Unmarshal(x.Data, &e); err != nil {
			t.Fatal(err)
		}
		c.Apply(x.Index, &e)
	}
}
