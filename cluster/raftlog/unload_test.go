package raftlog

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// idle makes a group of a store what that of an empty queue is: it has an owner, a term and a vote, the configuration
// and a few small entries.
func idle(t testing.TB, s *Store, id fsm.GroupID) {
	t.Helper()
	g := mustGroup(t, s, id)
	g.Overlap()
	must(t, g.SetOwner(fmt.Sprintf("%q in vhost %q, number %d", fmt.Sprintf("queue-%d", id), "/", id)))
	mustVoteFor(t, g, 2, "n1")
	must(t, g.StoreLog(configLog(1, 1, "n1", "n2", "n3")))
	for i := uint64(2); i < 6; i++ {
		must(t, g.StoreLog(&raft.Log{Index: i, Term: 2, Data: make([]byte, 60)}))
	}
	g.awaitDurable()
}

// A group that is taken up again is what it was, without a write or a sync; the one before is as if it was dropped.
func TestUnload(t *testing.T) {
	count := &syncCount{}
	s, err := Open("db", withoutSegments(testOptions(t, errorfs.Wrap(vfs.NewMem(), count))))
	must(t, err)
	if !s.Unload(1) {
		t.Error("a group that nobody has asked for is in memory")
	}
	g := mustGroup(t, s, 1)
	mustStore(t, g, 1, 10, 1)
	mustSave(t, g, 6, 1, []byte("state"), 2, 4, 8, 9)
	must(t, g.DeleteRange(1, 4))
	mustVoteFor(t, g, 3, "b")
	must(t, g.SetUint64([]byte(TermKey), 4))
	s.ledger.sync()
	log, ledger := count.log.Load(), count.ledger.Load()
	if bytes, _, _ := s.cache.stats(); bytes == 0 {
		t.Fatal("nothing is cached")
	}
	if !s.Unload(1) {
		t.Fatal("it is refused")
	}
	if bytes, _, _ := s.cache.stats(); bytes != 0 || s.Metrics().Groups != 0 {
		t.Errorf("%d bytes of %d groups are in memory", bytes, s.Metrics().Groups)
	}
	if err := errors.Join(g.StoreLog(makeLog(11, 4)), g.SetUint64([]byte(TermKey), 5)); !errors.Is(err, ErrDropped) {
		t.Errorf("who has the group still gets %v", err)
	}
	mustBounds(t, g, 0, 0)

	again := mustGroup(t, s, 1)
	if again == g || mustGroup(t, s, 1) != again {
		t.Error("it is not read once")
	}
	mustDoubt(t, again, "")
	mustBounds(t, again, 5, 10)
	mustEntries(t, again, 5, 10, 1)
	mustPayload(t, again, 1, 2, 4)
	if _, state, _ := mustRead(t, again); string(state) != "state" {
		t.Errorf("the state is %q", state)
	}
	if term, err := again.GetUint64([]byte(TermKey)); term != 4 || err != nil {
		t.Errorf("the term is %d: %v", term, err)
	}
	if l, d := count.log.Load()-log, count.ledger.Load()-ledger; l+d != 0 {
		t.Errorf("%d syncs of the log, %d of the ledger", l, d)
	}
	mustStore(t, again, 11, 12, 4)
	must(t, s.Close())
}

// Of a group that has never written a snapshot, term, vote and headers are read when it is taken up again; of others all.
func TestUnloadRemembersWhatThereIs(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "db")
	idle(t, s, 1)
	for _, plain := range []bool{true, false} {
		if !s.Unload(1) || s.ledger.place(1).isPlain() != plain {
			t.Fatalf("it is unloaded as one without a snapshot: %v", !plain)
		}
		g := mustGroup(t, s, 1)
		mustBounds(t, g, 1, 5)
		mustDoubt(t, g, "")
		if term, err := g.GetUint64([]byte(TermKey)); term != 2 || err != nil || g.voters.count == 0 {
			t.Errorf("term %d, %v, %d voters", term, err, g.voters.count)
		}
		if (g.SnapshotIndex() == 0) != plain {
			t.Errorf("the snapshot is of entry %d", g.SnapshotIndex())
		}
		mustSave(t, g, 4, 2, []byte("state"))
	}
	must(t, s.DropGroup(1))
	idle(t, s, 1)
	must(t, s.Close())
}

