package raftlog

import (
	"io/fs"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// breaker makes filesystem operations fail once it is on.
type breaker struct {
	on   atomic.Bool
	hits func(errorfs.Op) bool
}

func (b *breaker) MaybeError(op errorfs.Op) error {
	if b.on.Load() && b.hits(op) {
		return errorfs.ErrInjected
	}
	return nil
}

func (b *breaker) String() string { return "(breaker)" }

func isSync(op errorfs.Op) bool {
	switch op.Kind {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		return true
	}
	return false
}

// exits collects exit codes.
type exits chan int

func (e exits) exit(code int) {
	select {
	case e <- code:
	default:
	}
	select {} // a process that has ended does nothing any more
}

// mustExit runs f, which must make the process exit and must not return.
func (e exits) mustExit(t *testing.T, f func()) {
	t.Helper()
	returned := make(chan struct{})
	go func() {
		f()
		close(returned)
	}()
	select {
	case code := <-e:
		if code != ExitCode {
			t.Errorf("exit code %d", code)
		}
	case <-returned:
		t.Fatal("it returned")
	}
	select {
	case <-returned:
		t.Error("it returned after the exit")
	case <-time.After(20 * time.Millisecond):
	}
}

func TestFailedWriteExits(t *testing.T) {
	log := func(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".log") }
	faults := map[string]func(errorfs.Op) bool{
		"write": func(op errorfs.Op) bool { return log(op) && op.Kind == errorfs.OpFileWrite },
		"sync":  func(op errorfs.Op) bool { return log(op) && isSync(op) },
	}
	acts := map[string]func(g *Group){
		"store":   func(g *Group) { _ = g.StoreLogs(makeLogs(11, 20, 1)) },
		"term":    func(g *Group) { _ = g.SetUint64([]byte(TermKey), 9); _ = g.StoreLogs(makeLogs(11, 20, 9)) },
		"vote":    func(g *Group) { _ = g.Set([]byte("LastVoteCand"), []byte("b")) },
		"save":    func(g *Group) { _ = save(g, 5, 1, []byte("state"), nil) },
		"install": func(g *Group) { _ = install(g, 50, 2, streamOf(2, "state", []uint64{3, 4}), 100) },
		"drop":    func(g *Group) { _ = g.s.DropGroup(g.id) },
	}
	for fault, hits := range faults {
		for act, f := range acts {
			t.Run(fault+" "+act, func(t *testing.T) {
				b := &breaker{hits: hits}
				e := make(exits, 1)
				o := testOptions(t, errorfs.Wrap(vfs.NewMem(), b))
				o.Exit = e.exit
				s, err := Open("db", o)
				must(t, err)
				g := mustGroup(t, s, 1)
				mustStore(t, g, 1, 10, 1)
				b.on.Store(true)
				e.mustExit(t, func() { f(g) })
			})
		}
	}
}

func TestFailedFlushExits(t *testing.T) {
	b := &breaker{hits: func(op errorfs.Op) bool {
		return strings.HasSuffix(op.Path, ".sst") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite
	}}
	e := make(exits, 1)
	o := testOptions(t, errorfs.Wrap(vfs.NewMem(), b))
	o.Exit, o.segmentFrom = e.exit, 1<<20 // everything is in Pebble, and fills its table
	s, err := Open("db", o)
	must(t, err)
	g := mustGroup(t, s, 1)
	b.on.Store(true)
	e.mustExit(t, func() {
		for i := uint64(1); ; i++ {
			l := makeLog(i, 1)
			l.Extensions = make([]byte, 100<<10)
			if g.StoreLog(l) != nil {
				return
			}
		}
	})
}

// damage changes one record behind the store's back.
func damage(t *testing.T, g *Group, key []byte) {
	t.Helper()
	v, closer, err := g.s.db.Get(key)
	must(t, err)
	v = append([]byte(nil), v...)
	must(t, closer.Close())
	v[len(v)/2] ^= 1
	must(t, g.s.db.Set(key, v, pebble.Sync))
}

// damageSection changes a bit of a payload section that lies in a segment.
func damageSection(t *testing.T, g *Group, index uint64) {
	t.Helper()
	at := g.locate(index)
	g.s.segments.close()
	flip(t, g.s.segments.fs, g.s.segments.name(at.segment), int64(at.offset+at.size/2), 3)
}

