package raftlog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// asleepIn lists what the groups say that sleep in a store which was just opened.
func asleepIn(s *Store) map[fsm.GroupID]string {
	all := map[fsm.GroupID]string{}
	(&Records{Store: s}).All(func(a Asleep) { all[a.Group] = fmt.Sprintf("%d/%d in %d: %s", a.IndexTerm, a.Index, a.Term, a.Data) })
	return all
}

// mustSleep gives a group a log and a record.
func mustSleep(t testing.TB, s *Store, id fsm.GroupID) *Group {
	t.Helper()
	g := mustGroup(t, s, id)
	mustVoteFor(t, g, 2, "a")
	mustStore(t, g, 1, 5, 2)
	if !(&Records{}).Put(g, []byte("data")) {
		t.Fatal("it is refused")
	}
	return g
}

// What a group that sleeps has recorded is there after a restart, and after the next; nothing is read for it. Votes and terms
// leave it, and what is in the log by then is not lost.
func TestAsleep(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open("db", withoutSegments(testOptions(t, fs)))
	must(t, err)
	for id := fsm.GroupID(1); id <= 3; id++ {
		mustSleep(t, s, id)
	}
	mustSave(t, mustGroup(t, s, 2), 5, 2, []byte("state"), 1, 2, 3, 4)
	must(t, mustGroup(t, s, 2).DeleteRange(1, 5)) // nothing is left behind the snapshot
	if !(&Records{}).Put(mustGroup(t, s, 2), []byte("other data")) {
		t.Fatal("it is refused")
	}
	if votes := s.Vote("b", []Ballot{{Group: 3, Term: 7, Index: 5, IndexTerm: 2}}); !votes[0] {
		t.Fatal("it does not vote")
	}
	for range 2 {
		must(t, s.Close())
		s, err = Open("db", withoutSegments(testOptions(t, fs)))
		must(t, err)
		want := map[fsm.GroupID]string{1: "2/5 in 2: data", 2: "2/5 in 2: other data", 3: "2/5 in 7: data"}
		if is := asleepIn(s); !maps.Equal(is, want) {
			t.Errorf("there are %v", is)
		}
		if n := s.Metrics().Groups; n > 0 {
			t.Errorf("%d groups were read", n)
		}
	}
	mustEntries(t, mustGroup(t, s, 1), 1, 5, 2)
	must(t, s.Close())
}

// Nothing is recorded of a group that has nothing, of one that has written what is not durable, or of one in doubt.
func TestSleepIsRefused(t *testing.T) {
	o := newOverlapped(t, "a", "b")
	if (&Records{}).Put(mustGroup(t, o.s, 9), nil) {
		t.Error("an empty group sleeps")
	}
	o.gate.close()
	must(t, o.StoreLog(&raft.Log{Index: 11, Term: 1}))
	if (&Records{}).Put(o.Group, nil) {
		t.Error("it sleeps with an entry that is not durable")
	}
	o.gate.open()
	o.awaitDurable()
	o.place.change(func(r *record) { r.doubt = "lost" })
	if (&Records{}).Put(o.Group, nil) {
		t.Error("it sleeps in doubt")
	}
	must(t, o.Prove())
	if !(&Records{}).Put(o.Group, nil) {
		t.Error("it is refused when all of that is over")
	}
}

