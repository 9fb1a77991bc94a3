package raftlog

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"
)

// foundedBy is a founding by this member and, unless it is single, two others.
func foundedBy(single bool) (f Founding) {
	f.Owner = "q"
	for _, n := range []raft.ServerID{"me", "a", "b"} {
		f.Members.Servers = append(f.Members.Servers, raft.Server{ID: n, Address: raft.ServerAddress(n)})
		if single {
			break
		}
	}
	return f
}

// mustBeFounded compares the beginning of a group with its founding.
func mustBeFounded(t testing.TB, g *Group, f Founding) {
	t.Helper()
	var l raft.Log
	must(t, g.GetLog(1, &l))
	if want := f.log(); l.Term != want.Term || l.Type != want.Type || !bytes.Equal(l.Data, want.Data) {
		t.Fatalf("the log begins with %+v", l)
	}
	if owner, err := g.Get([]byte(OwnerKey)); err != nil || string(owner) != f.Owner {
		t.Fatalf("it belongs to %q, %v", owner, err)
	}
}

// A group is founded without a write, and has then what all its members have. What it is founded with is durable with the
// first entry, for which the store is synced once.
func TestFoundingIsWrittenWithWhatComesNext(t *testing.T) {
	disk, count := vfs.NewCrashableMem(), &syncCount{}
	var writes atomic.Int64
	fs := errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			writes.Add(1)
		}
		return count.MaybeError(op)
	}))
	s := mustOpen(t, fs, "db")
	g, f := mustGroup(t, s, 1), foundedBy(false)
	s.ledger.sync() // nothing is left to be written in the background
	before := writes.Load()
	if !g.Found(f) {
		t.Fatal("it has a past")
	}
	mustBeFounded(t, g, f)
	mustHaveVoted(t, g, 1, "me")
	mustBounds(t, g, 1, 1)
	if writes.Load() != before || !g.IsUnborn() {
		t.Error("something is written")
	}
	log, ledger := count.log.Load(), count.ledger.Load()
	g.Overlap()
	mustStore(t, g, 2, 3, 1)
	g.awaitDurable()
	if log, ledger := count.log.Load()-log, count.ledger.Load()-ledger; log != 1 || ledger > 2 {
		t.Errorf("%d syncs of the store, %d of the ledger", log, ledger) // one of the ledger may be for the entries
	}
	g = mustGroup(t, mustOpen(t, disk.CrashClone(vfs.CrashCloneCfg{}), "db"), 1)
	if g.Doubt() != "" || g.IsUnborn() || g.Found(f) {
		t.Errorf("it is founded anew: %q", g.Doubt())
	}
	mustBeFounded(t, g, f)
	mustHaveVoted(t, g, 1, "me")
	mustBounds(t, g, 1, 3)
}

// Whatever is written first, and wherever the power fails, a group that is founded stands by what others know of it, and is
// in no doubt. QUORATE_CRASH_RUNS sets the number of histories, QUORATE_CRASH_SEED the first one.
func TestFoundingSurvivesPowerLoss(t *testing.T) {
	runs, first := 25*envOr("QUORATE_CRASH_RUNS", 6), envOr("QUORATE_CRASH_SEED", 1)
	failures := 0
	for seed := first; seed < first+runs && !t.Failed(); seed++ {
		p := &promiser{
			t: t, r: rand.New(rand.NewPCG(uint64(seed), 9)), power: rand.New(rand.NewPCG(uint64(seed), 10)),
			disk: vfs.NewCrashableMem(), odds: 6, born: true, votes: map[uint64]string{1: "me"},
		}
		single := seed%5 == 0
		p.open(single)
		for again := 0; again < 3 && !t.Failed(); again++ {
			p.arm(true)
			for step := 0; step < 8 && !p.failed(); step++ {
				p.step(single)
			}
			p.g.awaitDurable()
			if !p.failed() {
				break
			}
			failures++
			p.restart(seed, again, single)
			p.arm(false)
			mustBeFounded(t, p.g, foundedBy(single))
		}
		p.arm(false)
		must(t, p.g.s.Close())
	}
	if t.Logf("%d power failures", failures); failures < runs {
		t.Errorf("only %d power failures", failures)
	}
}

// A group of which nothing is stored votes with others, and its founding is stored with the vote.
func TestUnbornVotes(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s := mustOpen(t, disk, "db")
	f := foundedBy(false)
	g := mustGroup(t, s, 3) // it was awake, and has written nothing
	g.Found(f)
	ballots := []Ballot{
		{Group: 1, Term: 2, Index: 1, IndexTerm: 1, Founding: &f},
		{Group: 2, Term: 1, Index: 1, IndexTerm: 1, Founding: &f}, // its vote is another's
		{Group: 3, Term: 4, Index: 9, IndexTerm: 3, Founding: &f},
		{Group: 4, Term: 2, Index: 0, IndexTerm: 0, Founding: &f}, // who asks has less
		{Group: 5, Term: 2, Index: 1, IndexTerm: 1},
	}
	if votes := s.Vote("b", ballots); fmt.Sprint(votes) != "[true false true false false]" {
		t.Fatalf("votes %v", votes)
	}
	if votes := s.Vote("a", ballots[:1]); votes[0] {
		t.Error("it votes twice in a term")
	}
	s = mustOpen(t, disk.CrashClone(vfs.CrashCloneCfg{}), "db")
	for id, term := range map[uint64]uint64{1: 2, 3: 4} {
		g := mustGroup(t, s, ballots[id-1].Group)
		if g.Doubt() != "" || g.Found(f) {
			t.Errorf("group %d is founded anew: %q", id, g.Doubt())
		}
		mustBeFounded(t, g, f)
		mustHaveVoted(t, g, term, "b")
	}
	if r := (&Records{Store: s}); r.Has(5) || r.Has(9) || !r.Has(1) {
		t.Error("it has other groups")
	}
}

// A doubt is no founding: a group that has lost what it had is not founded anew, whatever of it is left.
func TestLossIsNoFounding(t *testing.T) {
	f := foundedBy(false)
	for name, lose := range map[string]func(disk *vfs.MemFS) error{
		"store":  func(disk *vfs.MemFS) error { return disk.RemoveAll("db") },
		"ledger": func(disk *vfs.MemFS) error { return disk.Remove(ledgerPath(disk, "db")) },
	} {
		t.Run(name, func(t *testing.T) {
			disk := vfs.NewMem()
			s := mustOpen(t, disk, "db")
			g := mustGroup(t, s, 1)
			g.Found(f)
			mustStore(t, g, 2, 3, 1)
			must(t, s.Close())
			must(t, lose(disk))
			g = mustGroup(t, mustOpenQuietly(t, disk), 1)
			if g.Found(f) || g.Doubt() == "" {
				t.Errorf("it is founded anew: %q", g.Doubt())
			}
			if votes := g.s.Vote("b", []Ballot{{Group: 1, Term: 9, Index: 9, IndexTerm: 9, Founding: &f}}); votes[0] {
				t.Error("it votes")
			}
		})
	}
}