// inSegment reports whether what a key of kindPayload stands for lies in a segment.
func inSegment(g *Group, key []byte) bool {
	return kind(key[0]) == kindPayload && g.locate(lastNumber(key)).segment != 0
}

// TestDamage damages each kind of record in turn. What is read when a group
// is loaded makes it empty and in doubt; the rest ends the process when it
// is read, and makes the group empty and in doubt after that.
func TestDamage(t *testing.T) {
	readLog := func(g *Group) { var l raft.Log; _ = getWhole(g, 33, &l) }
	payload := func(i uint64) func(g *Group) { return func(g *Group) { _, _ = g.Payload(refOf(i, 2)) } }
	stream := func(g *Group) {
		list, _ := g.Snapshots().List()
		_, r, _ := g.Snapshots().Open(list[0].ID)
		for {
			if _, err := r.Read(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}
	for _, c := range []struct {
		name string
		key  func(g *Group) []byte
		read func(g *Group) // nil: found when the group is loaded
	}{
		{"term", func(g *Group) []byte { return g.stable.key([]byte("CurrentTerm")) }, nil},
		{"header", func(g *Group) []byte { return indexKey(kindHeader, 1, 33) }, nil},
		{"pin", func(g *Group) []byte { return indexKey(kindPin, 1, 31) }, nil},
		{"foreign pin", func(g *Group) []byte { return numberKey(kindForeignPin, 1, g.snapshot.installed.number, 13) }, nil},
		{"installed", func(*Group) []byte { return prefixOf(kindInstalled, 1) }, nil},
		{"snapshot", func(*Group) []byte { return prefixOf(kindMeta, 1) }, nil},
		{"running header", func(*Group) []byte { return indexKey(kindHeader, 1, 33) }, readLog},
		{"extent", func(*Group) []byte { return indexKey(kindExtent, 1, 33) }, nil},
		{"extent of a pin", func(*Group) []byte { return indexKey(kindExtent, 1, 31) }, nil},
		{"payload in log", func(*Group) []byte { return indexKey(kindPayload, 1, 33) }, readLog},
		{"payload", func(*Group) []byte { return indexKey(kindPayload, 1, 33) }, payload(33)},
		{"pinned payload", func(*Group) []byte { return indexKey(kindPayload, 1, 31) }, payload(31)},
		{"foreign payload", func(g *Group) []byte { return numberKey(kindForeign, 1, g.snapshot.installed.number, 13) }, payload(13)},
		{"payload in stream", func(g *Group) []byte { return numberKey(kindForeign, 1, g.snapshot.installed.number, 13) }, stream},
		{"state", func(g *Group) []byte { return numberKey(kindChunk, 1, g.snapshot.meta.number, 0) }, stream},
	} {
		damaged := func(t *testing.T, segmentFrom int) {
			fs := vfs.NewMem()
			e := make(exits, 1)
			o := testOptions(t, fs)
			o.Exit, o.segmentFrom = e.exit, segmentFrom
			s, err := Open("db", o)
			must(t, err)
			g := mustGroup(t, s, 1)
			lead(t, g, 2)
			_, _, from := mustRead(t, source(t))
			must(t, install(g, 30, 2, from, 1<<20))
			mustStore(t, g, 31, 40, 2)
			mustSave(t, g, 32, 2, []byte("state"), 13, 31, 32)
			must(t, g.DeleteRange(31, 32))
			mustStore(t, mustGroup(t, s, 2), 1, 5, 1)
			if key := c.key(g); inSegment(g, key) {
				damageSection(t, g, lastNumber(key))
			} else {
				damage(t, g, key)
			}
			forgetCache(g)
			if c.read != nil {
				e.mustExit(t, func() { c.read(g) })
			}
			// The next process.
			s.mu.Lock()
			clear(s.groups)
			s.mu.Unlock()
			mustBeEmptied(t, s, 1)
			mustPayload(t, mustGroup(t, s, 2), 1, 1, 2, 3, 4)
			must(t, s.DropGroup(1))
			g = mustGroup(t, s, 1)
			mustBounds(t, g, 0, 0)
			mustDoubt(t, g, "")
			if ids, err := s.GroupIDs(); err != nil || len(ids) != 1 || ids[0] != fsm.GroupID(2) {
				t.Errorf("groups %v, %v", ids, err)
			}
		}
		t.Run(c.name+", segments", func(t *testing.T) { damaged(t, 1) })
		if !strings.HasPrefix(c.name, "extent") {
			t.Run(c.name, func(t *testing.T) { damaged(t, 0) })
		}
	}
}

// mustBeEmptied checks that a damaged group has nothing but its term, and is
// in doubt, in this process and in the next.
func mustBeEmptied(t *testing.T, s *Store, id fsm.GroupID) {
	t.Helper()
	g := mustGroup(t, s, id)
	mustBounds(t, g, 0, 0)
	mustDoubt(t, g, "damaged on disk")
	if g.SnapshotIndex() != 0 || g.LiveBytes() != 0 {
		t.Errorf("group %d is not empty", id)
	}
	if term, err := g.GetUint64([]byte(TermKey)); term != 2 || err != nil {
		t.Errorf("term %d, %v", term, err)
	}
	it, err := s.db.NewIter(nil)
	must(t, err)
	n := 0
	for _, k := range kinds {
		p := prefixOf(k, id)
		for ok := it.SeekGE(p); ok && hasPrefix(it.Key(), p); ok = it.Next() {
			n++
		}
	}
	must(t, it.Close())
	if n != 1 {
		t.Errorf("%d records, want the term only", n)
	}
}

// A payload section that is not of the size that its header says is damaged,
// although its checksum is right.
func TestPayloadOfAnotherSize(t *testing.T) {
	e := make(exits, 1)
	o := testOptions(t, vfs.NewMem())
	o.Exit, o.segmentFrom = e.exit, 0
	s, err := Open("db", o)
	must(t, err)
	g := mustGroup(t, s, 1)
	lead(t, g, 2)
	mustStore(t, g, 1, 4, 2)
	key := indexKey(kindPayload, 1, 3)
	must(t, s.db.Set(key, seal(key, []byte("another")), pebble.Sync))
	forgetCache(g)
	e.mustExit(t, func() { var l raft.Log; _ = getWhole(g, 3, &l) })
}

// A record under another record's key is damaged, although it is whole.
func TestRecordOfAnotherKey(t *testing.T) {
	e := make(exits, 1)
	o := testOptions(t, vfs.NewMem())
	o.Exit = e.exit
	s, err := Open("db", o)
	must(t, err)
	g := mustGroup(t, s, 1)
	mustStore(t, g, 1, 8, 1)
	v, closer, err := s.db.Get(indexKey(kindPayload, 1, 1))
	must(t, err)
	must(t, s.db.Set(indexKey(kindPayload, 1, 8), v, pebble.Sync)) // of the same size
	must(t, closer.Close())
	forgetCache(g)
	e.mustExit(t, func() { _, _ = g.Payload(refOf(8, 1)) })
}

func TestMissingEntryIsDamage(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	mustStore(t, g, 1, 9, 1)
	must(t, g.s.db.Delete(indexKey(kindHeader, 1, 4), pebble.Sync))
	must(t, g.s.Close())
	s := mustOpen(t, fs, "db")
	defer s.Close()
	g = mustGroup(t, s, 1)
	mustBounds(t, g, 0, 0)
	mustDoubt(t, g, "entry 4 is missing")
}

// A read that finds no file descriptor waits until there are some again. The process ends only if there is none
// for a long time.
func TestReadWaitsForDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := make(exits, 100)
		s := &Store{log: slog.New(slog.DiscardHandler), exit: func(code int) { e <- code }}
		short := func(err error, times int) {
			for range times {
				s.readFailed(1, "entry 1", &fs.PathError{Op: "open", Path: "1.seg", Err: err})
			}
		}
		waits := int(descriptorWait / descriptorPause)
		began := time.Now()
		short(syscall.EMFILE, waits)
		time.Sleep(time.Minute) // there were some again
		short(syscall.ENFILE, waits)
		if took := time.Since(began); len(e) > 0 || took != 2*descriptorWait+time.Minute {
			t.Errorf("%d ends after %v", len(e), took)
		}
		short(syscall.EMFILE, 2)
		if len(e) != 1 || <-e != ExitCode {
			t.Errorf("none for more than %v: %d ends", descriptorWait, len(e))
		}
		if short(syscall.EIO, 1); len(e) != 1 {
			t.Error("an error of the disk ends nothing")
		}
	})
}
