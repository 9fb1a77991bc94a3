package raftlog

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/fsm"
)

// TestLedgerAfterPowerLoss takes all that was not synced away, and the store's
// folder with it: votes, lowered ends and proofs are still there.
func TestLedgerAfterPowerLoss(t *testing.T) {
	for name, c := range map[string]struct {
		act  func(t *testing.T, g *Group)
		want record
	}{
		"vote":                {func(t *testing.T, g *Group) { mustVoteFor(t, g, 8, "b") }, record{term: 8, voteTerm: 8, candidate: "b"}},
		"entry of a new term": {func(t *testing.T, g *Group) { lead(t, g, 9); mustStore(t, g, 1, 1, 9) }, record{term: 9}},
		"snapshot of a new term": {func(t *testing.T, g *Group) {
			lead(t, g, 9)
			must(t, install(g, 50, 2, streamOf(2, "state", []uint64{3, 4}), 100))
		}, record{term: 9}},
		"term alone": {func(t *testing.T, g *Group) { lead(t, g, 9) }, record{}},
		"lowered": {func(t *testing.T, g *Group) {
			mustStore(t, g, 1, 10, 3)
			g.s.ledger.sync()
			must(t, g.DeleteRange(6, 10))
		}, record{index: 5, indexTerm: 3}},
		"proven": {func(t *testing.T, g *Group) {
			mustStore(t, g, 1, 10, 3)
			g.place.change(func(r *record) { r.index, r.doubt = 99, "some" })
			g.s.ledger.sync()
			must(t, g.Prove())
		}, record{index: 10, indexTerm: 3}},
		"installed": {func(t *testing.T, g *Group) {
			must(t, install(g, 50, 2, streamOf(2, "state", []uint64{3, 4}), 100))
			g.s.ledger.sync()
		}, record{index: 50, indexTerm: 2}},
		"damaged":     {func(t *testing.T, g *Group) { g.s.condemn(g.place, "a page") }, record{wipe: true, doubt: "damaged on disk: a page"}},
		"first entry": {func(t *testing.T, g *Group) { mustStore(t, g, 1, 1, 3) }, record{}},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			s := mustOpen(t, fs, "db")
			g := mustGroup(t, s, 1)
			c.act(t, g)
			crashed := fs.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 1))})
			must(t, s.Close())
			l, err := openLedger(crashed, "ledger-db", s.log, s.fatal)
			must(t, err)
			p := l.places[1]
			if p == nil {
				t.Fatal("the group has no slot")
			}
			got := p.get()
			if strings.Contains(name, "entry") || strings.Contains(name, "snapshot") {
				got.index, got.indexTerm = 0, 0 // may be there
			}
			if got != c.want {
				t.Errorf("the ledger has %+v, want %+v", got, c.want)
			}
		})
	}
}

// No flipped bit of a copy goes unnoticed.
func TestLedgerCopiesAreChecked(t *testing.T) {
	r := record{term: 5, voteTerm: 4, candidate: "n1", index: 77, indexTerm: 3, doubt: "why", wipe: true}
	var b [slotCopy]byte
	r.put(&b, 6, 9, 2, slotUsed)
	if c := parseSlot(6, b[:]); c == nil || c.record != r || c.seq != 9 || c.group != 2 || c.state != slotUsed {
		t.Fatalf("read %+v", c)
	}
	if parseSlot(7, b[:]) != nil {
		t.Error("a slot is read in the place of another")
	}
	h := ledgerHead{seq: 3, identity: newIdentity(), boot: 4, hopeless: true, manifest: 8, manifestSize: 100}
	head := h.append(nil)
	if got, ok := parseHead(head); !ok || got != h {
		t.Fatalf("read %+v", got)
	}
	h.seq++
	if newer := h.append(nil); newerHead(head, newer) != h || newerHead(newer, head) != h {
		t.Error("of two copies of the head the older one counts")
	}
	for bit := range 8 * slotCopy {
		b[bit/8] ^= 1 << (bit % 8)
		if c := parseSlot(6, b[:]); c != nil {
			t.Fatalf("bit %d of a slot: %+v", bit, c)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	for bit := range 8 * headCopy {
		head[bit/8] ^= 1 << (bit % 8)
		if got, ok := parseHead(head); ok {
			t.Fatalf("bit %d of a head: %+v", bit, got)
		}
		head[bit/8] ^= 1 << (bit % 8)
	}
}

// Of two copies one is enough. Without either the group is in doubt, and only it.
func TestLedgerCopies(t *testing.T) {
	slot := func(number, copied int64) int64 { return slotsAt + number*slotSpan + copied*slotCopy + 30 }
	for _, c := range []struct {
		name    string
		flips   []int64
		doubted string
	}{
		{"first copy of the head", []int64{20}, ""},
		{"second copy of the head", []int64{headSpan + 20}, ""},
		{"head", []int64{20, headSpan + 20}, doubtBadLedger},
		{"one copy of a slot", []int64{slot(0, 0)}, ""},
		{"the other copy of a slot", []int64{slot(0, 1)}, ""},
		{"slot", []int64{slot(0, 0), slot(0, 1)}, doubtNoSlot},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := stopped(t)
			must(t, mustOpen(t, fs, "db").Close())
			for _, at := range c.flips {
				flip(t, fs, "ledger-db", at, 2)
			}
			for range 2 {
				s := mustOpen(t, fs, "db")
				mustDoubt(t, mustGroup(t, s, 1), c.doubted)
				mustBounds(t, mustGroup(t, s, 1), 1, 10)
				mustHaveVoted(t, mustGroup(t, s, 1), 4, "a")
				if c.name != "head" {
					mustDoubt(t, mustGroup(t, s, 2), "")
				}
				must(t, s.Close())
			}
		})
	}
}

