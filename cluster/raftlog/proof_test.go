package raftlog

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/fsm"
)

// stopped is a disk with a store that was closed: group 1 with a vote and ten
// entries, group 2 with a snapshot and without entries, group 3 with a vote.
func stopped(t testing.TB) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "db")
	g := mustGroup(t, s, 1)
	mustVoteFor(t, g, 4, "a")
	mustStore(t, g, 1, 10, 4)
	g = mustGroup(t, s, 2)
	mustStore(t, g, 1, 5, 3)
	mustSave(t, g, 5, 3, []byte("state"), 1, 2)
	must(t, g.DeleteRange(1, 5))
	mustVoteFor(t, mustGroup(t, s, 3), 7, "c")
	must(t, s.Close())
	return fs
}

func mustVoteFor(t testing.TB, g *Group, term uint64, candidate string) {
	t.Helper()
	must(t, g.SetUint64([]byte(TermKey), term))
	must(t, g.SetUint64([]byte(VoteTermKey), term))
	must(t, g.Set([]byte(VotedForKey), []byte(candidate)))
}

func mustHaveVoted(t testing.TB, g *Group, term uint64, candidate string) {
	t.Helper()
	now, err := g.GetUint64([]byte(TermKey))
	must(t, err)
	of, err := g.GetUint64([]byte(VoteTermKey))
	must(t, err)
	who, err := g.Get([]byte(VotedForKey))
	must(t, err)
	if now != term || of != term || string(who) != candidate {
		t.Fatalf("group %d: term %d, vote in %d for %q, want %d for %q", g.id, now, of, who, term, candidate)
	}
}

func mustDoubt(t testing.TB, g *Group, why string) {
	t.Helper()
	if d := g.Doubt(); !strings.Contains(d, why) || (d == "") != (why == "") {
		t.Fatalf("group %d is in doubt because of %q, want %q", g.id, d, why)
	}
}

// copyDir copies the files of a directory of a disk in memory.
func copyDir(t testing.TB, from vfs.FS, dir string, to vfs.FS, name string) {
	t.Helper()
	_, err := vfs.Clone(from, to, dir, name, vfs.CloneSync)
	must(t, err)
}