// A record that does not say what the store has is void: nobody takes the group for what it was then. It is gone with the next
// start, whatever the group is by then, and other groups are not concerned.
func TestVoidRecord(t *testing.T) {
	forget := func(g *Group) { g.place.asleep.Store(false) } // as a program that knows of no records
	put := func(g *Group, change func(v []byte) []byte) {
		key := prefixOf(kindAsleep, g.id)
		v, closer, err := g.s.db.Get(key)
		must(t, err)
		v = change(slices.Clone(v))
		closer.Close()
		must(t, g.s.db.Set(key, v, pebble.NoSync))
	}
	for _, c := range []struct {
		what   string
		change func(g *Group)
	}{
		{"an entry", func(g *Group) { mustStore(t, g, 6, 6, 2) }},
		{"an entry by an older program", func(g *Group) {
			forget(g)
			mustStore(t, g, 6, 6, 2)
			g.place.change(func(r *record) { r.index = 5 }) // the ledger has missed it
		}},
		{"other entries by an older program", func(g *Group) {
			forget(g)
			must(t, g.DeleteRange(5, 5))
			mustStore(t, g, 5, 5, 3)
		}},
		{"fewer entries by an older program", func(g *Group) {
			forget(g)
			must(t, g.DeleteRange(4, 5))
		}},
		{"a snapshot", func(g *Group) { mustSave(t, g, 5, 2, []byte("state")) }},
		{"a snapshot by an older program", func(g *Group) {
			forget(g)
			mustSave(t, g, 5, 2, []byte("state"))
		}},
		{"a snapshot of another configuration", func(g *Group) {
			mustSave(t, g, 5, 2, []byte("state"))
			if !(&Records{}).Put(g, nil) {
				t.Error("it is refused")
			}
			forget(g)
			mustSave(t, g, 5, 2, []byte("state"))
		}},
		{"a leader's snapshot", func(g *Group) {
			must(t, install(g, 5, 2, streamOf(2, "state", nil), 100))
		}},
		{"it is put aside", func(g *Group) { must(t, g.SetUint64([]byte(AsideKey), 1)) }},
		{"it is dropped", func(g *Group) { must(t, g.s.DropGroup(g.id)) }},
		{"it is dropped by an older program, and is back", func(g *Group) {
			key := prefixOf(kindAsleep, g.id)
			v, closer, err := g.s.db.Get(key)
			must(t, err)
			v = slices.Clone(v)
			closer.Close()
			must(t, g.s.DropGroup(g.id))
			must(t, g.s.db.Set(key, v, pebble.NoSync))
		}},
		{"a doubt", func(g *Group) { g.place.change(func(r *record) { r.doubt = "lost" }) }},
		{"damage", func(g *Group) { g.s.condemn(g.place, "a record") }},
		{"the ledger knows of more", func(g *Group) { g.place.change(func(r *record) { r.index = 6 }) }},
		{"the ledger knows of another one", func(g *Group) { g.place.change(func(r *record) { r.indexTerm = 3 }) }},
		{"the ledger does not know it", func(g *Group) { g.s.ledger.forget(g.id) }},
		{"a flipped bit", func(g *Group) {
			put(g, func(v []byte) []byte {
				v[9] ^= 4
				return v
			})
		}},
		{"another version", func(g *Group) {
			put(g, func(v []byte) []byte {
				v[0]++
				return seal(prefixOf(kindAsleep, g.id), v[:len(v)-sealSize])
			})
		}},
		{"it is short", func(g *Group) {
			put(g, func([]byte) []byte { return seal(prefixOf(kindAsleep, g.id), []byte{asleepVersion}) })
		}},
		{"a damaged header", func(g *Group) {
			key := indexKey(kindHeader, g.id, 5)
			must(t, g.s.db.Set(key, make([]byte, 40), pebble.NoSync))
		}},
	} {
		fs := vfs.NewMem()
		s := mustOpen(t, fs, "db")
		mustSleep(t, s, 1)
		mustSleep(t, s, 3)
		c.change(mustSleep(t, s, 2))
		must(t, s.Close())
		for range 2 {
			s = mustOpen(t, fs, "db")
			if is := slices.Sorted(maps.Keys(asleepIn(s))); !slices.Equal(is, []fsm.GroupID{1, 3}) {
				t.Errorf("%s: %v sleep", c.what, is)
			}
			must(t, s.Close())
		}
	}
}

// What the ledger has missed of a group that sleeps is in it again: a power failure takes a moment of it.
func TestAsleepRaisesLedger(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "db")
	mustSleep(t, s, 1).place.change(func(r *record) { r.index, r.indexTerm = 3, 2 })
	must(t, s.Close())
	s = mustOpen(t, fs, "db")
	if is := asleepIn(s); len(is) != 1 {
		t.Fatalf("%v sleep", is)
	}
	if r := s.ledger.place(1).get(); r.index != 5 || r.indexTerm != 2 {
		t.Errorf("the ledger says %+v", r)
	}
	must(t, s.Close())
}

// Damage that concerns only records of groups that sleep puts no group in doubt.
func TestDamagedRecordsAreNoDamage(t *testing.T) {
	key := prefixOf(kindAsleep, 1)
	if touches(pebble.KeyRange{Start: key, End: prefixEnd(key)}, 1) {
		t.Error("the group is concerned")
	}
}

