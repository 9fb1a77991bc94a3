package raftlog

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"pgregory.net/rapid"
)

// pair is a group and the store that raft's authors keep, which are told the
// same.
type pair struct {
	t    *rapid.T
	own  *Group
	bolt *raftboltdb.BoltStore
	term uint64
	top  uint64 // the highest index so far
}

// TestSameAsBolt drives a group and raft's usual store side by side: to raft
// they must look the same after each step.
func TestSameAsBolt(t *testing.T) {
	dir, n := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		bolt, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, string(rune('a'+n%26))+rapid.StringMatching(`[a-z]{12}`).Draw(t, "file")), NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		defer bolt.Close()
		s, err := Open("db", Options{FS: vfs.NewMem(), CacheBytes: 1 << 20, MemTableBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		g, err := s.Group(1)
		if err != nil {
			t.Fatal(err)
		}
		p := &pair{t: t, own: g, bolt: bolt, term: 1}
		for range 30 {
			p.step()
			p.compare()
		}
	})
}

func (p *pair) both(what string, do func(raft.LogStore, raft.StableStore) error) {
	if a, b := do(p.own, p.own), do(p.bolt, p.bolt); a != nil || b != nil {
		p.t.Fatalf("%s: %v, bolt: %v", what, a, b)
	}
}

func (p *pair) step() {
	first, _ := p.bolt.FirstIndex()
	last, _ := p.bolt.LastIndex()
	switch rapid.IntRange(0, 4).Draw(p.t, "step") {
	case 0, 1:
		p.append(last + 1)
	case 2: // a new leader replaces the end
		if first == 0 {
			return
		}
		from := rapid.Uint64Range(first, last).Draw(p.t, "from")
		p.both("delete the end", func(l raft.LogStore, _ raft.StableStore) error { return l.DeleteRange(from, last) })
		p.compare()
		p.term++
		p.append(from)
	case 3: // behind a snapshot
		if last <= first {
			return
		}
		to := rapid.Uint64Range(first, last-1).Draw(p.t, "to")
		p.both("delete the beginning", func(l raft.LogStore, _ raft.StableStore) error { return l.DeleteRange(first, to) })
	case 4:
		p.term++
		p.both("vote", func(_ raft.LogStore, s raft.StableStore) error {
			return errors.Join(s.SetUint64([]byte("CurrentTerm"), p.term), s.SetUint64([]byte("LastVoteTerm"), p.term),
				s.Set([]byte("LastVoteCand"), []byte("somebody")))
		})
	}
}

func (p *pair) append(from uint64) {
	var logs []*raft.Log
	for i := range rapid.Uint64Range(1, 5).Draw(p.t, "entries") {
		logs = append(logs, makeLog(from+i, p.term))
	}
	p.top = max(p.top, from+uint64(len(logs)))
	p.both("append", func(l raft.LogStore, _ raft.StableStore) error { return l.StoreLogs(logs) })
}

func (p *pair) compare() {
	for _, ask := range []func(raft.LogStore) (uint64, error){raft.LogStore.FirstIndex, raft.LogStore.LastIndex} {
		a, errA := ask(p.own)
		b, errB := ask(p.bolt)
		if a != b || errA != nil || errB != nil {
			p.t.Fatalf("an end is %d, %v; bolt: %d, %v", a, errA, b, errB)
		}
	}
	for i := range p.top + 2 {
		var a, b raft.Log
		errA, errB := getWhole(p.own, i, &a), p.bolt.GetLog(i, &b)
		if !errors.Is(errA, errB) || a.Index != b.Index || a.Term != b.Term || a.Type != b.Type || !bytes.Equal(a.Data, b.Data) || !bytes.Equal(a.Extensions, b.Extensions) {
			p.t.Fatalf("entry %d is %+v, %v; bolt: %+v, %v", i, a, errA, b, errB)
		}
	}
	for _, key := range []string{"CurrentTerm", "LastVoteTerm"} {
		a, _ := p.own.GetUint64([]byte(key))
		b, _ := p.bolt.GetUint64([]byte(key)) // an error where nothing is stored
		if a != b {
			p.t.Fatalf("%s is %d, bolt: %d", key, a, b)
		}
	}
	a, _ := p.own.Get([]byte("LastVoteCand"))
	if b, _ := p.bolt.Get([]byte("LastVoteCand")); !bytes.Equal(a, b) {
		p.t.Fatalf("the candidate is %q, bolt: %q", a, b)
	}
}
