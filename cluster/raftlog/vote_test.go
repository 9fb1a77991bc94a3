package raftlog

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// A vote is two values. A crash between them leaves no vote, rather than one in
// the new term for the candidate of an earlier one, which raft would repeat
// without comparing logs.
func TestVoteIsWholeOrNone(t *testing.T) {
	fs := vfs.NewMem()
	dir := t.TempDir()
	stores := map[string]func(last raft.StableStore) raft.StableStore{
		"queue": func(last raft.StableStore) raft.StableStore {
			if last == nil {
				return mustGroup(t, mustOpen(t, fs, "db"), 1)
			}
			return reopen(t, fs, last.(*Group))
		},
		"catalog": func(last raft.StableStore) raft.StableStore {
			if last != nil {
				must(t, last.(*Catalog).Close())
			}
			c, err := OpenCatalog(dir, CatalogOptions{Exit: func(int) { panic("exit") }})
			must(t, err)
			return c
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			s := open(nil)
			mustVote := func(term uint64, candidate string) {
				t.Helper()
				gotTerm, err := s.GetUint64([]byte(VoteTermKey))
				must(t, err)
				got, err := s.Get([]byte(VotedForKey))
				must(t, err)
				if gotTerm != term || string(got) != candidate || candidate == "" && got != nil {
					t.Fatalf("the vote of term %d is for %q (nil: %v), want term %d, %q", gotTerm, got, got == nil, term, candidate)
				}
			}
			must(t, s.SetUint64([]byte(TermKey), 5))
			must(t, s.SetUint64([]byte(VoteTermKey), 5))
			must(t, s.Set([]byte(VotedForKey), []byte("a")))
			s = open(s)
			mustVote(5, "a")
			must(t, s.SetUint64([]byte(TermKey), 6))
			mustVote(5, "a") // a term that nobody has asked in yet
			must(t, s.SetUint64([]byte(VoteTermKey), 6))
			mustVote(6, "")
			s = open(s) // the crash
			mustVote(5, "a")
			if term, err := s.GetUint64([]byte(TermKey)); term != 6 || err != nil {
				t.Errorf("the term is %d, %v", term, err)
			}
			must(t, s.SetUint64([]byte(VoteTermKey), 6))
			mustVote(6, "")
			must(t, s.Set([]byte(VotedForKey), []byte("b")))
			must(t, s.SetUint64([]byte(VoteTermKey), 6)) // once more for the same one
			mustVote(6, "b")
			s = open(s)
			mustVote(6, "b")
			switch s := s.(type) {
			case *Group:
				must(t, s.s.Close())
			case *Catalog:
				must(t, s.Close())
			}
		})
	}
}

// When power is lost, a vote is there as soon as its candidate is stored, and with it its term; what is left before is
// the last vote.
func TestVoteIsDurable(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, fs, "db")
	g := mustGroup(t, s, 1)
	left := func() (now, term uint64, candidate string) {
		t.Helper()
		crashed := mustOpen(t, fs.CrashClone(vfs.CrashCloneCfg{}), "db")
		h := mustGroup(t, crashed, 1)
		if d := h.Doubt(); d != "" {
			t.Fatalf("doubt: %s", d)
		}
		now, err := h.GetUint64([]byte(TermKey))
		must(t, err)
		term, err = h.GetUint64([]byte(VoteTermKey))
		must(t, err)
		got, err := h.Get([]byte(VotedForKey))
		must(t, err)
		must(t, crashed.Close())
		return now, term, string(got)
	}
	last := ""
	for term := uint64(1); term <= 5; term++ {
		must(t, g.SetUint64([]byte(TermKey), term))
		must(t, g.SetUint64([]byte(VoteTermKey), term))
		if now, at, c := left(); now < term-1 || now > term || at != term-1 || c != last {
			t.Errorf("before a candidate is stored in term %d: term %d, a vote in %d for %q", term, now, at, c)
		}
		last = string(rune('a' + term))
		must(t, g.Set([]byte(VotedForKey), []byte(last)))
		if now, at, c := left(); now != term || at != term || c != last {
			t.Errorf("a vote in term %d for %q is left in term %d as one in %d for %q", term, last, now, at, c)
		}
	}
	must(t, s.Close())
}