func TestStoreIsHeldAgainstItsLedger(t *testing.T) {
	all := []fsm.GroupID{1, 2, 3}
	for _, c := range []struct {
		name string
		act  func(t *testing.T, fs *vfs.MemFS)
		// doubts of the groups, and of one that the store has never had
		doubts map[fsm.GroupID]string
		past   []fsm.GroupID
	}{
		{"nothing happened", func(*testing.T, *vfs.MemFS) {}, nil, all},
		{"store lost", func(t *testing.T, fs *vfs.MemFS) { must(t, fs.RemoveAll("db")) },
			map[fsm.GroupID]string{1: doubtLostStore, 2: doubtLostStore, 3: doubtLostStore}, all},
		{"ledger lost", func(t *testing.T, fs *vfs.MemFS) { must(t, fs.Remove("ledger-db")) },
			map[fsm.GroupID]string{1: doubtLostLedger, 2: doubtLostLedger, 3: doubtLostLedger}, all},
		{"ledger empty", func(t *testing.T, fs *vfs.MemFS) {
			f, err := fs.Create("ledger-db", vfs.WriteCategoryUnspecified)
			must(t, err)
			must(t, f.Close())
		}, map[fsm.GroupID]string{1: doubtBadLedger, 2: doubtBadLedger, 3: doubtBadLedger}, all},
		{"another store", func(t *testing.T, fs *vfs.MemFS) {
			must(t, fs.RemoveAll("db"))
			copyDir(t, stopped(t), "db", fs, "db")
		}, map[fsm.GroupID]string{1: doubtOtherStore, 2: doubtOtherStore, 3: doubtOtherStore}, all},
		{"store without a stamp", func(t *testing.T, fs *vfs.MemFS) {
			s := mustOpen(t, fs, "db")
			b := s.db.NewBatch()
			s.remove(b, stampKey)
			s.commit(b, nil)
			must(t, s.Close())
		}, map[fsm.GroupID]string{1: doubtBadStamp, 2: doubtBadStamp, 3: doubtBadStamp}, all},
		{"older store", func(t *testing.T, fs *vfs.MemFS) {
			old := vfs.NewMem()
			copyDir(t, fs, "db", old, "db")
			s := mustOpen(t, fs, "db")
			mustStore(t, mustGroup(t, s, 1), 11, 12, 4)
			mustVoteFor(t, mustGroup(t, s, 3), 8, "b")
			must(t, s.Close())
			must(t, fs.RemoveAll("db"))
			copyDir(t, old, "db", fs, "db")
		}, map[fsm.GroupID]string{1: "ends at entry 10, but entry 12"}, all},
		{"store older by one entry", func(t *testing.T, fs *vfs.MemFS) {
			old := vfs.NewMem()
			copyDir(t, fs, "db", old, "db")
			s := mustOpen(t, fs, "db")
			mustStore(t, mustGroup(t, s, 1), 11, 11, 4)
			must(t, s.Close())
			must(t, fs.RemoveAll("db"))
			copyDir(t, old, "db", fs, "db")
		}, map[fsm.GroupID]string{1: "ends at entry 10, but entry 11"}, all},
		{"older ledger", func(t *testing.T, fs *vfs.MemFS) {
			old := vfs.NewMem()
			copyDir(t, fs, "ledger-db", old, "ledger-db")
			must(t, mustOpen(t, fs, "db").Close())
			copyDir(t, old, "ledger-db", fs, "ledger-db")
		}, map[fsm.GroupID]string{1: doubtOldLedger, 2: doubtOldLedger, 3: doubtOldLedger}, all},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := stopped(t)
			c.act(t, fs)
			for round := range 3 { // a doubt stays, a proof as well
				s := mustOpen(t, fs, "db")
				for _, id := range c.past {
					if round < 2 && !s.Past(id) {
						t.Errorf("round %d: group %d has no past", round, id)
					}
				}
				if s.Past(9) {
					t.Error("a group that never was has a past")
				}
				for id := range fsm.GroupID(10) {
					if id == 0 {
						continue
					}
					g := mustGroup(t, s, id)
					if round < 2 {
						mustDoubt(t, g, c.doubts[id])
					} else {
						mustDoubt(t, g, "")
					}
					if round == 1 && g.Doubt() != "" {
						must(t, g.Prove())
						mustDoubt(t, g, "")
					}
				}
				if c.name == "nothing happened" || c.name == "store lost" {
					mustHaveVoted(t, mustGroup(t, s, 1), 4, "a")
					mustHaveVoted(t, mustGroup(t, s, 3), 7, "c")
				}
				if c.name == "older store" {
					mustHaveVoted(t, mustGroup(t, s, 3), 8, "b")
				}
				must(t, s.Close())
			}
		})
	}
}

// A store of a version without ledgers is taken at its word, once.
func TestFirstLedger(t *testing.T) {
	fs := stopped(t)
	s := mustOpen(t, fs, "db")
	b := s.db.NewBatch()
	s.remove(b, stampKey)
	s.commit(b, nil)
	must(t, s.Close())
	must(t, fs.Remove("ledger-db"))
	s = mustOpen(t, fs, "db")
	for id := range fsm.GroupID(4) {
		mustDoubt(t, mustGroup(t, s, id), "")
	}
	must(t, s.Close())
	must(t, fs.RemoveAll("db"))
	s = mustOpen(t, fs, "db")
	mustDoubt(t, mustGroup(t, s, 1), doubtLostStore)
	mustDoubt(t, mustGroup(t, s, 2), doubtLostStore)
	mustHaveVoted(t, mustGroup(t, s, 3), 7, "c")
	must(t, s.Close())
}

func TestDroppedGroupHasNoPast(t *testing.T) {
	fs := stopped(t)
	s := mustOpen(t, fs, "db")
	must(t, s.DropGroup(1))
	must(t, s.DropGroup(2))
	mustStore(t, mustGroup(t, s, 8), 1, 3, 1)
	if s.Past(1) || !s.Past(8) || s.ledger.count != 3 {
		t.Errorf("past %v and %v, %d slots", s.Past(1), s.Past(8), s.ledger.count)
	}
	must(t, s.Close())
	must(t, fs.RemoveAll("db"))
	s = mustOpen(t, fs, "db")
	mustDoubt(t, mustGroup(t, s, 1), "")
	mustDoubt(t, mustGroup(t, s, 2), "")
	mustDoubt(t, mustGroup(t, s, 8), doubtLostStore)
	ids, err := s.GroupIDs()
	must(t, err)
	if len(ids) != 2 || ids[0] != 3 || ids[1] != 8 {
		t.Errorf("groups %v", ids)
	}
	must(t, s.Close())
}

