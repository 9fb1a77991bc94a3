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