// A slot that was given back has the records of its new group, not the many of
// its former one.
func TestSlotIsUsedAgain(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "db")
	g := mustGroup(t, s, 1)
	for i := uint64(1); i <= 9; i++ {
		must(t, g.StoreLog(makeLog(i, 1)))
	}
	must(t, s.DropGroup(1))
	mustStore(t, mustGroup(t, s, 2), 1, 3, 1)
	must(t, s.Close())
	must(t, fs.RemoveAll("db"))
	s = mustOpen(t, fs, "db")
	if s.ledger.count != 1 || s.Past(1) || !s.Past(2) {
		t.Errorf("%d slots, past %v and %v", s.ledger.count, s.Past(1), s.Past(2))
	}
	mustDoubt(t, mustGroup(t, s, 2), doubtLostStore)
	must(t, s.Close())
}

// A slot of a dropped group has one writer: its new group. That has it from its
// first record on, whichever of the copies the former one has written last.
func TestSlotOfDroppedGroup(t *testing.T) {
	for entries := range uint64(4) {
		fs := vfs.NewMem()
		s := mustOpen(t, fs, "db")
		former := mustGroup(t, s, 1)
		must(t, former.SetUint64([]byte("other"), 1)) // it has a slot
		for i := range entries {
			must(t, former.StoreLog(makeLog(i+1, 1)))
		}
		must(t, s.DropGroup(1))
		mustGroup(t, s, 2).place.claim()
		former.place.acknowledge(99, 9) // of an append that was under way
		must(t, s.Close())
		s = mustOpen(t, fs, "db")
		if ids := s.ledger.groups(); !slices.Equal(ids, []fsm.GroupID{2}) || s.Past(2) || s.ledger.count != 1 {
			t.Errorf("after %d entries: the slot is of %v, with a past: %v; %d slots", entries, ids, s.Past(2), s.ledger.count)
		}
		must(t, s.Close())
	}
}

// What nobody waits for is on disk a moment later, and at the latest when the
// ledger is closed.
func TestLedgerIsSyncedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fatal := func(why string, _ ...any) { t.Error(why) }
		fs := vfs.NewCrashableMem()
		l, err := createLedger(fs, "ledger", slog.New(slog.DiscardHandler), fatal)
		must(t, err)
		l.start()
		mustSay := func(index, manifest uint64) {
			t.Helper()
			crashed, err := openLedger(fs.CrashClone(vfs.CrashCloneCfg{}), "ledger", l.log, fatal)
			must(t, err)
			if got := crashed.place(1).get().index; got != index || crashed.head.manifestSize != manifest {
				t.Errorf("the ledger says entry %d, and %d bytes; want %d, %d", got, crashed.head.manifestSize, index, manifest)
			}
		}
		p := l.place(1)
		p.claim()
		mustSay(0, 0)
		p.acknowledge(7, 2)
		time.Sleep(ledgerLag)
		synctest.Wait()
		mustSay(7, 0)
		l.recordManifest(5, 100)
		time.Sleep(ledgerLag)
		synctest.Wait()
		mustSay(7, 100)
		p.acknowledge(8, 2)
		must(t, l.close())
		mustSay(8, 100)
	})
}

// What a group found out about itself when it was loaded survives a power loss at
// once, and with it what it had acknowledged.
func TestDoubtIsRemembered(t *testing.T) {
	fs := stopped(t)
	old := vfs.NewMem()
	copyDir(t, fs, "db", old, "db")
	s := mustOpen(t, fs, "db")
	mustStore(t, mustGroup(t, s, 1), 11, 11, 4)
	must(t, s.Close())
	must(t, fs.RemoveAll("db"))
	copyDir(t, old, "db", fs, "db")

	disk := crashable(t, fs)
	s = mustOpen(t, disk, "db")
	g := mustGroup(t, s, 1)
	mustDoubt(t, g, "entry 11")
	mustSay := func(end uint64) {
		t.Helper()
		l, err := openLedger(disk.CrashClone(vfs.CrashCloneCfg{}), "ledger-db", s.log, s.fatal)
		must(t, err)
		if r := l.place(1).get(); r.doubt != g.Doubt() || r.index != 11 || g.place.end.index != end {
			t.Errorf("the ledger has %+v, the log ends at %d", r, g.place.end)
		}
	}
	mustSay(10)
	mustStore(t, g, 11, 14, 5) // by a leader that has not come to the end
	g.s.ledger.sync()
	mustSay(14)
	must(t, s.Close())
	s = mustOpen(t, disk, "db")
	mustDoubt(t, mustGroup(t, s, 1), "entry 11")
	must(t, s.Close())
}