// A group that has lost something is not whole because it is read once more.
func TestUnloadKeepsDoubt(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "db")
	s.ledger.place(1).change(func(r *record) { r.index, r.indexTerm = 9, 1 })
	mustDoubt(t, mustGroup(t, s, 1), "entry 9")
	for range 2 {
		if !s.Unload(1) {
			t.Fatal("it is refused")
		}
		mustDoubt(t, mustGroup(t, s, 1), "entry 9")
	}
	must(t, s.Close())
}

// A group stays in memory while it has written what is not durable, while a list of its payload sections is on its way to
// a leader, while a snapshot is being announced, or a value stored, and as long as it has something in segments.
func TestUnloadIsRefused(t *testing.T) {
	o := newOverlapped(t, "a", "b")
	must(t, o.DeleteRange(3, 10)) // of these some have
	durable := func() {
		o.gate.open()
		o.awaitDurable()
	}
	for _, c := range []struct {
		name       string
		begin, end func()
	}{
		{"an entry", func() {
			o.gate.close()
			must(t, o.StoreLog(&raft.Log{Index: 3, Term: 1}))
		}, durable},
		{"a vote", func() {
			o.gate.close()
			mustVoteFor(t, o.Group, 2, "a")
		}, durable},
		{"a list", func() { o.Offer(9) }, o.offered},
		{"a snapshot", o.closing.Lock, o.closing.Unlock},
		{"a value", o.stable.mu.Lock, o.stable.mu.Unlock},
		{"a segment", func() {
			must(t, o.StoreLog(&raft.Log{Index: 4, Term: 2, Extensions: make([]byte, testSegmentFrom)}))
			o.awaitDurable()
		}, func() {
			mustSave(t, o.Group, 4, 2, []byte("state"), 4)
			must(t, o.DeleteRange(1, 4))
			if o.s.Unload(o.id) {
				t.Error("it is unloaded with a pin in a segment")
			}
			o.Release([]uint64{2, 4})
		}},
	} {
		c.begin()
		if o.s.Unload(o.id) {
			t.Fatalf("it is unloaded with %s", c.name)
		}
		c.end()
	}
	if !o.s.Unload(o.id) {
		t.Error("it is refused when all of that is over")
	}
}

// What a group of an empty queue takes in memory, loaded and not.
func TestIdleGroupsAreSmall(t *testing.T) {
	if thorough > 1 {
		t.Skip("the race detector makes everything larger")
	}
	const alone = "QUORATE_ALONE"
	if os.Getenv(alone) != "" {
		if !idleGroupsAreSmall(t) {
			t.Error("that is too much")
		}
		return
	}
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestIdleGroupsAreSmall$", "-test.v") // other tests leave much in the heap, and take it away
	self.Env = append(os.Environ(), alone+"=1")
	if out, err := self.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func idleGroupsAreSmall(t *testing.T) bool {
	t.Helper()
	s := mustOpen(t, vfs.NewMem(), "db")
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const n = 500
	all := func(do func(id fsm.GroupID)) {
		for id := range fsm.GroupID(n) {
			do(id + 1)
		}
	}
	all(func(id fsm.GroupID) { idle(t, s, id) })
	used := heap()
	all(func(id fsm.GroupID) { s.Unload(id) })
	unloaded := heap()
	all(func(id fsm.GroupID) { mustGroup(t, s, id) })
	loaded := heap()
	all(func(id fsm.GroupID) { s.Unload(id) })
	s.groups = nil
	s.ledger.places = nil
	empty := heap()
	used, loaded, unloaded = (used-empty)/n, (loaded-empty)/n, (unloaded-empty)/n
	t.Logf("after use %d, loaded %d, unloaded %d bytes", used, loaded, unloaded)
	must(t, s.Close())
	return used <= 3<<10 && loaded <= 2<<10 && unloaded <= 300 && min(used, loaded, unloaded) > 0
}

// BenchmarkTakeUp unloads groups of empty queues, and takes them up again, with what they have on disk in Pebble's
// memtable, or in five of its tables.
func BenchmarkTakeUp(b *testing.B) {
	for _, where := range []string{"memtable", "tables"} {
		b.Run(where, func(b *testing.B) {
			s, err := Open("db", Options{FS: vfs.NewMem()})
			must(b, err)
			const groups = 5000
			for id := range fsm.GroupID(groups) {
				idle(b, s, id+1)
				if where == "tables" && (id+1)%(groups/5) == 0 {
					must(b, s.db.Flush())
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := range b.N {
				id := fsm.GroupID(n*7919%groups + 1)
				s.Unload(id)
				mustGroup(b, s, id)
			}
			b.StopTimer()
			must(b, s.Close())
		})
	}
}