// Segments are given back though their groups sleep and are not read; what these have in sparse ones is moved.
func TestSegmentsOfSleepers(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "db")
	for id := fsm.GroupID(1); id <= 3; id++ {
		g := mustGroup(t, s, id)
		lead(t, g, 1)
		must(t, g.StoreLogs(bigLogs(1, 20)))
	}
	for id := fsm.GroupID(1); id <= 2; id++ {
		g := mustGroup(t, s, id)
		mustSave(t, g, 20, 1, []byte("state"), 2)
		must(t, g.DeleteRange(1, 20))
		g.Release([]uint64{1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20})
		if !(&Records{}).Put(g, nil) {
			t.Fatal("it is refused")
		}
	}
	must(t, s.DropGroup(3))
	must(t, s.Close())

	s = mustOpen(t, fs, "db")
	if is := asleepIn(s); len(is) != 2 {
		t.Fatalf("%v sleep", is)
	}
	if n := s.Metrics().Groups; n > 0 {
		t.Fatalf("%d groups were read", n)
	}
	before := len(segmentFiles(t, fs))
	s.tidySegments(1<<30, 0) // none is sparse
	if n := len(segmentFiles(t, fs)); n > 2 || n >= before {
		t.Errorf("%d segments of %d are left for two sections", n, before)
	}
	if n := s.Metrics().Groups; n > 0 {
		t.Errorf("%d groups were read for that", n)
	}
	for range 3 {
		s.segments.retire()
		s.tidySegments(0, 0)
	}
	mustBeTight(t, s)
	for id := fsm.GroupID(1); id <= 2; id++ {
		mustBig(t, mustGroup(t, s, id), 2)
	}
	must(t, s.Close())

	s = mustOpen(t, fs, "db")
	asleepIn(s)
	must(t, s.DropGroup(1))
	mustBig(t, mustGroup(t, s, 2), 2)
	must(t, checkSegments(s))
	must(t, s.Close())
}

// A group sleeps no more if a power failure may have taken what it has in a segment: who reads it finds out.
func TestAsleepWithOpenSegment(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s := mustOpen(t, disk, "db")
	g := mustGroup(t, s, 1)
	lead(t, g, 1)
	must(t, g.StoreLogs(bigLogs(1, 1)))
	if !(&Records{}).Put(g, nil) {
		t.Fatal("it is refused")
	}
	must(t, s.db.LogData(nil, pebble.Sync))
	left := disk.CrashClone(vfs.CrashCloneCfg{})
	must(t, s.Close())
	s = mustOpen(t, left, "db")
	if is := asleepIn(s); len(is) != 0 {
		t.Errorf("%v sleep", is)
	}
	mustBig(t, mustGroup(t, s, 1), 1)
	must(t, s.Close())
}

// BenchmarkAsleep is what a start reads of 100,000 groups that sleep, each with the log of an empty queue.
func BenchmarkAsleep(b *testing.B) {
	const groups = 100_000
	dir := b.TempDir() + "/db"
	s, err := Open(dir, Options{})
	must(b, err)
	data := []byte(strings.Repeat("x", 200))
	for id := fsm.GroupID(1); id <= groups; id++ {
		g := mustGroup(b, s, id)
		batch, infos := s.db.NewBatch(), make([]info, 5)
		for i := range infos {
			infos[i] = g.putEntry(batch, &raft.Log{Index: uint64(i + 1), Term: 2, Data: make([]byte, 60)}, 0)
		}
		s.commit(batch, pebble.NoSync)
		g.mu.Lock()
		g.entries.append(1, infos, 2)
		g.mu.Unlock()
		g.place.acknowledge(5, 2)
		if !(&Records{}).Put(g, data) || !s.Unload(id) {
			b.Fatal("it is refused")
		}
	}
	must(b, s.Close())
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		s, err = Open(dir, Options{})
		must(b, err)
		b.StartTimer()
		n := 0
		(&Records{Store: s}).All(func(Asleep) { n++ })
		if n != groups {
			b.Fatalf("%d sleep", n)
		}
		b.StopTimer()
		must(b, s.Close())
		b.StartTimer()
	}
}