// An entry of another term than the one that was acknowledged is another entry,
// unless a snapshot stands in its place.
func TestEntryOfAnotherTerm(t *testing.T) {
	fs := stopped(t)
	s := mustOpen(t, fs, "db")
	for _, id := range []fsm.GroupID{1, 2} {
		mustGroup(t, s, id).place.change(func(r *record) { r.indexTerm++ })
	}
	must(t, s.Close())
	s = mustOpen(t, fs, "db")
	mustDoubt(t, mustGroup(t, s, 1), "entry 10 is of term 4, but was acknowledged in term 5")
	mustDoubt(t, mustGroup(t, s, 2), "")
	must(t, s.Close())
}

// Raft counts what it finds in the log as acknowledged: the ledger takes it up
// before raft starts.
func TestLedgerIsRaised(t *testing.T) {
	fs := stopped(t)
	s := mustOpen(t, fs, "db")
	mustGroup(t, s, 1).place.change(func(r *record) { r.index, r.indexTerm = 8, 3 })
	must(t, s.Close())
	s = mustOpen(t, fs, "db")
	g := mustGroup(t, s, 1)
	mustDoubt(t, g, "entry 8 is of term 4, but was acknowledged in term 3")
	must(t, g.Prove())
	g.place.change(func(r *record) { r.index = 8 })
	must(t, s.Close())
	s = mustOpen(t, fs, "db")
	g = mustGroup(t, s, 1)
	mustDoubt(t, g, "")
	if r := g.place.get(); r.index != 10 || r.indexTerm != 4 {
		t.Errorf("the ledger has entry %d of term %d, the log ends at 10 of term 4", r.index, r.indexTerm)
	}
	must(t, s.Close())
}

// Of term and vote the later ones count, whoever has them, and the other one
// gets them: each alone has them afterwards.
func TestLaterVoteCounts(t *testing.T) {
	for name, c := range map[string]struct {
		act       func(t *testing.T, g *Group)
		term      uint64
		candidate string
	}{
		"store is ahead": {func(t *testing.T, g *Group) {
			b := g.s.db.NewBatch()
			for key, value := range map[string][]byte{TermKey: {7: 9}, VoteTermKey: {7: 9}, VotedForKey: []byte("z")} {
				g.s.setSealed(b, g.stable.key([]byte(key)), value)
			}
			g.s.commit(b, pebble.Sync)
		}, 9, "z"},
		"ledger is ahead": {func(t *testing.T, g *Group) {
			g.place.change(func(r *record) { r.term, r.voteTerm, r.candidate = 9, 9, "z" })
		}, 9, "z"},
		"store has lost the candidate": {func(t *testing.T, g *Group) {
			b := g.s.db.NewBatch()
			g.s.remove(b, g.stable.key([]byte(VotedForKey)))
			g.s.commit(b, pebble.Sync)
		}, 4, "a"},
		"ledger has lost the candidate": {func(t *testing.T, g *Group) {
			g.place.change(func(r *record) { r.candidate = "" })
		}, 4, "a"},
		"both": {func(t *testing.T, g *Group) { mustVoteFor(t, g, 9, "z") }, 9, "z"},
	} {
		for _, lost := range []string{"db", "ledger-db"} {
			t.Run(name+", then without "+lost, func(t *testing.T) {
				fs := crashable(t, stopped(t))
				s := mustOpen(t, fs, "db")
				c.act(t, mustGroup(t, s, 1))
				if name != "both" {
					must(t, s.Close())
					s = mustOpen(t, fs, "db")
					mustHaveVoted(t, mustGroup(t, s, 1), c.term, c.candidate)
				}
				crashed := fs.CrashClone(vfs.CrashCloneCfg{})
				must(t, s.Close())
				must(t, crashed.RemoveAll(lost))
				s = mustOpen(t, crashed, "db")
				mustHaveVoted(t, mustGroup(t, s, 1), c.term, c.candidate)
				must(t, s.Close())
			})
		}
	}
}
