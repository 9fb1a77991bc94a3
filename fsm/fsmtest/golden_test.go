package fsmtest

import (
	"fmt"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/fsmtest/golden"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

const goldenFolder = "testdata/golden"

// TestGolden: logs and snapshots of all versions so far lead to the states
// that they led to when they were recorded. If one does not, replicas of two
// programs differ: see "One version for all machines" in fsm/catalog/DESIGN.md.
func TestGolden(t *testing.T) {
	if golden.Adding() {
		for seed := range 8 {
			name := fmt.Sprintf("%d/%d.golden", fsm.NewestVersion, seed)
			golden.Add(t, filepath.Join(goldenFolder, name), recorded(t, rapid.Custom(generated).Example(seed+100)))
		}
	}
	golden.Each(t, goldenFolder, func(t *testing.T, r *golden.Record) {
		m := newMachine()
		applyRecorded(t, m, r.Before)
		if mustSnapshot(t, m) != string(r.Snapshot) {
			t.Errorf("the snapshot is another one:\n%s\nnot\n%s", m, mustRestore(t, string(r.Snapshot)))
		}
		restored := mustRestore(t, string(r.Snapshot))
		for _, m := range []*queue.Machine{m, restored} {
			applyRecorded(t, m, r.After)
			if hash := fmt.Sprintf("%x", m.Hash()); hash != r.Hash {
				t.Errorf("the state has the hash %s, not %s:\n%s", hash, r.Hash, m)
			}
		}
	})
}

// recorded makes a record of a history, in the newest version at most.
func recorded(t *testing.T, h history) *golden.Record {
	t.Helper()
	m := newMachine()
	r := &golden.Record{}
	for i, e := range h {
		e.header.Version = min(e.header.Version, fsm.NewestVersion)
		data, err := e.header.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		applyAll(m, e)
		x := golden.Entry{Index: e.index, Term: e.term, Data: data}
		if i <= len(h)/2 {
			r.Before = append(r.Before, x)
		} else {
			r.After = append(r.After, x)
		}
		if i == len(h)/2 {
			r.Snapshot = []byte(mustSnapshot(t, m))
		}
	}
	r.Hash = fmt.Sprintf("%x", m.Hash())
	return r
}

func applyRecorded(t *testing.T, m *queue.Machine, entries []golden.Entry) {
	t.Helper()
	for _, x := range entries {
		e := entry{x.Index, x.Term, &logpb.Entry{}}
		if err := e.header.UnmarshalVT(x.Data); err != nil {
			t.Fatal(err)
		}
		applyAll(m, e)
	}
}
